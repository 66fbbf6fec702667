"""Masters: each gives all earlier ones and no later one; the file's form is strict."""

from __future__ import annotations

import json

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError
from muster.tasksets.masters import MAX_EPOCHS, Masters

SECRET = bytes(range(32))


def test_each_master_is_the_hash_of_the_next_and_the_tip_that_of_the_first() -> None:
    masters = Masters(3, SECRET)
    assert masters.of(3) == SECRET
    assert masters.of(2) == keccak(SECRET)
    assert masters.of(1) == keccak(keccak(SECRET))
    assert masters.tip == keccak(keccak(keccak(SECRET)))


@pytest.mark.parametrize("epoch", [0, 3, -1])
def test_a_later_epoch_cannot_be_derived(epoch: int) -> None:
    with pytest.raises(ConfigError, match="from epoch 1 to 2"):
        Masters(2, SECRET).of(epoch)


def test_new_masters_are_new_and_show_nothing() -> None:
    one, other = Masters.make(2), Masters.make(2)
    assert one.master != other.master
    assert one.master.hex() not in repr(one)
    assert str(list(one.master)) not in repr(one)


@given(st.integers(1, MAX_EPOCHS), st.binary(min_size=32, max_size=32))
def test_the_text_of_a_file_comes_back(epoch: int, master: bytes) -> None:
    assert Masters.from_text(Masters(epoch, master).to_text()) == Masters(epoch, master)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 0},
        {"epoch": True},
        {"epoch": MAX_EPOCHS + 1},
        {"epoch": "1"},
        {"format": "muster.masters.v2"},
        {"master": "0x" + "AB" * 32},
        {"master": "0x00"},
        {"more": 1},
    ],
)
def test_another_text_is_refused_and_never_quoted(change: dict[str, object]) -> None:
    text = json.dumps(json.loads(Masters(2, SECRET).to_text()) | change)
    with pytest.raises(ConfigError, match="these are no masters") as caught:
        Masters.from_text(text)
    assert SECRET.hex() not in f"{caught.value!r} {caught.value.__cause__!r}"


@given(st.text())
def test_any_text_is_refused_as_no_masters(text: str) -> None:
    with pytest.raises(ConfigError):
        Masters.from_text(text)
