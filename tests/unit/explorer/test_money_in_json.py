"""Money crosses as text: a browser's numbers lose the last digits of wei."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest

import explorer
from explorer.nodes import PaymentLine
from muster.ledger.events import EventLine
from muster.protocol.announcements import DayEarnings
from muster.protocol.messages import Message

MONEY = (
    "amount bounty claimable claimed cost day earned escrow_free fined high in_window low maturing median pay slashed "
    "stake step_cost voided"
)
WEI = (1 << 60) + 1


def models() -> list[type[Message]]:
    for found in pkgutil.iter_modules(explorer.__path__):
        importlib.import_module(f"explorer.{found.name}")
    made, left = [], [Message]
    while left:
        made += left
        left = [below for one in left for below in one.__subclasses__()]
    ours = [one for one in dict.fromkeys(made) if one.__module__.startswith(("explorer.", "muster.ledger."))]
    return [*ours, DayEarnings]


def test_every_field_with_money_is_a_text() -> None:
    wrong, right = [], 0
    for model in models():
        schema = model.model_json_schema(mode="serialization").get("properties", {})
        for name in schema.keys() & set(MONEY.split()):
            text = json.dumps(schema[name])
            right += '"string"' in text
            if '"integer"' in text:
                wrong.append(f"{model.__name__}.{name}")
    assert wrong == []
    assert right > 20


def test_money_is_read_again() -> None:
    line = PaymentLine(kind="claim", amount=WEI, time=1, transaction="0x1")
    assert f'"amount":"{WEI}"' in line.model_dump_json()
    assert PaymentLine.model_validate_json(line.model_dump_json()) == line
    event = EventLine(id=1, kind="claimed", time=0, data={"node": "0x1", "amount": WEI})
    assert json.loads(event.model_dump_json())["data"] == {"node": "0x1", "amount": str(WEI)}
    assert event.data["amount"] == WEI


@pytest.mark.parametrize("name", ["data-made", "data-chain-time"])
def test_page_says_the_time_that_ages_are_counted_from(name: str) -> None:
    folder = explorer.__path__[0]
    with open(f"{folder}/templates/base.html", encoding="utf-8") as template:
        assert f"{name}=" in template.read()
