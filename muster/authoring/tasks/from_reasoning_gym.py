"""Tasks of reasoning-gym's generators, made by name, version and seed.

They are generated in an environment of their own and not in the component that scores them. A function more in the
component would be another component, and runs name theirs by its hash; generating takes the owner's machine once, and
needs no wall, for the package is pinned and no stranger's text is in it. What is scored stays with the component.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from muster.authoring.tasks.formats import Format, text_of
from muster.authoring.tasks.rows import Row
from muster.environments.base import Environment
from muster.environments.reasoning_gym import DATASETS, REFUSED
from muster.environments.task import ChatMessage, Task
from muster.errors import ConfigError, MalformedError, UsageError

ENVIRONMENT: Final = "reasoning_gym"
VERSION: Final = "0.1.25"
"""The one that the component scores by."""
REQUIREMENTS: Final = (f"reasoning-gym=={VERSION}", "sympy==1.14.0")
PROGRAM: Final = "reasoning_gym_export.py"
MAX_COUNT: Final = 1_000_000
TYPED_JSON: Final = Path(__file__).resolve().parents[2] / "sandbox" / "guest" / "typed_json.py"


def order_of(names: Sequence[str], count: int, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """Return the order for the export program. `settings` are KEY=VALUE, or NAME.KEY=VALUE for one of the datasets.

    Raises ConfigError for a dataset that cannot be scored, with the reason; UsageError for one that does not exist.
    """
    if not names or len(set(names)) != len(names) or not 1 <= count <= MAX_COUNT:
        raise UsageError(f"name datasets once each, and 1 to {MAX_COUNT} tasks", hint="chain_sum,gcd --count 500")
    for name in names:
        if name in REFUSED:
            raise ConfigError(f"reasoning-gym's {name} cannot be scored: {REFUSED[name]}", hint="leave it out")
        if name not in DATASETS:
            known = ", ".join(sorted(DATASETS))
            raise UsageError(f"reasoning-gym {VERSION} has no dataset {name[:40]!r}", hint=f"there are: {known}")
    configs: dict[str, dict[str, Any]] = {name: {} for name in names}
    for setting in settings:
        where, key, value = _setting(setting)
        if where and where not in configs:
            raise UsageError(f"--setting {setting!r} is for {where}, which is not imported")
        if key in ("seed", "size"):
            raise UsageError(f"--setting {setting!r}", hint="give --seed and --count")
        for name in [where] if where else names:
            configs[name][key] = value
    return {
        "typed_json": str(TYPED_JSON), "datasets": list(names), "count": count, "seed": seed, "configs": configs
    }  # fmt: skip


def _setting(text: str) -> tuple[str, str, Any]:
    name, value = read_assignment(text, f"--setting {text!r}", "write it like max_terms=4")
    where, _, key = name.rpartition(".")
    return where, key, value


def read_assignment(text: str, wrong: str, hint: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; a value is JSON, else a text. Raises UsageError that says what is wrong."""
    name, mark, value = text.partition("=")
    if not mark or not name or name.endswith("."):
        raise UsageError(wrong, hint=hint)
    try:
        return name, from_json(value)
    except ValueError:
        return name, value


def format_of_datasets(names: Sequence[str], seed: int, environment: Environment) -> Format:
    """Return how an exported row becomes a task; rows that the environment cannot score are left out."""

    def convert(row: Row) -> tuple[str, Task]:
        dataset, index = row["dataset"], row["index"]
        if dataset not in names or type(index) is not int:
            raise MalformedError("a row of another dataset")
        if row["entry"] is None:
            raise MalformedError("an entry with a value that is no text, number, list or mapping")
        reference = {"dataset": dataset, "entry": row["entry"]}
        if row["config"]:
            reference["config"] = row["config"]
        messages = (ChatMessage("user", text_of(row, "question")),)
        task = Task(f"reasoning_gym/{dataset}/{seed}/{index}", messages, reference, 0, "reasoning_gym")
        task.to_line()
        environment.check(task)
        return ENVIRONMENT, task

    return Format("reasoning-gym", ("dataset", "index", "question", "entry", "config"), convert, (), (ENVIRONMENT,))
