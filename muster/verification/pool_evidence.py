"""Verify that a pool shows what a bundle says of it: consecutive steps of a node's work, of which many lean.

The chain says which steps there are and which rows count. A juror replays only units that are said to lean, the others
count as honest, and it stops as soon as the outcome is decided: what it does is bounded by what was claimed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from eth_utils.crypto import keccak

from muster.constants import SAMPLE_BLOCKS
from muster.errors import CheckError, MismatchError
from muster.protocol.draws import draw_pool, draw_unit
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, Inspection, PoolMember, ShownPool
from muster.verification.checks import CheckedRow, Finding, check_draw, check_place, check_rows
from muster.verification.context import VerificationContext
from muster.verification.pools import (
    CONVICT,
    REASONS,
    blamed,
    check_claim,
    leans,
    pool_evidence,
    pooled_row,
    row_key,
    take_rows,
)
from muster.verification.rules import CommittedWork
from muster.verification.shown_rows import check_under, read_rows
from muster.verification.shown_tasks import read_tasks


@dataclass(frozen=True)
class ShownUnit:
    """A node's work of one step, as the chain has it, and what a bundle shows of it."""

    step: int
    first: int
    last: int
    closing_block: int
    """The block of the commitment after it, which is of a later step."""
    members: Sequence[PoolMember]


async def verify_pool(
    bundle: EvidenceBundle, commitment: CommittedWork, entropy: bytes, context: VerificationContext
) -> Inspection:
    """Verify the pool of a bundle about this commitment. entropy and errors as in `verify_evidence`."""
    # 1. It is of consecutive steps, what is said of them convicts if it is true, and the rows are those that count.
    assert bundle.pool is not None
    try:
        units = await _check_units(bundle.pool, commitment, context)
        about = max(place for place, unit in enumerate(units) if unit.first <= commitment.index)
        needed = check_claim([bool(unit.members) for unit in units], about=about)
        shown = [unit for unit in units if unit.members]
        counted = await _check_shown(shown, commitment, context)
    except CheckError as error:
        return Inspection(why=f"the pool does not count: {error}")

    # 2. Replay one unit after the other, in an order that the accuser could not know, until it is decided.
    statistics = [name for name, (reason, _) in REASONS.items() if reason == bundle.reason]
    leaning = Counter[str]()
    order = sorted(range(len(shown)), key=lambda place: keccak(entropy + place.to_bytes(4, "big")))
    for done, place in enumerate(order, 1):
        leaning.update(await _blamed(shown[place], counted[place], context))
        best = max(statistics, key=leaning.__getitem__)
        said = f"{REASONS[best][1]}: of {len(units)} steps at least {leaning[best]} are above the pool limit"
        if leaning[best] >= needed:
            evidence = pool_evidence(leaning[best], len(units))
            finding = Finding(bundle.reason, measured=evidence, threshold=CONVICT, detail=said)
            return Inspection(finding, f"{finding.reason}: {said}")
        if leaning[best] + len(order) - done < needed:
            return Inspection(why=f"the pool's rows do not show it together: {said}, {needed} are needed")
    raise AssertionError("a claim that convicts is decided by its last unit")


async def _check_units(pool: ShownPool, commitment: CommittedWork, context: VerificationContext) -> list[ShownUnit]:
    """Return the units of a pool. Raises CheckError unless each is a whole step of the node's, one after the other."""

    async def work_at(index: int, block: int | None) -> CommittedWork:
        work = None if block is None else await context.committed(commitment.node, index, block)
        if work is None:
            raise MismatchError(f"block {block} does not hold commitment {index}")
        return work

    units: list[ShownUnit] = []
    start, closing_blocks = pool.units[0].first, [*(unit.first_block for unit in pool.units[1:]), pool.next_block]
    step_before = (await work_at(start - 1, pool.before_block)).step if start else -1
    for unit, closing_block in zip(pool.units, closing_blocks, strict=True):
        first, last = await work_at(unit.first, unit.first_block), await work_at(unit.last, unit.last_block)
        closing = await work_at(unit.last + 1, closing_block)
        # A node's steps never go back, so that what is between two commitments of a step is of it as well.
        if unit.first != start or not step_before < first.step == last.step < closing.step:
            raise MismatchError(f"commitments {unit.first} to {unit.last} are not the next step's, or not all of it")
        units.append(ShownUnit(first.step, unit.first, unit.last, closing.block, unit.members))
        start, step_before = unit.last + 1, first.step
    if not units[0].first <= commitment.index <= start:
        raise MismatchError(f"commitment {commitment.index} is not among them")
    return units


