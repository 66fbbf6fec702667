"""Show a running swarm: one line per event, on stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from muster.protocol.metric_names import HELD_OUT, LENGTH, REWARD
from muster.runtime.units import Tokens
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent

STYLES: Final = {
    "stage": "bold",
    "page": "bold cyan",
    "step": "green",
    "rejected": "red",
    "convicted": "bold red",
    "died": "bold red",
}
"""How a terminal shows the lines that a reader looks for, by kind of event."""


class SwarmView:
    """Shows what happens in a swarm: one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._blocked = ""

    def stage(self, text: str) -> None:
        """Show that a stage of the work begins."""
        self._line(text, "stage")

    def page(self, url: str) -> None:
        """Show where the run's page is."""
        self._line(f"the run's page: {url}", "page")

    def process_event(self, event: ProcessEvent) -> None:
        self._line(process_line(event), event.kind)

    def run_events(self, events: Sequence[Mapping[str, Any]], participants: Sequence[Participant]) -> None:
        """Show events of the run, as the explorer lists them."""
        for event in events:
            self._line(run_event_line(event, participants), str(event.get("kind", "")))

    def blocked(self, reason: str) -> None:
        """Show why no work is wanted at the moment, once; an empty reason is none."""
        if reason and reason != self._blocked:
            self._line(f"waiting: {reason}", "blocked")
        self._blocked = reason

    def _line(self, text: str, kind: str) -> None:
        line = f"{time.monotonic() - self._started:7.1f} s  {text}"
        self._console.print(line, style=STYLES.get(kind), markup=False, highlight=False, soft_wrap=True)


def process_line(event: ProcessEvent) -> str:
    details = " ".join(f"{name}={value}" for name, value in event.details.items())
    return f"{event.name} {event.kind}" + (f" ({details})" if details else "")


def run_event_line(event: Mapping[str, Any], participants: Sequence[Participant]) -> str:
    """Return an event of the run as a line, with names for addresses."""
    data = dict(event.get("data", {}))
    kind = str(event.get("kind", ""))
    who = _name(data.pop("node", None), participants)
    if kind == "step":
        return _step_line(data)
    for key in ("amount", "slashed", "bounty"):
        if isinstance(data.get(key), int):
            data[key] = Tokens(data[key])
    for key in ("validator", "challenger", "judge", "to", "operator"):
        if key in data:
            data[key] = _name(data[key], participants)
    return " ".join(part for part in (who, kind, _pairs(data)) if part)


def _step_line(data: Mapping[str, Any]) -> str:
    """Return a step's line: it is reported once trained, and again once measured on held-out tasks."""
    metrics, step = data.get("metrics", {}), data.get("step")
    if HELD_OUT in metrics:
        return "measured " + _pairs({"step": step, "held_out": metrics[HELD_OUT]})
    shown = {"files": data.get("files"), "reward": metrics.get(REWARD), "length": metrics.get(LENGTH)}
    return ("trained " if step else "initial model ") + _pairs({"step": step, **shown})


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in values.items() if value is not None)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text[:10] + "…" if text.startswith("0x") and len(text) > 20 else text


def _name(address: object, participants: Sequence[Participant]) -> str:
    if address is None:
        return ""
    found = next((who.name for who in participants if address in (who.node, who.operator)), None)
    return found or _short(address)
