"""Validators with journals of their own on a real chain: what becomes of a cheater whom an accomplice shields, and of
who joins late."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.client import Chain, event_of
from muster.chain.cursor import EventCursor
from muster.clients.node_session import NodeSession
from muster.constants import HOUR_SECONDS
from muster.contracts import court, registry, runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Convicted, Role, Status
from muster.contracts.runs import WorkCommitted
from muster.errors import NotFoundError
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.protocol.keys import RunKeys
from muster.protocol.kinds import kind_of
from muster.rollouts.parquet import FileLimits, read_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime.loop import AGAIN, IDLE
from muster.settings.schema import Settings
from muster.verification.bundles import Inspection, make_bundle
from muster.verification.checks import Finding
from muster.verification.rules import CommittedWork
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import RunFixture
from testbed.samples.commitments import upload_of
from testbed.samples.court import take_turn
from testbed.samples.terms import keys_of
from testbed.samples.validator import opened, place, receive
from validator.challenger import Challenger
from validator.journal import ValidatorJournal
from validator.juror import Juror
from validator.sealing import HourSealer
from validator.service import Validator


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    async def build() -> RunFixture:
        folder = tmp_path_factory.mktemp("validators")
        built = await RunFixture.build(folder, deployment.settings, seed="validators", workers=("shielded", "steady"))
        await built.publish(0)
        return built

    return asyncio.run(build())


@pytest.fixture
async def stranger(run_fixture: RunFixture) -> AsyncIterator[Chain]:
    """An account without a stake in the run."""
    async with run_fixture.chain("stranger") as chain:
        yield chain


@dataclass(frozen=True)
class Archive:
    """The stored files and the run's rules, in place of an inspection context."""

    rules: Any
    domain: Any
    files: dict[str, bytes]
    run_keys: RunKeys

    async def keys(self) -> RunKeys:
        return self.run_keys

    @property
    def model(self) -> Archive:
        return self

    @property
    def client(self) -> Archive:
        return self

    @property
    def reader(self) -> Archive:
        return self

    async def reload(self) -> None: ...

    async def draw(self, commitment: CommittedWork) -> None: ...

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return read_rollouts(data, limits)

    async def file(self, name: str) -> bytes:
        if name not in self.files:
            raise NotFoundError("there is no such file", status=404, title="Not found")
        return self.files[name]

    async def get_evidence(self, name: bytes) -> bytes:
        return await self.file(hex_hash(name))

    async def put_evidence(self, bundle: bytes) -> None:
        self.files[content_hash(bundle)] = bundle


@dataclass(frozen=True)
class Judge:
    """A validator in court, with a journal that follows the chain."""

    chain: Chain
    journal: ValidatorJournal
    cursor: EventCursor
    juror: Juror
    challenger: Challenger

    @classmethod
    @asynccontextmanager
    async def of(cls, run_fixture: RunFixture, name: str, archive: Archive, folder: Path) -> AsyncIterator[Judge]:
        kinds = [WorkCommitted, CaseOpened, CaseResolved, Convicted]
        async with run_fixture.chain(name) as chain:
            journal = ValidatorJournal(folder, name, run_fixture.run, chain.signer.address)
            cursor = EventCursor(chain, folder / "place.json", kinds, run=run_fixture.run)
            juror = Juror(chain, journal, archive, stagger_seconds=0)  # type: ignore[arg-type]
            challenger = Challenger(chain, journal, archive, juror, stagger_seconds=0)  # type: ignore[arg-type]
            yield cls(chain, journal, cursor, juror, challenger)
            journal.close()

    async def follow(self) -> None:
        more = True
        while more:
            batch = await self.cursor.poll()
            self.journal.record(batch, 0.0)
            await self.cursor.ack()
            more = batch.more

    async def turn(self) -> None:
        await self.follow()
        head = await self.chain.head()
        await take_turn(self.juror, head)
        await self.challenger.poll(head)


