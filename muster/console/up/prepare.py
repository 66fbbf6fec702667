"""Prepare a node on disk and find the remaining steps on chain, before any question is asked.

The order matters where the command is killed: the password of the node's key, the key, the settings. Nothing is staked
before all of it is there. What a killed command leaves is a complete file or none, so the next one resumes with what is
there and never makes a second key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from muster.chain.client import NO_TIP, Chain
from muster.chain.draw_secret import FILE_NAME, create_draw_secret, draw_tip
from muster.chain.keys import (
    Signer,
    check_password,
    create_keystore,
    ensure_keystore,
    load_keystore,
    load_raw_key,
    read_address,
    read_password,
)
from muster.clients.gas_watch import read_gas
from muster.console.money.wallet import OPERATOR, address_of, new_password
from muster.console.node.engine_check import check_engine
from muster.console.node.machine_checks import check_machine, report
from muster.console.session import Session, wallet_folder, wallet_keys, wallet_path
from muster.console.up.facts import UNKNOWN, read_facts
from muster.console.up.place import NodePlace, NodeRole, check_addresses, write_node
from muster.console.up.preview import at_stake, fetch_earnings, fetch_windows
from muster.console.up.steps import NodeFacts, SetupSteps, steps_left
from muster.console.up.target import NodeTarget, UpRequest
from muster.constants import CHAIN_ANVIL
from muster.contracts.registry import Role, Status
from muster.errors import CheckError, ConfigError
from muster.runtime.failpoints import failpoint
from muster.settings.schema import KeySettings


@dataclass(frozen=True)
class OperatorWallet:
    """The cold key that owns stake and earnings: its file, and what opens it."""

    path: Path
    is_new: bool
    raw: bool = False
    password: str = field(default="", repr=False)

    def unlock(self, chain_id: int) -> Signer:
        """Return the key; make it where there is none. Takes about a second on purpose. Raises ConfigError."""
        if self.raw:
            return load_raw_key(self.path, chain_id)
        if self.is_new:
            return create_keystore(self.path, self.password)
        return load_keystore(self.path, self.password)


def ask_for_operator(wallet: str | None, password_file: Path | None) -> OperatorWallet:
    """Find the operator's wallet and get its password, from a file or a person; without a name it may be a new one.

    Raises ConfigError and UsageError: of the password file, before anything is made.
    """
    path = wallet_path(wallet or OPERATOR)
    if path.exists():
        if wallet_keys(str(path)).raw_key_file is not None:
            return OperatorWallet(path, is_new=False, raw=True)
        return OperatorWallet(path, is_new=False, password=read_password(password_file, f"Password of {path}: "))
    if wallet is not None:
        raise ConfigError(f"no wallet at {path}", hint=f"muster wallet new {wallet}; without --operator one is made")
    password = new_password(password_file)
    check_password(password)
    return OperatorWallet(path, is_new=True, password=password)


def require_node_key(keys: KeySettings) -> None:
    """Raise ConfigError where the key of a node that was made before is gone: another one would need another stake."""
    path = keys.keystore or keys.raw_key_file
    if path is not None and not path.exists():
        hint = "restore it from a backup, or make another node: --name NAME"
        raise ConfigError(f"the node's key {path} is gone", hint=hint)


ENGINE_ROWS: Final = 64
"""Rows that the engine's check generates."""


@dataclass
class LocalNode:
    """A node on this machine, and the keys that are unlocked."""

    session: Session
    """With the node's settings."""
    place: NodePlace
    role: NodeRole
    address: str
    """UNKNOWN before its key is made, in a dry run."""
    operator_address: str = UNKNOWN
    """UNKNOWN where the chain says it, or before its key is made."""
    operator: Signer | None = None
    made_key: Signer | None = None
    """The node's key, where this command made it."""

    @property
    def state(self) -> Path:
        """Return the folder of its process's state."""
        settings = self.session.settings
        return settings.worker.state_dir if self.role == "worker" else settings.validator.state_dir

    @property
    def log(self) -> Path | None:
        """Return the path of its process's log; None where its settings name none."""
        return self.session.settings.log.file

    async def key(self) -> Signer:
        return self.made_key or await self.session.signer()

    async def draw_tip(self) -> bytes:
        """Return what a validator registers of its hash chain."""
        if self.role == "worker":
            return NO_TIP
        return await asyncio.to_thread(lambda: draw_tip(create_draw_secret(self.state)))

    @asynccontextmanager
    async def chain(self) -> AsyncIterator[Chain]:
        """Yield the chain as the operator acts on it, where it is unlocked; its journal is one for all nodes."""
        journals = wallet_folder().parent / "journals"
        settings = self.session.settings.chain
        async with await Chain.connect(settings, self.operator, journal_folder=journals) as chain:
            yield chain


