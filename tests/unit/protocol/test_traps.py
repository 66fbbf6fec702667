"""Traps off chain: the lottery, maps that hide their rows, and what makes an opened trap one."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import CheckError, MalformedError, MismatchError
from muster.grading.masters import Masters
from muster.protocol.eip712 import UNSIGNED, recover_signer, sign_message, struct_of
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.messages import OpenedTrap, PlantedRow, TrapMap, TrapPromise, TrapTicket
from muster.protocol.traps import (
    check_map,
    check_opened,
    check_promise,
    is_picked,
    map_leaf,
    map_tree,
    planted_rows,
    row_salt,
    true_rows,
    weight,
)
from testbed.samples.messages import ELSEWHERE, HASH, HERE, KEY, OTHER
from testbed.samples.terms import keys_of, terms_of

MASTERS = Masters(3, b"\x07" * 32)
TERMS = terms_of(
    group_size=4,
    groups_per_commitment=4,
    trap_every=20,
    trap_prize=4 * 10**18,
    trap_tip=MASTERS.tip,
    trap_epochs=3,
    trap_epoch_steps=10,
)
ENTROPY = b"\x03" * 32
PLANTED = TrapMap(salt=HASH, rows=[PlantedRow(position=2, token=5), PlantedRow(position=9, token=0)])
ROOT = hex_hash(map_tree(PLANTED).root)
LOTTERY: Final = {"master": MASTERS.of(2), "entropy": ENTROPY, "node": OTHER.address, "every": TERMS.trap_every}
PICKED = next(i for i in range(4, 500) if is_picked(**LOTTERY, index=i))
GIVEN: dict[str, Any] = {
    "terms": TERMS,
    "keys": keys_of(KEY.address),
    "step": 10,
    "entropy": ENTROPY,
    "epoch": 3,
    "master": MASTERS.of(3),
}


def opened(planted: TrapMap = PLANTED, owner: Any = KEY, node: Any = OTHER, **changes: Any) -> OpenedTrap:
    """Return a trap of OTHER's whose ticket KEY signed; `changes` of both statements."""
    work = {"run": 1, "node": OTHER.address, "index": PICKED, "root": HASH, "map_root": ROOT, "signature": UNSIGNED}
    work |= changes
    ticket = TrapTicket(**{"stored_at": 5, **work})
    signed = {"ticket": sign_message(owner, HERE, ticket), "consent": sign_message(node, HERE, ticket)}
    return OpenedTrap(**signed, map=planted)


def test_the_lottery_is_frozen() -> None:
    words = ["muster.trap.v1", MASTERS.of(2), ENTROPY, OTHER.address, PICKED]
    drawn = keccak(encode(["string", "bytes32", "bytes32", "address", "uint32"], words))
    assert int.from_bytes(drawn, "big") % 20 == 0
    draws = [is_picked(**LOTTERY, index=i) for i in range(20_000)]
    assert sum(draws) == pytest.approx(1000, abs=150)


