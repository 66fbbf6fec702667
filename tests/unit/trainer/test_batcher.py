"""The trainer's wait before a step, and the conditions that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.errors import MismatchError, MusterError, NotFoundError, RefusedError, UnreachableError
from muster.settings.schema import Settings
from testbed.samples.trainer import (
    FORGED,
    STEP,
    Orchestrator,
    accepted_work_of,
    commit,
    journal_in,
    judge,
    trainer_with,
    work_file,
)
from trainer.accepted_work import AcceptedWork, PollResult
from trainer.batcher import NEWCOMER_SECONDS
from trainer.batches import Batch, FileRef, WorkFile
from trainer.checkpoint import CheckpointMetadata, CheckpointStore

ON_CHAIN = asyncio.Event()
ON_CHAIN.set()
PATIENCE = 100.0
"""Seconds of the batcher's own time after which it counts as waiting."""


class StillWaitsError(Exception):
    """The batcher has waited for PATIENCE."""


class Clock:
    """The batcher's time, which only its pauses move: how busy the machine is changes nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.end = self.now + PATIENCE

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.end:
            self.end = self.now + PATIENCE
            raise StillWaitsError
        await _sleep(0)


_sleep = asyncio.sleep


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trainer.batcher.time", clock)
    monkeypatch.setattr("trainer.batcher.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": clock.sleep}))
    return clock


@pytest.fixture
def client() -> Orchestrator:
    return Orchestrator()


@pytest.fixture
def accepted_work(client: Orchestrator, tmp_path: Path) -> Iterator[AcceptedWork]:
    """One to which a file is accepted."""
    with journal_in(tmp_path) as journal:
        commit(journal)
        judge(journal)
        yield accepted_work_of(client, journal)


async def test_refused_files_are_reported_while_the_trainer_waits(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path
) -> None:
    """Demand counts a file until the trainer reports it as spent. Enough unreported files would stop all work."""
    settings = Settings.model_validate({"trainer": {"state_dir": tmp_path, "poll_seconds": 1}})
    trainer = trainer_with(settings, client, accepted_work)
    metadata = CheckpointMetadata(step=STEP)
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=metadata))
    await trainer.publisher.report(metadata, {"reward": 0.5}, {"wait": 1.0}, finished=False)
    waiting = asyncio.create_task(trainer.batcher.fill(learner, ON_CHAIN))
    try:
        reported = asyncio.create_task(client.told_twice.wait())
        await asyncio.wait([waiting, reported], return_when=asyncio.FIRST_COMPLETED)
        assert reported.done()
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        trainer.close()
    before, after = client.reports
    assert (before.dropped, after.dropped) == ([], [FORGED])
    assert after == before.model_copy(update={"dropped": [FORGED]})


async def test_without_any_work_the_wait_ends_and_with_some_it_does_not(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New workers need a new checkpoint to start: the trainer publishes the same weights once more."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 10}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    assert await trainer.batcher.fill(learner, ON_CHAIN) is None
    client.silent = True  # there may be work that cannot be seen
    with pytest.raises(StillWaitsError):
        await trainer.batcher.fill(learner, ON_CHAIN)
    client.silent = False
    waiting_file = SimpleNamespace(ref=SimpleNamespace(step=STEP, file_hash=FORGED), groups=[])
    monkeypatch.setattr(AcceptedWork, "files", [waiting_file])
    monkeypatch.setattr("trainer.batcher.close_batch", lambda *_, **__: None)
    with pytest.raises(StillWaitsError):
        await trainer.batcher.fill(learner, ON_CHAIN)
    trainer.close()


def accepts(accepted_work: AcceptedWork, file: WorkFile) -> None:
    """Let each poll find this one file."""

    async def poll(*_: object) -> PollResult:
        accepted_work.by_hash[file.ref.file_hash] = file
        return PollResult(1, ())

    accepted_work.poll = poll


@pytest.mark.parametrize(
    ("rewards", "changes", "outcome"),
    [
        ([1, 0, 1, 1], {}, "closed"),
        ([1, 1, 1, 1], {}, "given up"),
        ([1, 0, 1, 1], {"wanted": True}, "waits"),
        ([1, 0, 1, 1], {"waiting_groups": 1000}, "waits"),
        ([1, 0, 1, 1], {"step": STEP - 1}, "waits"),
        ([1, 0, 1, 1], {"published": False}, "waits"),
        ([1, 0, 1, 1], {"complete_late": True}, "waits"),
    ],
    ids=["teaches", "teaches nothing", "wanted", "inspected", "an older step", "not on chain", "not for long"],
)
async def test_when_no_more_work_can_come_the_batch_is_what_there_is(
    accepted_work: AcceptedWork,
    client: Orchestrator,
    tmp_path: Path,
    rewards: list[int],
    changes: dict[str, Any],
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch larger than what the orchestrator asks for would otherwise cost the whole wait at every step."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "batch_groups": 64}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    await trainer.publisher.report(CheckpointMetadata(step=STEP), {}, {}, finished=False)
    file = work_file(rewards, step=STEP)
    client.wanted = changes.get("wanted", False)
    client.waiting_groups = changes.get("waiting_groups", trainer.terms.groups_per_commitment)
    client.step = changes.get("step", STEP)
    published = ON_CHAIN if changes.get("published", True) else asyncio.Event()
    if changes.get("complete_late"):
        monkeypatch.setattr("trainer.batcher.COMPLETE_SECONDS", 2 * PATIENCE)

    accepts(accepted_work, file)
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    if outcome == "waits":
        with pytest.raises(StillWaitsError):
            await trainer.batcher.fill(learner, published)
    else:
        batch = await trainer.batcher.fill(learner, published)
        assert (batch is not None) == (outcome == "closed")
        assert [(one.file_hash, one.reason) for one in accepted_work.journal.left_out()] == (
            [] if outcome == "closed" else [(file.ref.file_hash, "no_signal")]
        )
    trainer.close()


async def test_waiting_is_counted_from_when_the_step_is_on_chain(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path
) -> None:
    """Before that no work for it can come: a run whose steps are far apart would otherwise never have any."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 10}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    published = asyncio.Event()
    with pytest.raises(StillWaitsError):
        await trainer.batcher.fill(learner, published)
    published.set()
    assert await trainer.batcher.fill(learner, published) is None
    trainer.close()


