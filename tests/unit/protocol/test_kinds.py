"""Kinds of cases have the same numbers in the contracts, their tests and the nodes."""

from __future__ import annotations

import re
from typing import get_args

from muster.protocol.kinds import kind_of, reason_of
from muster.protocol.reasons import REASONS, Reason
from testbed.paths import ROOT


def numbers(path: str) -> dict[str, int]:
    found = re.findall(r"uint8 (?:internal )?constant (\w+) = (\d+);", (ROOT / path).read_text(encoding="utf-8"))
    return {name: int(number) for name, number in found}


def test_the_kinds_that_the_court_acts_on_are_numbered_as_here() -> None:
    found = numbers("contracts/interfaces/ISlashCourt.sol")
    assert found == {reason.upper(): kind_of(reason) for reason in ("data_missing",)}


def test_the_contracts_tests_number_all_kinds_as_here() -> None:
    assert numbers("tests/contracts/Kind.sol") == {reason.upper(): kind_of(reason) for reason in REASONS}
    assert [reason_of(number) for number in range(len(REASONS) + 1)] == [*get_args(Reason), f"unknown_{len(REASONS)}"]
