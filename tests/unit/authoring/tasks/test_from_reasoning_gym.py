"""Generated puzzles: what is ordered, what comes back, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.tasks.from_reasoning_gym import TYPED_JSON, format_of_datasets, order_of
from muster.authoring.tasks.sources import ImportReport, import_tasks
from muster.environments.base import Environment
from muster.environments.registry import default_manifest, make_environment
from muster.errors import ConfigError, UsageError

ROW: dict[str, Any] = {
    "dataset": "chain_sum",
    "index": 0,
    "question": "State the final answer to the following arithmetic problem: 57 - 87 =",
    "config": {"max_terms": 4},
    "entry": {
        "question": "State the final answer to the following arithmetic problem: 57 - 87 =",
        "answer": "-30",
        "metadata": {"expression": "57 - 87", "difficulty": {"num_terms": {"$tuple": [2, 4]}}},
    },
}
"""As reasoning-gym 0.1.25 makes it from seed 3, shortened."""


def environment() -> Environment:
    return make_environment(default_manifest("reasoning_gym", "0x" + "00" * 32))


def test_datasets_are_ordered_with_their_settings() -> None:
    assert order_of(["chain_sum", "gcd"], 5, 3, ["max_terms=4", "gcd.max_value=[1, 2]", "gcd.name=x"]) == {
        "typed_json": str(TYPED_JSON),
        "datasets": ["chain_sum", "gcd"],
        "count": 5,
        "seed": 3,
        "configs": {"chain_sum": {"max_terms": 4}, "gcd": {"max_terms": 4, "max_value": [1, 2], "name": "x"}},
    }


def test_a_dataset_that_cannot_be_scored_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="sokoban cannot be scored: its score needs numpy"):
        order_of(["chain_sum", "sokoban"], 5, 0, [])


@pytest.mark.parametrize(
    ("names", "count", "settings", "says"),
    [
        ([], 1, [], "once each"),
        (["gcd", "gcd"], 1, [], "once each"),
        (["gcd"], 0, [], "1 to 1000000 tasks"),
        (["gcd"], 1_000_001, [], "1 to 1000000 tasks"),
        (["poetry"], 1, [], "no dataset 'poetry'"),
        (["gcd"], 1, ["max"], "--setting 'max'"),
        (["gcd"], 1, ["lcm.max=1"], "for lcm, which is not imported"),
        (["gcd"], 1, ["seed=1"], "--setting 'seed=1'"),
    ],
)
def test_orders_that_make_no_sense_are_refused(names: list[str], count: int, settings: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        order_of(names, count, 0, settings)


def test_rows_become_tasks_that_the_environment_scores(tmp_path: Path) -> None:
    wrong = [
        {**ROW, "dataset": "gcd"},
        {**ROW, "index": "0"},
        {**ROW, "question": ""},
        {**ROW, "entry": {"answer": 3}},
        {**ROW, "entry": {"answer": "3", "metadata": {"$object": 1}}},
        {**ROW, "entry": None},  # one that holds a Fraction
    ]
    path, report = tmp_path / "rows", ImportReport()
    path.write_text("\n".join(json.dumps(row) for row in [ROW, {**ROW, "index": 1, "config": {}}, *wrong]))
    found = list(import_tasks(format_of_datasets(["chain_sum"], 3, environment()), path, report))
    assert [(name, task.id) for name, task in found] == [
        ("reasoning_gym", "reasoning_gym/chain_sum/3/0"),
        ("reasoning_gym", "reasoning_gym/chain_sum/3/1"),
    ]
    assert found[0][1].reference == {"dataset": "chain_sum", "entry": ROW["entry"], "config": {"max_terms": 4}}
    assert "config" not in found[1][1].reference
    assert [number for number, _ in report.examples] == [3, 4, 5, 6, 7, 8]
