"""Show a running swarm: a live view on a terminal, one line per event elsewhere. All on stderr."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster.protocol.metric_names import HELD_OUT, LENGTH, REWARD
from muster.runtime.units import Tokens
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent

BARS: Final = "▁▂▃▄▅▆▇█"
LINES: Final = 10
"""Events that the live view keeps in sight."""


def watcher(console: Console, *, plain: bool = False) -> PlainView:
    """Return a live view on a terminal, lines otherwise."""
    return PlainView(console) if plain or not console.is_terminal else LiveView(console)


class PlainView:
    """Shows what happens in a swarm: one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._blocked = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        pass

    def stage(self, text: str) -> None:
        """Show that a stage of the work begins."""
        self._line(text)

    def page(self, url: str) -> None:
        """Show where the run's page is."""
        self._line(f"the run's page: {url}")

    def process_event(self, event: ProcessEvent) -> None:
        self._line(process_line(event))

    def run_events(self, events: Sequence[Mapping[str, Any]], participants: Sequence[Participant]) -> None:
        """Show events of the run, as the orchestrator lists them."""
        for event in events:
            self._line(run_event_line(event, participants))

    def summary(self, document: Mapping[str, Any], participants: Sequence[Participant]) -> None:
        """Show the state of the run, from the orchestrator's summary."""
        blocked = document.get("blocked", "")
        if blocked and blocked != self._blocked:
            self._line(f"waiting: {blocked}")
        self._blocked = blocked

    def _line(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._started:7.1f} s  {text}", markup=False, soft_wrap=True)


class LiveView(PlainView):
    """The run on one screen, redrawn twice a second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._stage = ""
        self._page = ""
        self._lines: deque[str] = deque(maxlen=LINES)
        self._document: Mapping[str, Any] = {}
        self._participants: Sequence[Participant] = ()
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        self._stage = text

    def page(self, url: str) -> None:
        self._page = url

    def summary(self, document: Mapping[str, Any], participants: Sequence[Participant]) -> None:
        self._document, self._participants = document, participants

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def render(self) -> RenderableType:
        seconds = int(time.monotonic() - self._started)
        head = Text.assemble((f"{seconds // 60}:{seconds % 60:02d}  ", "bold"), self._stage)
        parts: list[RenderableType] = [
            head,
            Text(f"      {self._page}", style="cyan") if self._page else Text(),
            Text(),
        ]
        if self._document:
            parts += [progress_table(self._document), Text(), node_table(self._document, self._participants), Text()]
        return Group(*parts, *(Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self._lines))


def process_line(event: ProcessEvent) -> str:
    details = " ".join(f"{name}={value}" for name, value in event.details.items())
    return f"{event.name} {event.kind}" + (f" ({details})" if details else "")


def run_event_line(event: Mapping[str, Any], participants: Sequence[Participant]) -> str:
    """Return an orchestrator's event as a line, with names for addresses."""
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
    shown = {label: metrics.get(key) for key, label in _METRICS.items()}
    return ("trained " if step else "initial model ") + _pairs({"step": step, "files": data.get("files")} | shown)


_METRICS: Final = {REWARD: "reward", HELD_OUT: "held_out", LENGTH: "length"}


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


def progress_table(document: Mapping[str, Any]) -> Table:
    """Return a table of step, reward, held-out score, length, and where the trainer's time goes."""
    steps = document.get("steps", [])
    table = Table.grid(padding=(0, 2))
    table.add_row("step", str(document.get("step", "")), _demand(document))
    for key, label in _METRICS.items():
        values = [line["metrics"][key] for line in steps if line.get("metrics", {}).get(key) is not None]
        if values:
            table.add_row(label, f"{values[-1]:.3f}", sparkline(values[-60:]))
    stages = next((line["stages"] for line in reversed(steps) if line.get("stages")), {})
    if stages:
        table.add_row("stages", "", "  ".join(f"{name} {seconds:.1f} s" for name, seconds in stages.items()))
    return table


def _demand(document: Mapping[str, Any]) -> str:
    demand = document.get("demand", {})
    if not demand:
        return ""
    if document.get("blocked"):
        return f"waiting: {document['blocked']}"
    wanted = "more work is wanted" if demand.get("wanted") else "enough work is waiting"
    return f"{wanted} ({demand.get('waiting_groups', 0)} groups)"


def node_table(document: Mapping[str, Any], participants: Sequence[Participant]) -> Table:
    """Return a table of commitments, verdicts and slashes by node."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("node", "status", "commits", "accepted", "pending", "rejected", "verdicts", "slashed"):
        table.add_column(head, justify="left" if head in ("node", "status", "rejected") else "right")
    for line in document.get("nodes", []):
        rejected = ", ".join(f"{count} {reason}" for reason, count in line["rejected"].items())
        worker = line["role"] == "worker"
        table.add_row(
            _name(line["address"], participants),
            Text(line["status"], style="red" if line["status"] == "jailed" else ""),
            str(line["commitments"]) if worker else "",
            str(line["accepted"]) if worker else "",
            str(line["pending"]) if worker else "",
            rejected,
            "" if worker else str(line["accepts"] + line["rejections"]),
            str(Tokens(line["slashed"])) if line["slashed"] else "",
        )
    return table


def sparkline(values: Sequence[float]) -> str:
    """Draw values as small bars, from the lowest to the highest."""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((value - low) * scale)] for value in values)
