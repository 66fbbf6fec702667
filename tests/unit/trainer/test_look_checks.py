"""Rows are replayed in a process of its own, which is restarted where it dies; what comes of checks is kept."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster.chain.cursor import EventBatch
from muster.contracts.codec import Place
from muster.contracts.runs import WorkCommitted
from muster.errors import MismatchError, NotFoundError, RefusedError, UnreachableError
from muster.rollouts.schema import Rollout
from muster.runtime.loop import AGAIN, IDLE
from muster.verification.look import LookSeeds
from muster.verification.look_facts import CalledWork
from muster.verification.profiles import CPU_FP32, Limit
from muster.verification.replay import Replayer
from muster.verification.rules import CommittedWork
from testbed.samples.models import TINY, write_model
from testbed.samples.rollouts import rollout
from trainer.look_checks import LookChecker, Outcome, ReplayProcess, RowToCheck, outcome_of
from trainer.look_journal import DueCheck, LookJournal

SEEDS = LookSeeds("0x" + "11" * 20, b"\1" * 32, b"\2" * 32, "0x" + "22" * 20, 5, b"\3" * 32)
NODE, ROOT = "0x" + "22" * 20, b"\3" * 32
TEMPERATURE = 1.0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model", replace(TINY, layers=2))


@pytest.fixture(scope="module")
def row() -> Rollout:
    return rollout(3, np.random.default_rng(1).integers(0, 90, 20))


@pytest.fixture
def process() -> Iterator[ReplayProcess]:
    made = ReplayProcess(CPU_FP32, TEMPERATURE, "auto")
    yield made
    made.close()


def true_numbers(weights: Path, row: Rollout) -> np.ndarray:
    [found] = Replayer(weights, CPU_FP32, TEMPERATURE).errors([row], SEEDS)
    assert found.look is not None
    return found.look


async def test_a_process_says_what_is_true_goes_on_after_its_death_and_ends(
    weights: Path, row: Rollout, process: ReplayProcess, tmp_path: Path
) -> None:
    numbers = true_numbers(weights, row)
    rows = [RowToCheck(row, numbers, SEEDS), RowToCheck(row, np.zeros_like(numbers), SEEDS), RowToCheck(row)]
    assert await process.outcomes(weights, rows) == ["true", "false", "shared"], "no seed samples what is made up"
    assert process.process is not None
    first = process.process
    assert first.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, first.pid) == 19
    first.kill()
    first.join()
    assert await process.outcomes(weights, rows[:1]) == ["true"]
    with pytest.raises(UnreachableError):
        await process.outcomes(tmp_path, rows[:1])
    assert await process.outcomes(weights, rows[:1]) == ["true"], "weights of no use end nothing"
    last = process.process
    process.close()
    assert (last.is_alive(), process.process) == (False, None)


async def test_rows_that_kill_two_processes_cannot_be_checked(
    weights: Path, row: Rollout, process: ReplayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ask", lambda *_: (_ for _ in ()).throw(EOFError))
    assert await process.outcomes(weights, [RowToCheck(row)] * 2) == ["cannot", "cannot"]


def test_a_rejection_that_no_arithmetic_shares_is_refuted(weights: Path, row: Rollout) -> None:
    wide = Limit(reject=math.inf, accuse=math.inf)
    names = ("activation", "gap_mean", "gap_worst", "logprob_rms", "logprob_worst", "logprob_drift")
    lenient = replace(CPU_FP32, **dict.fromkeys(names, wide))
    assert outcome_of(Replayer(weights, lenient, TEMPERATURE), RowToCheck(row)) == "refuted"
    assert outcome_of(Replayer(weights, CPU_FP32, TEMPERATURE), RowToCheck(row)) == "shared"


# --- What comes of checks


def check_of(position: int, kind: str = "numbers", index: int = 5, rank: int = 1) -> DueCheck:
    root = "0x" + ROOT.hex()
    return DueCheck(SEEDS.validator, NODE, index, root, position, hour=9, step=2, kind=kind, rank=rank)


class Checker(LookChecker):
    """One whose rows come to what a test says."""

    answers: Any

    async def outcomes(self, checks: Sequence[DueCheck]) -> list[Outcome]:
        if errors := [one for check in checks if isinstance(one := self.answers[check.position], Exception)]:
            raise errors[0]
        return [self.answers[check.position] for check in checks]


@pytest.fixture
def checker(tmp_path: Path) -> Iterator[Checker]:
    def search(check: DueCheck) -> list[DueCheck]:
        return [check_of(7, index=6, rank=0)]

    async def report() -> None:
        made.reports += 1

    with LookJournal(tmp_path, "trainer", 1) as journal:
        keeper: Any = SimpleNamespace(journal=journal, search=search)
        nothing: Any = None
        made: Any = Checker(keeper, nothing, nothing, nothing, nothing, nothing, nothing, report)
        made.reports = 0
        yield made


async def test_a_false_row_has_others_searched_next_and_results_survive(checker: Checker, tmp_path: Path) -> None:
    journal = checker.keeper.journal
    journal.add([check_of(0), check_of(1), check_of(2, index=8)])
    checker.answers = ("false", "true", "true", "cannot", "cannot", "cannot", "cannot", "cannot")
    assert await checker.poll() is AGAIN
    with LookJournal(tmp_path, "trainer", 1) as again:
        assert [(one.index, one.position) for one in again.next_checks()] == [(6, 7)]
        assert [one.outcome for one in again.unlisted(9)] == ["false", "true"]
    assert [await checker.poll(), await checker.poll(), await checker.poll()] == [AGAIN, AGAIN, IDLE]
    assert [one.outcome for one in journal.unlisted(9)] == ["false", "true", "true", "cannot"]
    assert journal.unlisted(8) == [], "they are of a later hour"


async def test_what_cannot_be_had_now_is_tried_after_everything_else(checker: Checker) -> None:
    journal = checker.keeper.journal
    journal.add([check_of(0), check_of(1, index=6)])
    checker.answers = (UnreachableError("no weights"), "true")
    with pytest.raises(UnreachableError):
        await checker.poll()
    assert await checker.poll() is AGAIN
    assert [one.position for one in journal.next_checks()] == [0]


async def test_rejections_come_first_and_refuted_ones_are_reported(checker: Any) -> None:
    checker.keeper.journal.add([check_of(0), check_of(1, "rejection", rank=0)])
    checker.answers = ["true", "refuted"]
    await checker.poll()
    assert checker.reports == 1
    await checker.poll()
    assert checker.reports == 1


class Client:
    """Says which file a commitment is, and has it or not."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def upload(self, *about: object) -> object:
        raise self.error