@pytest.mark.parametrize(
    ("trouble", "dropped"),
    [
        (NotFoundError("gone", status=404, title="NotFound"), True),
        (MismatchError("another root"), True),
        (RefusedError("down", status=503, title="Busy"), False),
        (UnreachableError("no answer"), False),
    ],
    ids=["gone", "changed", "busy", "silent"],
)
async def test_a_closed_batch_is_given_up_only_when_its_files_are_gone_or_changed(
    accepted_work: AcceptedWork,
    client: Orchestrator,
    tmp_path: Path,
    trouble: MusterError,
    dropped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.publisher.ATTEMPTS", 1)
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 10}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    checkpoints = CheckpointStore(tmp_path / "steps")
    checkpoints.close_batch(Batch(STEP, (work_file([1, 0, 0, 1], step=STEP).ref,)))

    async def fetch(self: AcceptedWork, ref: FileRef) -> WorkFile:
        raise trouble

    monkeypatch.setattr(AcceptedWork, "fetch", fetch)
    metadata = SimpleNamespace(batch=(), used={})
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=metadata, checkpoints=checkpoints))
    if dropped:
        assert await trainer.batcher.closed(learner, ON_CHAIN) is None
    else:
        with pytest.raises(type(trouble)):
            await trainer.batcher.closed(learner, ON_CHAIN)
    assert (checkpoints.closed_batch(STEP) is None) == dropped
    trainer.close()


