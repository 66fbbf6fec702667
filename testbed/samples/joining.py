"""A node that is about to join: the facts that `muster up` decides by, and what may be different about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from muster.chain.gas import GasBalance
from muster.console.node.nodes import Joining
from muster.console.up.steps import SETUP_GAS, NodeFacts
from muster.constants import CHAIN_ANVIL, TOKEN
from muster.contracts.registry import Role, Status
from muster.protocol.terms import WorkClass, run_hash
from muster.protocol.terms_file import LOCAL_DEFAULTS, ZERO_ADDRESS
from testbed.samples.terms import keys_of, terms_of

NODE, OPERATOR, OTHER = (f"0x{number:040d}" for number in (1, 2, 3))
STAKES = {"worker_stake": 100 * TOKEN, "validator_stake": 200 * TOKEN, "case_fee": TOKEN}
TERMS = terms_of(**{**LOCAL_DEFAULTS, **STAKES}, classes=(WorkClass(10_000, (8, 12)),))
KEYS = keys_of(OTHER).since(0)
RUN_HASH = run_hash(OTHER, TERMS, KEYS[0].keys)
PRICE, GAS = 10**9, TOKEN // 50
ETHER = 2 * SETUP_GAS * PRICE
"""What the operator's transactions may cost."""
CASE = TERMS.case_fee + TERMS.jury_deposit


def facts(role: Role = Role.WORKER, **changes: Any) -> NodeFacts:
    """Return a node whose keys are new and hold nothing."""
    stake = TERMS.worker_stake if role == Role.WORKER else TERMS.validator_stake
    numbers: dict[str, Any] = {"held": 0, "gas": GAS, "gas_days": 2, "short": GAS, "validators": 4}
    joining = Joining(1, RUN_HASH, role, 0, NODE, OPERATOR, TERMS, KEYS, stake, **numbers)
    joining = replace(
        joining, **{name: changes.pop(name) for name in ("held", "short", "work_class") if name in changes}
    )
    values: dict[str, Any] = {
        "status": Status.NONE,
        "closed": False,
        "admitted": True,
        "other_validator": ZERO_ADDRESS,
        "free": 0,
        "faucet_amount": 10_000 * TOKEN,
        "faucet_ready_at": 0,
        "now": 1_000,
        "operator_ether": 0,
        "gas": GasBalance(NODE, CHAIN_ANVIL, GAS - joining.short, PRICE),
    }
    return NodeFacts(joining, **{**values, **changes})
