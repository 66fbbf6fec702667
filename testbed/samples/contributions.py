"""Contributed environments for tests: a good one, its author's key, and folders with something wrong in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.authoring.contributions.template import write_template
from muster.chain.keys import Signer
from muster.constants import MICRO
from muster.environments.task import ChatMessage, Task
from muster.tasksets.contribution import Contribution

AUTHOR = Signer.from_key("a1" * 32)

SOURCE = """
def score(task, completion):
    answer = completion.strip()
    correct = answer == str(task["answer"])
    return {"correct": 1_000_000 if correct else 0, "brief": 1_000_000 if correct and len(answer) < 4 else 0}
"""


def task(name: str, question: str, answer: Any, oracle: str | None = None, author: str = AUTHOR.address) -> Task:
    """Return a task of the environment `letters`."""
    reference = {"answer": answer, "oracle": str(answer) if oracle is None else oracle}
    return Task(f"letters/{name}", (ChatMessage("user", question),), reference, 1, author)


TASKS = (
    task("strawberry", "How many r are in strawberry?", 3),
    task("banana", "How many a are in banana?", 3),
    task("committee", "How many e are in committee?", 2),
)


def contribution(**changes: Any) -> Contribution:
    """Return a good environment with some fields changed."""
    fields: dict[str, Any] = {
        "name": "letters",
        "version": 1,
        "licence": "CC-BY-4.0",
        "credit": "Ada",
        "description": "Count letters.",
        "author": AUTHOR.address,
        "thinking": "tags",
        "fuel": 2_000_000_000,
        "weights": {"brief": MICRO // 10, "correct": MICRO - MICRO // 10},
        "source": SOURCE,
        "readme": "# letters\n",
        "tasks": TASKS,
    }
    return Contribution(**(fields | changes))


def source_of(body: str) -> str:
    """Return a scorer of one part whose function has this body."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"def score(task, completion):\n{lines}\n"


def one_part(body: str, **changes: Any) -> Contribution:
    """Return an environment of the part `correct`, scored by a function with this body."""
    return contribution(source=source_of(body), weights={"correct": MICRO}, **changes)


def folder(path: Path, **files: str) -> Path:
    """Write a folder as `muster env new` does, with a licence; `files` are replaced, by name without ending."""
    write_template(path)
    about = path / "environment.toml"
    text = about.read_text().replace('licence = ""', 'licence = "MIT"').replace('credit = ""', 'credit = "Ada"')
    about.write_text(text)
    endings = {"environment": "environment.toml", "scorer": "scorer.py", "tasks": "tasks.jsonl"}
    for name, text in files.items():
        (path / endings[name]).write_text(text)
    return path


def row(**changes: Any) -> str:
    """Return a line of tasks.jsonl; a value of None leaves the field out."""
    fields: dict[str, Any] = {
        "id": "a",
        "messages": [{"role": "user", "content": "How many r are in strawberry?"}],
        "answer": 3,
        "oracle": "3",
    }
    return json.dumps({name: value for name, value in (fields | changes).items() if value is not None})