async def test_work_that_teaches_nothing_is_given_up_after_a_while(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path
) -> None:
    """With a solved or hopeless task set, the files would satisfy demand for ever without a step."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "batch_wait_seconds": 10}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    await trainer.publisher.report(CheckpointMetadata(step=STEP), {}, {}, finished=False)
    solved = work_file([1, 1, 1, 1], step=STEP)

    accepts(accepted_work, solved)
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    assert await trainer.batcher.fill(learner, ON_CHAIN) is None
    assert (accepted_work.files, [one.file_hash for one in accepted_work.journal.left_out()]) == (
        [],
        [solved.ref.file_hash],
    )
    assert trainer.batcher.without_signal == [solved], "so that what is wrong with them can be said"
    assert client.reports[-1].dropped == [solved.ref.file_hash]
    trainer.close()


def test_weights_that_are_published_once_more_are_no_updates(accepted_work: AcceptedWork, client: Orchestrator) -> None:
    """Idle hours neither end a run nor take the place of its last three scores."""
    files = (work_file([1, 0]).ref,)
    trainer = trainer_with(
        Settings.model_validate({"trainer": {"max_steps": 8, "eval_every": 3}}), client, accepted_work
    )
    begun, idle = CheckpointMetadata(0), CheckpointMetadata(9, updates=0)
    learnt = [CheckpointMetadata(9 + updates, files, updates=updates) for updates in range(1, 9)]
    again = [CheckpointMetadata(30 + updates, updates=updates) for updates in range(1, 8)]
    assert [trainer.finished(metadata) for metadata in (begun, idle, *learnt[:-1], *again)] == [False] * 16
    assert trainer.finished(learnt[-1])
    assert [metadata.updates for metadata in (begun, idle, *learnt, *again) if trainer.evaluates(metadata)] == [
        0,
        3,
        6,
        7,
        8,
    ]


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({}, "waits"),
        ({"newcomers": 1}, "publishes"),
        ({"newcomers": 1, "step": STEP - 1}, "waits"),
        ({"newcomers": 1, "waiting_groups": 4}, "waits"),
        ({"newcomers": 1, "able_workers": 1}, "publishes"),
        ({"able_workers": 1}, "waits"),
        ({"newcomers": 1, "files": True}, "waits"),
        ({"newcomers": 1, "published": False}, "waits"),
        ({"newcomers": 1, "able_workers": 1, "quiet": 2 * PATIENCE}, "waits"),
    ],
    ids=[
        "no newcomer",
        "no other able worker",
        "the orchestrator lags",
        "work is inspected",
        "others rest",
        "others rest, no newcomer",
        "work is here",
        "not on chain",
        "others worked a moment ago",
    ],
)
async def test_weights_are_published_again_for_newcomers(
    accepted_work: AcceptedWork,
    client: Orchestrator,
    tmp_path: Path,
    said: dict[str, Any],
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
) -> None:
    """Long before an idle run's time: who joins begins at the second step after that."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 600}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    monkeypatch.setattr("trainer.batcher.NEWCOMER_SECONDS", said.get("quiet", NEWCOMER_SECONDS))
    if said.get("files"):
        waiting = SimpleNamespace(ref=SimpleNamespace(step=STEP, file_hash=FORGED), groups=[])
        monkeypatch.setattr(AcceptedWork, "files", [waiting])
        monkeypatch.setattr("trainer.batcher.close_batch", lambda *_, **__: None)
    for name in ("newcomers", "able_workers", "waiting_groups", "step"):
        setattr(client, name, said.get(name, getattr(client, name)))
    published = ON_CHAIN if said.get("published", True) else asyncio.Event()
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    if outcome == "publishes":
        began = clock.now
        assert await trainer.batcher.fill(learner, published) is None
        assert clock.now - began < 60, "within a minute"
    else:
        with pytest.raises(StillWaitsError):
            await trainer.batcher.fill(learner, published)
    trainer.close()


async def test_newcomers_do_not_make_work_of_others_stale(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other workers are able, newcomers get at most two steps in `idle_seconds`."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 600}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    monkeypatch.setattr("trainer.batcher.NEWCOMER_SECONDS", 0.0)
    client.newcomers, client.able_workers = 1, 1
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    for _ in range(2):
        assert await trainer.batcher.fill(learner, ON_CHAIN) is None
    with pytest.raises(StillWaitsError):
        await trainer.batcher.fill(learner, ON_CHAIN)
    client.able_workers = 0
    assert await trainer.batcher.fill(learner, ON_CHAIN) is None
    trainer.close()


async def test_steps_for_newcomers_are_bounded_when_no_worker_is_able(
    accepted_work: AcceptedWork, client: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false newcomer, or a stranger who keeps registering workers, costs a bounded amount of gas."""
    options = {"state_dir": tmp_path, "poll_seconds": 1, "idle_seconds": 600}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, accepted_work)
    client.newcomers, client.able_workers = 1, 0
    learner = cast(Any, SimpleNamespace(step=STEP, metadata=SimpleNamespace(batch=(), used={})))
    for _ in range(8):
        assert await trainer.batcher.fill(learner, ON_CHAIN) is None
    with pytest.raises(StillWaitsError):
        await trainer.batcher.fill(learner, ON_CHAIN)
    trainer.close()
