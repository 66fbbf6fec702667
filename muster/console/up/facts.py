"""Read what `muster.console.up.steps` decides by, from the chain."""

from __future__ import annotations

from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.console.node import nodes
from muster.console.up.steps import NodeFacts
from muster.contracts import registry, run_terms, runs, token
from muster.contracts.registry import Role
from muster.errors import ConfigError
from muster.protocol.hashes import keccak
from muster.protocol.terms_file import ZERO_ADDRESS

UNKNOWN: Final = to_checksum_address(keccak(b"muster up: an address that is not made yet")[12:])
"""Stands for such an address: unlike the zero address it holds nothing, and it has no key."""


async def read_facts(
    chain: Chain, run: int, role: Role, *, node: str, operator: str, gas_days: float, work_class: int = 0
) -> NodeFacts:
    """Read them. `gas_days`: as `prepare_join` takes them. Addresses that are not made yet are UNKNOWN.

    Raises ConfigError where the node's key is registered for something else, or by another operator.
    """
    # 1. The node.
    found = await chain.call(registry.node(node))
    if found.status.name != "NONE":
        if (found.run, found.role) != (run, role):
            raise ConfigError(
                f"{node} is registered as a {found.role.name.lower()} of run {found.run}, not as a "
                f"{role.name.lower()} of run {run}",
                hint="a key serves once: make another node with --name NAME",
            )
        operator = found.operator
    # 2. What it takes to join, and who is asked for it.
    joining = await nodes.prepare_join(chain, node, operator, run, role, gas_days, work_class=work_class)
    calls: list = [runs.run_state(run), registry.free_balance(operator), token.faucet_amount()]
    calls += [token.faucet_ready_at(operator), registry.validator_of(operator, run)]
    state, free, amount, ready_at, other = await chain.call_all(calls)
    return NodeFacts(
        joining=joining,
        status=found.status,
        closed=state.phase == runs.Phase.CLOSED,
        # An address that is not made yet can be on no list: it is made first, then refused by its name.
        admitted=operator == UNKNOWN or await chain.call(run_terms.is_admitted(run, operator)),
        other_validator=ZERO_ADDRESS if other == node else other,
        free=free,
        faucet_amount=amount,
        faucet_ready_at=ready_at,
        now=(await chain.head()).timestamp,
        operator_ether=await chain.eth_balance(operator),
        gas=await chain.gas_balance(node),
    )
