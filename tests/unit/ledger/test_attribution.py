"""Attribution of drawn tasks to their authors: whatever the verdict, and only in sets that name authors."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from muster.authoring.tasks.sealing import seal_set
from muster.contracts.codec import Place
from muster.contracts.registry import Registered, Role
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.environments.registry import default_manifest
from muster.environments.task import ask
from muster.ledger import tables
from muster.ledger.attribution import Attribution
from muster.ledger.chain_projection import ChainProjection
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.tallies import find_commitment, set_statuses
from muster.protocol.draws import draw_base, draw_commitment
from muster.protocol.terms import Terms
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetDocument, TaskSource
from muster.tasksets.masters import Masters
from testbed.samples.terms import terms_of

ADA, BOB = "0x" + "0A" * 20, "0x" + "0B" * 20
WORKER, RUNS = "0x" + "a" * 40, "0x" + "0c" * 20
ENTROPY = b"\x03" * 32
TERMS = terms_of()


@pytest.fixture
def document(tmp_path: Path) -> TaskSetDocument:
    """Three parts, drawn 2 : 1 : 1: one without an author, one by Ada, one by Bob."""
    manifest = default_manifest("sorting")

    def part(name: str, author: str, weight: int, tasks: int) -> NewPart:
        source = TaskSource("MIT", "here", "", author)
        return NewPart(name, manifest, [ask(f"{name} {i}", answer="1") for i in range(tasks)], weight, [source])

    parts = [part("own", "", 2, 5), part("adas", ADA, 1, 3), part("bobs", BOB, 1, 7)]
    return write_task_set(tmp_path / "set", parts).document


def attribution(document: TaskSetDocument | None) -> Attribution:
    return Attribution(31337, RUNS, 1, terms(document), document)


def terms(document: TaskSetDocument | None) -> Terms:
    return replace(TERMS, task_count=document.slots if document else 1, groups_per_commitment=8)


def history(commitments: int) -> list[Registered | CheckpointPublished | WorkCommitted]:
    def at(number: int) -> Place:
        return Place(block=number, block_hash=bytes(32), transaction=bytes([number]) * 32, log_index=0)

    return [
        Registered(at(1), WORKER, "0x" + "c" * 40, 1, Role.WORKER, 0, 100, bytes(32)),
        CheckpointPublished(at(2), 1, 0, b"\x01" * 32, b"\x02" * 32, ENTROPY, b"\x04" * 32),
        *(WorkCommitted(at(3 + i), 1, WORKER, 0, i, 5, bytes([i]) * 32) for i in range(commitments)),
    ]


async def followed(database: Database, known: Attribution, commitments: int = 6) -> ChainProjection:
    book = ChainProjection(Queries(database, 1, known.terms, groups_wanted=16), known)
    times = {1: 1_000}
    await database.write(lambda connection: book.apply(connection, history(commitments), times))
    return book


async def kept(database: Database) -> int:
    """Return the number of commitments and parts of which it is stored that they drew tasks of them."""
    texts = select(tables.commitments.c.drawn).where(tables.commitments.c.drawn.is_not(None))
    found = await database.read(lambda connection: connection.execute(texts).scalars().all())
    return sum(len(json.loads(text)) for text in found)


def expected(document: TaskSetDocument, commitments: range) -> Counter[str]:
    """Count rollouts per author with the draw that workers and validators use."""
    found: Counter[str] = Counter()
    for index in commitments:
        base = draw_base(chain_id=31337, runs=RUNS, run=1, entropy=ENTROPY, node=WORKER, index=index)
        for group in draw_commitment(base, terms(document), 0).groups:
            found[document.parts[document.locate(group.task)[0]].author] += TERMS.group_size
    return found


async def test_rollouts_are_counted_by_the_author_of_their_tasks(database: Database, document: TaskSetDocument) -> None:
    known = attribution(document)
    await followed(database, known)

    def accept(connection: Connection, index: int) -> None:
        found = find_commitment(connection, WORKER, index)
        assert found is not None
        set_statuses(connection, [(found, "accepted", None)])

    await database.write(lambda connection: [accept(connection, index) for index in range(2)])
    lines = await database.read(known.lines)
    drawn, accepted = expected(document, range(6)), expected(document, range(2))
    assert {line.author: (line.rollouts, line.accepted) for line in lines} == {
        author: (drawn[author], accepted[author]) for author in ("", ADA, BOB)
    }
    assert sum(line.rollouts for line in lines) == 6 * 8 * 2
    assert {line.author: (line.parts, line.tasks) for line in lines} == {
        "": (["own"], 5),
        ADA: (["adas"], 3),
        BOB: (["bobs"], 7),
    }
    assert [line.accepted for line in lines] == sorted((line.accepted for line in lines), reverse=True)


async def test_step_decides_the_part_of_a_slot_with_private_tests(tmp_path: Path) -> None:
    manifest, masters = default_manifest("sorting"), Masters(2, bytes(32))
    tasks = {author: [ask(f"{author} {i}", answer="1") for i in range(6)] for author in (ADA, BOB)}
    parts = [
        NewPart(name, manifest, tasks[author], 1, [TaskSource("MIT", "here", "", author)])
        for name, author in (("adas", ADA), ("bobs", BOB))
    ]
    sealed = seal_set(write_task_set(tmp_path / "set", parts), ["adas"], tmp_path / "sealed", masters)
    private = {"grade_tip": masters.tip, "grade_epochs": 2, "grade_epoch_steps": 1}
    rules_of = replace(terms(sealed.document), **private)
    known = Attribution(31337, RUNS, 1, rules_of, sealed.document)
    base = draw_base(chain_id=31337, runs=RUNS, run=1, entropy=ENTROPY, node=WORKER, index=0)
    groups = draw_commitment(base, rules_of, 0).groups
    for step, epoch in ((0, 1), (1, 2), (7, 2)):
        drawn = known.drawn(WORKER, 0, step, ENTROPY)
        assert drawn == Counter(sealed.at(epoch).part(group.task).name for group in groups)
        assert set(drawn) == {f"adas-{epoch}", "bobs"}


async def test_reading_the_chain_twice_counts_once_and_a_reorg_forgets(
    database: Database, document: TaskSetDocument
) -> None:
    known = attribution(document)
    book = await followed(database, known)
    before = await database.read(known.lines)
    await followed(database, known)
    assert await database.read(known.lines) == before
    await database.write(book.forget)
    assert [line.rollouts for line in await database.read(known.lines)] == [0, 0, 0]
    assert await kept(database) == 0  # another block may have given the step another entropy


async def test_complete_credits_earlier_work_when_task_set_arrives(
    database: Database, document: TaskSetDocument
) -> None:
    unknown, known = attribution(None), attribution(document)
    await followed(database, unknown)
    assert await database.read(unknown.lines) == []
    assert await database.write(known.complete) == 6
    assert await database.write(known.complete) == 0
    lines = await database.read(known.lines)
    assert {line.author: line.rollouts for line in lines} == expected(document, range(6))


async def test_without_authors_nothing_is_kept(database: Database) -> None:
    await followed(database, attribution(None))
    assert await kept(database) == 0