async def steps_of_registered(session: Session, target: NodeTarget, request: UpRequest) -> SetupSteps | None:
    """Return what is left to do for a node that joined before; None for one that has not."""
    if not target.is_made:
        return None
    own = target.session(session)
    require_node_key(own.settings.keys)
    node = LocalNode(own, target.place, target.role, await address_of(own, None))
    async with node.chain() as chain:
        facts = await _facts(node, chain, request)
    return None if facts.status == Status.NONE else steps_left(facts)


# On disk


async def make_node(
    session: Session, target: NodeTarget, request: UpRequest, wallet: OperatorWallet | None
) -> LocalNode:
    """Make what of a node and its operator's wallet is not on disk yet, and unlock the wallet."""
    # 1. The operator, whose password may be wrong.
    place, was_made, made, operator = target.place, target.is_made, None, None
    if wallet is not None:
        chain_id = target.found.book.chain_id if target.found else target.session(session).settings.chain.chain_id
        operator = await asyncio.to_thread(wallet.unlock, chain_id)
        if wallet.is_new:
            session.note(f"made {wallet.path}, the operator's key, which owns stake and earnings")
            session.note("  back up the file and its password: neither can be recovered")

    # 2. The node.
    if not was_made:
        assert target.found is not None
        made = await asyncio.to_thread(ensure_keystore, place.keystore, place.password_file)
        failpoint("up.key")
        if target.role == "validator":
            await asyncio.to_thread(create_draw_secret, place.state)
        write_node(place, target.found, target.role)
        session.note(f"made {place.folder}, the folder of {target.role} {place.name}")
        session.note(f"  back up {backed_up(place, target.role)}")
    elif target.found is not None:
        check_addresses(place, target.found, request.rpc_url)
    failpoint("up.prepared")
    own = target.session(session)
    return LocalNode(
        session=own,
        place=place,
        role=target.role,
        address=made.address if made is not None else await address_of(own, None),
        operator_address=operator.address if operator is not None else UNKNOWN,
        operator=operator,
        made_key=made,
    )


def backed_up(place: NodePlace, role: NodeRole) -> str:
    """Return which of a node's files should be backed up, and why."""
    names = f"{place.keystore.name} and {place.password_file.name}"
    if role == "worker":
        return f"{names}: the node's key signs its work; it can neither withdraw the stake nor redirect earnings"
    return f"{names} and {place.state.name}/{FILE_NAME}: without them this validator cannot inspect again"


def rehearse_node(session: Session, target: NodeTarget, folder: Path, wallet: Path) -> LocalNode:
    """Return the node as a dry run knows it: of one that is not made, the settings in a folder that goes away."""
    place, key = target.place, target.place.keystore
    if not target.is_made:
        assert target.found is not None
        place = NodePlace(folder / place.name)
        place.folder.mkdir()
        write_node(place, target.found, target.role)
    own = NodeTarget(place, target.role, target.found).session(session)
    if target.is_made:
        key = own.settings.keys.keystore or key
    return LocalNode(
        session=own,
        place=place,
        role=target.role,
        address=read_address(key) if key.exists() else UNKNOWN,
        operator_address=read_address(wallet) if wallet.suffix == ".json" and wallet.exists() else UNKNOWN,
    )


# The machine and the chain


async def check_node(node: LocalNode, request: UpRequest) -> None:
    """Check the machine, and the engine where that is wanted. Raises CheckError where a check failed."""
    session = node.session
    report(session, await check_machine(session, node.state))
    if node.role != "worker":
        return
    if request.check_engine:
        found = await check_engine(session, ENGINE_ROWS)
        if "error" in found:
            raise CheckError(found["error"], hint=found["hint"])
        session.note(f"engine: {ENGINE_ROWS} rows generated and replayed, none rejected")
    elif session.settings.chain.chain_id != CHAIN_ANVIL:
        session.note(
            "recommended before a stake is locked: --check-engine generates rows here and says whether validators "
            "would accept them"
        )


async def read_steps(node: LocalNode, request: UpRequest) -> tuple[NodeFacts, SetupSteps, dict[str, object]]:
    """Return the state of the chain, what is left to do, and what a person should see before. Raises as `steps_left`.

    What an earlier command sent for the operator is waited for first.
    """
    async with node.chain() as chain:
        if node.operator is not None:
            await chain.await_pending()
        facts = await _facts(node, chain, request)
        steps = steps_left(facts)
        if steps.nothing:
            return facts, steps, {}
        earnings = await fetch_earnings(node.session, chain, facts.joining.run)
        return facts, steps, at_stake(facts, steps, await fetch_windows(chain), earnings)


async def _facts(node: LocalNode, chain: Chain, request: UpRequest) -> NodeFacts:
    facts = await read_facts(
        chain,
        node.session.settings.run,
        Role[node.role.upper()],
        node=node.address,
        operator=node.operator_address,
        gas_days=request.gas_days,
        work_class=request.work_class,
    )
    if facts.status != Status.ACTIVE:
        return facts
    async with node.session.orchestrator(chain) as client:
        return replace(facts, gas=await read_gas(chain, client, node.address))
