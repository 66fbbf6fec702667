"""What each node's process begins with: its state folder locked, its key, the chain and the orchestrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from muster.chain.client import Chain
from muster.chain.keys import load_signer
from muster.clients.orchestrator import OrchestratorClient
from muster.runtime.journal import FolderLock
from muster.settings.schema import Settings


@dataclass(frozen=True)
class NodeSession:
    """One node's connections, while its state folder is locked."""

    chain: Chain
    client: OrchestratorClient

    @property
    def node(self) -> str:
        """Address of the node's key."""
        return self.chain.signer.address

    @property
    def identity(self) -> str:
        """Whose journal the state folder holds: key, chain and contracts."""
        return f"{self.node} on chain {self.chain.chain_id} at {self.chain.addresses.runs}"


@asynccontextmanager
async def node_session(settings: Settings, state_dir: Path) -> AsyncIterator[NodeSession]:
    """Lock a node's state folder, unlock its key, and connect to chain and orchestrator, until left.

    Raises ConfigError when another process holds the folder or the key cannot be used, UnreachableError when the chain
    does not answer.
    """
    with FolderLock(state_dir):
        signer = load_signer(settings.keys, settings.chain.chain_id)
        async with (
            await Chain.connect(settings.chain, signer, journal_folder=state_dir / "transactions") as chain,
            OrchestratorClient.on_chain(settings.orchestrator.url, chain, signer) as client,
        ):
            yield NodeSession(chain, client)
