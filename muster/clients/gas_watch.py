"""Tell a node's operator that its key is low on gas: once, until it was refilled."""

from __future__ import annotations

from muster.chain.client import Chain
from muster.runtime.notify import FOR_GOOD, Notifier
from muster.runtime.units import Ether


async def watch_gas(chain: Chain, notifier: Notifier) -> None:
    """Look at the key's ether once. Raises TRANSIENT errors."""
    if not notifier.wants("low_gas"):
        return
    held = await chain.gas_balance(chain.signer.address)
    if not held.low:
        notifier.forget("low_gas", held.address)
        return
    text = f"{notifier.name} is low on gas: {held.sentence}. Next: {held.refill}"
    values = {"balance": str(Ether(held.balance)), "transactions": held.transactions, "next": held.refill}
    notifier.tell("low_gas", held.address, text, again=FOR_GOOD, **values)
