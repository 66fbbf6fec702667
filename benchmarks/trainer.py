"""How fast the trainer trains, and in how much memory, against TRL's GRPOTrainer; what data and checkpoints cost.

    python benchmarks/trainer.py [--json] [--runs 3] [--only tokens_vs_trl memory_vs_trl …]

The same model with random weights and the same ragged batch for both (benchmarks/ragged.py: 64 groups × 8, completions
log-normal around 200 tokens, capped at 1,024), one thread each, taking turns. TRL runs at the fastest of its settings
(benchmarks/peers/trl_trainer.py says what was tried, and what of it is replaced: only generation). Both compute the
same loss, one optimiser step on the whole batch; that they do is checked by how far the weights move.

    tokens_vs_trl      completion tokens trained on per second
    memory_vs_trl      most anonymous memory of the process; `above_start`, above what it held before its first update
    data_overhead      hashing the batch's files, reading them in the bounded reader, checking their roots and rows and
                       packing them, against the update
    checkpoint_stall   how much longer a step of the trainer takes when it makes a checkpoint and the one before it is
                       still being written, whole: state, published weights, hashes
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ragged, report
from benchmarks.watched import Watch, ask, module, peer, started
from muster.protocol.hashes import content_hash
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.reader import RolloutReader
from trainer.advantages import AdvantageTerms
from trainer.batches import FileRef, WorkFile, check_rows, samples_of
from trainer.packing import collate, first_fit

THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SAME_STEP = 0.02
"""How far apart the lengths of the two first steps may be for both to have computed the same."""
MIB = 1 << 20


@dataclass(frozen=True)
class Prepared:
    """What benchmarks/ragged.py made."""

    model: Path
    batch: Path
    folder: Path


def ours(prepared: Prepared, role: str = "update", *more: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(module("benchmarks.trainer_process", role, prepared.model, prepared.batch, *more), THREADS)


def trls(prepared: Prepared) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(peer("trl_trainer", prepared.model, prepared.batch), THREADS)


def against_trl(prepared: Prepared, runs: int) -> list[report.Figure]:
    """Measure tokens_vs_trl and memory_vs_trl."""
    with ours(prepared) as one, trls(prepared) as other, Watch([one]) as mine, Watch([other]) as theirs:
        sides = report.alternate(1 + runs, lambda: ask(one, "go"), lambda: ask(other, "go"))
        memory = mine.peak / MIB, theirs.peak / MIB
        above = {"ours": mine.memory / MIB, "peer": theirs.memory / MIB}
    lengths = [answers[0]["moved"] for answers in sides]
    if abs(lengths[0] - lengths[1]) > SAME_STEP * lengths[1]:
        sys.exit(f"the first steps moved the weights by {lengths[0]:.5g} and {lengths[1]:.5g}: not the same update")
    rates = [[answer["tokens"] / answer["seconds"] for answer in answers[1:]] for answers in sides]
    less = {"peer": memory[1], "target": 0.8, "unit": "MiB", "at_most": True}
    return [
        report.relative("tokens_vs_trl", rates[0], peer=rates[1], target=1.5, unit="tokens/s"),
        report.relative("memory_vs_trl", memory[0], above_start=above, **less),
    ]


def data_overhead(prepared: Prepared, runs: int) -> list[report.Figure]:
    files = [write_rollouts(rows) for rows in ragged.rollouts_by_file(prepared.batch)]
    terms = ragged.terms_of(prepared.model)
    loading = [asyncio.run(load(files, terms)) for _ in range(runs)]
    with ours(prepared) as process:
        updates = [ask(process, "go")["seconds"] for _ in range(1 + runs)][1:]
    return [report.relative("data_overhead", loading, limit=updates, target=0.05, unit="s", at_most=True)]


async def load(files: Sequence[bytes], terms: Terms) -> float:
    """Seconds from files in memory to micro-batches, by the steps of `trainer.accepted_work` and `trainer.update`."""
    limits = FileLimits.from_terms(terms)
    async with RolloutReader() as reader:
        await reader.read(files[0], limits)  # starts the process
        begun = time.perf_counter()
        batch = []
        for index, data in enumerate(files):
            name = content_hash(data)
            rollouts = await reader.read(data, limits)
            ref = FileRef(0, ragged.NODE, index, name, "0x" + rollout_tree(rollouts).root.hex())
            check_rows(rollouts, 1, ref, terms, ragged.Shape().vocabulary)
            batch.append(WorkFile(ref, tuple(rollouts)))
        samples = samples_of(batch, AdvantageTerms())
        for row in first_fit([sample.length for sample in samples], 4096):
            collate(samples, [1.0] * len(samples), row)
        return time.perf_counter() - begun


def checkpoint_stall(prepared: Prepared, runs: int) -> list[report.Figure]:
    with ours(prepared, "step", prepared.folder / "steps") as process:
        ask(process, "plain")
        plain, written = [], []
        for _ in range(runs):
            plain.append(ask(process, "plain")["seconds"])
            ask(process, "go")
            written.append(ask(process, "go")["seconds"])  # while the checkpoint of the one before is written
    stall = statistics.median(written) / statistics.median(plain) - 1
    return [report.figure("checkpoint_stall", written, limit=plain, ratio=stall, target=0.10, unit="s", at_most=True)]


Measure = Callable[[Prepared, int], list[report.Figure]]
FIGURES: dict[str, Measure] = {
    "tokens_vs_trl": against_trl,
    "data_overhead": data_overhead,
    "checkpoint_stall": checkpoint_stall,
}
"""tokens_vs_trl brings memory_vs_trl with it."""


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), help="these figures alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-trainer-") as name:
        model, batch = ragged.make(Path(name))
        prepared = Prepared(model, batch, Path(name))
        figures = [figure for each in options.only for figure in FIGURES[each](prepared, options.runs)]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
