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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.environments.manifest import EnvironmentManifest, Score, ScorerManifest
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from testbed.escapes.attacks import COMPONENT, RUNNING_ANSWERS

FUEL: Final = 300_000_000
"""Less than a run's, so that those which run out of it take their time less often."""
SECONDS: Final = 3000
HOST: Final = ("arithmetic", "choice", "sorting")
"""Environments that never call the component."""

SETTINGS: Final[Sequence[Mapping[str, str]]] = (
    {"LC_ALL": "C", "PYTHONHASHSEED": "0", "TZ": "UTC", "threads": "1"},
    {
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "1",
        "TZ": "Asia/Kathmandu",
        "threads": "4",
        "PYTHONINTMAXSTRDIGITS": "640",
    },
    {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "random", "TZ": "America/St_Johns", "threads": "1", "PYTHONUTF8": "0"},
    {"LC_ALL": "de_DE.UTF-8", "PYTHONHASHSEED": "4294967295", "threads": "2", "PYTHONMALLOC": "malloc"},
)
"""Of each process. Where a locale is not installed, the process has C's."""


@dataclass(frozen=True)
class Case:
    """One completion of one task."""

    manifest: EnvironmentManifest
    task: Task
    completion: str


def cases() -> list[Case]:
    """Return completions of every environment: right, wrong and hostile ones."""
    return [*_host(), *_math(), *_instruction(), *_code(), *_gym()]


HOSTILE: Final = (
    "",
    "no answer",
    "\ud800",
    "</think>",
    "</think></think>1",
    "\0" * 99,
    "９",
    "\\boxed{" * 99,
    "-" * 5000,
)


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
    manifest = _with_fuel("math")
    answers = (
        *(
            "1/2",
            "0.5",
            "\\frac{1}{2}",
            "\\dfrac{2}{4}",
            "50\\%",
            "\\sqrt{\\frac14}",
            "2^{-1}",
            "\\sin(\\pi/6)",
            "x=1/2",
        ),
        *("2", "x=1/2", "\\{1/2\\}", "(1,2)", "9**9**9**9", "10^{10^{10^{10}}}", "\\frac{" * 200, "\\infty", "i", "é"),
        *("\\text{half}", "1,000", "__import__('os').abort()", "100000!!!!", "\\int_0^1 x dx", "(" * 500 + ")" * 500),
    )
    for gold in ("\\frac{1}{2}", "[0, \\infty)", "500"):
        task = ask("?", answer=gold)
        for answer in (gold, *answers):
            yield Case(manifest, task, f"hm</think>so \\boxed{{{answer}}}.")


def _instruction() -> Iterator[Case]:
    manifest = _with_fuel("instruction")
    wanted = [
        [{"id": "punctuation:no_comma", "kwargs": {}}],
        [
            {"id": "length_constraints:number_words", "kwargs": {"num_words": 5, "relation": "at least"}},
            {"id": "change_case:english_lowercase", "kwargs": {}},
        ],
        [{"id": "detectable_format:json_format", "kwargs": {}}],
        [{"id": "keywords:frequency", "kwargs": {"frequency": 2, "keyword": "straße", "relation": "at least"}}],
        [{"id": "length_constraints:number_sentences", "kwargs": {"num_sentences": 3, "relation": "less than"}}],
        [{"id": "language:response_language", "kwargs": {"language": "de"}}],
    ]
    texts = (
        "One, two.",
        "all small words are in here",
        '{"a": [1, 2]}',
        "Straße STRASSE straße",
        "Mr. A. B. e.g. it!?…",
    )
    for instructions in wanted:
        for text in (*texts, "ı İ ß ﬁ", "(" * 3000, "a " * 20_000, "*" * 5000, *HOSTILE):
            yield Case(manifest, ask("?", instructions=instructions), f"</think>{text}")


