"""A run whose processes a supervisor keeps on this machine: register its nodes, start it, show it, end the convicted.

Used by the demo (`muster.swarm.demo`) and by an owner's trial (`muster.swarm.trial`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from muster.chain.anvil import LocalChain
from muster.chain.client import NO_TIP, Chain
from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.chain.keys import Signer
from muster.clients.explorer import ExplorerClient
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.registry import Role
from muster.errors import MusterError, UnreachableError
from muster.runtime.process import run_together
from muster.swarm.launch import LocalRun, operator_of
from muster.swarm.opening import ensure_joined
from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent, Supervisor
from muster.swarm.watch import SwarmView

POLL_SECONDS: Final = 1.0

SAVE_PAUSE: Final = 20
"""Pause after saving the chain, in times of what saving took: it grows with the chain, by about 50 µs a block."""


@asynccontextmanager
async def supervised(folder: Path, view: SwarmView) -> AsyncIterator[Supervisor]:
    """Yield what starts processes and notes them in a folder; at the end, end everything that it started."""
    async with Supervisor(folder, view.process_event) as supervisor:
        try:
            yield supervisor
        finally:
            view.stage("ending every process")


@dataclass
class RunningSwarm:
    """The processes of one run, and who takes part in it."""

    local: LocalRun
    supervisor: Supervisor
    view: SwarmView
    run: int = 0
    keys: Mapping[str, Signer] = field(default_factory=dict)
    """Of nodes and their operators, by name."""
    draw_tips: Mapping[str, bytes] = field(default_factory=dict)
    """What validators register of their draw secrets, by name."""
    participants: Sequence[Participant] = ()
    last_event: int = 0
    """Number of the explorer's last event that was shown."""
    _save_at: float = 0.0

    # Starting

    def make_draw_tips(self) -> None:
        """Make the draw secret of every validator, in its folder."""
        names = self.local.validators
        self.draw_tips = {name: draw_tip(create_draw_secret(self.local.state(name))) for name in names}

    async def register(self) -> None:
        """Register every node by its own operator, with the node's consent."""

        async def join(node: Participant) -> Participant:
            hot, cold = self.keys[node.name], self.keys[operator_of(node.name)]
            async with await Chain.connect(self.local.chain, cold) as chain:
                await ensure_joined(
                    chain, hot, self.run, Role[node.role.upper()], draw_tip=self.draw_tips.get(node.name, NO_TIP)
                )
            return replace(node, node=hot.address, operator=cold.address)

        self.participants = await asyncio.gather(*map(join, self.local.nodes))

    async def start(self, *names: str) -> None:
        """Start processes that need not wait for each other."""
        await run_together(*(self.supervisor.start(self.local.process(name)) for name in names))

    async def start_services(self, *relays: str) -> None:
        """Start what the others need first: orchestrator and origin, then relays, which fetch from the origin.

        The chain has the run by then and is saved: from now on it may be killed.
        """
        async with await Chain.connect(self.local.chain) as chain:
            await self.save_chain(chain)
        self.view.stage("starting orchestrator and relays" if relays else "starting orchestrator and origin")
        await self.start("orchestrator", "origin")
        await self.start(*relays)

    async def start_explorer(self) -> None:
        """Start what shows the run to people. Nobody who works waits for it."""
        await self.start("explorer")
        self.view.page(f"{self.local.explorer_url}/")

    async def name_nodes(self) -> None:
        """Call each node on the run's page what the swarm calls it, signed by its operator."""
        async with await Chain.connect(self.local.chain) as chain:

            async def name(who: Participant) -> None:
                operator = self.keys[operator_of(who.name)]
                async with OrchestratorClient.on_chain(self.local.orchestrator_url, chain, operator) as client:
                    await client.announce_name(self.run, who.node, who.name)

            await asyncio.gather(*map(name, self.participants))

    # Watching

    def client(self, chain: Chain) -> OrchestratorClient:
        return OrchestratorClient.on_chain(self.local.orchestrator_url, chain, timeout=20)

    def explorer(self, chain: Chain) -> ExplorerClient:
        return ExplorerClient.at(self.local.explorer_url, chain, timeout=20)

    async def up_to_date(self, chain: Chain, block: int) -> dict[str, Any] | None:
        """Return the explorer's summary once it has read the chain up to this block, and the log; None before."""
        try:
            async with self.explorer(chain) as client:
                await client.check_ready()
                document = await client.summary(self.run)
        except UnreachableError:
            return None
        return document if document["block"] >= block else None

    async def watch(self, chain: Chain, done: Callable[[Mapping[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Show events until `done` is true of the explorer's summary; return the last summary.

        `seconds` bounds the time without progress: a step, an event of a node, a restarted process. Raises
        UnreachableError when it has passed.
        """
        document: dict[str, Any] = {}
        known, since = None, time.monotonic()
        async with self.explorer(chain) as client:
            while not document or not done(document):
                try:
                    await self._story(client)
                    document = await client.summary(self.run)
                except MusterError as error:
                    # A restarted explorer does not answer for a moment; the bound below holds for it too.
                    self.view.process_event(ProcessEvent("unreachable", "explorer", {"error": error}))
                self.view.blocked(document.get("blocked", ""))
                progress = document.get("step"), self.last_event, sum(self.supervisor.restarts.values())
                if progress != known:
                    known, since = progress, time.monotonic()
                if time.monotonic() - since > seconds:
                    raise self._stuck(document.get("step"), seconds)
                await self._leave_jailed(document)
                await self.save_chain(chain)
                await asyncio.sleep(POLL_SECONDS)
            await self._story(client)
        return document

    async def save_chain(self, chain: Chain) -> None:
        """Save the state of the run's own chain, from which it is restarted, unless that was done just now."""
        begun = time.monotonic()
        if "chain" not in self.local.ports or begun < self._save_at:
            return
        try:
            await (await LocalChain.open(chain.web3)).save(self.local.saved)
        except MusterError as error:
            self.view.process_event(ProcessEvent("unreachable", "chain", {"error": error}))
        done = time.monotonic()
        self._save_at = done + SAVE_PAUSE * (done - begun)

    def _stuck(self, step: int | None, seconds: float) -> UnreachableError:
        """Return the error of a swarm without progress; it names the restarted processes as the probable cause."""
        died = ", ".join(f"{name} was restarted {count} times" for name, count in self.supervisor.restarts.items())
        after = "since the start" if step is None else f"after step {step}"
        return UnreachableError(
            f"nothing new for {seconds:.0f} s {after}" + (f"; {died}" if died else ""),
            hint=f"read the logs of its processes in {self.local.folder}",
        )

    async def skip_story(self, chain: Chain) -> None:
        """Go to the end of the run's events without showing them: they happened before this start."""
        async with self.explorer(chain) as client:
            while (page := await client.events(self.run, self.last_event))["events"]:
                self.last_event = page["cursor"]

    async def _story(self, client: ExplorerClient) -> None:
        page = await client.events(self.run, self.last_event)
        self.view.run_events(page["events"], self.participants)
        self.last_event = page["cursor"]

    async def _leave_jailed(self, document: Mapping[str, Any]) -> None:
        """End the processes of convicted nodes: they have nothing left to do."""
        jailed = {line["address"] for line in document.get("nodes", []) if line["status"] == "jailed"}
        for who in self.participants:
            if who.node in jailed and self.supervisor.keeps(who.name):
                await self.supervisor.stop_one(who.name)
