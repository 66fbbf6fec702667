"""Whether `muster tasks check` counts the prompts that workers write.

    python benchmarks/prompts.py [--json]

By every family of chat templates, with each set of tools and with and without thinking, a separate process makes the
rows of commitments with the worker's own modules and writes their files; only the engine is left out, so a completion
is its end token. Then each prompt in the files is held against the count of its task at its budget. No prompt is cut.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from muster.authoring.tasks.counting import token_counter
from muster.constants import BASIS_POINTS
from muster.environments.tools.manifest import TurnsManifest
from muster.models.init import ModelShape, make_model, save_model
from muster.protocol.draws import DrawSource
from muster.protocol.terms import WorkClass
from muster.rollouts.parquet import read_rollouts, write_rollouts
from muster.rollouts.spans import one_span
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.taskset import TaskSet
from testbed.adversaries.tool_code import code_turns
from testbed.samples.chat_templates import FAMILIES, tokenizer_of
from testbed.samples.tool_model import tool_rules, tool_tasks, tool_terms
from worker.engine import Generation
from worker.rollouts import Assignment, make_requests, make_rollouts

TOOLS: Final[Mapping[str, TurnsManifest | None]] = {
    "none": None,
    "calculator": TurnsManifest(("calculator",)),
    "code, a corpus, an author's": code_turns(),
}
BUDGETS: Final = (8, 300, 16_000)
COMMITMENTS: Final = 4


def work(folder: Path) -> int:
    """Write models, tasks and the files of commitments; return how many rows there are."""
    rows = 0
    for number, (family, (tools, turns), thinking) in enumerate(cells()):
        place = folder / str(number)
        tokenizer = tokenizer_of(FAMILIES[family])
        tokenizer.eos_token = FAMILIES[family].ends[0]
        shape = ModelShape(hidden=16, layers=1, heads=2, intermediate=16, context=8192)
        save_model(make_model(tokenizer, shape, 0), tokenizer, place / "model")
        plain = tool_tasks(place / "plain", count=64)
        part = plain.document.parts[0]
        manifest = replace(part.environment, turns=turns, options={**part.environment.options, "thinking": thinking})
        tasks = write_task_set(place / "tasks", [NewPart("sums", manifest, plain.tasks_of(part), 1, part.sources)])
        terms = replace(tool_terms(tasks), max_prompt_tokens=4096, classes=(WorkClass(BASIS_POINTS, BUDGETS),))
        rules = tool_rules(place / "model", tasks, terms)
        for index in range(COMMITMENTS):
            assignment = Assignment(1, index, rules.draw(DrawSource("0x" + "aa" * 20, bytes(32), 0), index))
            requests = make_requests(assignment, rules)
            made = make_rollouts(assignment, rules, requests, [ended(rules.tokenizer.eos_token_id)] * len(requests))
            (place / f"{index}.parquet").write_bytes(write_rollouts(made))
            rows += len(made)
        rules.scorers.close()
        print(f"{family}, tools: {tools}, thinking: {thinking}", file=sys.stderr)
    return rows


def ended(token: Any) -> Generation:
    tokens = np.array([token], np.int32)
    return Generation(tokens, np.zeros(1, np.float32), "stop", b"", one_span(1), np.zeros(0, np.uint64))


def cells() -> list[tuple[str, tuple[str, TurnsManifest | None], str]]:
    return [(family, one, thinking) for family in FAMILIES for one in TOOLS.items() for thinking in ("none", "tags")]


def compared(folder: Path) -> tuple[int, int, list[str]]:
    """Return how many prompts there are, how many of them are unlike each other, and which were counted otherwise."""
    prompts, unlike, wrong = 0, set(), []
    for number, (family, (tools, _), thinking) in enumerate(cells()):
        place = folder / str(number)
        task_set, counters, counts = TaskSet.open(place / "tasks"), {}, {}
        for path in sorted(place.glob("*.parquet")):
            for row in read_rollouts(path.read_bytes()):
                key = (row.task, row.budget)
                if row.budget not in counters:
                    counters[row.budget] = token_counter(place / "model", (row.budget,))
                if key not in counts:
                    counts[key] = counters[row.budget](task_set.manifest(row.task), task_set.task(row.task))
                prompts += 1
                unlike.add((number, row.prompt_tokens.tobytes()))
                if counts[key] != len(row.prompt_tokens):
                    wrong.append(f"{family}, {tools}, {thinking}: {counts[key]} for {len(row.prompt_tokens)} tokens")
    return prompts, len(unlike), wrong


def main() -> int:
    options = report.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        written = report.apart(work, Path(folder))
        prompts, unlike, wrong = compared(Path(folder))
    assert written == prompts, "files are missing"
    about = {"unlike": unlike, "families": len(FAMILIES), "tools": list(TOOLS), "wrong": wrong[:20]}
    figures = [
        report.figure("prompt_equal", 1 - len(wrong) / prompts, target=1.0, unit="of the prompts in files", **about),
        report.figure("prompt_equal_prompts", prompts, target=2000, unit="prompts"),
    ]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
