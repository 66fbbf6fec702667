"""Sealed references: they round-trip, invalid ones are void, and the line hides the text."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.task import ChatMessage, SealedReference, Task
from muster.tasksets.sealing import PADDING, open_task, seal_task, task_key

MASTER = b"\x07" * 32
TASK = Task("t1", (ChatMessage("user", "how much is it?"),), {"answer": "forty-two"}, 3, "us")

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=4), texts.filter(bool), texts)
def test_a_sealed_task_opens_to_what_it_was(reference: dict, name: str, part: str) -> None:
    task = replace(TASK, id=name, reference=reference)
    sealed = seal_task(task, MASTER, part)
    assert Task.from_line(sealed.to_line()) == sealed
    assert (sealed.messages, sealed.level, sealed.author, dict(sealed.reference)) == (
        task.messages,
        task.level,
        task.author,
        {},
    )
    assert sealed.sealed is not None
    assert (len(sealed.sealed.cipher) - 16) % PADDING == 0
    opened = open_task(sealed, MASTER, part)
    assert opened is not None
    assert opened.to_line() == task.to_line()


def test_sealed_line_hides_the_reference() -> None:
    line = seal_task(TASK, MASTER, "p").to_line()
    assert b"forty" not in line
    assert b"reference" not in line
    assert b'"sealed":["' in line


def test_lengths_show_no_more_than_their_multiple_of_the_padding() -> None:
    lengths = {len(seal_task(replace(TASK, reference={"answer": "x" * n}), MASTER, "p").to_line()) for n in range(200)}
    assert len(lengths) == 1


def test_the_same_sealing_gives_the_same_line() -> None:
    assert seal_task(TASK, MASTER, "p").to_line() == seal_task(TASK, MASTER, "p").to_line()


def test_no_two_tasks_parts_or_masters_share_a_key() -> None:
    keys = {
        task_key(master, part, name) for master in (MASTER, bytes(32)) for part in "ab" for name in ("t", "at", "bt")
    }
    assert len(keys) == 12


@pytest.mark.parametrize(
    ("master", "part", "name"),
    [(b"\x08" * 32, "p", "t1"), (MASTER, "q", "t1"), (MASTER, "p", "t2")],
)
def test_under_another_master_part_or_id_it_is_void(master: bytes, part: str, name: str) -> None:
    sealed = replace(seal_task(TASK, MASTER, "p"), id=name)
    assert open_task(sealed, master, part) is None


@given(st.integers(0, PADDING + 15), st.integers(0, 7))
def test_a_changed_bit_is_void(byte: int, bit: int) -> None:
    sealed = seal_task(TASK, MASTER, "p")
    assert sealed.sealed is not None
    cipher = bytearray(sealed.sealed.cipher)
    cipher[byte] ^= 1 << bit
    changed = replace(sealed, sealed=replace(sealed.sealed, cipher=bytes(cipher)))
    assert open_task(changed, MASTER, "p") is None


def sealed_text(text: bytes) -> Task:
    """A task with a valid ciphertext of a text that `seal_task` never writes."""
    key = task_key(MASTER, "p", TASK.id)
    about = b"\0\0\0\x01p\0\0\0\x02t1"
    cipher = AESGCM(key).encrypt(bytes(12), text, about)
    return replace(TASK, reference={}, sealed=SealedReference(cipher, hashlib.sha256(key).digest()))


def padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % PADDING)


def test_a_ciphertext_made_by_hand_opens() -> None:
    opened = open_task(sealed_text(padded(b'{"answer":"forty-two"}')), MASTER, "p")
    assert opened == TASK


@pytest.mark.parametrize(
    "text",
    [
        b"",
        padded(b"[]"),
        padded(b"nonsense"),
        padded(b'{"a":NaN}'),
        padded(b'{"a": 1}'),
        padded(b'{"b":1,"a":1}'),
        padded(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"),
        padded(b'{"a":99999999999999999999999}'),
        padded(b'{"a":"\\ud800"}'),
        padded(b'{"a":1,"a":1}'),
        b'{"answer":"forty-two"}',
        padded(b'{"answer":"forty-two"}') + b" " * PADDING,
        bytes(PADDING),
        b"\xff" * PADDING,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_an_owner_s_nonsense_is_void(text: bytes) -> None:
    assert open_task(sealed_text(text), MASTER, "p") is None


@given(st.binary(max_size=300))
def test_any_text_of_an_owner_opens_or_is_void(text: bytes) -> None:
    opened = open_task(sealed_text(text), MASTER, "p")
    assert opened is None or opened.to_line()


def test_two_keys_for_one_ciphertext_do_not_both_open() -> None:
    """AES-GCM does not bind its key; the hash in the line does."""
    sealed = seal_task(TASK, MASTER, "p")
    assert sealed.sealed is not None
    other = hashlib.sha256(b"another key").digest()
    assert open_task(replace(sealed, sealed=replace(sealed.sealed, key_hash=other)), MASTER, "p") is None
