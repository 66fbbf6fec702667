"""What the trainer does with work that it is told was accepted, and was not: it never uses it, and says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commitment_samples import WHERE, rules

from muster.chain.contracts.registry import Node, Role, Status
from muster.chain.keys import Signer
from muster.errors import ChainError, MismatchError, MusterError, RefusedError, UnreachableError
from muster.messages import AcceptedWork, Demand, StepReport, Verdict
from muster.rollouts.reader import RolloutReader
from muster.settings import Settings
from muster.signing import UNSIGNED, sign_verdict
from tests.unit.test_trainer_batches import work_file
from trainer.batches import Batch, FileRef, WorkFile
from trainer.checkpoint import Checkpoints, Note
from trainer.intake import Intake, Looked
from trainer.learner import NO_BATCH
from trainer.publisher import Publisher
from trainer.ranks import Alone
from trainer.service import Trainer

RUN, STEP = 1, 4
WORKER = "0x00000000000000000000000000000000000000A1"
FORGED = "0x" + "f0" * 32


ON_CHAIN = asyncio.Event()
ON_CHAIN.set()


class Orchestrator:
    """Says that a file was accepted, of which no validator says so."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.fetched: list[str] = []
        self.silent = False
        self.wanted, self.waiting_groups, self.step = True, 0, STEP
        self.told_twice = asyncio.Event()

    async def accepted(self, run: int, min_step: int) -> list[AcceptedWork]:
        if self.silent:
            raise UnreachableError("nobody is there")
        root = "0x" + "01" * 32
        return [AcceptedWork(step=STEP, node=WORKER, index=0, root=root, file_hash=FORGED, size=9, verdicts=[])]

    async def get_file(self, name: str) -> bytes:
        self.fetched.append(name)
        return b""

    async def demand(self, run: int) -> Demand:
        return Demand(run=run, step=self.step, wanted=self.wanted, waiting_groups=self.waiting_groups)

    async def post_step(self, report: StepReport) -> None:
        self.reports.append(report)
        if len(self.reports) == 2:
            self.told_twice.set()


class Chain:
    """Knows the worker as an active node."""

    async def nodes(self, addresses: list[str]) -> list[Node]:
        active = Node(WORKER, RUN, Role.WORKER, 0, Status.ACTIVE, 0, 1, 0, bytes(32))
        return [active for _ in addresses]


@pytest.fixture
def client() -> Orchestrator:
    return Orchestrator()


@pytest.fixture
def intake(client: Orchestrator) -> Intake:
    return Intake(cast(Any, Chain()), cast(Any, client), RolloutReader(), RUN, rules().terms, 105)


async def test_a_file_that_nobody_accepted_is_refused_unread_until_its_step_is_past(
    intake: Intake, client: Orchestrator
) -> None:
    looked = await intake.look(0, ())
    assert (looked.fresh, looked.refused) == (0, (FORGED,))
    assert (intake.files, intake.refused, client.fetched) == ([], [FORGED], [])
    assert (await intake.look(0, ())).refused == ()
    intake.forget((), oldest_step=STEP)
    assert intake.refused == [FORGED]
    intake.forget((), oldest_step=STEP + 1)
    assert intake.refused == []


async def test_silence_is_no_refusal(intake: Intake, client: Orchestrator) -> None:
    client.silent = True
    with pytest.raises(UnreachableError):
        await intake.look(0, ())
    assert intake.refused == []


VALIDATOR = Signer.from_key(b"\x05" * 32)


def signed(validator: str = VALIDATOR.address) -> Verdict:
    """One validator's word for the file; it is signed by the bytes of its address, however they are spelt."""
    root = "0x" + "01" * 32
    nothing = "0x" + "00" * 32
    unsigned = Verdict(
        run=RUN,
        step=STEP,
        node=WORKER,
        index=0,
        root=root,
        file_hash=FORGED,
        validator=validator,
        accepted=True,
        draw_index=0,
        preimage=nothing,
        signature=UNSIGNED,
    )
    return sign_verdict(VALIDATOR, WHERE, unsigned)


class Accepting(Orchestrator):
    """Lists a file with the words of validators."""

    domain = WHERE

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__()
        self.verdicts = verdicts

    async def accepted(self, run: int, min_step: int) -> list[AcceptedWork]:
        [work] = await super().accepted(run, min_step)
        return [work.model_copy(update={"verdicts": list(self.verdicts)})]


