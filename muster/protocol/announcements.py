"""What members publish about themselves: names, machines, benchmark scores. None of it affects pay.

All are signed by themselves, so that anybody can check them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, ClassVar, Final

from pydantic import Field, FiniteFloat

from muster.protocol.messages import (
    Address,
    LogDocument,
    Many,
    Message,
    RelayOffer,
    Signature,
    SignedAs,
    SignedText,
    UInt32,
    Wei,
)

MAX_NAME: Final = 40
"""Characters of a node's name."""
MAX_DEVICE: Final = 60
"""Characters of a device's name."""
MAX_GAS_HOURS: Final = 1e6
"""A longer time is said to be this one: it is beyond every run."""
BENCHMARK_PATTERN: Final = r"^[a-z0-9][a-z0-9_.-]{0,39}$"
NAME_SIGNS: Final = "._-+#'"
"""What may stand in a name besides letters, digits and spaces."""

_BLANK_LETTERS: Final = "\u115f\u1160"
"""Letters that show nothing."""
_LIKE_ADDRESSES: Final = ("0x", "0\u0445", "0\u03c7")
"""How addresses begin, with a Latin, a Cyrillic or a Greek letter."""
_TRADE_MARKS: Final = re.compile(r"\((?:r|tm)\)", re.IGNORECASE)


class NodeName(Message):
    """What an operator calls one of its nodes. Of several names of a node the one with the latest `named` counts."""

    struct: ClassVar = "NodeName"

    run: UInt32
    node: Address
    name: str = Field(max_length=MAX_NAME)
    """Empty: it has none any more."""
    named: Annotated[int, Field(ge=0, lt=1 << 53), SignedAs("uint64")]
    """Unix seconds (wall clock)."""
    signature: Signature
    """By the node's operator."""


class MachineReport(LogDocument):
    """What a node says of the machine it runs on. Sent every few minutes; the last one counts."""

    device: str = Field(max_length=MAX_DEVICE)
    """The kind of GPU, or the processor where there is none."""
    devices: int = Field(ge=1, le=65_536)
    tokens_per_second: FiniteFloat = Field(ge=0, le=1e9)
    """Completion tokens, over the time since the last report; 0 for a validator."""
    gas_hours: FiniteFloat | None = Field(default=None, ge=0, le=MAX_GAS_HOURS)
    """How long its key's ether lasts at its pace; None: not known."""


Said = RelayOffer | MachineReport
CURRENT_KINDS: Final[dict[str, type[Said]]] = {"relay": RelayOffer, "machine": MachineReport}
"""Documents that count for minutes, by their kind: who offers to serve weights, and what nodes say of machines."""


class CurrentDocument(Message):
    """What a node said last, of one of CURRENT_KINDS. It is not checked, and nothing is paid by it."""

    signed: SignedText
    received: FiniteFloat = Field(ge=0)
    """Unix seconds (wall clock): the orchestrator's word."""


class CurrentList(Message):
    """What lasts only minutes, and is no part of the log."""

    own: Many[str] = Field(max_length=64)
    """Base URLs that serve weights for the run's owner: the orchestrator's word."""
    said: Many[CurrentDocument]


class BenchmarkScore(Message):
    """What a step of the run scores on a published benchmark."""

    struct: ClassVar = "BenchmarkScore"

    run: UInt32
    step: UInt32
    benchmark: str = Field(pattern=BENCHMARK_PATTERN)
    score: FiniteFloat = Field(ge=0, le=1)
    low: FiniteFloat = Field(ge=0, le=1)
    high: FiniteFloat = Field(ge=0, le=1)
    """Ends of the 95 % interval."""
    tasks: UInt32
    samples: UInt32
    """Answers to each task."""
    measured: Annotated[int, Field(ge=0, lt=1 << 53), SignedAs("uint64")]
    """Unix seconds (wall clock). Of several scores of one step and benchmark the latest counts."""
    signature: Signature
    """By the run's trainer or its owner."""


class DayEarnings(Message):
    """Earnings of active workers in the last 24 hours: pay of their unrefuted commitments, in token wei.

    For a worker that joined less than a day ago, its earnings are extrapolated to a day.
    """

    run: UInt32
    workers: UInt32
    """With at least an hour of work, or minutes for an estimate; without any the rest is 0."""
    low: Wei
    """Of the worker at a quarter, from below."""
    median: Wei
    high: Wei
    """Of the worker at three quarters."""
    estimated: bool = False
    """Whether it is the run's present pace, of workers that have been there for minutes."""


def name_problem(name: str) -> str:
    """Return why this cannot be a node's name, as what it does; "" when it can. An empty name is a way to have none.

    A name has letters without marks, so that none is written over its neighbours, nothing that turns the direction of
    writing, and no second form of a letter. It may still look like another node's: its address says which it is.
    """
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters; at most {MAX_NAME}"
    if any(not _may_be_in_a_name(letter) for letter in name):
        return f"may have letters, digits, spaces and {' '.join(NAME_SIGNS)} only"
    if name != unicodedata.normalize("NFKC", name):
        return "is not in Unicode's form NFKC"
    if name != " ".join(name.split()):
        return "begins or ends with a space, or has two in a row"
    if name and not any(letter.isalnum() for letter in name):
        return "has no letter and no digit"
    if name.lstrip(NAME_SIGNS + " ").lower().startswith(_LIKE_ADDRESSES):
        return "looks like an address"
    return ""


def _may_be_in_a_name(letter: str) -> bool:
    if letter in _BLANK_LETTERS:
        return False
    return letter == " " or letter in NAME_SIGNS or unicodedata.category(letter)[0] in "LN"


def clean_device(text: str) -> str:
    """Return a system's name for its device as text that is safe to show: printable ASCII, at most MAX_DEVICE."""
    shown = "".join(letter if " " <= letter <= "~" else " " for letter in text)
    plain = " ".join(_TRADE_MARKS.sub(" ", shown).split())
    return plain[:MAX_DEVICE].rstrip() or "unknown"
