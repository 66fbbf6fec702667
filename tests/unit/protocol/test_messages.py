"""Messages from strangers: what is wrong with them is found without paying for each of a million mistakes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from muster.protocol.messages import (
    MAX_LIST_CHARS,
    MAX_LISTED,
    ListedLook,
    LogPage,
    LookList,
    Many,
    RowCheck,
    StepReport,
    ValidatorTotal,
    Verdict,
)
from muster.verification.bundles import EvidenceBundle

UNKNOWN = {f"unknown {i}": 0 for i in range(1000)}


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (Verdict, UNKNOWN),
        (EvidenceBundle, UNKNOWN),
        (LogPage, {"cursor": 0, "entries": [{}] * 1000}),
        (LogPage, {"cursor": 0, "entries": [UNKNOWN]}),
        (StepReport, {"run": 1, "step": 1, "metrics": {}, "batch": [0] * 1000}),
        (Many[Verdict], [0] * 1000),
    ],
)
def test_a_thousand_mistakes_are_not_named_one_by_one(model: type[BaseModel], document: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(model).validate_json(json.dumps(document))
    assert caught.value.error_count() < 20


def test_an_unknown_member_is_refused_even_where_another_is_missing() -> None:
    report = {"run": 1, "step": 1, "metrics": {}}
    with pytest.raises(ValidationError, match="extra"):
        StepReport.model_validate_json(json.dumps(report | {"extra": 1}))


@pytest.mark.parametrize("field", ["metrics", "stages"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_report_holds_numbers_that_can_be_written_and_read_again(field: str, number: str) -> None:
    text = json.dumps({"run": 1, "step": 1, "metrics": {}} | {field: {"x": "?"}}).replace('"?"', number)
    with pytest.raises(ValidationError, match="finite"):
        StepReport.model_validate_json(text)


def test_the_longest_list_is_no_longer_than_its_text_may_be() -> None:
    node, root = "0x" + "f" * 40, "0x" + "f" * 64
    about: Any = {"validator": node, "node": node, "index": 2**32 - 1, "root": root}
    look = ListedLook(**about, accepted=False, came=2**40, counted=0, why="incomplete")
    check = RowCheck(**about, position=2**32 - 1, outcome="refuted")
    total = ValidatorTotal(validator=node, total=2**112 - 1, barred_until=2**40, refuted_at=[2**40] * 3)
    made: Any = {"looks": [look] * MAX_LISTED, "checks": [check] * MAX_LISTED, "totals": [total] * MAX_LISTED}
    assert len(LookList(run=1, hour=2**24, **made).to_bytes()) < MAX_LIST_CHARS


@pytest.mark.parametrize("total", [-1, 1 << 112])
def test_a_total_is_one_that_can_be_claimed(total: int) -> None:
    with pytest.raises(ValidationError):
        ValidatorTotal(validator="0x" + "f" * 40, total=total)
