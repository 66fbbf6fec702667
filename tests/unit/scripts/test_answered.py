"""Findings of the analyser and the answers to them: neither without the other."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from testbed.paths import ROOT

PAGE = """
| finding | answer |
|---|---|
| `unused-return`, `Registry._add`, `_remove` | both known |
| `reentrancy`, `Registry.pay` | calls no contract |

More text | with a bar |
"""


@pytest.fixture(scope="module")
def answered() -> ModuleType:
    spec = importlib.util.spec_from_file_location("answered", ROOT / "scripts" / "answered.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["answered"] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module


ALL = [("unused-return", "_add"), ("unused-return", "_remove"), ("reentrancy", "pay")]


def test_findings_with_answers_are_no_complaint(answered: ModuleType) -> None:
    rows = answered.rows_of(PAGE)
    assert len(rows) == 2
    assert answered.complaints(rows, ALL) == []


def test_unmatched_finding_or_answer_is_named(answered: ModuleType) -> None:
    rows = answered.rows_of(PAGE)
    assert answered.complaints(rows, [*ALL, ("reentrancy", "_add")]) == ["no answer to `reentrancy` in `_add`"]
    assert answered.complaints(rows, ALL[:2]) == ["nothing is found any more of: `reentrancy`, `Registry.pay`"]
    with pytest.raises(ValueError, match="a row without an answer"):
        answered.rows_of(PAGE.replace("calls no contract", ""))


def test_findings_are_read_from_the_analyser_s_document(answered: ModuleType) -> None:
    parts = [{"type": "node", "name": "x = 1"}, {"type": "function", "name": "pay"}, {"type": "contract", "name": "R"}]
    assert answered.findings_of({"results": {"detectors": [{"check": "a", "elements": parts}]}}) == [("a", "pay")]
    assert answered.findings_of({"results": {}}) == []


def test_the_page_has_answers_and_each_is_one(answered: ModuleType) -> None:
    assert len(answered.rows_of(answered.PAGE.read_text())) >= 4