def _code() -> Iterator[Case]:
    manifest = _with_fuel("code")
    double = ask(
        "Double.",
        kind="function",
        entry="double",
        tests=[{"input": [[1, 2]], "output": [2, 4]}, {"input": [[]], "output": []}, {"input": [[7]], "output": [14]}],
    )
    total = ask("Sum.", kind="stdin", tests=[{"input": "1 2\n", "output": "3"}, {"input": "9 -9", "output": "0"}])
    programs = (
        "def double(xs): return [2 * x for x in xs]",
        "def double(xs): return list(map(lambda x: x + x, xs))",
        "def double(xs): return sorted({2 * x for x in xs}, key=hash)",
        "import random\ndef double(xs): return [x * random.choice([2, 3]) for x in xs]",
        "import time\ndef double(xs): return [x * (2 + time.time_ns() % 2) for x in xs]",
        "def double(xs): return [id(x) % 99 for x in xs]",
        "print(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())) + 0.0)",
        "print(set('some words') and hash('x'))",
        "while True: pass",
        "x = [0]\nwhile True: x = x * 2",
        "def f(n): return f(n + 1)\nf(0)",
        "while True: print('x' * 1000)",
    )
    for task in (double, total):
        for program in programs:
            yield Case(manifest, task, f"</think>```python\n{program}\n```")
    for attack in COMPONENT.values():
        if not attack.gain.startswith(("a file", "a change", "the machine's memory")):
            program = attack.program(FILE="/etc/hostname", FOLDER="/tmp", PORT=9).replace("attack", "double")
            yield Case(manifest, double, f"</think>```python\n{program}\n```")


def _gym() -> Iterator[Case]:
    manifest = _with_fuel("reasoning_gym")
    for one in RUNNING_ANSWERS:
        task = ask("?", dataset=one.dataset, entry={"question": "?", **one.entry})
        for answer in (
            one.entry["answer"],
            one.hostile,
            "3",
            "[1, 2]",
            "x**2",
            "2+3+4",
            "((",
            "\ud800",
            "9**9**9",
            "é" * 999,
        ):
            yield Case(manifest, task, f"</think>{answer}")
    chain = ask("1 + 2", dataset="chain_sum", entry={"question": "1 + 2", "answer": "3", "metadata": {}})
    for answer in ("3", "3.0", "the answer is 3", "4", "three", "\0"):
        yield Case(manifest, chain, f"</think>{answer}")


def _with_fuel(name: str) -> EnvironmentManifest:
    default = own_manifest(name)
    assert default.scorer is not None
    scorer = ScorerManifest(default.scorer.component, default.scorer.function, FUEL)
    return EnvironmentManifest(name, default.version, default.options, default.weights, scorer)


# --- One process


def score_all(some: Sequence[Case], host_rounds: int, call_rounds: int, threads: int) -> dict[str, Any]:
    """Score each case so often; return the first score of each, and how many differ from it."""
    total, different, first = 0, [0] * len(some), [""] * len(some)
    with Scorers() as scorers, ThreadPoolExecutor(threads) as pool:

        def rounds(position: int) -> tuple[int, int, str]:
            case = some[position]
            count = host_rounds if case.manifest.name in HOST else call_rounds
            told = [_told(scorers.score(case.manifest, case.task, case.completion)) for _ in range(count)]
            return count, sum(one != told[0] for one in told), told[0]

        for position, (count, differ, told) in enumerate(pool.map(rounds, range(len(some)))):
            total, different[position], first[position] = total + count, differ, told
    return {"total": total, "different": different, "first": first}


def _told(score: Score) -> str:
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
        told = [_finish(process) for process in running]
    total, differ, which, calls = 0, 0, set(), dict.fromkeys(sorted({case.manifest.name for case in some}), 0)
    for one in told:
        total += one["total"]
        for position, case in enumerate(some):
            rounds = host_rounds if case.manifest.name in HOST else call_rounds
            calls[case.manifest.name] += rounds
            wrong = one["different"][position]
            if one["first"][position] != told[0]["first"][position]:
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