async def _check_shown(
    shown: Sequence[ShownUnit], commitment: CommittedWork, context: VerificationContext
) -> list[set[bytes]]:
    """Return by unit the keys of the rows that count in it: of equal ones the first unit's.

    Raises CheckError unless all rows are those that the chain draws, and say what they must. No more than the rows of
    one unit are in memory at a time.
    """
    seen: set[bytes] = set()
    counted = []
    for unit in shown:
        keys = {row_key(row) for row in await _drawn_rows(unit, commitment, context)}
        counted.append(keys - seen)
        seen |= keys
    return counted


async def _drawn_rows(unit: ShownUnit, commitment: CommittedWork, context: VerificationContext) -> list[Rollout]:
    """Return the rows of a unit, in drawn order. Raises CheckError where they are not those that count."""
    shown: dict[tuple[int, int], Rollout] = {}
    for member in unit.members:
        shown |= await _check_member(member, unit, commitment.node, context)
    block_hash = await context.block_hash(unit.closing_block + SAMPLE_BLOCKS)
    terms = context.rules.terms
    drawn = draw_unit(block_hash=block_hash, node=commitment.node, first=unit.first, last=unit.last, terms=terms)
    try:
        taken = list(take_rows(drawn, lambda place: len(shown[place].completion_tokens)))
    except KeyError as error:
        raise MismatchError(f"a row that counts in step {unit.step} is not shown") from error
    if len(taken) != len(shown):
        raise MismatchError(f"{len(shown)} rows are shown of step {unit.step}, and {len(taken)} count")
    return [shown[place] for place in taken]


async def _check_member(
    member: PoolMember, unit: ShownUnit, node: str, context: VerificationContext
) -> dict[tuple[int, int], Rollout]:
    """Return a commitment's rows by its index and their place in its pool. Raises CheckError."""
    # 1. They are rows of this commitment that all validators re-run.
    work = await context.committed(node, member.index, member.block)
    if work is None or work.step != unit.step:
        raise MismatchError(f"block {member.block} holds no commitment {member.index} of step {unit.step}")
    rows = await read_rows(member, context)
    check_under(rows, member.proofs, work.root)
    terms = context.rules.terms
    block_hash = await context.block_hash(work.block + SAMPLE_BLOCKS)
    positions = draw_pool(block_hash=block_hash, node=node, index=work.index, terms=terms)
    if not {row.position for row in rows} <= set(positions):
        raise MismatchError(f"rows of commitment {work.index} are not in its pool, {positions}")

    # 2. They say what they must, so that they can be replayed.
    draw = await context.draw(work)
    for row in rows:
        if finding := check_place(row, row.position, work, terms) or check_draw(CheckedRow(row, draw, context.rules)):
            raise MismatchError(finding.detail)
    rules = context.rules.at(work.step)
    rules = rules.with_tasks(read_tasks(member.tasks, rows, rules.task_set))
    if finding := await asyncio.to_thread(check_rows, rows, draw, rules, accusing=True):
        raise MismatchError(f"row {finding.position} fails a static check: {finding.reason}")
    return {(work.index, positions.index(row.position)): row for row in rows}


async def _blamed(unit: ShownUnit, counted: Container[bytes], context: VerificationContext) -> list[str]:
    """Replay the rows of a unit that count; return by which statistics it leans, but for what is the step's fault."""
    rows = [row for member in unit.members for row in await read_rows(member, context) if row_key(row) in counted]
    replayed, limits = await context.replay(unit.step, rows), context.profile.pool
    pooled = [pooled_row(row, one.sums) for row, one in zip(rows, replayed, strict=True)]
    if not any(leans(pooled, name, limits) for name in REASONS):
        return []
    return blamed(pooled, await context.honest_sums(unit.step, rows), limits)
