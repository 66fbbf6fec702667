"""A worker's lab at the demo's terms: the real model, tasks, draws, engine and files. Honest by itself.

`AdversaryLab.step` is the checkpoint that is worked on; before it lie `HISTORY` real updates, so that older
weights are as old as they are in a run. What adversaries change is given to `generate` or done to its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from muster.environments.rewards import length_reward
from muster.environments.scoring import Scorers
from muster.models.files import load_tokenizer
from muster.models.init import init_model, load_model, save_model
from muster.proofs.projection import make_proofs
from muster.proofs.seeded_sampling import chosen_logprobs, scale
from muster.protocol.draws import Draw, DrawSource
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import last_turn, one_span, sampled_length
from muster.swarm.plan import LOCAL_TERMS
from muster.tasksets.taskset import TaskSet
from muster.verification.judging import Measurement
from muster.verification.profiles import CPU_FP32, Profile, profile_by_hash, profile_hash
from muster.verification.replay import Replayer, sampled_places, sampled_tokens
from muster.verification.rules import CommittedWork, ModelFacts, Rules
from testbed.samples.task_sets import generated
from testbed.samples.terms import made_terms
from trainer.advantages import AdvantageTerms
from trainer.batches import FileRef, WorkFile, samples_of
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.update import UpdateTerms, make_optimizer, update
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import Assignment, make_requests, make_rollouts

RUNS = "0x" + "11" * 20
HISTORY = 12
"""Updates before the weights that are worked on: the learning rate has been at its full value for two of them."""
LIMITS = EngineLimits(temperature=1.0, max_prompt_tokens=64, max_completion_tokens=48)
"""The demo's, with more room for completions."""
NODE = "0x" + "aa" * 20
OTHER_NODE = "0x" + "bb" * 20
BLOCK = 10
ENTROPY = bytes(32)
"""By which all nodes draw."""


@contextmanager
def open_lab(folder: Path, profile: Profile = CPU_FP32) -> Iterator[AdversaryLab]:
    """Make the demo's model after `HISTORY` updates in `folder`; under another profile than the demo's if asked."""
    torch.set_num_threads(1)
    task_set, model = generated(0), folder / "step-0"
    init_model(model, task_set, seed=0)
    rules = demo_rules(model, task_set, profile)
    engine = Engine(model, profile, LIMITS)
    try:
        replayer = Replayer(model, profile, rules.terms.temperature)
        shop = AdversaryLab([model], rules, engine, replayer, folder)
        shop.checkpoints = train_history(shop, HISTORY)
        yield shop
    finally:
        engine.close()


def demo_rules(model_dir: Path, task_set: TaskSet, profile: Profile) -> Rules:
    """Return the demo's rules."""
    terms = made_terms(LOCAL_TERMS, task_set, profile=profile_hash(profile.name))
    return Rules(
        chain_id=31337,
        runs=RUNS,
        run=1,
        terms=terms,
        task_set=task_set,
        scorers=Scorers(),
        tokenizer=load_tokenizer(model_dir),
        model=ModelFacts.read(model_dir),
    )


@dataclass(frozen=True)
class Job:
    """One commitment to be made: what the chain will say of it, its draw, and what the engine is asked for."""

    commitment: CommittedWork
    draw: Draw
    requests: list[GenerationRequest]

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.commitment.step, self.commitment.index, self.draw)


