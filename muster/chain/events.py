"""Logs into the events of `muster.contracts`.

A log counts only if our contract emitted it: any other contract can emit a look-alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from muster.chain.types import AddressBook
from muster.contracts import court, refutations, registry, run_terms, runs, token, wages
from muster.contracts.abi import CONTRACTS
from muster.contracts.codec import Event, decode_log

EVENTS: Final = {
    (kind.ABI.contract, kind.ABI.topic): kind
    for module in (token, registry, run_terms, runs, court, refutations, wages)
    for kind in module.EVENTS
}
"""Every event of ours, by the contract that emits it and its topic."""


def decode_logs(logs: Iterable[Mapping[str, Any]], book: AddressBook) -> tuple[Event, ...]:
    """Events of our contracts among logs, in order; everything else is passed over."""
    names = {getattr(book, name).lower(): name for name in CONTRACTS}
    events: list[Event] = []
    for log in logs:
        contract = names.get(log["address"].lower())
        kind = EVENTS.get((contract, bytes.fromhex(log["topics"][0][2:]))) if contract and log["topics"] else None
        if kind is not None:
            events.append(decode_log(kind, log))
    return tuple(sorted(events, key=lambda event: (event.at.block, event.at.log_index)))
