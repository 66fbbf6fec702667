"""What `muster worker` and `muster validator` share: joining, retiring, withdrawing."""

from __future__ import annotations

import asyncio
import unicodedata
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from muster.chain.client import NO_TIP, Chain
from muster.chain.gas import COMMITMENT_GAS, DUTY_TRANSACTIONS, TRANSACTION_GAS
from muster.chain.types import TxRequest
from muster.console.money.wallet import address_of
from muster.console.node.machine_checks import check_machine, report
from muster.console.session import Session
from muster.contracts import registry, runs, token
from muster.contracts.registry import Node, Role
from muster.contracts.run_terms import Tenure
from muster.errors import ConfigError, MusterError, UsageError
from muster.protocol.announcements import MAX_NAME, NAME_SIGNS, name_problem
from muster.protocol.hashes import hex_hash
from muster.protocol.terms import Terms
from muster.runtime.printable import printable
from muster.runtime.units import Ether, Moment, Tokens

NodeOption = Annotated[
    str | None, typer.Option("--node", help="Address, wallet name or path of the node; else the key of the settings.")
]
GasOption = Annotated[
    float,
    typer.Option("--gas-days", help="Days for which the node's key gets ether, at the most that it may send.", min=1),
]
GAS_DAYS: Final = 2.0
DAY_HOURS: Final = 24
NAME_ATTEMPTS: Final = 3
NAME_SECONDS: Final = 2.0
NAME_HINT: Final = (
    f"choose up to {MAX_NAME} letters, digits, single spaces and {' '.join(NAME_SIGNS)}, with a letter or digit in it"
)
CheckOption = Annotated[
    bool,
    typer.Option("--check/--no-check", help="First see whether this machine can do the work; not where it only joins."),
]


@dataclass(frozen=True)
class Joining:
    """What joining a run takes, before anything is sent. Tokens and ether are in wei."""

    run: int
    run_hash: bytes
    role: Role
    work_class: int
    node: str
    operator: str
    terms: Terms
    keys: list[Tenure]
    """In force, and then those that the owner has announced."""
    stake: int
    held: int
    """Tokens of the operator: its free balance in the Registry, and its wallet."""
    gas: int
    """Ether that the node's key should hold, for `gas_days` at the most that it may send."""
    gas_days: float
    short: int
    """What it lacks of that."""
    validators: int
    """Active ones of the run."""

    @property
    def at_stake(self) -> dict[str, object]:
        """Return what a person should see before it joins."""
        shown: dict[str, object] = {
            "run hash": hex_hash(self.run_hash),
            "node": self.node,
            "stake": f"{Tokens(self.stake)}, of which a conviction takes {self.terms.slash_bps / 100:g}%",
            "unbonding": "the stake comes back some days after you retire; see docs/understand/trust.md",
            "validators": f"{self.validators} active; their majority decides cases",
            "gas": self.gas_line(self.short),
        }
        if self.keys[1:]:
            shown["keys change"] = f"{Moment(self.keys[-1].from_)}: muster run show"
        return shown

    def gas_line(self, wei: int) -> str:
        """Return the line of a preview that says what is sent to the node's key, and for what."""
        most = f"{DUTY_TRANSACTIONS} seals or votes"
        if self.role == Role.WORKER:
            most = f"{self.terms.commitments_per_hour} commitments"
        return f"{Ether(wei)} to the node's key, for {self.gas_days:g} days of {most} an hour (--gas-days)"


async def prepare_join(
    chain: Chain, node: str, operator: str, run: int, role: Role, gas_days: float, *, work_class: int = 0
) -> Joining:
    """Read what joining takes. `gas_days`: for which the node's key should hold ether, at the most that it may send.

    Raises as `Chain.terms`.
    """
    terms = await chain.terms(run)
    held = await chain.gas_balance(node, most_gas(terms, role))
    free, wallet = await chain.call_all([registry.free_balance(operator), token.balance_of(operator)])
    return Joining(
        run=run,
        run_hash=await chain.run_hash(run),
        role=role,
        work_class=work_class,
        node=node,
        operator=operator,
        terms=terms,
        keys=(await chain.keys(run)).since((await chain.head()).timestamp),
        stake=terms.worker_stake if role == Role.WORKER else terms.validator_stake,
        held=free + wallet,
        gas=(needed := held.needed(gas_days * DAY_HOURS)),
        gas_days=gas_days,
        short=max(0, needed - held.balance),
        validators=(await chain.call(runs.run_state(run))).validators,
    )


def most_gas(terms: Terms, role: Role) -> int:
    """Return the gas that a node takes in an hour, at the most."""
    if role == Role.WORKER:
        return terms.commitments_per_hour * COMMITMENT_GAS
    return DUTY_TRANSACTIONS * TRANSACTION_GAS


async def send_gas(session: Session, chain: Chain, node: str, wei: int) -> None:
    """Send ether to a node's key."""
    assert chain.sender is not None
    mined = await chain.sender.send(TxRequest(node, b"", "gas for the node", wei))
    session.note(f"sent {Ether(wei)} to {node} in 0x{mined.hash.hex()}")