class Seen(Chain):
    """What a chain node shows of the one validator and of the commitment."""

    def __init__(self, status: Status, *, committed: bool = True) -> None:
        self.status = status
        self.committed = committed

    async def nodes(self, addresses: list[str]) -> list[Node]:
        [worker, *others] = await super().nodes(addresses)
        role = Role.NONE if self.status == Status.NONE else Role.VALIDATOR
        validator = Node(VALIDATOR.address, RUN, role, 0, self.status, 0, 1, 0, bytes(32))
        return [worker, *(validator for _ in others)]

    async def ask(self, view: object) -> bool:
        return self.committed


def intake_of(chain: Chain, client: Orchestrator, required: int = 1) -> Intake:
    terms = replace(rules().terms, accepts_required=required)
    return Intake(cast(Any, chain), cast(Any, client), RolloutReader(), RUN, terms, 105)


@pytest.mark.parametrize(
    "trouble",
    [RefusedError("down", status=500, title="Internal"), UnreachableError("nobody"), ChainError("the node is behind")],
    ids=["refused", "unreachable", "chain"],
)
async def test_trouble_of_others_refuses_no_file(trouble: MusterError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Chain, addresses: list[str]) -> list[Node]:
        raise trouble

    monkeypatch.setattr(Chain, "nodes", fail)
    intake = intake_of(Chain(), Accepting(signed()))
    looked = await intake.look(0, ())
    assert (looked.fresh, looked.refused, intake.refused) == (0, (), [])


async def test_one_validator_in_two_spellings_is_one() -> None:
    address = VALIDATOR.address
    assert address not in (address.lower(), "0x" + address[2:].upper())
    client = Accepting(signed(), signed(address.lower()), signed("0x" + address[2:].upper()))
    looked = await intake_of(Seen(Status.ACTIVE), client, required=2).look(0, ())
    assert (looked.refused, client.fetched) == ((FORGED,), [])


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.RETIRED])
async def test_the_word_of_a_validator_counts_while_its_stake_is_there(status: Status) -> None:
    client = Accepting(signed())
    looked = await intake_of(Seen(status), client).look(0, ())
    assert client.fetched == [FORGED]
    assert looked.refused == (FORGED,), "what came of it is no file of rollouts"


