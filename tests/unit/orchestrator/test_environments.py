"""Submitted environments: which the log takes, how many, and whose decisions count."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.keys import Signer
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.messages import EnvironmentDecision, SignedText, SubmittedEnvironment
from muster.runtime.documents import canonical_json
from muster.settings.schema import OrchestratorSettings
from muster.tasksets.contribution_pack import ListedEnvironment, Pack, listed_environments, write_pack
from orchestrator import environments as room
from orchestrator import upload_slots
from orchestrator.auth import Caller
from orchestrator.environments import Environments
from orchestrator.log import Log, Taken
from testbed.samples.contributions import AUTHOR, contribution

OWNER, OTHER = Signer.from_key("c3" * 32), Signer.from_key("b2" * 32)
WHERE = Domain(31337, "0x" + "0a" * 20)
NOW = int(time.time())


@dataclass(frozen=True)
class Listed:
    """The log's environments and decisions."""

    environments: Environments
    documents: Log

    async def submit(self, pack: Pack) -> bool:
        return bool(await self.documents.take("environment", submitted(pack)))

    async def refusal(self, pack: Pack) -> RefusedError | None:
        """Submit a pack; return why it is refused, if so."""
        try:
            await self.submit(pack)
        except RefusedError as error:
            return error

    async def all(self) -> list[ListedEnvironment]:
        entries = (await self.documents.page(0)).entries
        found: dict[str, list[Any]] = {"environment": [], "decision": []}
        for one in entries:
            found[one.kind].append(self.documents.document_of(one.kind, one.text))
        return listed_environments(found["environment"], found["decision"])

    async def states(self) -> list[str]:
        return [one.state for one in await self.all()]


def parts(database: Database, folder: Path) -> Listed:
    """Return an orchestrator's parts on a database and a storage."""
    queries: Any = SimpleNamespace(run=7, chain=ChainState())
    documents = Log(WHERE, database, queries, storage_url=f"file:{folder}")
    settings = OrchestratorSettings(storage_url=f"file:{folder}")
    return Listed(Environments(7, OWNER.address, database, documents, settings), documents)


@pytest.fixture
def listed(database: Database, tmp_path: Path) -> Listed:
    return parts(database, tmp_path)


@pytest.fixture
def documents(listed: Listed) -> Log:
    return listed.documents


def packed(version: int = 1, key: Signer = AUTHOR, name: str = "letters", description: str = "x") -> Pack:
    tasks = tuple(
        replace(task, author=key.address, id=task.id.replace("letters/", f"{name}/")) for task in contribution().tasks
    )
    changes = {"author": key.address, "tasks": tasks, "name": name, "version": version, "description": description}
    return write_pack(contribution(**changes), key)


def submitted(pack: Pack, **changes: Any) -> SubmittedEnvironment:
    about = {"run": 7, "tasks": len(pack.contribution.tasks), "size": len(pack.data)} | changes
    return SubmittedEnvironment.of(pack, pack.contribution, **about)


def decision(pack: Pack, decided: int = NOW, key: Signer = OWNER, run: int = 7, *, admitted: bool = True):
    unsigned = EnvironmentDecision(
        run=run, environment=pack.hash, admitted=admitted, reason="", decided=decided, signature=UNSIGNED
    )
    return sign_message(key, WHERE, unsigned)


async def test_packs_are_listed_in_order_with_their_claims(listed: Listed) -> None:
    packs = [packed(version) for version in (1, 2, 3)]
    assert [await listed.submit(pack) for pack in packs] == [True] * 3
    assert not await listed.submit(packs[0])  # the same again
    assert [one.submitted for one in await listed.all()] == [submitted(pack) for pack in packs]
    assert (await listed.all())[0].submitted.claim == packs[0].claim
    assert await listed.states() == ["waiting"] * 3
    page = await listed.documents.page(0, kind="environment", subject=AUTHOR.address, number=2)
    assert [one.text for one in page.entries] == [submitted(packs[1]).to_bytes().decode()]


async def test_only_a_claim_that_its_author_signed_counts(listed: Listed, tmp_path: Path) -> None:
    """Those of other runs too, in what storage has: the log there is read without the orchestrator that wrote it."""
    claim = packed().claim
    wrong = [
        submitted(packed(), claim=claim.model_copy(update={"author": OTHER.address})),
        submitted(packed(), claim=claim.model_copy(update={"version": 2})),
        submitted(packed(), run=8),
    ]
    (tmp_path / "log").mkdir()
    kept = [
        {"place": place, "kind": "environment", "came": 0, "received": 1.0, "text": one.to_bytes().decode()}
        for place, one in enumerate([*wrong, submitted(packed())])
    ]
    (tmp_path / "log" / f"{0:016d}").write_bytes(b"\n".join(canonical_json(line) for line in kept))
    assert await listed.documents.catch_up(lambda _: False, ()) == 4
    assert [(one.place, one.kind) for one in (await listed.documents.page(0)).entries] == [(3, "environment")]
    text = SignedText(run=7, kind="environment", text="{}", signature=UNSIGNED)
    with pytest.raises(RefusedError, match="no signed text is a environment"):
        await listed.documents.take("environment", text)


async def test_a_new_database_lists_the_same(
    listed: Listed, new_database_url: Callable[[], str], tmp_path: Path
) -> None:
    first, second = packed(), packed(2)
    for pack in (first, second):
        await listed.submit(pack)
    await listed.documents.take("decision", decision(first))
    database = await Database.open(new_database_url(), "run 1 of 0xab on chain 31337")
    again = parts(database, tmp_path)
    assert await again.documents.catch_up(lambda _: False, ()) == 3
    assert await again.all() == await listed.all()
    assert await again.states() == ["admitted", "waiting"]
    assert not await again.submit(second)
    refusal = await again.refusal(packed(2, description="another"))
    assert (refusal and refusal.status) == 409
    await database.close()


