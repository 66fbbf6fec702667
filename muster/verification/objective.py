"""What the contract itself can see wrong in a commitment: the leaf or leaves to show it (`SlashCourt.prove`).

The rules are those of `contracts/ObjectiveProofs.sol`, asked of every row of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.constants import MICRO
from muster.contracts.refutations import Flaw, Leaf, Opening
from muster.protocol.draws import Draw
from muster.protocol.merkle import LeafTree
from muster.protocol.terms import Terms
from muster.rollouts.leaves import leaf_hash, leaf_of
from muster.rollouts.schema import Rollout


@dataclass(frozen=True)
class ObjectiveFlaw:
    """A flaw, the position that has it, and what shows it to the contract."""

    flaw: Flaw
    position: int
    openings: list[Opening]


def find_flaw(rows: Sequence[Rollout], draw: Draw, terms: Terms) -> ObjectiveFlaw | None:
    """Return the first flaw that the contract can see in the rows of a commitment, or None. Pure."""
    leaves = [leaf_of(row) for row in rows]
    tree = LeafTree.from_hashes([leaf_hash(leaf) for leaf in leaves])
    places: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        shown = Opening(leaf, tree.proof(place))
        if (flaw := flaw_of(leaf, draw, terms)) is not Flaw.NONE:
            return ObjectiveFlaw(flaw, leaf.position, [shown])
        if leaf.position in places:
            first = places[leaf.position]
            return ObjectiveFlaw(Flaw.POSITION_TWICE, leaf.position, [Opening(leaves[first], tree.proof(first)), shown])
        places[leaf.position] = place
    return None


def flaw_of(leaf: Leaf, draw: Draw, terms: Terms) -> Flaw:
    """Return what one leaf shows. Pure."""
    if leaf.position >= terms.positions:
        return Flaw.POSITION_BEYOND
    if not 1 <= leaf.length <= terms.max_completion_tokens or not 0 <= leaf.task_reward <= MICRO:
        return Flaw.OUT_OF_BOUNDS
    drawn = draw.groups[leaf.position // terms.group_size]
    if leaf.task != drawn.task:
        return Flaw.WRONG_TASK
    if leaf.seed != draw.seeds[leaf.position]:
        return Flaw.WRONG_SEED
    return Flaw.NONE if leaf.budget == drawn.budget else Flaw.WRONG_BUDGET
