"""Valid names of a node, and the displayed names of devices."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.protocol.announcements import MAX_DEVICE, MAX_NAME, NAME_SIGNS, NodeName, clean_device, name_problem
from muster.protocol.eip712 import UNSIGNED, struct_of
from testbed.suite.examples import up_to

ONLY = "may have letters, digits, spaces and . _ - + # ' only"


@pytest.mark.parametrize(
    "name",
    ["", "a", "worker-1", "Ox", "A100x8", "O'Brien's #2", "Zoë", "李雷", "команда 0", "a_b+c.d", "5", "x" * MAX_NAME],
)
def test_valid_names(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * (MAX_NAME + 1), "has 41 characters; at most 40"),
        ("a\u202eb", ONLY),
        ("a\u2066b\u2069", ONLY),
        ("a\u200bb", ONLY),
        ("a\ufeffb", ONLY),
        ("a\x1b[31mb", ONLY),
        ("a\nb", ONLY),
        ("a\u00a0b", ONLY),
        ("e\u0301", ONLY),
        ("Z\u0351\u036b\u0343algo", ONLY),
        ("<b>x</b>", ONLY),
        ("a&b", ONLY),
        ("a\ud800", ONLY),
        ("\u1160", ONLY),
        ("\u3164", "is not in Unicode's form NFKC"),
        ("\U0001d40custer", "is not in Unicode's form NFKC"),
        ("\uff10x12", "is not in Unicode's form NFKC"),
        (" a", "begins or ends with a space, or has two in a row"),
        ("a  b", "begins or ends with a space, or has two in a row"),
        (" ", "begins or ends with a space, or has two in a row"),
        ("...", "has no letter and no digit"),
        ("0xAbc", "looks like an address"),
        ("0Xabc", "looks like an address"),
        ("-'0xabc", "looks like an address"),
        ("0\u0445abc", "looks like an address"),
        ("0\u03a7abc", "looks like an address"),
    ],
)
def test_invalid_names(name: str, problem: str) -> None:
    assert name_problem(name) == problem


@given(st.text(max_size=60) | st.text(st.characters(categories=["L", "N", "M", "Cf", "Zs", "Po"]), max_size=60))
@example("\u115f")
@example("a\u0301")
@example("\u2067a")
@settings(max_examples=up_to(1_000))
def test_valid_names_are_printable_and_normalised(name: str) -> None:
    if name_problem(name):
        return
    assert len(name) <= MAX_NAME
    assert name == name.strip() == unicodedata.normalize("NFKC", name)
    for letter in name:
        category = unicodedata.category(letter)
        # No control or format character (bidi, zero width), no mark, no sign of markup, no blank but the space.
        assert category[0] in "LN" or letter == " " or letter in NAME_SIGNS
        assert unicodedata.combining(letter) == 0
        assert unicodedata.bidirectional(letter) not in {
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN", "B", "S")
        }
    NodeName(run=1, node="0x" + "11" * 20, name=name, named=0, signature=UNSIGNED)


@given(st.text())
def test_a_device_is_printed_ascii_however_it_calls_itself(text: str) -> None:
    shown = clean_device(text)
    assert 1 <= len(shown) <= MAX_DEVICE
    assert shown.isascii()
    assert shown.isprintable()
    assert shown == " ".join(shown.split()) == clean_device(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C CPU @ 2.70GHz"),
        ("Intel(R) Core(TM) i7", "Intel Core i7"),
        ("\x1b[2J\u202eH100\n<script>", "[2J H100 <script>"),
        ("", "unknown"),
        ("\u202e\u200b\x00", "unknown"),
        ("GPU " * 40, " ".join(["GPU"] * 15)),
    ],
)
def test_devices(text: str, shown: str) -> None:
    assert clean_device(text) == shown


def test_node_name_struct_lists_its_signed_fields() -> None:
    assert struct_of(NodeName).fields == (
        ("run", "uint32"),
        ("node", "address"),
        ("name", "string"),
        ("named", "uint64"),
    )
