"""What `muster worker` and `muster validator` share: joining, status, retiring, withdrawing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.session import Session, parse_tokens, tokens, wallet_keys
from muster.cli.spend import spend
from muster.cli.wallet import read_address
from muster.errors import ConfigError, MusterError, UsageError

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.chain.contracts.registry import Node, Role
    from muster.chain.keys import Signer
    from muster.messages import NodeReport

NodeOption = Annotated[
    str | None, typer.Option("--node", help="Address, wallet name or path of the node; else the key of the settings.")
]
NodePassword = Annotated[Path | None, typer.Option("--node-password-file", help="Password file of the node's wallet.")]
GasOption = Annotated[str, typer.Option("--gas", help="Ether the node's key should hold for its transactions.")]
RunOption = Annotated[int | None, typer.Option("--run", help="Number of the run; else that of the settings.")]


async def address_of(session: Session, node: str | None) -> str:
    """A node's address, without asking for a password."""
    from eth_utils.address import is_address, to_checksum_address

    if node is not None and is_address(node):
        return to_checksum_address(node)
    keys = session.settings.keys if node is None else wallet_keys(node)
    if keys.keystore is not None:
        return await asyncio.to_thread(read_address, keys.keystore)
    return (await session.signer(node)).address


async def join(
    session: Session,
    role: Role,
    *,
    operator: str | None,
    operator_password: Path | None,
    node: str | None,
    node_password: Path | None,
    gas: str,
    work_class: int = 0,
    draw_tip: bytes = bytes(32),
) -> None:
    """Lock a stake for a node and register it, with its consent; top up its gas."""
    from muster.chain.contracts import registry, runs, token

    if operator is None:
        hint = "add --operator NAME; muster wallet new NAME makes a wallet, muster faucet --wallet NAME fills it"
        raise UsageError("joining needs the operator's wallet: the cold key that owns stake and earnings", hint=hint)
    hot = await session.signer(node, node_password)
    cold = await session.signer(operator, operator_password)
    run, wanted = session.settings.run, parse_tokens(gas)
    async with session.chain(cold) as chain:
        terms = await chain.terms(run)
        stake = terms.worker_stake if role.name == "WORKER" else terms.validator_stake
        held = await chain.ask(registry.free_balance(cold.address)) + await chain.ask(token.balance_of(cold.address))
        if held < stake:
            hint = f"muster faucet --wallet {operator}"
            raise UsageError(f"the stake is {tokens(stake)} tokens and {cold.address} has {tokens(held)}", hint=hint)
        short = max(0, wanted - await chain.eth_balance(hot.address))
        at_stake = {
            "node": hot.address,
            "stake": f"{tokens(stake)} tokens, of which a conviction takes {terms.slash_bps / 100:g}%",
            "unbonding": "the stake comes back some days after you retire; see docs/trust.md",
            "validators": f"{(await chain.ask(runs.run_state(run))).validators} active; their majority decides cases",
            "gas": f"{tokens(short)} ether to the node's key",
        }
        document = {"run": run, "role": role.name.lower(), "node": hot.address, "operator": cold.address}
        done = await spend(
            session,
            chain,
            f"Join run {run} as a {role.name.lower()}",
            at_stake,
            lambda chain: chain.join(hot, run, role, work_class=work_class, draw_tip=draw_tip),
            document | {"stake": stake},
        )
        if done is not None and short:
            await _send_gas(session, chain, hot, short)


async def _send_gas(session: Session, chain: Chain, node: Signer, wei: int) -> None:
    from muster.chain.transactions import Call

    assert chain.sender is not None
    mined = await chain.sender.send(Call(node.address, b"", "gas for the node", wei))
    session.note(f"sent {tokens(wei)} ether to {node.address} in 0x{mined.hash.hex()}")


async def registered(chain: Chain, address: str) -> Node:
    """The node on chain. Raises ConfigError when the key never joined."""
    from muster.chain.contracts import registry

    found = await chain.ask(registry.node(address))
    if found.status.name == "NONE":
        raise ConfigError(f"{address} has joined no run", hint="muster worker join, or muster validator join")
    return found


async def report_of(session: Session, chain: Chain, address: str) -> NodeReport | None:
    """What the orchestrator knows of a node; None, with a note, when it cannot be asked."""
    try:
        async with session.orchestrator(chain) as client:
            return await client.node(address)
    except MusterError as error:
        session.note(f"no report from the orchestrator: {error}")
        return None


async def retire(session: Session, node: str | None, operator: str | None, password: Path | None) -> None:
    """Take a node out of service; its stake can be withdrawn after unbonding."""
    from muster.chain.contracts import registry

    address = await address_of(session, node)
    signer = await session.signer(operator, password)
    async with session.chain(signer) as chain:
        found = await registered(chain, address)
        await spend(
            session,
            chain,
            f"Retire {address}",
            {
                "stake": f"{tokens(found.lock)} tokens, withdrawable after unbonding",
                "final": "the key cannot join again",
            },
            registry.retire(address),
            {"node": address},
            outcome=lambda receipt: {"withdrawable_at": receipt.events[0].withdrawable_at},  # type: ignore[attr-defined]
        )


async def withdraw(session: Session, node: str | None, operator: str | None, password: Path | None) -> None:
    """Pay a retired node's stake to its operator, once unbonding is over."""
    from muster.chain.contracts import registry

    address = await address_of(session, node)
    signer = await session.signer(operator, password)
    async with session.chain(signer) as chain:
        found = await registered(chain, address)
        await spend(
            session,
            chain,
            f"Withdraw the stake of {address}",
            {"tokens": tokens(found.lock), "to": found.operator},
            registry.withdraw(address),
            {"node": address, "operator": found.operator, "amount": found.lock},
        )


async def base_status(session: Session, chain: Chain, address: str) -> dict[str, Any]:
    """What holds for workers and validators alike."""
    from muster.chain.contracts import registry

    found = await registered(chain, address)
    money = int if session.options.json else tokens
    withdrawable_at = await chain.ask(registry.withdrawable_at(address))
    return {
        "node": address,
        "operator": found.operator,
        "run": found.run,
        "role": found.role.name.lower(),
        "status": found.status.name.lower(),
        "stake": money(found.lock),
        "gas": money(await chain.eth_balance(address)),
        "operator_free": money(await chain.ask(registry.free_balance(found.operator))),
        "withdrawable_at": (withdrawable_at or None) if session.options.json else moment(withdrawable_at),
    }


def moment(seconds: int) -> str:
    """A second since the epoch for people; empty for 0."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds else ""