async def test_a_version_is_one_pack_for_ever(listed: Listed) -> None:
    assert await listed.submit(packed())
    refusal = await listed.refusal(packed(description="another"))
    assert isinstance(refusal, RefusedError)
    assert (refusal.status, refusal.hint) == (409, "raise the version in environment.toml")
    assert await listed.submit(packed(key=OTHER))  # another author may use the same name and version


async def test_waiting_packs_are_bounded_per_author_and_in_total(
    listed: Listed, documents: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_OF_AUTHOR", 2)
    monkeypatch.setattr(room, "MAX_WAITING", 6)
    monkeypatch.setattr(room, "MAX_LISTED", 8)

    async def refusal(pack: Pack) -> str:
        return str(await listed.refusal(pack) or "")

    assert [await refusal(packed(version)) for version in (1, 2)] == ["", ""]
    assert await refusal(packed(3)) == f"2 environments of {AUTHOR.address} wait for the owner already"
    assert await refusal(packed(1, OTHER)) == ""
    assert await refusal(packed(2, OTHER)) == "3 environments wait for the owner already"
    await documents.take("decision", decision(packed(1)))  # decided ones no longer wait
    assert await refusal(packed(3)) == ""
    await documents.take("decision", decision(packed(2)))
    assert await refusal(packed(4)) == "4 environments are listed: there is no room"


async def test_refused_pack_frees_its_place(listed: Listed, documents: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are free, so refused packs of a stranger must not fill the list for ever."""
    monkeypatch.setattr(room, "MAX_LISTED", 4)
    for version in range(1, 6):
        assert await listed.submit(packed(version))
        await documents.take("decision", decision(packed(version), admitted=False))
    assert await listed.submit(packed(1, OTHER))
    await documents.take("decision", decision(packed(1), NOW + 1))  # admitted after all
    refusal = await listed.refusal(packed(2, OTHER))
    assert str(refusal) == "2 environments are listed: there is no room"
    assert await listed.states() == ["admitted", *["refused"] * 4, "waiting"]


def test_strangers_leave_room_for_members() -> None:
    """Keys are free, so strangers may fill only half of either list."""
    half, full = room.SubmissionCounts(0, room.MAX_WAITING // 2, 0), room.SubmissionCounts(0, room.MAX_WAITING, 0)
    listed = room.SubmissionCounts(room.MAX_LISTED // 2, 0, 0)
    for counts, member, refused in (
        (half, False, True),
        (half, True, False),
        (full, True, True),
        (listed, False, True),
        (listed, True, False),
    ):
        assert (room.refusal_of("0xab", counts, "anyone", member=member) is not None) == refused


async def test_unlisted_pack_is_not_stored(listed: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an author could fill the storage with 8 MB packs of one name and version."""
    first, second = packed(), packed(description="another")

    async def body(request: object, caller: Caller, **_: object) -> bytes:
        return next(pack.data for pack in (first, second) if pack.hash == caller.request.body_hash)

    monkeypatch.setattr(upload_slots, "read_body", body)

    async def receive(pack: Pack) -> Taken:
        request: Any = SimpleNamespace(headers={})
        signed: Any = SimpleNamespace(body_hash=pack.hash)
        return await listed.environments.receive(request, Caller(AUTHOR.address, signed, None, is_trainer=False))

    assert await receive(first) == (True, 0)
    assert await receive(first) == (False, 0)
    with pytest.raises(RefusedError, match="has submitted another letters 1"):
        await receive(second)
    assert [name async for name in listed.environments.packs.names()] == [first.hash]


@pytest.mark.parametrize(
    ("submissions", "member", "refused"),
    [("anyone", False, False), ("members", True, False), ("members", False, True), ("nobody", True, True)],
)
def test_owner_may_limit_submissions_to_members_or_none(submissions: str, member: bool, refused: bool) -> None:
    found = room.refusal_of("0xab", room.SubmissionCounts(0, 0, 0), submissions, member=member)
    assert (found is not None) == refused


async def test_the_later_decision_counts(listed: Listed, documents: Log) -> None:
    pack = packed()
    await listed.submit(pack)
    admitted, refused = decision(pack), decision(pack, NOW + 1, admitted=False)
    assert await documents.take("decision", admitted)
    assert not await documents.take("decision", admitted)  # the same again
    (one,) = await listed.all()
    assert (one.state, one.decision) == ("admitted", admitted)
    assert await documents.take("decision", refused)
    (one,) = await listed.all()
    assert (one.state, one.decision) == ("refused", refused)
    with pytest.raises(RefusedError, match="as late or later"):
        await documents.take("decision", admitted)


async def test_decisions_that_do_not_count(listed: Listed, documents: Log) -> None:
    pack = packed()
    await listed.submit(pack)
    with pytest.raises(RefusedError, match=f"signed by {AUTHOR.address}, not by {OWNER.address}"):
        await documents.take("decision", decision(pack, key=AUTHOR))
    with pytest.raises(RefusedError, match="serves run 7, not 8"):
        await documents.take("decision", decision(pack, run=8))
    with pytest.raises(RefusedError, match="of the future"):
        await documents.take("decision", decision(pack, NOW + 3600))
    with pytest.raises(RefusedError, match="is listed here"):
        await documents.take("decision", decision(packed(2)))
    changed = decision(pack).model_copy(update={"admitted": False})  # the signature is for the opposite
    with pytest.raises(RefusedError, match="the decision is signed by"):
        await documents.take("decision", changed)
    assert await listed.states() == ["waiting"]