async def test_accomplice_cases_do_not_shield_cheater(run_fixture: RunFixture, stranger: Chain, tmp_path: Path) -> None:
    """The accomplice opens case after case on evidence that does not exist. The cheater is still convicted."""
    node, call = run_fixture.key("shielded").address, stranger.call
    root, data = hashlib.sha256(b"shielded").digest(), b"this is no rollout file"
    await run_fixture.commit("shielded", 0, hex_hash(root))
    rules = SimpleNamespace(
        run=run_fixture.run,
        chain_id=stranger.chain_id,
        runs=run_fixture.book.runs,
        terms=await stranger.terms(run_fixture.run),
    )
    commitment = CommittedWork(run_fixture.run, 0, node, 0, root, 0, 0)
    upload = upload_of(data, commitment, run_fixture.key("shielded"), run_fixture.key("storage"), run_fixture.domain)
    inspection = Inspection(Finding("malformed"), upload=upload)
    made = make_bundle(rules, commitment, inspection, accuser=node).to_bytes()  # type: ignore[arg-type]
    archive = Archive(
        rules,
        run_fixture.domain,
        {content_hash(data): data, content_hash(made): made},
        keys_of(run_fixture.key("storage").address),
    )

    async def shield(kind: int) -> int:
        async with run_fixture.chain("v1") as accomplice:
            act = court.open_case(court.Target(node, 0, 0, root), kind, 0, b"\x0e" * 32)
            return event_of(await accomplice.send(act), CaseOpened).case_id

    async with AsyncExitStack() as stack:
        v2, v3, v4 = [
            await stack.enter_async_context(Judge.of(run_fixture, name, archive, tmp_path / name))
            for name in ("v2", "v3", "v4")
        ]
        for judge, name in ((v2, "v2"), (v3, "v3")):
            await judge.follow()
            said = {"accepted": False, "reason": "malformed", "evidence": content_hash(made)}
            verdict = run_fixture.verdict(name, "shielded", 0, hex_hash(root), content_hash(data), **said)
            judge.journal.judge(commitment, verdict, made, accuse_at=0.0)
        first = await shield(200)  # no evidence is of a kind without a name
        await v2.turn()
        accused = await call(court.case_of(first + 1))
        assert (accused.challenger, accused.evidence_hash) == (
            run_fixture.key("v2").address,
            hash_bytes(content_hash(made)),
        )
        await v3.turn()
        assert await call(court.case_count()) == first + 1, "that one shows guilt: another would be needless"

        async with run_fixture.local_chain() as dev:
            await dev.advance(1800)
        free = await call(registry.free_balance(run_fixture.key("operator of v1").address))
        second = await shield(kind_of("data_missing"))
        for judge in (v4, v3, v4):
            await judge.turn()
        async with run_fixture.local_chain() as dev:
            await dev.advance(1800)
        for judge in (v3, v4):
            await judge.turn()
        assert (await call(court.case_of(first + 1))).outcome is Outcome.GUILTY
        assert (await call(registry.node(node))).status is Status.JAILED
        await v2.turn()
        assert (await call(court.case_of(second))).outcome is Outcome.MOOT
        assert await call(registry.free_balance(run_fixture.key("operator of v1").address)) == free, (
            "its fee comes back"
        )
        assert v3.journal.accusations(time.time() + 3600) != []
        await v3.turn()
        assert v3.journal.accusations(time.time() + 3600) == []


async def test_late_validator_inspects_and_seals_from_its_joining(run_fixture: RunFixture, tmp_path: Path) -> None:
    node, joined = run_fixture.key("steady").address, run_fixture.key("v5").address
    roots = [hashlib.sha256(f"steady {index}".encode()).digest() for index in range(2)]
    await run_fixture.commit("steady", 0, hex_hash(roots[0]))
    async with run_fixture.local_chain() as dev:
        await dev.fund([joined, run_fixture.key("operator of v5").address])
        await dev.advance(HOUR_SECONDS)
    await run_fixture.join("v5", Role.VALIDATOR)
    await run_fixture.commit("steady", 1, hex_hash(roots[1]))
    settings = Settings.model_validate({"run": run_fixture.run, "validator": {"state_dir": tmp_path}})
    async with run_fixture.chain("v5") as chain:
        validator = Validator(settings, NodeSession(chain, None), None, run_fixture.links("v5")[0])  # type: ignore[arg-type]
        journal = validator.journal
        sealer = HourSealer(chain, journal, run_fixture.run, validator.link_of)
        await validator.check_registration()
        while await validator.follow() is AGAIN:
            pass
        ((c, _),) = journal.pending(1 << 40, time.time(), 100)
        assert (c.node, c.index, journal.backlog()) == (node, 1, 1)
        links, first = run_fixture.links("v5")[0], journal.first_hour
        assert [validator.link_of(first), validator.link_of(c.hour)] == [links[0], links[c.hour - first]]

        # A reorg may move the registration, so it is read again.
        journal.first_hour -= 1
        async with run_fixture.local_chain() as dev:
            before = (await chain.head()).hash
            while (await chain.head()).hash == before:  # of one second: the very same block
                await dev.reorg(1, drop=False)
        await validator.follow()
        assert journal.first_hour == first
        async with run_fixture.local_chain() as dev:
            await dev.advance(HOUR_SECONDS)
        assert await sealer.poll(await chain.head()) is IDLE, "it is not judged yet"

        # Its file comes an hour late: it is inspected by rows that no seal has shown.
        assert await validator.sampling_hour(c) == c.hour
        missing = run_fixture.verdict(
            "v5", "steady", 1, hex_hash(c.root), "0x" + "00" * 32, accepted=False, reason="data_missing"
        )
        journal.judge(c, missing, None, accuse_at=None)
        case = opened(1, node=node, index=1, root=c.root, kind=kind_of("data_missing"))
        receive(journal, case, CaseResolved(place((await chain.head()).number), 1, node, Outcome.CURED, 0, 0, 3))
        assert [one for one, _ in journal.pending(1 << 40, time.time(), 100)] == [c]
        assert await validator.sampling_hour(c) == c.hour

        accepted = run_fixture.verdict("v5", "steady", 1, hex_hash(c.root), "0x" + "00" * 32)
        journal.judge(c, accepted, None, accuse_at=None)
        journal.verdicts.sent(c)
        assert await sealer.poll(await chain.head()) is AGAIN
        assert (await chain.call(runs.sealer_of(joined))).last_sealed == c.hour
        assert await validator.sampling_hour(c) == c.hour + 1
        journal.close()
