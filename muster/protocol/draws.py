"""Draws: which task, budget and seed every position of a commitment has, and which rows are re-run.

No node chooses its work. Each function here is pure, and the first three have a twin in
`contracts/libraries/Draws.sol` that must give the same numbers (tests/integration/test_twins.py).

base    = keccak256(abi.encode("muster.draw.v2", chainId, runs, run, entropy, node, index))
group g = keccak256(base ‖ "g" ‖ uint32 g): task is the upper 128 bits mod taskCount, budget the lower 128 mod count
seed p  = keccak256(base ‖ "p" ‖ uint32 p): its lower 63 bits (an int64 that is never negative)

The entropy is that of the step from which the node may work, and of no other. From then on it is fixed what its
commitments must be, one after the other, whatever step it works on: there is no step to choose or to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_abi.abi import encode

from muster.errors import UnreachableError
from muster.protocol.hashes import keccak
from muster.protocol.looks import rows_of_look
from muster.protocol.terms import Terms

DRAW_TAG = "muster.draw.v2"
SAMPLE_TAG = b"muster.sample.v2"
POOL_TAG = b"muster.pool.v1"
UNIT_TAG = b"muster.unit.v1"
POOL_TOKENS = 1 << 14
"""Completion tokens of a commitment's pool rows, at most, unless a single row may have more."""

UNIT_ROWS = 8
"""Rows that are drawn of a node's work of one step, for its pool."""


@dataclass(frozen=True)
class GroupDraw:
    """What a group's samples share."""

    task: int
    """Index into the run's task set."""
    budget: int
    """Thinking budget in tokens, announced in the prompt."""


@dataclass(frozen=True)
class DrawSource:
    """What all draws of one node follow from, besides the run's terms. `ChainReader.draw_source` reads it."""

    node: str
    """Address."""
    entropy: bytes
    """Of the step that it joined for (IRuns.Work.joinedStep): 32 bytes."""
    work_class: int
    """Index into the terms' classes."""


@dataclass(frozen=True)
class Draw:
    """Everything that a commitment's rows must be: `groups[g]` and, per position, `seeds[p]` (0 ≤ seed < 2^63)."""

    base: bytes
    groups: tuple[GroupDraw, ...]
    seeds: tuple[int, ...]


def draw_base(*, chain_id: int, runs: str, run: int, entropy: bytes, node: str, index: int) -> bytes:
    """Return the hash that all draws of one commitment follow from. `runs`, `node`: addresses; `entropy`: 32 bytes."""
    types = ["string", "uint256", "address", "uint32", "bytes32", "address", "uint32"]
    return keccak(encode(types, [DRAW_TAG, chain_id, runs, run, entropy, node, index]))


def group_draw(base: bytes, group: int, terms: Terms, work_class: int) -> GroupDraw:
    """Draw the task and budget of a group."""
    word = int.from_bytes(keccak(base + b"g" + group.to_bytes(4, "big")), "big")
    budgets = terms.classes[work_class].budgets
    return GroupDraw(task=(word >> 128) % terms.task_count, budget=budgets[(word & (1 << 128) - 1) % len(budgets)])


def position_seed(base: bytes, position: int) -> int:
    """Return the sampling seed of a position, 0 ≤ seed < 2^63."""
    return int.from_bytes(keccak(base + b"p" + position.to_bytes(4, "big")), "big") & (1 << 63) - 1


def draw_of(source: DrawSource, index: int, terms: Terms, *, chain_id: int, runs: str, run: int) -> Draw:
    """Draw what the rows of a node's commitment must be, at whatever step it is made. `runs`: the contract."""
    base = draw_base(chain_id=chain_id, runs=runs, run=run, entropy=source.entropy, node=source.node, index=index)
    return draw_commitment(base, terms, source.work_class)


def draw_commitment(base: bytes, terms: Terms, work_class: int) -> Draw:
    """Draw all groups and seeds of one commitment, positions in order (position = group × group_size + sample)."""
    groups = tuple(group_draw(base, g, terms, work_class) for g in range(terms.groups_per_commitment))
    return Draw(base=base, groups=groups, seeds=tuple(position_seed(base, p) for p in range(terms.positions)))