@pytest.mark.parametrize(
    ("error", "accepted", "outcome"),
    [
        (MismatchError("another file"), True, "false"),
        (MismatchError("another file"), False, "cannot"),
        (NotFoundError("gone", status=404, title="Not found"), True, "cannot"),
    ],
    ids=["accepted a wrong file", "rejected a wrong file", "no file"],
)
async def test_a_look_at_a_file_that_nobody_can_replay(
    error: Exception, accepted: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = CommittedWork(1, 2, NODE, 5, ROOT, hour=9, block=1)
    verdict = SimpleNamespace(look="0x", accepted=accepted)
    look = SimpleNamespace(link=b"", verdict=verdict, rows=lambda terms: [0, 3])
    journal = SimpleNamespace(commitment=lambda *_: work)
    keeper: Any = SimpleNamespace(journal=journal, look_of=lambda _: look, profile=CPU_FP32)
    nothing: Any = SimpleNamespace(terms=None)
    client: Any = Client(error)
    monkeypatch.setattr("trainer.look_checks.decode_look", lambda *_: np.zeros((2, 2, 4)))
    made = LookChecker(keeper, client, nothing, nothing, nothing, nothing, nothing, nothing)
    assert await made.outcomes([check_of(3), check_of(0)]) == [outcome] * 2


async def test_what_was_chosen_before_a_reorg_cannot_be_checked() -> None:
    """Another block draws other rows, and who rejected may accept by now."""
    work = CommittedWork(1, 2, NODE, 5, ROOT, hour=9, block=1)
    accepts = SimpleNamespace(look="0x" + "00" * 32, accepted=True, validator=SEEDS.validator)
    look = SimpleNamespace(link=b"", verdict=accepts, rows=lambda terms: [0])
    journal = SimpleNamespace(commitment=lambda *_: work, came=lambda _: [(accepts, 1)])
    keeper: Any = SimpleNamespace(journal=journal, look_of=lambda _: look, profile=CPU_FP32)
    nothing: Any = SimpleNamespace(terms=None)
    made = LookChecker(keeper, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    assert await made.outcomes([check_of(3)]) == ["cannot"]
    assert await made.outcomes([check_of(3, "rejection")]) == ["shared"]


async def test_a_server_that_is_busy_makes_no_look_false(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = RefusedError("later", status=503, title="Busy")
    with pytest.raises(RefusedError):
        await test_a_look_at_a_file_that_nobody_can_replay(busy, True, "false", monkeypatch)


def test_another_drawing_block_calls_and_draws_anew(tmp_path: Path) -> None:
    """A reorg may take the block after a commitment and leave the commitment's."""
    with LookJournal(tmp_path, "trainer", 1) as journal:
        made = WorkCommitted(Place(9, b"", b"", 0), 1, NODE, step=2, index=5, hour=9, root=ROOT)
        journal.record(EventBatch((made,), 9, 10), {})
        work = journal.commitment(NODE, 5)
        assert work is not None
        journal.know(CalledWork(work, (SEEDS.validator,), 1, b"\2" * 32, operator="op", work_class=0))
        journal.record(EventBatch((), 11, 11, rewound_to=10), {})
        assert journal.known_of(NODE, 5) is not None
        journal.record(EventBatch((), 10, 10, rewound_to=9), {})
        assert (journal.commitment(NODE, 5), journal.known_of(NODE, 5)) == (work, None)
