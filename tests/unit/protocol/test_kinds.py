"""Kinds of cases have the same numbers in the contracts, their tests and the nodes."""

from __future__ import annotations

import re

from muster.protocol.kinds import Kind
from testbed.paths import ROOT


def numbers(path: str) -> dict[str, int]:
    found = re.findall(r"uint8 (?:internal )?constant (\w+) = (\d+);", (ROOT / path).read_text(encoding="utf-8"))
    return {name: int(number) for name, number in found}


def test_the_kinds_that_the_court_acts_on_are_numbered_as_here() -> None:
    found = numbers("contracts/interfaces/ISlashCourt.sol")
    assert found == {kind.name: kind.value for kind in (Kind.DATA_MISSING, Kind.SAMPLING_MISMATCH, Kind.WRONG_GRADE)}


def test_the_contracts_tests_number_all_kinds_as_here() -> None:
    assert numbers("tests/contracts/Kind.sol") == {kind.name: kind.value for kind in Kind}
