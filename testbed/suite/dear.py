"""Which tests and fixtures may take more than `NAMED` CPU seconds in `make test`, and the promise that each keeps.

The list is `dear.toml`. What is dear and not listed is named at the end of a run, and above `FAILS` it fails the run:
the seconds of the same work differ between processors, but not by a factor of two. What is listed and no longer dear,
or no longer there, is named as well. `python -m testbed.suite.dear` prints the CPU time of a `make test` beside the
budget.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

CACHE: Final = Path(__file__).resolve().parents[2] / "cache"
FILE: Final = CACHE / "durations.json"
"""CPU seconds of the last run of pytest: of all, and of every test and fixture."""
LIST: Final = Path(__file__).with_name("dear.toml")
NAMED: Final = 5.0
FAILS: Final = 10.0
NO_LONGER_DEAR: Final = 3.0
BESIDE: Final = ("lint", "test-contracts")
"""What `make test` runs beside pytest; `cache/NAME.times` has the output of the shell's `times`."""


class Dear(NamedTuple):
    """The list: the budget of `make test` in CPU minutes, how many entries it may have, and the promise of each."""

    budget_minutes: int
    limit: int
    promises: dict[str, str]


class Findings(NamedTuple):
    """What a run says of the list: sentences, and whether one of them fails the run."""

    sentences: list[str]
    fails: bool


def read_list(path: Path = LIST) -> Dear:
    return Dear(**tomllib.loads(path.read_text()))


def compare(cpu: Mapping[str, float], promises: Mapping[str, str]) -> Findings:
    """Compare the CPU seconds of a whole run with the list. An entry of the list may stand for all cases of a test."""
    sentences, fails = [], False
    most: dict[str, float] = {}
    for name, seconds in sorted(cpu.items(), key=lambda row: -row[1]):
        without_case = name.split("[", 1)[0]
        for key in {name, without_case}:
            most[key] = max(seconds, most.get(key, 0.0))
        if "::" in name and seconds > NAMED and not promises.keys() & {name, without_case}:
            fails = fails or seconds > FAILS
            sentences.append(f"{name} takes {seconds:.1f} CPU seconds: make it cheaper, or list it in {LIST.name}")
    for name in promises:
        if name not in most:
            sentences.append(f"{name} is listed in {LIST.name} and did not run: remove it there")
        elif most[name] < NO_LONGER_DEAR:
            sentences.append(f"{name} takes {most[name]:.1f} CPU seconds: remove it from {LIST.name}")
    return Findings(sentences, fails)


def times_seconds(text: str) -> float:
    """Return the CPU seconds of children that the output of the shell's `times` has in its last line."""
    parts = [part.rstrip("s").split("m") for part in text.splitlines()[-1].split()]
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in parts)


def summary(cache: Path = CACHE, budget_minutes: int | None = None) -> str:
    """Return one line: the CPU minutes of the last `make test`, its parts, and the budget."""
    parts = {"pytest": json.loads((cache / FILE.name).read_text())["seconds"]}
    parts |= {name: times_seconds((cache / f"{name}.times").read_text()) for name in BESIDE}
    budget = read_list().budget_minutes if budget_minutes is None else budget_minutes
    of = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in parts.items())
    return f"CPU minutes: {sum(parts.values()) / 60:.1f} of {budget} ({of})"


if __name__ == "__main__":
    print(summary())