@pytest.mark.parametrize(
    "chain",
    [Seen(Status.NONE), Seen(Status.JAILED), Seen(Status.WITHDRAWN), Seen(Status.ACTIVE, committed=False)],
    ids=["unknown", "convicted", "gone", "uncommitted"],
)
async def test_what_the_chain_does_not_show_is_looked_at_again_and_refused_in_the_end(
    chain: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = intake_of(chain, Accepting(signed()))
    for _ in range(2):
        assert (await intake.look(0, ())).refused == ()
    monkeypatch.setattr("trainer.intake.GONE_SECONDS", 0.0)
    assert (await intake.look(0, ())).refused == (FORGED,)


async def test_a_chain_node_that_lags_costs_no_file() -> None:
    chain, client = Seen(Status.NONE, committed=False), Accepting(signed())
    intake = intake_of(chain, client)
    assert (await intake.look(0, ())).refused == ()
    chain.status = Status.ACTIVE
    assert (await intake.look(0, ())).refused == ()
    assert client.fetched == []
    chain.committed = True
    await intake.look(0, ())
    assert client.fetched == [FORGED]


def trainer_with(settings: Settings, client: Orchestrator, intake: Intake) -> Trainer:
    """One that has an orchestrator, and no chain."""
    terms = rules().terms
    publisher = Publisher(settings, cast(Any, None), cast(Any, client), terms)
    return Trainer(settings, publisher, intake, terms, Alone())


def test_weights_that_are_published_once_more_are_no_updates(intake: Intake, client: Orchestrator) -> None:
    """Idle hours neither end a run nor take the place of its last three scores."""
    root = "0x" + "02" * 32
    trainer = trainer_with(Settings.model_validate({"trainer": {"max_steps": 8, "eval_every": 3}}), client, intake)
    begun, idle = Note(0, NO_BATCH), Note(9, NO_BATCH, updates=0)
    learnt = [Note(9 + updates, root, updates=updates) for updates in range(1, 9)]
    again = [Note(30 + updates, NO_BATCH, updates=updates) for updates in range(1, 8)]
    assert [trainer._finished(note) for note in (begun, idle, *learnt[:-1], *again)] == [False] * 16
    assert trainer._finished(learnt[-1])
    assert [note.updates for note in (begun, idle, *learnt, *again) if trainer._evaluates(note)] == [0, 3, 6, 7, 8]


async def test_refused_files_are_told_while_the_trainer_waits(
    intake: Intake, client: Orchestrator, tmp_path: Path
) -> None:
    """Demand counts a file until it is told to be spent: untold, enough of them would stop all work for good."""
    settings = Settings.model_validate({"trainer": {"state_dir": tmp_path, "poll_seconds": 0.01}})
    trainer = trainer_with(settings, client, intake)
    note = Note(step=STEP, batch_root=NO_BATCH)
    learner = cast(Any, SimpleNamespace(step=STEP, note=note))
    await trainer.publisher.report(note, {"reward": 0.5}, {"wait": 1.0}, [], finished=False)
    waiting = asyncio.create_task(trainer.gathering.fill(learner, ON_CHAIN))
    try:
        async with asyncio.timeout(20):
            await client.told_twice.wait()
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        trainer.close()
    before, after = client.reports
    assert (before.dropped, after.dropped) == ([], [FORGED])
    assert after == before.model_copy(update={"dropped": [FORGED]})


async def test_without_any_work_the_wait_ends_and_with_some_it_does_not(
    intake: Intake, client: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can begin in a run that publishes nothing: the trainer publishes the same weights once more."""
    options = {"state_dir": tmp_path, "poll_seconds": 0.01, "idle_seconds": 0.1}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, intake)
    learner = cast(Any, SimpleNamespace(step=STEP, note=SimpleNamespace(batch=(), used={})))
    async with asyncio.timeout(20):
        assert await trainer.gathering.fill(learner, ON_CHAIN) is None
    client.silent = True  # there may be work that cannot be seen
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await trainer.gathering.fill(learner, ON_CHAIN)
    client.silent = False
    waiting_file = SimpleNamespace(ref=SimpleNamespace(step=STEP, file_hash=FORGED), groups=[])
    monkeypatch.setattr(Intake, "files", [waiting_file])
    monkeypatch.setattr("trainer.gathering.close_batch", lambda *_, **__: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await trainer.gathering.fill(learner, ON_CHAIN)
    trainer.close()


@pytest.mark.parametrize(
    ("rewards", "changes", "outcome"),
    [
        ([1, 0, 1, 1], {}, "closed"),
        ([1, 1, 1, 1], {}, "given up"),
        ([1, 0, 1, 1], {"wanted": True}, "waits"),
        ([1, 0, 1, 1], {"waiting_groups": 1000}, "waits"),
        ([1, 0, 1, 1], {"step": STEP - 1}, "waits"),
        ([1, 0, 1, 1], {"published": False}, "waits"),
        ([1, 0, 1, 1], {"patient": True}, "waits"),
    ],
    ids=["teaches", "teaches nothing", "wanted", "inspected", "an older step", "not on chain", "not for long"],
)
async def test_when_no_more_work_can_come_the_batch_is_what_there_is(
    intake: Intake,
    client: Orchestrator,
    tmp_path: Path,
    rewards: list[int],
    changes: dict[str, Any],
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch larger than what the orchestrator asks for would otherwise cost the whole patience at every step."""
    options = {"state_dir": tmp_path, "poll_seconds": 0.01, "batch_groups": 64}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, intake)
    await trainer.publisher.report(Note(step=STEP, batch_root=NO_BATCH), {}, {}, [], finished=False)
    file = work_file(rewards, step=STEP)
    client.wanted = changes.get("wanted", False)
    client.waiting_groups = changes.get("waiting_groups", trainer.terms.groups_per_commitment)
    client.step = changes.get("step", STEP)
    published = ON_CHAIN if changes.get("published", True) else asyncio.Event()
    monkeypatch.setattr("trainer.gathering.COMPLETE_SECONDS", 60 if changes.get("patient") else 0.05)

    async def accept(*_: object) -> Looked:
        intake._files[file.ref.file_hash] = file
        return Looked(1, ())

    intake.look = accept
    learner = cast(Any, SimpleNamespace(step=STEP, note=SimpleNamespace(batch=(), used={})))
    if outcome == "waits":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await trainer.gathering.fill(learner, published)
    else:
        async with asyncio.timeout(20):
            batch = await trainer.gathering.fill(learner, published)
        assert (batch is not None) == (outcome == "closed")
        assert intake.refused == ([] if outcome == "closed" else [file.ref.file_hash])
    trainer.close()


async def test_a_file_that_storage_lost_is_refused_after_a_while_and_until_then_asked_for(
    intake: Intake, client: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Demand counts it: enough of them would keep all new work away."""

    async def missing(name: str) -> bytes:
        raise RefusedError("no such file", status=404, title="Not found")

    async def fine(work: AcceptedWork) -> None:
        return None

    async def busy(name: str) -> bytes:
        raise RefusedError("later", status=503, title="Busy")

    clock = [0.0]
    monkeypatch.setattr("trainer.intake.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(intake, "_check_claim", fine)
    for answer, now in ((missing, 0), (missing, 299), (busy, 300), (missing, 301), (missing, 600)):
        client.get_file, clock[0] = answer, now
        assert (await intake.look(0, ())).refused == (), now
    clock[0] = 602  # not found at every look since 301
    assert (await intake.look(0, ())).refused == (FORGED,)


async def test_waiting_is_counted_from_when_the_step_is_on_chain(
    intake: Intake, client: Orchestrator, tmp_path: Path
) -> None:
    """Before that no work for it can come: a run whose steps are far apart would otherwise never have any."""
    options = {"state_dir": tmp_path, "poll_seconds": 0.01, "idle_seconds": 0.05}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, intake)
    learner = cast(Any, SimpleNamespace(step=STEP, note=SimpleNamespace(batch=(), used={})))
    published = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await trainer.gathering.fill(learner, published)
    published.set()
    async with asyncio.timeout(20):
        assert await trainer.gathering.fill(learner, published) is None
    trainer.close()


@pytest.mark.parametrize(
    ("trouble", "dropped"),
    [
        (RefusedError("gone", status=404, title="NotFound"), True),
        (MismatchError("another root"), True),
        (RefusedError("down", status=503, title="Busy"), False),
        (UnreachableError("nobody"), False),
    ],
    ids=["gone", "changed", "busy", "silent"],
)
async def test_a_closed_batch_is_given_up_only_when_its_files_are_gone_or_changed(
    intake: Intake,
    client: Orchestrator,
    tmp_path: Path,
    trouble: MusterError,
    dropped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.publisher.ATTEMPTS", 1)
    options = {"state_dir": tmp_path, "poll_seconds": 0.01, "idle_seconds": 0.05}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, intake)
    checkpoints = Checkpoints(tmp_path / "steps")
    checkpoints.close_batch(Batch(STEP, (work_file([1, 0, 0, 1], step=STEP).ref,)))

    async def fetch(self: Intake, ref: FileRef) -> WorkFile:
        raise trouble

    monkeypatch.setattr(Intake, "fetch", fetch)
    note = SimpleNamespace(batch=(), used={})
    learner = cast(Any, SimpleNamespace(step=STEP, note=note, checkpoints=checkpoints))
    if dropped:
        assert await trainer.gathering.closed(learner, ON_CHAIN) is None
    else:
        with pytest.raises(type(trouble)):
            await trainer.gathering.closed(learner, ON_CHAIN)
    assert (checkpoints.closed_batch(STEP) is None) == dropped
    trainer.close()


async def test_work_that_teaches_nothing_is_given_up_after_a_while(
    intake: Intake, client: Orchestrator, tmp_path: Path
) -> None:
    """A task set that is solved, or hopeless: the files would satisfy demand for ever, and no step would come."""
    options = {"state_dir": tmp_path, "poll_seconds": 0.01, "patience_seconds": 0.1}
    trainer = trainer_with(Settings.model_validate({"trainer": options}), client, intake)
    await trainer.publisher.report(Note(step=STEP, batch_root=NO_BATCH), {}, {}, [], finished=False)
    solved = work_file([1, 1, 1, 1], step=STEP)

    async def accept(*_: object) -> Looked:
        intake._files[solved.ref.file_hash] = solved
        return Looked(1, ())

    intake.look = accept
    learner = cast(Any, SimpleNamespace(step=STEP, note=SimpleNamespace(batch=(), used={})))
    async with asyncio.timeout(20):
        assert await trainer.gathering.fill(learner, ON_CHAIN) is None
    assert (intake.files, intake.refused) == ([], [solved.ref.file_hash])
    assert client.reports[-1].dropped == [solved.ref.file_hash]
    trainer.close()
