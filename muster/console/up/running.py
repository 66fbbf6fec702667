"""Keep a node's process running: start it, start it again when it dies, and end it with the command.

The process leads a separate session, so Ctrl-C reaches the command alone, which then ends it gracefully. The process
that it started is noted in the node's folder: if the command is killed, the next one finds and ends that process before
it starts another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from muster.console.node.logs import Tail, escaped, parsed
from muster.console.node.service import STOP_SECONDS
from muster.console.up.prepare import LocalNode
from muster.errors import CheckError, ConfigError, FinishedError
from muster.runtime.failpoints import failpoint
from muster.runtime.module_command import module_command
from muster.swarm.launch import ROLES
from muster.swarm.state import end_swarm
from muster.swarm.supervisor import ProcessEvent, ProcessSpec, Supervisor, log_tail

FINAL: Final = {one.exit_code: one for one in (FinishedError, CheckError, ConfigError)}
"""Statuses after which starting again changes nothing: it finished, its key was convicted, its settings cannot work."""

MAX_SHOWN: Final = 300
"""Characters of a process's last words that are shown."""
BACK_OFF: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
RESTARTS: Final = 60
"""Deaths in a row, each within ten minutes of its start: about an hour of an endpoint that does not answer."""


class NodeProcess(Supervisor):
    """Async context manager in which the process of one node runs; its `failure` says why that ended for good."""

    def __init__(self, node: LocalNode) -> None:
        super().__init__(node.place.folder, self._take)
        self._node = node
        self._log_start = 0
        """The byte of the log at which the process that runs now, or ended last, began."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.start(process_spec(self._node))
        except BaseException:
            await self.stop()
            raise
        failpoint("up.started")
        return self

    def _take(self, event: ProcessEvent) -> None:
        status, role = event.details.get("status"), self._node.role
        if event.kind == "started":
            self._log_start = log_size(self._node.log)
            log = self._node.log or self._node.place.output
            self._node.session.note(f"the {role} runs as process {event.details['pid']}; its log is {log}")
        elif event.kind == "died":
            what, _ = last_words(self._node, self._log_start)
            self._node.session.note(f"the {role} ended with {status}: {escaped(what, MAX_SHOWN)}; it starts again")
        elif event.kind == "finished" and isinstance(status, int):
            what, hint = last_words(self._node, self._log_start)
            self.failure.set_exception(FINAL[status](f"the {role} ended: {what}", hint=hint))
            self.failure.exception()  # an interrupted command does not ask for it


def process_spec(node: LocalNode) -> ProcessSpec:
    role = ROLES[node.role]
    return ProcessSpec(
        name=node.role,
        command=module_command(role.module, "--config", node.place.config),
        log=node.place.output,
        stop_seconds=STOP_SECONDS[node.role],
        nice=role.nice,
        restarts=RESTARTS,
        back_off=BACK_OFF,
        final_statuses=tuple(FINAL),
    )


def last_words(node: LocalNode, start: int) -> tuple[str, str]:
    """Return why the process of a node ended, and what is next: by its log from a byte on, else by what it printed."""
    ended: dict[str, Any] = {}
    if node.log is not None:
        with Tail(node.log, start) as tail:
            for line in map(parsed, tail.read()):
                ended = line if line.get("event") in ("ended", "finished") else ended
    if not ended:
        return log_tail(node.place.output).strip(), f"read {node.place.output}"
    return str(ended.get("error") or ended.get("reason") or "it was stopped"), str(ended.get("next") or "")


def log_size(path: Path | None) -> int:
    """Return the bytes of a log; 0 where there is none."""
    return path.stat().st_size if path is not None and path.exists() else 0


async def end_left(node: LocalNode) -> None:
    """End the process that a command left running which was killed: this one would find its state folder locked."""
    if await end_swarm(node.place.folder, STOP_SECONDS[node.role]):
        node.session.note(f"ended the {node.role} that an earlier muster up left running")
