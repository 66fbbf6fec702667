"""What strangers' programs try: the tables `attacks.toml`, `payloads.jsonl` and `answers.jsonl`, and how one is run."""

from __future__ import annotations

import json
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REACHED: Final = "REACHED"
FOLDER: Final = Path(__file__).parent

COMPONENT_PROGRAM: Final = """import sys, os, builtins
REACHED = 'REACHED'

def attack():
BODY
"""
"""What is around an attack's code on the component; a process runs the code as it is."""


@dataclass(frozen=True)
class Attack:
    """One attack."""

    wall: str
    """`component` or `process`."""
    gain: str
    """What it would have gained."""
    kind: str
    code: str

    def program(self, **canaries: object) -> str:
        """Return what is run, with the canaries in the place of their names."""
        text = self.code
        if self.wall == "component":
            text = COMPONENT_PROGRAM.replace("BODY", textwrap.indent(text, "    "))
        for name, value in canaries.items():
            text = text.replace(name, str(value))
        return text


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def _attacks(wall: str) -> dict[str, Attack]:
    gains = TABLE[wall].items()
    return {kind: Attack(wall, gain, kind, code) for gain, codes in gains for kind, code in codes.items()}


TABLE: Final = tomllib.loads((FOLDER / "attacks.toml").read_text(encoding="utf-8"))
COMPONENT, PROCESS = map(_attacks, ("component", "process"))
"""The attacks on each wall, by kind."""
CONTROLS: Final[dict[str, list[str]]] = TABLE["controls"]
"""By wall, attacks that succeed without it."""

_SAME: Final = {"kind": "function", "code": "def f(x): return x", "entry": "f"}
PAYLOADS: Final[dict[str, tuple[str, Any]]] = {
    **{row["kind"]: (row["function"], row["payload"]) for row in _rows("payloads.jsonl")},
    "a huge $int": ("code", {**_SAME, "input": [{"$int": "0x" + "f" * 10**6}]}),
    "a payload over the limit": ("echo", "x" * (16 * 1024**2)),
    "an echo of four MiB": ("echo", "x" * (4 * 1024**2)),
}
"""Calls that no environment makes: what may come back is an error, or a value without a secret."""


@dataclass(frozen=True)
class RunningAnswer:
    """A task of a dataset of reasoning-gym's whose own scorer executes the answer."""

    dataset: str
    entry: dict[str, Any]
    hostile: str
    """An answer that computes the right one."""
    most: float
    """What a wrong answer gets at most."""


RUNNING_ANSWERS: Final = tuple(RunningAnswer(**row) for row in _rows("answers.jsonl"))
