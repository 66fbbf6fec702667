"""Read how long the ether of a node's key lasts, and tell its operator a day ahead: once, until it was refilled."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from muster.chain.client import Chain
from muster.chain.gas import LOW_HOURS, GasBalance
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MusterError
from muster.runtime.notify import FOR_GOOD, Notifier
from muster.runtime.units import Ether

ENOUGH_HOURS: Final = 1.5 * LOW_HOURS
"""That a refilled key lasts at least: a pace that varies a little is no news."""


async def read_gas(chain: Chain, client: OrchestratorClient, node: str = "") -> GasBalance:
    """Return what a node's key holds for gas, with its pace where that is known. Raises TRANSIENT errors.

    Without a node: the key that the chain acts with.
    """
    hourly, node = 0.0, node or chain.signer.address
    with suppress(MusterError):
        hourly = (await client.node(node)).hourly_gas
    return await chain.gas_balance(node, hourly)


async def watch_gas(chain: Chain, client: OrchestratorClient, notifier: Notifier) -> None:
    """Look at the key's ether once. Raises TRANSIENT errors."""
    if not notifier.wants("low_gas"):
        return
    held = await read_gas(chain, client)
    if not held.low:
        if held.hours is None or held.hours >= ENOUGH_HOURS:
            notifier.forget("low_gas", held.address)
        return
    text = f"{notifier.name} is low on gas: {held.sentence}. Next: {held.refill}"
    values = {"balance": str(Ether(held.balance)), "transactions": held.transactions, "next": held.refill}
    notifier.tell("low_gas", held.address, text, again=FOR_GOOD, **values)