def draw_rows(*, block_hash: bytes, link: bytes, validator: str, node: str, index: int, terms: Terms) -> list[int]:
    """Draw the positions that one validator re-runs, `rows_of_look` distinct ones, ascending: the pool's, and its own.

    `block_hash` is that of the block SAMPLE_BLOCKS after the commitment, and `link` is the validator's for the
    commitment's hour (`link_of`), which is secret in that hour. So the worker cannot know them, and the validator
    cannot choose them; once the link is shown, with the seal of the hour, anyone can draw them again. `validator`: its
    address, by which who shares or copies a link draws others.
    """
    pool = draw_pool(block_hash=block_hash, node=node, index=index, terms=terms)
    others = [position for position in range(terms.positions) if position not in pool]
    seed = SAMPLE_TAG + block_hash + link + bytes.fromhex(validator[2:])
    own = _shuffled(seed, node, index, len(others), rows_of_look(terms, index) - len(pool))
    return sorted([*pool, *(others[place] for place in own)])


def draw_pool(*, block_hash: bytes, node: str, index: int, terms: Terms) -> list[int]:
    """Draw the positions that every validator re-runs, `shared_rows` distinct ones, ascending.

    They are the same for all validators, so statistics over many commitments are evidence that no validator selected.
    `block_hash` as in `draw_rows`.
    """
    return sorted(_shuffled(POOL_TAG + block_hash, node, index, terms.positions, shared_rows(terms)))


def draw_unit(*, block_hash: bytes, node: str, first: int, last: int, terms: Terms) -> list[tuple[int, int]]:
    """Draw the rows by which a node's work of one step counts, its commitments `first` to `last`: at most UNIT_ROWS.

    Each is the index of a commitment and a place in its `draw_pool`, the row that was drawn first before the others.
    `block_hash` is that of the block SAMPLE_BLOCKS after the commitment `last + 1`, which is of a later step: while the
    node makes the work of a step it cannot know which of it counts.
    """
    each = shared_rows(terms)
    places = _shuffled(UNIT_TAG + block_hash, node, first, (last - first + 1) * each, UNIT_ROWS)
    return [(first + place // each, place % each) for place in places]


def shared_rows(terms: Terms) -> int:
    """Return how many of a commitment's positions all validators re-run: a sixteenth of them, from 1 to 8.

    Of a look they are at most a third, so that most of its rows are a validator's own. There are fewer where they could
    have more than POOL_TOKENS tokens together: a jury replays those of many commitments.
    """
    most = min(8, terms.positions // 16, terms.look_rows // 3, POOL_TOKENS // terms.max_completion_tokens)
    return max(1, most)


def _shuffled(start: bytes, node: str, index: int, positions: int, count: int) -> list[int]:
    """Return `count` of the positions, as a Fisher-Yates shuffle of hashes draws them."""
    state = keccak(start + bytes.fromhex(node[2:]) + index.to_bytes(4, "big"))
    order = list(range(positions))
    count = min(count, positions)
    for i in range(count):
        state = keccak(state)
        j = i + int.from_bytes(state, "big") % (positions - i)
        order[i], order[j] = order[j], order[i]
    return order[:count]


def chain_preimages(secret: bytes, length: int) -> list[bytes]:
    """Return a hash chain to reveal from front to back: element k is H^(length-k)(secret); the tip is H(element 0)."""
    links = [secret]
    for _ in range(length - 1):
        links.append(keccak(links[-1]))
    return links[::-1]


def opens_chain(tip: bytes, link: bytes, index: int) -> bool:
    """Return whether a link is element `index` of the hash chain of this tip; there is none before the first."""
    for _ in range(index + 1):
        link = keccak(link)
    return index >= 0 and link == tip


def link_of(links: Sequence[bytes], first_hour: int, hour: int) -> bytes:
    """Return the link of a validator's hash chain for an hour. `first_hour`: that in which it registered.

    Raises UnreachableError when the chain has no link for it.
    """
    if first_hour <= hour < first_hour + len(links):
        return links[hour - first_hour]
    raise UnreachableError(
        f"this validator's hash chain has links for {len(links)} hours, and not for hour {hour}",
        hint="once they are over, retire this key, and join with a new key and another operator",
    )
