"""The result of an inspection, and the inputs that an inspector needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.chain.keys import Signer
from muster.constants import SAMPLE_BLOCKS
from muster.contracts.runs import WorkCommitted
from muster.protocol.draws import draw_rows
from muster.protocol.hashes import hex_hash
from muster.protocol.kinds import kind_of
from muster.protocol.looks import rows_of_look
from muster.verification.bundles import Inspection
from muster.verification.checks import Finding
from muster.verification.look import LookSeeds, decode_look
from muster.verification.pools import ACCUSE, HONEST_DRAWS
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork
from testbed.samples.commitments import rules
from testbed.samples.validator import ME, place, receive
from testbed.samples.verification_context import LEANING, STRAIGHT, Context, thinking_rows
from validator.evidence import verify_evidence
from validator.inspector import Inspector, from_replay, from_static
from validator.journal import ValidatorJournal
from validator.pool import PoolJudge

ACCUSER_KEY = Signer.from_key(b"\x03" * 32)


def test_accusing_findings_come_first_then_the_order_of_checks() -> None:
    slight = Finding("sampling_mismatch", 1, 1.2, 1.0, accuse=False)
    forged = Finding("wrong_logprobs", 2, 9.0, 1.0)
    noisy = [Finding("activation_mismatch", p, m, 1.0) for p, m in ((3, 2.0), (4, 5.0))]
    inspection = from_replay([slight, None, forged, *noisy])
    assert inspection.finding == noisy[1]
    assert inspection.rows == (4, 3, 2, 1)
    assert inspection.replayed == 5
    assert from_replay([slight, None]).finding == slight
    assert from_replay([None, None]).finding is None
    assert from_static(Finding("wrong_draw", 3)).rows == (3,)
    assert from_static(Finding("wrong_root")).rows == ()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


def inspector_of(context: Context, journal: ValidatorJournal) -> Inspector:
    run: Any = context
    return Inspector(run, ACCUSER_KEY, PoolJudge(run, journal.pools))


async def inspect(
    inspector: Inspector, context: Context, journal: ValidatorJournal, index: int, each: int = 1
) -> tuple[CommittedWork, Inspection]:
    """Inspect a node's next commitment, and keep its rows for the pools."""
    work = context.commit(thinking_rows(index, 3 + index // each), index)
    receive(journal, WorkCommitted(place(work.block), 1, work.node, work.step, index, 0, work.root))
    found = await inspector.inspect(work, bytes(32), signs=True, missing_counts=True)
    journal.pools.keep(work, found.pooled)
    return work, found


async def test_pool_shows_what_no_row_shows_and_its_evidence_holds(journal: ValidatorJournal) -> None:
    """Each row is far below the rejecting limit. After six steps work is not used; after eleven its node is accused."""
    context = Context(sums=LEANING)
    inspector = inspector_of(context, journal)
    for index in range(12):
        work, found = await inspect(inspector, context, journal, index)
        assert (found.finding is not None, found.guilty) == (index >= 6, index == 11)
    verdict, evidence = inspector.conclude(work, found)
    assert (verdict.accepted, verdict.reason, verdict.threshold) == (False, "sampling_mismatch", ACCUSE)
    assert evidence is not None
    assert (await verify_evidence(evidence, kind_of("sampling_mismatch"), work, context)).guilty

    # If a file of the pool is unavailable, the commitment is not used and its node is not accused yet.
    context.uploads.pop(4)
    found = await inspector.inspect(work, bytes(32), signs=True, missing_counts=True)
    assert (found.finding is not None, found.guilty, found.pool) == (True, False, None)
    # If a row is rejected by itself, the finding names that row.
    context.findings = lambda _step, rows: (
        [Finding("wrong_logprobs", rows[0].position, 13.0, 12.0, accuse=False)] + [None] * (len(rows) - 1)
    )
    found = await inspector.inspect(work, bytes(32), signs=True, missing_counts=True)
    assert found.finding is not None
    assert (found.finding.reason, found.finding.position in found.rows, found.pool) == ("wrong_logprobs", True, None)


async def test_a_file_that_is_gone_holds_up_no_inspection_and_breaks_the_pool(journal: ValidatorJournal) -> None:
    context = Context(sums=LEANING)
    inspector = inspector_of(context, journal)
    for index in range(16):
        if index == 5:
            context.uploads.pop(4)
        _, found = await inspect(inspector, context, journal, index)
        assert (found.finding is not None) == (index >= 11), "six steps after the one that cannot be shown"


async def test_a_step_on_which_honest_machines_differ_counts_as_honest(journal: ValidatorJournal) -> None:
    context = Context(sums=LEANING, honest=replace(LEANING, gaps=0.8 * LEANING.gaps))
    inspector = inspector_of(context, journal)
    assert not any([(await inspect(inspector, context, journal, index))[1].finding for index in range(14)])


async def test_a_step_counts_once_however_many_commitments_it_has(journal: ValidatorJournal) -> None:
    """Five a step: the node is accused by its twelfth step, by the commitment that begins it."""
    context = Context(sums=LEANING)
    inspector = inspector_of(context, journal)
    guilty = [(await inspect(inspector, context, journal, index, each=5))[1].guilty for index in range(56)]
    assert guilty.index(True) == 55


async def test_honest_commitments_stay_accepted_however_many_there_are(journal: ValidatorJournal) -> None:
    context = Context(sums=STRAIGHT)
    inspector = inspector_of(context, journal)
    for index in range(16):
        _, found = await inspect(inspector, context, journal, index)
        assert found.finding is None
        assert len(found.pooled) == 1


async def test_only_a_suspect_s_rows_that_count_are_replayed_beside_the_look(journal: ValidatorJournal) -> None:
    """The third step that leans makes its node suspect, from the first on."""
    context, rows = Context(sums=STRAIGHT), rows_of_look(rules().terms, 0)
    inspector = inspector_of(context, journal)
    for index in range(4):
        await inspect(inspector, context, journal, index)
    assert context.replayed == 4 * rows
    context.sums = LEANING
    for index in range(4, 7):
        await inspect(inspector, context, journal, index)
    looks = 4 * rows + 3 * rows_of_look(rules().terms, 4)
    assert context.replayed == looks
    await inspect(inspector, context, journal, 7)
    looks += rows_of_look(rules().terms, 4)
    assert context.replayed == looks + 3 * (1 + HONEST_DRAWS), "one row of each step, and honest machines of it"


async def test_a_look_has_the_numbers_of_each_drawn_row_while_its_link_is_secret(journal: ValidatorJournal) -> None:
    context, link = Context(), b"\x07" * 32
    inspector = inspector_of(context, journal)
    work = context.commit(thinking_rows(9), 9)
    me, block_hash = ACCUSER_KEY.address, await context.block_hash(work.block + SAMPLE_BLOCKS)
    drawn = {"block_hash": block_hash, "node": work.node, "index": work.index}
    positions = draw_rows(**drawn, link=link, validator=me, terms=rules().terms)
    seeds = LookSeeds(me, link, block_hash, work.node, work.index, work.root)
    verdicts = []
    for signs in (True, False):
        found = await inspector.inspect(work, link, signs=signs, missing_counts=True)
        verdict, evidence = inspector.conclude(work, found)
        assert (verdict.accepted, verdict.inspected, evidence) == (True, len(positions), None)
        assert verdict.drawn_by == hex_hash(block_hash)
        verdicts.append(verdict)
    numbers = decode_look(verdicts[0].look, len(positions), CPU_FP32)
    assert numbers is not None
    assert [row[0, 0] for row in numbers] == [seeds.signs(position) % 1000 for position in positions]
    assert verdicts[1].look == ""


async def test_what_replays_nothing_is_no_look(journal: ValidatorJournal) -> None:
    context = Context()
    inspector = inspector_of(context, journal)
    rows = thinking_rows(9)
    rows[2] = replace(rows[2], task_reward=1_000_000)
    for work in (context.commit(rows, 9), replace(context.commit(thinking_rows(10), 10), index=11)):
        found = await inspector.inspect(work, bytes(32), signs=True, missing_counts=True)
        verdict, _ = inspector.conclude(work, found)
        assert (verdict.accepted, verdict.inspected, verdict.look, context.replayed) == (False, 0, "", 0)
        assert verdict.drawn_by is not None
