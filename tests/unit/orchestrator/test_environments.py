"""Submitted environments: which are listed, how many, and whose decisions count."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.keys import Signer
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.messages import EnvironmentDecision
from muster.settings.schema import OrchestratorSettings
from muster.tasksets.contribution_pack import Pack, write_pack
from orchestrator import environments as room
from orchestrator import upload_slots
from orchestrator.auth import Caller
from orchestrator.environments import Environments
from orchestrator.log import Log
from testbed.samples.contributions import AUTHOR, contribution

OWNER, OTHER = Signer.from_key("c3" * 32), Signer.from_key("b2" * 32)
WHERE = Domain(31337, "0x" + "0a" * 20)
NOW = int(time.time())


@pytest.fixture
def documents(database: Database, tmp_path: Path) -> Log:
    queries: Any = SimpleNamespace(run=7, chain=ChainState())
    return Log(WHERE, database, queries, storage_url=f"file:{tmp_path}")


@pytest.fixture
def listed(database: Database, documents: Log, tmp_path: Path) -> Environments:
    settings = OrchestratorSettings(storage_url=f"file:{tmp_path}")
    return Environments(7, OWNER.address, database, documents, settings)


def packed(version: int = 1, key: Signer = AUTHOR, name: str = "letters", description: str = "x") -> Pack:
    tasks = tuple(
        replace(task, author=key.address, id=task.id.replace("letters/", f"{name}/")) for task in contribution().tasks
    )
    changes = {"author": key.address, "tasks": tasks, "name": name, "version": version, "description": description}
    return write_pack(contribution(**changes), key)


def decision(pack: Pack, decided: int = NOW, key: Signer = OWNER, run: int = 7, *, admitted: bool = True):
    unsigned = EnvironmentDecision(
        run=run, environment=pack.hash, admitted=admitted, reason="", decided=decided, signature=UNSIGNED
    )
    return sign_message(key, WHERE, unsigned)


async def test_packs_are_listed_in_order_with_their_claims(listed: Environments) -> None:
    packs = [packed(version) for version in (1, 2, 3)]
    assert [await listed.record(pack, 1.0) for pack in packs] == [None] * 3
    assert await listed.record(packs[0], 2.0) is None  # the same again
    page = await listed.page(0)
    assert [one.hash for one in page.environments] == [pack.hash for pack in packs]
    assert page.environments[0].claim == packs[0].claim
    assert [one.state for one in page.environments] == ["waiting"] * 3
    assert (await listed.page(page.cursor)).model_dump() == {"environments": [], "cursor": page.cursor}


async def test_pages_are_bounded(listed: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_PAGE", 2)
    for version in (1, 2, 3):
        await listed.record(packed(version), 1.0)
    first = await listed.page(0)
    second = await listed.page(first.cursor)
    assert [one.claim.version for one in first.environments] == [1, 2]
    assert [one.claim.version for one in second.environments] == [3]


async def test_a_version_is_one_pack_for_ever(listed: Environments) -> None:
    assert await listed.record(packed(), 1.0) is None
    refusal = await listed.record(packed(description="another"), 1.0)
    assert isinstance(refusal, RefusedError)
    assert (refusal.status, refusal.hint) == (409, "raise the version in environment.toml")
    assert await listed.record(packed(key=OTHER), 1.0) is None  # another author may use the same name and version


async def test_waiting_packs_are_bounded_per_author_and_in_total(
    listed: Environments, documents: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_OF_AUTHOR", 2)
    monkeypatch.setattr(room, "MAX_WAITING", 6)
    monkeypatch.setattr(room, "MAX_LISTED", 8)

    async def refusal(pack: Pack) -> str:
        return str(await listed.record(pack, 1.0) or "")

    assert [await refusal(packed(version)) for version in (1, 2)] == ["", ""]
    assert await refusal(packed(3)) == f"2 environments of {AUTHOR.address} wait for the owner already"
    assert await refusal(packed(1, OTHER)) == ""
    assert await refusal(packed(2, OTHER)) == "3 environments wait for the owner already"
    await documents.take("decision", decision(packed(1)))  # decided ones no longer wait
    assert await refusal(packed(3)) == ""
    await documents.take("decision", decision(packed(2)))
    assert await refusal(packed(4)) == "4 environments are listed: there is no room"


async def test_refused_pack_frees_its_place(
    listed: Environments, documents: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are free, so refused packs of a stranger must not fill the list for ever."""
    monkeypatch.setattr(room, "MAX_LISTED", 4)
    for version in range(1, 6):
        assert await listed.record(packed(version), 1.0) is None
        await documents.take("decision", decision(packed(version), admitted=False))
    assert await listed.record(packed(1, OTHER), 1.0) is None
    await documents.take("decision", decision(packed(1), NOW + 1))  # admitted after all
    refusal = await listed.record(packed(2, OTHER), 1.0)
    assert str(refusal) == "2 environments are listed: there is no room"
    assert [one.state for one in (await listed.page(0)).environments] == ["admitted", *["refused"] * 4, "waiting"]


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


async def test_unlisted_pack_is_not_stored(listed: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an author could fill the storage with 8 MB packs of one name and version."""
    first, second = packed(), packed(description="another")

    async def body(request: object, caller: Caller, **_: object) -> bytes:
        return next(pack.data for pack in (first, second) if pack.hash == caller.request.body_hash)

    monkeypatch.setattr(upload_slots, "read_body", body)

    async def receive(pack: Pack) -> bool:
        signed = SimpleNamespace(body_hash=pack.hash)
        return await listed.receive(SimpleNamespace(headers={}), Caller(AUTHOR.address, signed, None, is_trainer=False))  # type: ignore[arg-type]

    assert await receive(first)
    assert not await receive(first)
    with pytest.raises(RefusedError, match="has submitted another letters 1"):
        await receive(second)
    assert [name async for name in listed.packs.names()] == [first.hash]


@pytest.mark.parametrize(
    ("submissions", "member", "refused"),
    [("anyone", False, False), ("members", True, False), ("members", False, True), ("nobody", True, True)],
)
def test_owner_may_limit_submissions_to_members_or_none(submissions: str, member: bool, refused: bool) -> None:
    found = room.refusal_of("0xab", room.SubmissionCounts(0, 0, 0), submissions, member=member)
    assert (found is not None) == refused


async def test_the_later_decision_counts(listed: Environments, documents: Log) -> None:
    pack = packed()
    await listed.record(pack, 1.0)
    admitted, refused = decision(pack), decision(pack, NOW + 1, admitted=False)
    assert await documents.take("decision", admitted)
    assert not await documents.take("decision", admitted)  # the same again
    (one,) = (await listed.page(0)).environments
    assert (one.state, one.decision) == ("admitted", admitted)
    assert await documents.take("decision", refused)
    (one,) = (await listed.page(0)).environments
    assert (one.state, one.decision) == ("refused", refused)
    with pytest.raises(RefusedError, match="as late or later"):
        await documents.take("decision", admitted)


async def test_decisions_that_do_not_count(listed: Environments, documents: Log) -> None:
    pack = packed()
    await listed.record(pack, 1.0)
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
    assert [one.state for one in (await listed.page(0)).environments] == ["waiting"]
