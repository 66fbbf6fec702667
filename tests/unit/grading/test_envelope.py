"""Envelopes: only the key that asked opens one, and only for its run and epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.chain.keys import Signer
from muster.errors import MalformedError, MismatchError
from muster.grading.envelope import ENVELOPE_BYTES, about_master, open_master, seal_master

ME, OTHER = Signer.from_key("11" * 32), Signer.from_key("22" * 32)
MASTER = b"\x07" * 32
ABOUT = about_master(b"\x01" * 32, 3, 2)


@given(st.binary(min_size=32, max_size=32))
def test_sealed_master_opens_with_its_key(master: bytes) -> None:
    envelope = seal_master(master, ME.public_key, ABOUT)
    assert len(envelope) == ENVELOPE_BYTES == 81
    assert open_master(envelope, ME, ABOUT) == master


def test_each_envelope_is_another_one() -> None:
    assert len({seal_master(MASTER, ME.public_key, ABOUT) for _ in range(8)}) == 8
    assert MASTER not in seal_master(MASTER, ME.public_key, ABOUT)


@pytest.mark.parametrize(
    ("who", "about"),
    [
        (OTHER, ABOUT),
        (ME, about_master(b"\x01" * 32, 3, 1)),
        (ME, about_master(b"\x01" * 32, 4, 2)),
        (ME, about_master(b"\x02" * 32, 3, 2)),
    ],
    ids=["key", "epoch", "run", "domain"],
)
def test_envelope_refuses_another_key_epoch_run_or_domain(who: Signer, about: bytes) -> None:
    with pytest.raises(MismatchError, match="another key, run or epoch"):
        open_master(seal_master(MASTER, ME.public_key, ABOUT), who, about)


@given(st.integers(33, ENVELOPE_BYTES - 1), st.integers(0, 7))
def test_a_changed_bit_does_not_open(byte: int, bit: int) -> None:
    envelope = bytearray(seal_master(MASTER, ME.public_key, ABOUT))
    envelope[byte] ^= 1 << bit
    with pytest.raises(MismatchError):
        open_master(bytes(envelope), ME, ABOUT)


@given(st.binary(max_size=100) | st.binary(min_size=ENVELOPE_BYTES, max_size=ENVELOPE_BYTES))
def test_any_bytes_are_refused_with_an_error_of_ours(data: bytes) -> None:
    with pytest.raises((MalformedError, MismatchError)):
        open_master(data, ME, ABOUT)


@pytest.mark.parametrize("key", [b"", b"\x02" * 32, b"\x05" + b"\x01" * 32, b"\x02" + b"\xff" * 32, b"\x04" * 65])
def test_no_point_gets_no_envelope(key: bytes) -> None:
    with pytest.raises(MalformedError, match="no public key"):
        seal_master(MASTER, key, ABOUT)
