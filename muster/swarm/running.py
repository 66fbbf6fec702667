"""A run whose processes a supervisor keeps on this machine: start them in order, show what happens, end the convicted.

Used by the demo (`muster.swarm.demo`) and by an owner's trial (`muster.swarm.trial`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster.chain.client import Chain
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MusterError, UnreachableError
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent, ProcessSpec, Supervisor
from muster.swarm.watch import PlainView

POLL_SECONDS: Final = 1.0


@dataclass
class RunningSwarm:
    """The processes of one run, and who takes part in it."""

    folder: Path
    orchestrator_url: str
    supervisor: Supervisor
    view: PlainView
    run: int = 0
    participants: Sequence[Participant] = ()
    last_event: int = 0
    """Number of the orchestrator's last event that was shown."""

    async def start_services(self, orchestrator: ProcessSpec, origin: ProcessSpec, *relays: ProcessSpec) -> None:
        """Start what the others need first: orchestrator and origin, then relays, which fetch from the origin."""
        self.view.stage("starting orchestrator and relays" if relays else "starting orchestrator and origin")
        await self.supervisor.start_all([orchestrator, origin])
        self.view.page(f"{self.orchestrator_url}/")
        await self.supervisor.start_all(relays)

    async def start_nodes(self, trainer: ProcessSpec, *nodes: ProcessSpec) -> None:
        """Start the trainer, the validators and the workers, which wait for each other by themselves."""
        self.view.stage("starting trainer, validators and workers")
        await self.supervisor.start_all([trainer, *nodes])

    def client(self, chain: Chain) -> OrchestratorClient:
        """Return a client of the run's orchestrator."""
        return OrchestratorClient.on_chain(self.orchestrator_url, chain, timeout=20)

    async def watch(self, chain: Chain, done: Callable[[Mapping[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Show events until `done` is true of the orchestrator's summary; return the last summary.

        `seconds` bounds the time without progress: a step, an event of a node, a restarted process. Raises
        UnreachableError when it has passed.
        """
        document: dict[str, Any] = {}
        known, since = None, time.monotonic()
        async with self.client(chain) as client:
            while not document or not done(document):
                try:
                    await self._story(client)
                    document = await client.summary(self.run)
                except MusterError as error:
                    # A restarted orchestrator does not answer for a moment; the bound below holds for it too.
                    self.view.process_event(ProcessEvent("unreachable", "orchestrator", {"error": error}))
                self.view.summary(document, self.participants)
                progress = document.get("step"), self.last_event, sum(self.supervisor.restarts.values())
                if progress != known:
                    known, since = progress, time.monotonic()
                if time.monotonic() - since > seconds:
                    raise self._stuck(document.get("step"), seconds)
                await self._leave_jailed(document)
                await asyncio.sleep(POLL_SECONDS)
            await self._story(client)
        return document

    def _stuck(self, step: int | None, seconds: float) -> UnreachableError:
        """Return the error of a swarm without progress; it names the restarted processes as the probable cause."""
        died = ", ".join(f"{name} was restarted {count} times" for name, count in self.supervisor.restarts.items())
        after = "since the start" if step is None else f"after step {step}"
        return UnreachableError(
            f"nothing new for {seconds:.0f} s {after}" + (f"; {died}" if died else ""),
            hint=f"read the logs of its processes in {self.folder}",
        )

    async def _story(self, client: OrchestratorClient) -> None:
        page = await client.events(self.run, self.last_event)
        self.view.run_events(page["events"], self.participants)
        self.last_event = page["cursor"]

    async def _leave_jailed(self, document: Mapping[str, Any]) -> None:
        """End the processes of convicted nodes: they have nothing left to do."""
        jailed = {line["address"] for line in document.get("nodes", []) if line["status"] == "jailed"}
        for who in self.participants:
            if who.node in jailed and self.supervisor.keeps(who.name):
                await self.supervisor.stop_one(who.name)
