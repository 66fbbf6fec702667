"""What the log of a worker's or validator's process says of it, line by line. Pure.

A log holds text of strangers: reasons of an orchestrator, names of files. Print it through `muster.runtime.printable`
only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from muster.runtime.telemetry import (
    ENGINE_STARTED,
    ENGINE_STARTS,
    GENERATED,
    GOES_ON,
    JUDGED,
    NO_FINISHED_WORK,
    WEIGHTS_LOADED,
)

WARNINGS: Final = 3
"""Last warnings that are kept."""
WARNED: Final = ("warning", "error", "critical")
ALARMS: Final = ("error", "critical")
"""Levels that count for libraries, whose lines name a logger: a library's warning asks for no action."""
RATE_SECONDS: Final = 300.0
"""Over which tokens are counted."""

ENGINE: Final = (ENGINE_STARTS, ENGINE_STARTED, WEIGHTS_LOADED, GENERATED)
"""Events that name the step of the engine."""

LOOPS: Final = (
    *("produce", "commit", "weights", "prepare", "profile"),
    *("registration", "transactions", "preparation", "inspect"),
)
"""Loops of these processes whose reasons to wait matter to a person, the most telling first."""


@dataclass(frozen=True)
class GeneratedFile:
    at: float
    """Unix seconds."""
    tokens: int
    seconds: float


@dataclass
class NodeLog:
    """What is known from the lines that `take` got, since the process began."""

    step: int | None = None
    """Policy step that the engine has."""
    starting: bool = False
    """Whether the engine is being started."""
    work: deque[GeneratedFile] = field(default_factory=lambda: deque(maxlen=1_000))
    accepted: int = 0
    """Of a validator's verdicts."""
    rejected: int = 0
    judged: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    """Last commitments that a validator judged, as sentences."""
    warnings: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=WARNINGS))
    warned: int = 0
    """How many warnings there were."""
    ended: Mapping[str, Any] | None = None
    """The line by which the process ended, and said why."""
    _waiting: dict[str, str] = field(default_factory=dict)

    def take(self, line: Mapping[str, Any], at: float) -> None:
        """Add a line of the log, of Unix second `at`."""
        event = str(line.get("event", ""))
        # 1. The process began, or ended.
        if event == "ready":
            self._begin()
        elif event in ("ended", "finished"):
            self.ended = line
            self._waiting.clear()
        # 2. What it did.
        elif event in ENGINE:
            self._take_work(event, line, at)
        elif event == JUDGED:
            self._take_verdict(line)
        # 3. What it waits for, and what went wrong.
        elif event == "waiting":
            self._waiting[str(line.get("what", ""))] = str(line.get("reason", ""))
        elif event == GOES_ON:
            self._waiting.pop(str(line.get("what", "")), None)
        if line.get("level") in (ALARMS if "logger" in line else WARNED):
            self.warnings.append(line)
            self.warned += 1

    @property
    def waits(self) -> str:
        """Return why the process waits; "" where it does not."""
        reasons = {what: reason for what, reason in self._waiting.items() if reason != NO_FINISHED_WORK}
        return next((reasons[what] for what in LOOPS if what in reasons), "")

    def rate(self, now: float) -> tuple[float, float]:
        """Return tokens per second of the last file while it was generated, and over RATE_SECONDS until now."""
        last = self.work[-1] if self.work else GeneratedFile(0, 0, 0)
        recent = sum(one.tokens for one in self.work if now - one.at <= RATE_SECONDS)
        return last.tokens / last.seconds if last.seconds > 0 else 0.0, recent / RATE_SECONDS

    def _begin(self) -> None:
        """Forget what an earlier process did, but for its warnings."""
        self.step, self.starting, self.ended = None, False, None
        self.accepted = self.rejected = 0
        self.work.clear()
        self.judged.clear()
        self._waiting.clear()

    def _take_work(self, event: str, line: Mapping[str, Any], at: float) -> None:
        step = line.get("step")
        self.step, self.starting = step if isinstance(step, int) else self.step, event == ENGINE_STARTS
        tokens, seconds = line.get("tokens"), line.get("seconds")
        if event == GENERATED and isinstance(tokens, int) and isinstance(seconds, (int, float)):
            self.work.append(GeneratedFile(at, tokens, float(seconds)))

    def _take_verdict(self, line: Mapping[str, Any]) -> None:
        accepted = line.get("accepted") is True
        self.accepted += accepted
        self.rejected += not accepted
        said = "accepted" if accepted else f"rejected: {line.get('reason')}"
        self.judged.appendleft(f"{str(line.get('node', ''))[:8]}…:{line.get('index')} {said}")