@dataclass
class AdversaryLab:
    """Everything a worker has, and the model of the validator that inspects its work."""

    checkpoints: list[Path]
    """The run's checkpoints by step."""
    rules: Rules
    engine: Engine
    replayer: Replayer
    folder: Path
    """For whatever an adversary makes."""
    _honest: dict[tuple[str, int, int], list[Rollout]] = field(default_factory=dict)
    _made: dict[str, Path] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return len(self.checkpoints) - 1

    @property
    def profile(self) -> Profile:
        return profile_by_hash(self.rules.terms.profile)

    def job(self, index: int = 0, *, node: str = NODE, step: int | None = None) -> Job:
        """Return the node's commitment of this number."""
        step = self.step if step is None else step
        commitment = CommittedWork(self.rules.run, step, node, index, bytes(32), hour=0, block=BLOCK)
        draw = self.rules.draw(DrawSource(node, ENTROPY, 0), index)
        requests = make_requests(Assignment(step, index, draw), self.rules)
        return Job(commitment, draw, requests)

    # Working

    def generate(
        self,
        job: Job,
        *,
        weights: Path | None = None,
        requests: Sequence[GenerationRequest] | None = None,
        temperature: float | None = None,
    ) -> list[Rollout]:
        """Return the rows for a job. They claim the job's requests, even if the engine got others."""
        right = self.checkpoints[job.commitment.step]
        self.engine.load_weights(weights or right)
        with self._tempered(temperature):
            generations = self.engine.generate(job.requests if requests is None else requests)
        return make_rollouts(job.assignment, self.rules, job.requests, generations)

    def honest(self, job: Job) -> list[Rollout]:
        """Return the rows of an honest worker."""
        c = job.commitment
        key = (c.node, c.index, c.step)
        if key not in self._honest:
            self._honest[key] = self.generate(job)
        return self._honest[key]

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the checkpoint folder of this name, which `make` fills when it is first asked for."""
        if name not in self._made:
            folder = self.folder / name
            make(folder)
            self._made[name] = folder
        return self._made[name]

    @contextmanager
    def _tempered(self, temperature: float | None) -> Iterator[None]:
        if temperature is None:
            yield
            return
        with tempered(self.engine, temperature):
            yield

    # Claiming

    def reward(self, rows: Sequence[Rollout]) -> list[Rollout]:
        """Return the rows with the spans and rewards that their completions really have."""
        rules, rewarded = self.rules, []
        for row in rows:
            tokens = row.completion_tokens
            spans = row.spans if len(row.spans) > 1 else one_span(len(tokens))
            score = rules.score(row.task, last_turn(tokens, spans))
            length = length_reward(row.budget, sampled_length(spans))
            rewarded.append(
                replace(
                    row,
                    spans=spans,
                    task_reward=score.reward(rules.task_set.manifest(row.task)),
                    parts=np.array(score.parts, np.int64),
                    fuel=score.fuel,
                    length_reward=length,
                )
            )
        return rewarded

    @torch.inference_mode()
    def prefill(self, job: Job, rows: Sequence[Rollout]) -> list[Rollout]:
        """Return the rows with everything about their tokens true but the sampling.

        Rewards are true, and proofs and log-probabilities are those of the right model: so claims who has the model and
        saves on generating.
        """
        if not rows:
            return []
        replayer, places = self.replayer, sampled_places(rows)
        replayer.load_weights(self.checkpoints[job.commitment.step])
        states = replayer._states(rows, places)
        tokens = torch.from_numpy(sampled_tokens(rows, places))
        logits = cast(torch.nn.Module, replayer.model.get_output_embeddings())(states)
        logprobs = chosen_logprobs(scale(logits, self.rules.terms.temperature), tokens).numpy()
        ends = np.cumsum(list(map(len, places)))[:-1]
        proofs = make_proofs(states.tensor_split(ends.tolist()), [row.seed for row in rows])
        claimed = zip(rows, proofs, np.split(logprobs, ends), strict=True)
        return self.reward([replace(row, proof=proof, logprobs=values) for row, proof, values in claimed])

    # Looking at it

    def measure(self, job: Job, rows: Sequence[Rollout]) -> list[Measurement]:
        """Return what a validator measures of rows that have passed the static checks."""
        self.replayer.load_weights(self.checkpoints[job.commitment.step])
        return self.replayer.replay(rows)

    @cached_property
    def vocabulary(self) -> int:
        return self.rules.model.vocabulary


@contextmanager
def tempered(engine: Engine, temperature: float) -> Iterator[None]:
    """Let the engine sample at a temperature that is not the run's."""

    def set_temperature(value: float) -> None:
        def change(worker: Any) -> None:
            worker._muster_sampler().temperature = value

        engine.llm.collective_rpc(change)

    set_temperature(temperature)
    try:
        yield
    finally:
        set_temperature(engine.limits.temperature)


def train_history(shop: AdversaryLab, updates: int, *, learning_rate: float | None = None) -> list[Path]:
    """Checkpoints after each of `updates` steps of the real trainer at its defaults, each on fresh honest work."""
    source = shop.checkpoints[0]
    model, tokenizer = load_model(source), load_tokenizer(source)
    terms = UpdateTerms() if learning_rate is None else UpdateTerms(learning_rate=learning_rate)
    policy = Policy(model, temperature=terms.temperature)
    optimizer, paths = make_optimizer(policy, terms), [source]
    for step in range(1, updates + 1):
        job = shop.job(step, node=OTHER_NODE, step=0)
        samples = taught(job, shop.generate(job, weights=paths[-1]), AdvantageTerms())
        update(policy, optimizer, samples, terms, step=step)
        paths.append(shop.folder / f"step-{step}")
        save_model(model, tokenizer, paths[-1])
    return paths


def taught(job: Job, rows: Sequence[Rollout], terms: AdvantageTerms) -> list[Sample]:
    """Return what the trainer would train on of a job's rows."""
    work = job.commitment
    return samples_of([WorkFile(FileRef(work.step, work.node, work.index, "", ""), tuple(rows))], terms)
