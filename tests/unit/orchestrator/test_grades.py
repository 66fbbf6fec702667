"""Acceptance with private tests needs enough validators with the same grades, and more than with any others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from muster.constants import HOUR_SECONDS
from muster.errors import RefusedError
from orchestrator.auth import Caller
from orchestrator.commitment_status import CaseState, Opinion, agreed_grades, commitment_status
from orchestrator.database import Database
from orchestrator.grades import SHOW_HOURS, Grades
from orchestrator.queries import NodeRecord, Queries
from orchestrator.run_facts import ChainState
from orchestrator.statements import insert_once
from orchestrator.tables import commitments, nodes, verdicts
from orchestrator.verdicts import Known, refuse_verdict
from testbed.samples.commitments import NODE, WHERE
from testbed.samples.messages import verdict_of
from testbed.samples.verification_context import GRADERS, accept, right_text, sealed_rules, show

A, B = "0x" + "aa" * 32, "0x" + "bb" * 32


def opinion(name: str, grades: str | None, *, accepted: bool = True, trusted: bool = True) -> Opinion:
    return Opinion(name, accepted, None if accepted else "wrong_reward", trusted, grades)


@pytest.mark.parametrize(
    ("shown", "required", "agreed"),
    [
        ([A, A], 2, A),
        ([A, None], 2, None),
        ([A, B], 2, None),
        ([A, B], 1, None),
        ([A, B, A], 1, A),
        ([A, B, A], 2, A),
        ([A, B, A, B], 2, None),
        ([A, B, A, B, A], 2, A),
        ([None, None], 1, None),
        ([], 1, None),
    ],
)
def test_enough_must_show_the_same_and_more_than_any_others(
    shown: list[str | None], required: int, agreed: str | None
) -> None:
    opinions = [opinion(f"v{i}", grades) for i, grades in enumerate(shown)]
    assert agreed_grades(opinions, required) == agreed
    status = commitment_status(opinions, [], jailed=False, accepts_required=required, graded=True)
    assert status.state == ("accepted" if agreed else "pending")


def test_grades_of_convicted_or_rejecting_validators_do_not_count() -> None:
    opinions = [opinion("v1", A), opinion("v2", A, trusted=False), opinion("v3", A, accepted=False), opinion("v4", B)]
    assert agreed_grades(opinions, 2) is None
    assert agreed_grades([*opinions, opinion("v5", A)], 2) == A


def test_case_or_rejection_blocks_acceptance() -> None:
    opinions = [opinion("v1", A), opinion("v2", A)]

    def state(opinions: list[Opinion], cases: list[CaseState]) -> str:
        return commitment_status(opinions, cases, jailed=False, accepts_required=2, graded=True).state

    assert state(opinions, [CaseState("v3", "open")]) == "pending"
    assert state([*opinions, opinion("v3", None, accepted=False)], []) == "rejected"


def test_without_private_tests_grades_play_no_part() -> None:
    opinions = [opinion("v1", None), opinion("v2", None)]
    assert commitment_status(opinions, [], jailed=False, accepts_required=2).state == "accepted"


VERDICT = verdict_of(root=A, file_hash=B)
KNOWN = Known(None, None, None)


@pytest.mark.parametrize(
    ("change", "graded", "refused"),
    [
        ({}, True, True),
        ({"grades": A}, True, False),
        ({"grades": A}, False, True),
        ({}, False, False),
        ({"accepted": False, "reason": "wrong_reward", "grades": A}, True, True),
        ({"accepted": False, "reason": "wrong_reward"}, True, False),
        ({"accepted": False, "reason": "wrong_grade"}, True, True),
        ({"accepted": False, "reason": "wrong_grade"}, False, True),
    ],
)
def test_only_an_acceptance_commits_to_grades(change: dict, graded: bool, refused: bool) -> None:
    error = refuse_verdict(VERDICT.model_copy(update=change), KNOWN, graded=graded)
    assert (getattr(error, "status", None) == 422) == refused


HOUR = 100


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(f"sqlite:///{tmp_path}/orchestrator.db", "a test")
    yield opened
    await opened.close()


async def accepted_by_all(database: Database) -> None:
    """Write down a commitment, its node, and two validators that have accepted it."""
    shown = [show(right_text(), grader) for grader in GRADERS[:2]]
    said = shown[0].statement
    node: dict[str, Any] = {"operator": said.node, "work_class": 0, "status": "active"}
    node |= {"block": 1, "first_step": 0}

    def write(connection: Connection) -> None:
        insert_once(connection, nodes, {**node, "address": NODE.address, "role": "worker"})
        work = {"node": said.node, "index": said.index, "root": said.root, "step": said.step}
        insert_once(connection, commitments, {**work, "hour": HOUR, "block": 1, "status": "pending"})
        del work["step"]
        for one, grader in zip(shown, GRADERS, strict=False):
            verdict = accept(one, grader)
            insert_once(connection, nodes, {**node, "address": grader.address, "role": "validator"})
            said_so = {"accepted": True, "document": verdict.model_dump_json()}
            insert_once(connection, verdicts, {**work, **said_so, "validator": grader.address, "received": 1.0})

    await database.write(write)


async def test_grades_are_shown_while_their_validator_can_be_accused(database: Database, tmp_path: Path) -> None:
    await accepted_by_all(database)
    queries = Queries(database, 1, sealed_rules().terms, batch_groups=8, demand_batches=2)
    grades = Grades(WHERE, queries, database, storage_url=f"file:{tmp_path}")

    async def receive(number: int) -> bool:
        address = GRADERS[number].address
        record = NodeRecord(address, address, "validator", "active")
        caller = Caller(address, cast(Any, SimpleNamespace()), record, is_trainer=False)
        return await grades.receive(caller, show(right_text(), GRADERS[number]))

    assert SHOW_HOURS == 48, "a day must be left of the 72 hours in which a case can open"
    end = (HOUR + 1 + SHOW_HOURS) * HOUR_SECONDS
    queries.chain = ChainState(now=end)
    assert await receive(0)
    queries.chain = ChainState(now=end + 1)
    assert not await receive(0), "repeated grades change nothing"
    with pytest.raises(RefusedError, match=f"older than {SHOW_HOURS} hours") as refused:
        await receive(1)
    assert refused.value.status == 409
    assert len((await queries.grade_page(None)).grades) == 1
