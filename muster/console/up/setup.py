"""Do what is left to do: ether, test tokens, joining, gas, a validator's deposit, the node's name.

Every step is a transaction that the operator's journal knows, so a process that is killed in between is followed by one
that waits for it first, reads the chain again, and goes on.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from muster.chain.anvil import LocalChain
from muster.chain.client import Chain
from muster.chain.gas import refill
from muster.clients.gas_watch import read_gas
from muster.console.money.faucet import LOCAL_ETHER
from muster.console.node import nodes
from muster.console.node.nodes import Joining
from muster.console.up.prepare import LocalNode
from muster.console.up.steps import NodeFacts, SetupSteps
from muster.constants import CHAIN_ANVIL, HOUR_SECONDS
from muster.contracts import token
from muster.errors import TRANSIENT, MusterError, UnfundedError
from muster.runtime.failpoints import failpoint
from muster.runtime.printable import printable
from muster.runtime.units import Ether, Tokens

ETHER_SECONDS: Final = 3600.0
"""Longest wait for a person to send ether to the operator."""

ETHER_POLL_SECONDS: Final = 5.0
MINUTE: Final = 60.0
GAS_POLL_SECONDS: Final = 600.0
"""Between two looks at the ether of a node that this command watches."""


async def bring_ether(node: LocalNode, chain: Chain, wei: int) -> None:
    """See that the operator holds so much: on a local chain it is given, elsewhere a person is waited for.

    Raises UnfundedError after ETHER_SECONDS.
    """
    session, operator = node.session, chain.signer.address
    if chain.chain_id == CHAIN_ANVIL:
        await (await LocalChain.open(chain.web3)).fund([operator], wei + LOCAL_ETHER)
        session.note(f"the local chain gave ether to {operator}")
        return
    session.note(refill(operator, chain.chain_id, wei))
    session.note(
        f"waiting for it, {ETHER_SECONDS / MINUTE:.0f} minutes at most; after Ctrl-C run the same command to resume"
    )
    deadline, held = time.monotonic() + ETHER_SECONDS, 0
    while held < wei:
        if time.monotonic() > deadline:
            raise UnfundedError(
                f"no ether came to {operator} within {ETHER_SECONDS / MINUTE:.0f} minutes",
                hint=f"{refill(operator, chain.chain_id, wei)}; then type this again",
            )
        await asyncio.sleep(ETHER_POLL_SECONDS)
        with suppress(*TRANSIENT):
            held = await chain.eth_balance(operator)
    session.note(f"{operator} holds {Ether(held)}")


async def take_steps(
    node: LocalNode, chain: Chain, facts: NodeFacts, steps: SetupSteps, name: str | None = None
) -> None:
    """Take the steps that are left but for the ether; announce the `name` if there is one. Raises as `Chain.send`."""
    joining, session = facts.joining, node.session
    # 1. Tokens.
    if steps.draw:
        drawn = await chain.send(token.faucet())
        session.note(f"drew {Tokens(facts.faucet_amount)} from the faucet in 0x{drawn.hash.hex()}")
        failpoint("up.drawn")

    # 2. The stake.
    if steps.join:
        joined = await chain.join(
            await node.key(),
            joining.run,
            joining.role,
            run_hash=joining.run_hash,
            work_class=joining.work_class,
            draw_tip=await node.draw_tip(),
        )
        locked = f"locked {Tokens(joining.stake)}: {node.address} is a {node.role} of run {joining.run}"
        session.note(f"{locked}, in 0x{joined.hash.hex()}")
        failpoint("up.joined")

    # 3. Gas for the node, and what a validator needs free.
    if steps.gas:
        await nodes.send_gas(session, chain, node.address, steps.gas)
    if steps.deposit:
        moved = await chain.deposit_with_permit(steps.deposit)
        session.note(f"moved {Tokens(steps.deposit)} into the free balance in 0x{moved.hash.hex()}")

    # 4. What others may call it, which is no reason to stop.
    if name is not None and node.operator is not None:
        await nodes.try_name(session, chain, joining.run, node.address, name)


async def keep_gas(node: LocalNode, chain: Chain, joining: Joining) -> None:
    """Send the node's key ether a day before it runs out, until cancelled: in `gas_days` no more than was agreed to.

    Without the operator's key nothing is done.
    """
    if node.operator is None:
        return
    left, since, said = joining.gas, time.monotonic(), ""
    async with node.session.orchestrator(chain) as client:
        while True:
            await asyncio.sleep(GAS_POLL_SECONDS)
            if time.monotonic() - since > joining.gas_days * nodes.DAY_HOURS * HOUR_SECONDS:
                left, since = joining.gas, time.monotonic()
            try:
                held = await read_gas(chain, client, node.address)
                wei = min(left, joining.gas - held.balance)
                if held.low and wei > 0:
                    await nodes.send_gas(node.session, chain, node.address, wei)
                    left, said = left - wei, ""
            except MusterError as error:
                if said != (said := f"no gas was sent to the node: {printable(str(error))}"):
                    node.session.note(said)


async def help_without_operator(node: LocalNode, chain: Chain, facts: NodeFacts, steps: SetupSteps) -> None:
    """Do what needs no operator for a node that joined before, and say what the operator should do."""
    if steps.gas and chain.chain_id == CHAIN_ANVIL:
        await (await LocalChain.open(chain.web3)).fund([node.address], facts.gas.balance + LOCAL_ETHER)
        node.session.note(f"the local chain gave ether to {node.address}")
    elif steps.gas:
        node.session.note(f"warning: {facts.gas.sentence}\n  next: {facts.gas.refill}")
    if steps.deposit:
        node.session.note("warning: the operator's free balance pays for no case\n  next: muster wallet deposit")
