"""Score the same completions in unlike processes: every score and its fuel must be the first one's.

    python -m benchmarks.scoring.determinism HOST_ROUNDS CALL_ROUNDS THREADS STEP

is one process: it scores what `cases` holds and prints how many scores of each case differ from its own first, and
those first ones. `measure` starts several with other locales, time zones, hash seeds and numbers of threads, while
another process keeps a core busy, and compares them.
"""

from __future__ import annotations

import json
import locale
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.scoring import with_fuel
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from testbed.escapes.attacks import COMPONENT, RUNNING_ANSWERS

FUEL: Final = 300_000_000
"""Less than a run's, so that those which run out of it take their time less often."""
SECONDS: Final = 3000
HOST: Final = ("arithmetic", "choice", "sorting")
"""Environments that never call the component."""

FORMS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SETTINGS: Final[Sequence[Mapping[str, str]]] = FORMS["settings"]
"""Of each process. Where a locale is not installed, the process has C's."""
HOSTILE: Final = (*FORMS["hostile"], "\ud800", "\0" * 99, "\\boxed{" * 99, "-" * 5000)


@dataclass(frozen=True)
class Case:
    """One completion of one task."""

    manifest: EnvironmentManifest
    task: Task
    completion: str


def cases() -> list[Case]:
    """Return completions of every environment: right, wrong and hostile ones."""
    return [*_host(), *_math(), *_instruction(), *_code(), *_gym()]


def _host() -> Iterator[Case]:
    asked = {
        "sorting": (ask("sort 5231", answer="1235"), "1235"),
        "arithmetic": (ask("17+25=", answer="42"), "42"),
        "choice": (ask("Which?", answer="B", choices=4), "(B)"),
    }
    for name, (task, right) in asked.items():
        manifest = own_manifest(name)
        for text in (right, f" {right}\n", "41", "A or B", "a", "It is C.", "4２", "B's", "\\boxed{B}", *HOSTILE):
            yield Case(manifest, task, f"thinking {text[:40]}</think>{text}")


def _math() -> Iterator[Case]:
    manifest, forms = with_fuel(FUEL, "math"), FORMS["math"]
    for gold in forms["golds"]:
        task = ask("?", answer=gold)
        for answer in (gold, *forms["answers"], "\\frac{" * 200, "(" * 500 + ")" * 500):
            yield Case(manifest, task, f"hm</think>so \\boxed{{{answer}}}.")


def _instruction() -> Iterator[Case]:
    manifest, forms = with_fuel(FUEL, "instruction"), FORMS["instruction"]
    for instructions in forms["wanted"]:
        for text in (*forms["texts"], "(" * 3000, "a " * 20_000, "*" * 5000, *HOSTILE):
            yield Case(manifest, ask("?", instructions=instructions), f"</think>{text}")


def _code() -> Iterator[Case]:
    manifest = with_fuel(FUEL, "code")
    double = ask(
        "Double.",
        kind="function",
        entry="double",
        tests=[{"input": [[1, 2]], "output": [2, 4]}, {"input": [[]], "output": []}, {"input": [[7]], "output": [14]}],
    )
    total = ask("Sum.", kind="stdin", tests=[{"input": "1 2\n", "output": "3"}, {"input": "9 -9", "output": "0"}])
    for task in (double, total):
        for program in FORMS["code"]["programs"]:
            yield Case(manifest, task, f"</think>```python\n{program}\n```")
    for attack in COMPONENT.values():
        if not attack.gain.startswith(("a file", "a change", "the machine's memory")):
            program = attack.program(FILE="/etc/hostname", FOLDER="/tmp", PORT=9).replace("attack", "double")
            yield Case(manifest, double, f"</think>```python\n{program}\n```")


def _gym() -> Iterator[Case]:
    manifest = with_fuel(FUEL, "reasoning_gym")
    for one in RUNNING_ANSWERS:
        task = ask("?", dataset=one.dataset, entry={"question": "?", **one.entry})
        others = ("3", "[1, 2]", "x**2", "2+3+4", "((", "\ud800", "9**9**9", "é" * 999)
        for answer in (one.entry["answer"], one.hostile, *others):
            yield Case(manifest, task, f"</think>{answer}")
    chain = ask("1 + 2", dataset="chain_sum", entry={"question": "1 + 2", "answer": "3", "metadata": {}})
    for answer in ("3", "3.0", "the answer is 3", "4", "three", "\0"):
        yield Case(manifest, chain, f"</think>{answer}")


# --- One process


def score_all(some: Sequence[Case], host_rounds: int, call_rounds: int, threads: int) -> dict[str, Any]:
    """Score each case so often; return the first score of each, and how many differ from it."""
    total, different, first = 0, [0] * len(some), [""] * len(some)
    with Scorers() as scorers, ThreadPoolExecutor(threads) as pool:

        def rounds(position: int) -> tuple[int, int, str]:
            case = some[position]
            count = host_rounds if case.manifest.name in HOST else call_rounds
            scores = [_as_text(scorers.score(case.manifest, case.task, case.completion)) for _ in range(count)]
            return count, sum(one != scores[0] for one in scores), scores[0]

        for position, (count, differ, score) in enumerate(pool.map(rounds, range(len(some)))):
            total, different[position], first[position] = total + count, differ, score
    return {"total": total, "different": different, "first": first}


def _as_text(score: Score) -> str:
    return json.dumps([score.parts, score.fuel, score.unsure])


def _main() -> None:
    host_rounds, call_rounds, threads, step = map(int, sys.argv[1:5])
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        locale.setlocale(locale.LC_ALL, "C")
    print(json.dumps(score_all(cases()[::step], host_rounds, call_rounds, threads)))


# --- All of them


def measure(host_rounds: int, call_rounds: int, step: int = 1) -> dict[str, Any]:
    """Return how many scores there were, how many differ, and which cases; every `step`-th case is scored."""
    some = cases()[::step]
    with _busy():
        running = [_start(host_rounds, call_rounds, step, settings) for settings in SETTINGS]
        results = [_finish(process) for process in running]
    total, differ, which, calls = 0, 0, set(), dict.fromkeys(sorted({case.manifest.name for case in some}), 0)
    for one in results:
        total += one["total"]
        for position, case in enumerate(some):
            rounds = host_rounds if case.manifest.name in HOST else call_rounds
            calls[case.manifest.name] += rounds
            wrong = one["different"][position]
            if one["first"][position] != results[0]["first"][position]:
                wrong = rounds
            differ += wrong
            if wrong:
                which.add(f"{case.manifest.name}: {case.completion[:200]!r}")
    return {"total": total, "different": differ, "which": sorted(which), "by_environment": calls}


def _start(host_rounds: int, call_rounds: int, step: int, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    numbers = [str(host_rounds), str(call_rounds), settings["threads"], str(step)]
    environment = os.environ | {name: value for name, value in settings.items() if name != "threads"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "benchmarks.scoring.determinism", *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"a process that scores ended with {process.returncode}")
    return json.loads(said)


@contextmanager
def _busy() -> Iterator[None]:
    """Keep a core busy, on and off."""
    code = (
        "import time\nwhile True:\n    end = time.time() + 0.3\n    while time.time() < end: pass\n    time.sleep(0.1)"
    )
    burner = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


if __name__ == "__main__":
    _main()
