"""What producer, committer and defender share: chain, orchestrator and journal.

Each polls chain and journal, does one thing and starts over, so fresh work and work found after a restart go the same
way. What cannot be done yet is waited for, and the log says why.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.chain.client import Chain
from muster.chain.types import Block
from muster.clients.machine_report import TokenRate
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import registry, runs
from muster.contracts.codec import Call
from muster.contracts.registry import Status
from muster.contracts.runs import Work
from muster.errors import RevertError, UnfundedError
from muster.protocol.terms import Terms
from muster.runtime.notify import Notifier
from muster.settings.schema import Settings
from muster.verification.profiles import Profile
from worker.decisions import NodeState
from worker.journal import WorkJournal

FATAL: Final = (RevertError, UnfundedError)
"""Errors that only the operator can resolve."""


@dataclass
class WorkerContext:
    """One node, its journal and its connections."""

    settings: Settings
    chain: Chain
    client: OrchestratorClient
    terms: Terms
    profile: Profile
    journal: WorkJournal
    notifier: Notifier = field(default_factory=Notifier)
    """Notifies the operator; the default sends nothing."""
    rate: TokenRate = field(default_factory=TokenRate)
    """How fast this worker generates, as it says."""
    saved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the journal has a new file."""
    delivered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the journal has room for another file."""
    _min_validators: int | None = None
    _facts: tuple[bytes, NodeState] | None = None
    """The latest block's hash and the node's state when it was."""

    @property
    def run(self) -> int:
        return self.settings.run

    @property
    def weights(self) -> Path:
        """Return the folder of the checkpoints that this node holds."""
        return self.settings.worker.state_dir / "weights"

    @property
    def node(self) -> str:
        return self.chain.signer.address

    async def facts(self) -> NodeState:
        """Read the node's state from the chain, once a block."""
        head = await self.chain.head()
        if self._facts is None or self._facts[0] != head.hash:
            self._facts = head.hash, await self._read_facts(head)
        return self._facts[1]

    async def _read_facts(self, head: Block) -> NodeState:
        if self._min_validators is None:
            self._min_validators = await self.chain.call(runs.min_validators())
        # A conviction ends a node's work in the same transaction: read after its work, a node whose work has ended
        # is seen jailed, and never as one that only brought a file late.
        calls: list[Call[Any]] = [runs.work(self.node), runs.run_state(self.run), runs.run_info(self.run)]
        work, state, info = await self.chain.call_all(calls)
        node = await self.chain.call(registry.node(self.node))
        leaving = node.status not in (Status.NONE, Status.ACTIVE)
        withdrawable_at = await self.chain.call(registry.withdrawable_at(self.node)) if leaving else 0
        pay = self.terms.pay_of(node.work_class) if node.work_class < len(self.terms.classes) else 0
        return NodeState(
            node,
            work,
            state,
            self.run,
            pay,
            self._min_validators,
            head.timestamp,
            withdrawable_at,
            closes_at=info.published_at + self.terms.min_step_interval,
            is_withheld=await self._is_withheld(work, head),
        )

    async def _is_withheld(self, work: Work, head: Block) -> bool:
        """Return whether all but what the stake covers has matured, and waits for a case to end (`Runs.commitWork`)."""
        oldest = work.next - work.cover
        if not work.open_cases or oldest < work.settled:
            return False
        try:
            return await self.chain.call(runs.matures_at(self.node, oldest)) <= head.timestamp
        except RevertError:  # a server that lags does not know the commitment yet
            return False

    async def anchor(self, step: int, facts: NodeState) -> bytes | None:
        """Return the anchor of a step; None when the chain does not have it."""
        return (await self.chain.checkpoint(self.run, step)).anchor if step < facts.state.steps else None