def test_first_commitments_are_traps_twice_as_often_and_reserve_twice() -> None:
    nodes = [{**LOTTERY, "node": "0x" + keccak(bytes([i % 256, i // 256]))[:20].hex()} for i in range(5_000)]
    early, late = (sum(is_picked(**one, index=index) for one in nodes) for index in (3, 4))
    assert (early, late) == (pytest.approx(500, abs=75), pytest.approx(250, abs=60))
    assert [weight(0, end) for end in range(7)] == [0, 2, 4, 6, 8, 9, 10]
    assert sum(weight(i, i + 1) for i in range(2, 9)) == weight(2, 9)


def test_the_type_of_a_ticket_is_frozen() -> None:
    """It is Traps.TICKET_TYPEHASH, under which node and storage key both sign."""
    about = "uint32 run,address node,uint32 index,bytes32 root,bytes32 mapRoot"
    assert struct_of(TrapTicket).type_hash == keccak(text=f"Ticket({about},uint64 storedAt)")


@pytest.mark.parametrize(
    ("positions", "index", "rows"),
    [(128, 4, 16), (128, 3, 8), (256, 9, 32), (256, 0, 16), (16, 4, 2), (16, 0, 1), (8, 4, 1), (4, 4, 1)],
)
def test_a_sample_has_one_and_a_half_planted_rows(positions: int, index: int, rows: int) -> None:
    assert planted_rows(positions, index) == rows


def test_a_newcomer_s_trap_has_half_as_many_rows() -> None:
    """Since twice as many of its rows are replayed."""
    planted = TrapMap(salt=HASH, rows=[PlantedRow(position=2, token=5)])
    check_map(TERMS, 0, planted, hex_hash(map_tree(planted).root))
    with pytest.raises(MalformedError, match="a map names 1 rows"):
        check_map(TERMS, 0, PLANTED, ROOT)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_leaf_hides_its_row(position: int, token: int) -> None:
    """Without the salt nobody can try rows until one fits, not even who has seen another leaf of the map."""
    own, other = row_salt(HASH, position), row_salt("0x" + "cd" * 32, position)
    assert own == keccak(hash_bytes(HASH) + position.to_bytes(4, "big"))
    word = encode(["uint256", "uint256", "bytes32"], [position, token, own])
    assert map_leaf(position, token, own) == keccak(keccak(word))
    assert map_leaf(position, token, other) != map_leaf(position, token, own)


@pytest.mark.parametrize(
    "rows",
    [[(2, 5)], [(2, 5), (2, 6)], [(9, 0), (2, 5)], [(2, 5), (3, 5), (9, 0)], [(2, 5), (16, 0)], [(2, 5), (9, 32)]],
)
def test_a_map_has_exactly_its_rows(rows: list[tuple[int, int]]) -> None:
    planted = TrapMap(salt=HASH, rows=[PlantedRow(position=p, token=t) for p, t in rows])
    with pytest.raises(MalformedError, match="a map names"):
        check_map(TERMS, 4, planted, hex_hash(map_tree(planted).root))


def test_an_opened_trap_is_what_owner_and_node_have_signed() -> None:
    check_opened(HERE, opened(), **GIVEN)
    assert opened().rows == {2, 9}


@pytest.mark.parametrize(
    ("trap", "changes", "why"),
    [
        (opened(owner=OTHER), {}, "the ticket is signed by"),
        (opened(node=KEY), {}, "the map is signed by"),
        (opened(map_root=HASH), {}, "the map's root is"),
        (opened(index=PICKED + 1), {}, "was not picked to be a trap"),
        (opened(), {"step": 9}, "was not picked to be a trap"),
        (opened(), {"entropy": HASH.encode()[:32]}, "was not picked to be a trap"),
        (opened(), {"master": MASTERS.of(2)}, "not the master of epoch 3"),
        (opened(), {"epoch": 1, "master": MASTERS.of(1)}, "does not follow from"),
        (opened().model_copy(update={"ticket": opened(root=ROOT).ticket}), {}, "the ticket's root is"),
        (opened().model_copy(update={"ticket": opened(stored_at=6).ticket}), {}, "the ticket's stored_at is"),
    ],
)
def test_an_opened_trap_that_is_none(trap: OpenedTrap, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckError, match=why):
        check_opened(HERE, trap, **(GIVEN | changes))


def test_a_promise_is_for_one_commitment_of_one_node() -> None:
    keys, about = keys_of(KEY.address), {"run": 1, "node": OTHER.address, "index": 3, "step": 2}
    promise = sign_message(KEY, HERE, TrapPromise(**about, signature=UNSIGNED))
    assert check_promise(HERE, promise, keys, 5)
    for changes in ({"run": 2}, {"node": KEY.address}, {"index": 4}, {"step": 3}, {"signature": UNSIGNED}):
        assert not check_promise(HERE, promise.model_copy(update=changes), keys, 5)
    assert not any(check_promise(where, promise, keys, 5) for where in ELSEWHERE)
    with pytest.raises(MismatchError):
        check_opened(ELSEWHERE[0], opened(), **GIVEN)
    assert recover_signer(HERE, promise) == KEY.address


def test_planted_rows_say_nothing_of_their_node() -> None:
    """So they enter no pool and no tally, and make nobody a suspect; all other rows count as anybody's."""
    assert true_rows([1, 2, 3, 9], opened()) == [1, 3]
    assert true_rows([1, 2, 3, 9], None) == [1, 2, 3, 9]
    assert Counter(true_rows(range(16), opened())).keys() == set(range(16)) - {2, 9}
