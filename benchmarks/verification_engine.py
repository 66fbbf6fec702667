"""What verification costs: the worker's seeded sampling and proofs, and the validator's replay, on the real engine.

    python benchmarks/verification.py --only engine [--json] [--runs 40]

Worker figures: the engine as a worker runs it against the same vLLM with neither seeded sampler nor proofs, which
samples by itself at the same temperature and reports the sampled token's log-probability, as ours does. Both live in
one process and take turns at every forward pass, so that a busy moment hits both; a pair is one batch through each.
`ratio` is the lower end of the 95% confidence interval of the median over the pairs, by order statistics.

Validator figures, with a tenth of the runs: `prefill_over_generate` replays all that a batch of 32 generated;
`validate_over_generate` does with a whole commitment what the default policy asks for (reading the file, its Merkle
root, and the replay checks on the sample) after the worker has made it with all rows side by side.

Speeds are tokens per second of this process's CPU time. Everything here computes on one thread and waits for nothing,
so on an idle machine that is tokens per second; on a busy one it still compares the two. `wall_ratio` is the median by
the clock on the wall. Models have random weights; nothing here depends on what they say.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks import report
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.protocol.terms import LOOK_ROWS
from muster.protocol.terms_file import PUBLIC_DEFAULTS
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from muster.verification.judging import judge
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from worker.engine import Engine, EngineLimits, GenerationRequest, plain_arguments, start_vllm
from worker.rollouts import bare_rows

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

VOCABULARY = 152_000
SMALL = ModelShape()
LARGE = ModelShape(hidden=768, layers=12, heads=12, intermediate=3072)
"""113 million parameters."""
TEMPERATURE = 1.0
PROMPT = 24
COMPLETION = 256
BATCH = 32
PAIR_TOKENS = {"worker_throughput": 8, "sampler_large_vocab": 16}
"""Tokens of each completion in one half of a pair."""
TARGETS = {
    "worker_throughput": 0.98,
    "sampler_large_vocab": 0.97,
    "prefill_over_generate": 1.5,
    "validate_over_generate": 10.0,
}
LIMITS = EngineLimits(temperature=TEMPERATURE, max_prompt_tokens=64, max_completion_tokens=COMPLETION)


# --- The two engines


class PlainEngine:
    """A vLLM without the worker's sampler and proofs."""

    def __init__(self, llm: LLMEngine) -> None:
        self.llm = llm

    def begin(self, requests: Sequence[GenerationRequest]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for i, request in enumerate(requests):
            params = SamplingParams(
                temperature=TEMPERATURE,
                max_tokens=request.max_tokens,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self.llm.add_request(str(i), {"prompt_token_ids": request.prompt_tokens.tolist()}, params)

    def step(self) -> None:
        """Run one forward pass, if requests are left."""
        if self.llm.has_unfinished_requests():
            self.llm.step()

    def finish(self) -> None:
        while self.llm.has_unfinished_requests():
            self.llm.step()

    def generate(self, requests: Sequence[GenerationRequest]) -> None:
        self.begin(requests)
        self.finish()


def make_engine(model_dir: Path) -> Engine:
    """Start the worker's engine, which here never stops before the limit."""
    engine = Engine(model_dir, CPU_FP32, LIMITS)
    engine.stop_tokens = []
    return engine


def make_folder(folder: Path, shape: ModelShape, vocabulary: int | None = None) -> Path:
    """Write a checkpoint with random weights."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, shape, seed=1)
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    save_model(model, tokenizer, folder)
    return folder


def make_requests(count: int, tokens: int, seed: int) -> list[GenerationRequest]:
    random = np.random.default_rng(seed)
    return [
        GenerationRequest(random.integers(20, 100, PROMPT).astype(np.int32), int(random.integers(1 << 62)), tokens)
        for _ in range(count)
    ]


# --- Measuring


def timed(work: Callable[[], Any]) -> tuple[Any, np.ndarray]:
    """Return the result of `work`, and its processor and wall-clock seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, np.array([time.process_time() - cpu, time.perf_counter() - wall])


Pair = tuple[np.ndarray, np.ndarray]
"""Our speed and the peer's, in tokens per second by either clock."""


def worker_pairs(ours: Engine, peer: PlainEngine, tokens: int, runs: int) -> list[Pair]:
    """Run pairs of both engines; the first pair warms them up and does not count."""
    pairs = [side_by_side(ours, peer, make_requests(BATCH, tokens, seed=run)) for run in range(runs + 1)]
    return pairs[1:]


def side_by_side(ours: Engine, peer: PlainEngine, requests: Sequence[GenerationRequest]) -> Pair:
    """Run the same work in both engines, forward pass by forward pass in turns."""
    theirs = np.zeros(2)

    def of_the_peer(work: Callable[[], None]) -> None:
        nonlocal theirs
        theirs = theirs + timed(work)[1]

    step = ours.llm.step

    def step_both() -> Any:
        outputs = step()
        of_the_peer(peer.step)
        return outputs

    of_the_peer(partial(peer.begin, requests))
    before = theirs
    ours.llm.step = step_both  # type: ignore[method-assign]
    try:
        _, both = timed(partial(ours.generate, requests))
    finally:
        ours.llm.step = step  # type: ignore[method-assign]
    own = both - (theirs - before)
    of_the_peer(peer.finish)
    tokens = sum(request.max_tokens for request in requests)
    return tokens / own, tokens / theirs


def prefill_pairs(engine: Engine, replayer: Replayer, runs: int) -> list[Pair]:
    """Time all replay checks on every token that a batch generated, against generating them."""
    pairs = []
    for run in range(runs):
        requests = make_requests(BATCH, COMPLETION, seed=1000 + run)
        generations, generating = timed(partial(engine.generate, requests))
        replaying = replay(replayer, bare_rows(requests, generations))
        pairs.append((BATCH * COMPLETION / replaying, BATCH * COMPLETION / generating))
    return pairs


def validate_pairs(engine: Engine, replayer: Replayer, runs: int) -> list[Pair]:
    """Look at a commitment of the default size, of a node that is no newcomer, against making it."""
    positions = PUBLIC_DEFAULTS["group_size"] * PUBLIC_DEFAULTS["groups_per_commitment"]
    pairs = []
    for run in range(runs):
        requests = make_requests(positions, COMPLETION, seed=2000 + run)
        generations, generating = timed(partial(engine.generate, requests))
        file = write_rollouts(bare_rows(requests, generations))
        rollouts, reading = timed(partial(read_rollouts, file))
        _, hashing = timed(lambda rows=rollouts: rollout_tree(rows).root)
        replaying = replay(replayer, rollouts[:: positions // LOOK_ROWS][:LOOK_ROWS])
        tokens = positions * COMPLETION
        pairs.append((tokens / (reading + hashing + replaying), tokens / generating))
    return pairs


def replay(replayer: Replayer, rollouts: Sequence[Rollout]) -> np.ndarray:
    """Measure how long the replay checks take. They must find nothing: a fast check that is wrong is worth nothing."""
    measurements, took = timed(partial(replayer.replay, rollouts))
    finding = judge(measurements, CPU_FP32)
    if finding is not None:
        raise SystemExit(f"honest work was rejected: {finding}")
    return took


def lower_bound(ratios: Sequence[float]) -> float:
    """Lower end of the 95% confidence interval of the median: the order statistic that 97.5% of samples have below it.

    With fewer than six values there is none, and the smallest stands in for it.
    """
    count, below, rank = len(ratios), 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    return sorted(ratios)[max(0, rank - 1)]


def figure(name: str, pairs: Sequence[Pair], statistic: Callable[[Sequence[float]], float]) -> report.Figure:
    ours, peer = ([float(pair[side][0]) for pair in pairs] for side in (0, 1))
    ratios, wall_ratios = ([float(mine[clock] / theirs[clock]) for mine, theirs in pairs] for clock in (0, 1))
    return report.figure(
        name,
        ours,
        peer=peer,
        ratio=statistic(ratios),
        target=TARGETS[name],
        unit="tokens/s",
        ratio_median=statistics.median(ratios),
        ratio_range=[min(ratios), max(ratios)],
        wall_ratio=statistics.median(wall_ratios),
    )


def measure(name: str, runs: int) -> report.Figure:
    """Measure one figure in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        if name == "sampler_large_vocab":
            model_dir = make_folder(Path(folder), SMALL, VOCABULARY)
        else:
            model_dir = make_folder(Path(folder), LARGE)
        engine = make_engine(model_dir)
        if name in PAIR_TOKENS:
            peer = PlainEngine(start_vllm(model_dir, plain_arguments(model_dir, CPU_FP32, LIMITS)))
            pairs = worker_pairs(engine, peer, PAIR_TOKENS[name], runs)
            return figure(name, pairs, lower_bound)
        replayer = Replayer(model_dir, CPU_FP32, TEMPERATURE)
        warm = make_requests(2, 8, seed=0)
        replay(replayer, bare_rows(warm, engine.generate(warm)))
        few = max(1, runs // 10)
        pairs = (prefill_pairs if name == "prefill_over_generate" else validate_pairs)(engine, replayer, few)
        return figure(name, pairs, statistics.median)


def figures(runs: int, names: Sequence[str] = tuple(TARGETS)) -> list[report.Figure]:
    """Return all figures, each measured in a separate process."""
    return [report.apart(measure, name, runs) for name in names]