async def join(
    session: Session,
    role: Role,
    node: str | None,
    gas_days: float,
    *,
    check: bool,
    work_class: int = 0,
    draw_tip: bytes = NO_TIP,
) -> None:
    """Lock a stake for a node and register it, with its consent; top up its gas. `check`: this machine first.

    The operator's password is asked for first, where no file has it; the node's comes from `keys.password_file`, as for
    `muster worker run`, or is asked for next.
    """
    # 1. Unlock both keys.
    if session.options.operator is None:
        hint = "add --operator NAME; muster wallet new NAME makes a wallet, muster faucet --wallet NAME fills it"
        raise UsageError("joining needs the operator's wallet: the cold key that owns stake and earnings", hint=hint)
    run = session.settings.run
    async with session.operator() as chain:
        cold, hot = chain.signer, await session.signer(node, session.settings.keys.password_file if node else None)

        # 2. Check that the operator can pay the stake, and find what the node's key lacks for gas.
        joining = await prepare_join(chain, hot.address, cold.address, run, role, gas_days)
        if joining.held < joining.stake:
            hint = f"muster faucet --wallet {session.options.operator}"
            has = f"{cold.address} has {Tokens(joining.held)}"
            raise UsageError(f"the stake is {Tokens(joining.stake)} and {has}", hint=hint)

        # 3. Look at this machine; show what is at stake, ask, register.
        if check:
            own = session.settings.worker if role == Role.WORKER else session.settings.validator
            report(session, await check_machine(session, own.state_dir))
        document = {"run": run, "role": role.name.lower(), "node": hot.address, "operator": cold.address}
        done = await session.spend(
            chain,
            f"Join run {run} as a {role.name.lower()}",
            joining.at_stake,
            lambda chain: chain.join(
                hot, run, role, run_hash=joining.run_hash, work_class=work_class, draw_tip=draw_tip
            ),
            document | {"stake": Tokens(joining.stake)},
            sends=joining.short,
        )

        # 4. Send the gas, and say what the settings call the node.
        if done is not None and joining.short:
            await send_gas(session, chain, hot.address, joining.short)
        if done is not None and (name := session.settings.name) and not name_problem(name):
            await try_name(session, chain, run, hot.address, name)


def plain_name(name: str) -> str:
    """Return a node's name in the one form that Unicode has for each letter. Raises UsageError for none that may be."""
    plain = unicodedata.normalize("NFKC", name).strip()
    if problem := name_problem(plain):
        raise UsageError(f"the name {plain!r} {problem}", hint=NAME_HINT)
    return plain


async def announce_name(session: Session, chain: Chain, run: int, node: str, name: str) -> None:
    """Tell the orchestrator what a node is called, signed by its operator: the chain's signer.

    Raises as `OrchestratorClient.announce_name`.
    """
    async with session.orchestrator(chain, chain.signer) as client:
        await client.announce_name(run, node, name)


async def try_name(session: Session, chain: Chain, run: int, node: str, name: str) -> None:
    """Announce the name of a node, whose registration may reach the orchestrator a moment later; note a refusal."""
    refusal: MusterError | None = None
    for attempt in range(NAME_ATTEMPTS):
        if attempt:
            await asyncio.sleep(NAME_SECONDS)
        try:
            await announce_name(session, chain, run, node, name)
        except MusterError as error:
            refusal = error
            continue
        session.note(f"the run's page calls it {name}")
        return
    session.note(f"its name was not taken: {printable(str(refusal))}; muster node name announces it later")


async def registered(chain: Chain, address: str) -> Node:
    """Return the node on chain. Raises ConfigError when the key never joined."""
    found = await chain.call(registry.node(address))
    if found.status.name == "NONE":
        raise not_joined(address)
    return found


def not_joined(address: str) -> ConfigError:
    return ConfigError(f"{address} has joined no run", hint="muster worker join, or muster validator join")


async def retire(session: Session, node: NodeOption = None) -> None:
    """Leave the run for good; the stake can be withdrawn after unbonding. A worker's pay is claimed as usual."""
    address = await address_of(session, node)
    async with session.operator() as chain:
        found = await registered(chain, address)
        await session.spend(
            chain,
            f"Retire {address}",
            {
                "stake": f"{Tokens(found.lock)}, withdrawable after unbonding",
                "final": "the key cannot join again",
            },
            registry.retire(address),
            {"node": address},
            outcome=lambda receipt: {"withdrawable_at": Moment(receipt.events[0].withdrawable_at)},  # type: ignore[attr-defined]
        )


async def withdraw(session: Session, node: NodeOption = None) -> None:
    """Get the stake of a retired node back, once unbonding is over."""
    address = await address_of(session, node)
    async with session.operator() as chain:
        found = await registered(chain, address)
        await session.spend(
            chain,
            f"Withdraw the stake of {address}",
            {"amount": Tokens(found.lock), "to": found.operator},
            registry.withdraw(address),
            {"node": address, "operator": found.operator, "amount": Tokens(found.lock)},
        )
