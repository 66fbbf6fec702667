"""Judge what a bundle shows of a pool: consecutive steps of a node's work, of which many lean.

The chain says which steps there are and which rows count. A juror replays only units that are said to lean, the others
count as honest, and it stops as soon as the outcome is decided: what it does is bounded by what was claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.errors import MismatchError
from muster.protocol.draws import draw_pool, draw_unit
from muster.protocol.reasons import UNIT_STATISTICS, Reason
from muster.rollouts.schema import Rollout
from muster.verification.bundles import Inspection, PoolMember, ShownPool
from muster.verification.checks import Finding
from muster.verification.evidence import ShownRows, check_shown, voiding
from muster.verification.pools import CONVICT, check_claim, pool_evidence, take_rows
from muster.verification.rules import CommittedWork

Works = Mapping[tuple[int, int], CommittedWork | None]
"""A node's commitments on chain, by their index and the block that is said to hold them."""


@dataclass(frozen=True)
class ShownUnit:
    """A node's work of one step, as the chain has it, and what a bundle shows of it."""

    step: int
    first: int
    last: int
    closing_block: int
    """The block of the commitment after it, which is of a later step."""
    members: Sequence[tuple[PoolMember, CommittedWork]]


def list_works(pool: ShownPool) -> list[tuple[int, int]]:
    """Return the index and the block of every commitment by which a pool is judged, each once."""
    works = [(pool.units[-1].last + 1, pool.next_block)]
    if pool.before_block is not None:
        works.append((pool.units[0].first - 1, pool.before_block))
    for unit in pool.units:
        works += [(unit.first, unit.first_block), (unit.last, unit.last_block)]
        works += [(member.index, member.block) for member in unit.members]
    return list(dict.fromkeys(works))


def check_pool(pool: ShownPool, commitment: CommittedWork, works: Works) -> tuple[list[ShownUnit], int]:
    """Return the units of a pool, and how many of them must lean. works: what the chain holds of `list_works`.

    Raises VoidEvidenceError unless they are consecutive steps, and what is said of them convicts if it is true.
    """
    with voiding("the pool does not count"):
        units = _check_units(pool, commitment, works)
        about = max(place for place, unit in enumerate(units) if unit.first <= commitment.index)
        return units, check_claim([bool(unit.members) for unit in units], about=about)


def check_unit(unit: ShownUnit, shown: Sequence[tuple[ShownRows, bytes]], block_hash: bytes) -> list[Rollout]:
    """Return the rows of a unit. Raises VoidEvidenceError unless they are those that count.

    shown: by commitment its rows, and the hash of the block that draws its pool. block_hash: of the block that draws
    the unit's rows.
    """
    by_place: dict[tuple[int, int], Rollout] = {}
    with voiding("the pool does not count"):
        for rows, pool_hash in shown:
            by_place |= _check_member(rows, pool_hash)
        node, terms = shown[0][0].commitment.node, shown[0][0].rules.terms
        drawn = draw_unit(block_hash=block_hash, node=node, first=unit.first, last=unit.last, terms=terms)
        try:
            taken = list(take_rows(drawn, lambda place: len(by_place[place].logprobs)))
        except KeyError as error:
            raise MismatchError(f"a row that counts in step {unit.step} is not shown") from error
        if len(taken) != len(by_place):
            raise MismatchError(f"{len(by_place)} rows are shown of step {unit.step}, and {len(taken)} count")
    return list(by_place.values())


def judge_leaning(reason: Reason, leaning: Counter[str], *, left: int, count: int, needed: int) -> Inspection | None:
    """Judge a pool of `count` units by how many lean, by statistic; None while the `left` ones may decide."""
    best = max((name for name, (shown, _) in UNIT_STATISTICS.items() if shown == reason), key=leaning.__getitem__)
    said = f"{UNIT_STATISTICS[best][1]}: of {count} steps at least {leaning[best]} are above the pool limit"
    if leaning[best] >= needed:
        evidence = pool_evidence(leaning[best], count)
        return Inspection(Finding(reason, measured=evidence, threshold=CONVICT, detail=said), f"{reason}: {said}")
    if leaning[best] + left < needed:
        return Inspection(why=f"the pool's rows do not show it together: {said}, {needed} are needed")
    return None


def _check_units(pool: ShownPool, commitment: CommittedWork, works: Works) -> list[ShownUnit]:
    """Return the units of a pool. Raises CheckError unless each is a whole step of the node's, one after the other."""

    def work_at(index: int, block: int | None) -> CommittedWork:
        work = None if block is None else works.get((index, block))
        if work is None:
            raise MismatchError(f"block {block} does not hold commitment {index}")
        return work

    units: list[ShownUnit] = []
    start, closing_blocks = pool.units[0].first, [*(unit.first_block for unit in pool.units[1:]), pool.next_block]
    step_before = work_at(start - 1, pool.before_block).step if start else -1
    for unit, closing_block in zip(pool.units, closing_blocks, strict=True):
        first, last = work_at(unit.first, unit.first_block), work_at(unit.last, unit.last_block)
        closing = work_at(unit.last + 1, closing_block)
        # A node's steps never go back, so that what is between two commitments of a step is of it as well.
        if unit.first != start or not step_before < first.step == last.step < closing.step:
            raise MismatchError(f"commitments {unit.first} to {unit.last} are not the next step's, or not all of it")
        members = [(member, work_at(member.index, member.block)) for member in unit.members]
        if any(work.step != first.step for _, work in members):
            raise MismatchError(f"rows of another step are shown of step {first.step}")
        units.append(ShownUnit(first.step, unit.first, unit.last, closing.block, members))
        start, step_before = unit.last + 1, first.step
    if not units[0].first <= commitment.index <= start:
        raise MismatchError(f"commitment {commitment.index} is not among them")
    return units


def _check_member(shown: ShownRows, block_hash: bytes) -> dict[tuple[int, int], Rollout]:
    """Return a commitment's rows by its index and their place in its pool. Raises CheckError unless they may count."""
    work = shown.commitment
    positions = draw_pool(block_hash=block_hash, node=work.node, index=work.index, terms=shown.rules.terms)
    if not {row.position for row in shown.rows} <= set(positions):
        raise MismatchError(f"rows of commitment {work.index} are not in its pool, {positions}")
    if finding := check_shown(shown):
        raise MismatchError(f"row {finding.position} fails a static check: {finding.reason}")
    return {(work.index, positions.index(row.position)): row for row in shown.rows}
