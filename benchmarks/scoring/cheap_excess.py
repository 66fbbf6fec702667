"""What answers that cost no thought earn in every environment that ships, above the share of tasks that they solve."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from muster.authoring.tasks.checking import paying
from muster.authoring.tasks.families import FAMILIES
from muster.authoring.tasks.generated import make_tasks
from muster.environments.manifest import EnvironmentManifest
from muster.environments.reasoning_gym import DATASETS, UNGUARDED
from muster.environments.registry import make_environment, own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from muster.errors import MalformedError
from muster.tasksets.taskset import TaskSet

LEVELS: Final = {"sort": (4, 5, 6), "arithmetic": (3, 4), "sums": (999,), "stories": (99, 999)}
THINGS: Final = ("a poem", "a letter", "a story", "a recipe", "a speech")
INSTRUCTIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("punctuation:no_comma", {}),
    ("change_case:english_lowercase", {}),
    ("keywords:forbidden_words", {"forbidden_words": ["moon"]}),
    ("length_constraints:number_words", {"num_words": 50, "relation": "less than"}),
    ("detectable_format:json_format", {}),
    ("language:response_language", {"language": "de"}),
)

Measured = tuple[str, EnvironmentManifest, Sequence[Task]]
"""What is tried: a name, the environment and its tasks."""


def own_tasks(count: int) -> Iterator[Measured]:
    """Yield tasks of ours for each environment that needs no package: so many, none twice."""
    for name, family in FAMILIES.items():
        halves = make_tasks(0, families=[name], levels=LEVELS[name], train=count, held_out=1)[name]
        yield name, family.environment, halves[0]
    draw = random.Random("cheap excess")
    pairs = [(draw.randint(11, 999), draw.randint(11, 999)) for _ in range(count)]
    products = [ask(f"What is {a} times {b}?", answer=str(a * b)) for a, b in pairs]
    parts = [ask(f"Write {a} of {b} as a fraction.", answer=f"\\frac{{{a}}}{{{b}}}") for a, b in pairs]
    for answer in ("boxed", "boxed_or_text", "text", "number"):
        yield f"math {answer}", own_manifest("math", {"answer": answer}), products
    yield "math fractions", own_manifest("math"), parts
    letters = [replace(task, reference={"answer": draw.choice("ABCD"), "choices": 4}) for task in products]
    yield "choice", own_manifest("choice"), letters
    chosen = [INSTRUCTIONS[place % len(INSTRUCTIONS)] for place in range(count)]
    asked = [
        ask(f"Write {THINGS[place % len(THINGS)]}, number {place}.", instructions=[{"id": name, "kwargs": arguments}])
        for place, (name, arguments) in enumerate(chosen)
    ]
    yield "instruction", own_manifest("instruction"), asked


def gym_tasks(count: int, folder: Path) -> Iterator[Measured]:
    """Yield so many tasks of each dataset of reasoning-gym, which its package makes in a separate environment."""
    names = sorted(DATASETS - UNGUARDED.keys())
    made = str(count + count // 5 + 1)  # some entries cannot be written
    words = ("tasks", "import", "reasoning-gym", ",".join(names), folder, "--count", made, "--near", "1")
    command = [sys.executable, "-P", "-m", "muster", *map(str, words), "--licence", "Apache-2.0"]
    subprocess.run(command, check=True, capture_output=True, timeout=1_800)
    task_set = TaskSet.open(folder)
    (part,) = task_set.document.parts
    tasks = [task_set.task_of(part, index) for index in range(part.count)]
    for name in names:
        yield name, part.environment, [task for task in tasks if task.reference["dataset"] == name][:count]


def measure(measured: Iterator[Measured]) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
    """Return how many tasks were tried of each name, and the answers that pay, by name."""
    tried: dict[str, int] = {}
    found: dict[str, dict[str, float]] = {}
    with Scorers() as scorers:
        for name, manifest, tasks in measured:
            manifest = replace(manifest, options={**manifest.options, "thinking": "none"})
            environment = make_environment(manifest)
            try:
                if pays := paying(environment, tasks, scorers.call_of(manifest)):
                    found[name] = pays
            except MalformedError as error:
                found[name] = {str(error): 1.0}
            tried[name] = len(tasks)
            print(f"{name}: {len(tasks)} tasks, {found.get(name, 'nothing pays')}", file=sys.stderr)
    return tried, found
