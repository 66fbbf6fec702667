"""Which faults a chaos run inflicts, and when: all of it follows from the seed. Pure.

Kinds come in rounds: each round has every kind once, in an order that the seed draws, so that a run of some minutes has
all of them. What a machine does not allow of is left out afterwards. Two faults may overlap, but never at the same
target, and what concerns the whole chain is one target.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CHAIN: Final = "chain"
ORCHESTRATOR: Final = "orchestrator"
DEEPEST: Final = 10
"""Blocks that a reorg replaces at most."""
FIRST_SECOND: Final = 1.0
GAP_SECONDS: Final = (2.0, 5.0)
"""Between the beginnings of two faults."""
FAULT_SECONDS: Final = (1.0, 6.0)
MOST_HOURS: Final = 12
"""By which the chain's clock is moved on at once."""

OF_PROCESSES: Final = ("kill", "stop")
OF_LINES: Final = ("cut", "silence")
"""Of the connection between a member and the orchestrator."""
OF_ENDPOINTS: Final = ("lag", "lost_answers", "endpoint_errors")
"""Of the chain's endpoint as one process sees it."""
OF_CHAIN: Final = ("chain_killed", "chain_silent", "reorg", "hours_pass")
OF_SERVERS: Final = ("disk_full", "store_out", "database_out", "lying_relay")
"""Each has a single target, which has its name. A run inflicts those that its machine allows."""
KINDS: Final = (*OF_PROCESSES, *OF_LINES, *OF_ENDPOINTS, *OF_CHAIN, *OF_SERVERS)


@dataclass(frozen=True)
class Fault:
    """One fault. Seconds count from the run's start."""

    at: float
    kind: str
    target: str
    """A process's name, CHAIN, or the kind itself."""
    seconds: float
    """How long it lasts; 0: it is over at once."""
    size: int = 0
    """Blocks of a reorg or a lag, hours that pass."""
    drop: bool = False
    """Whether a reorg leaves out the transactions of the blocks that it replaces."""


def plan(seed: int, seconds: float, members: Sequence[str], servers: Sequence[str]) -> list[Fault]:
    """Return the faults of a run in order, all over before its last second.

    members: processes with a connection to the orchestrator; servers: the other processes that may be killed.
    """
    rng, found, round_left = random.Random(f"chaos {seed}"), list[Fault](), list[str]()
    free_at: dict[str, float] = {}
    at = FIRST_SECOND
    while True:
        if not round_left:
            round_left = rng.sample(KINDS, len(KINDS))
        fault = _fault(rng, at, round_left.pop(), members, servers)
        if at + FAULT_SECONDS[1] >= seconds:
            return found
        if free_at.get(fault.target, 0.0) <= at:
            found.append(fault)
            free_at[fault.target] = at + fault.seconds + 1
        at = round(at + rng.uniform(*GAP_SECONDS), 2)


def _fault(rng: random.Random, at: float, kind: str, members: Sequence[str], servers: Sequence[str]) -> Fault:
    """Draw target, length and size. Always the same number of draws, so that kinds do not shift each other."""
    lasts, size, drop = round(rng.uniform(*FAULT_SECONDS), 2), rng.randint(1, DEEPEST), rng.random() < 0.5
    hours, member = rng.randint(1, MOST_HOURS), rng.choice(members)
    party, process = rng.choice([*members, ORCHESTRATOR]), rng.choice([*members, *servers])
    if kind == "reorg":
        return Fault(at, kind, CHAIN, 0, size, drop)
    if kind == "hours_pass":
        return Fault(at, kind, CHAIN, 0, hours)
    if kind in OF_CHAIN:
        return Fault(at, kind, CHAIN, lasts)
    if kind in OF_SERVERS:
        return Fault(at, kind, kind, lasts)
    if kind in OF_ENDPOINTS:
        return Fault(at, kind, party, lasts, size if kind == "lag" else 0)
    return Fault(at, kind, process if kind in OF_PROCESSES else member, lasts)
