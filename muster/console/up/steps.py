"""What is left to do until a node works, decided from the state of the chain. Pure.

The same command comes here again after it was killed, on the next day, and while its node works: what is done already
is not done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from muster.chain.gas import GasBalance
from muster.console.node.nodes import Joining
from muster.contracts.registry import Role, Status
from muster.errors import CheckError, UnfundedError, UsageError
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.runtime.units import Moment, Tokens

SETUP_GAS: Final = 900_000
"""More gas than an operator's transactions take: drawing tokens, joining, sending gas, a deposit."""

SPARE_CASES: Final = 10
"""Cases whose fee and jury deposit a new validator's operator puts into its free balance."""


@dataclass(frozen=True)
class NodeFacts:
    """The state of a node, its operator and its run, read at about one time. Tokens and ether are in wei."""

    joining: Joining
    status: Status
    closed: bool
    """Whether the run takes no more work."""
    admitted: bool
    """Whether the operator may have a validator in the run, as far as its admitter's list goes."""
    other_validator: str
    """The operator's validator in the run, if it is another node; an operator has one, ever."""
    free: int
    """The operator's free balance."""
    faucet_amount: int
    faucet_ready_at: int
    """Second from which on the faucet gives to the operator again."""
    now: int
    """Timestamp of the latest block."""
    operator_ether: int
    gas: GasBalance
    """Of the node's key, and the price of gas."""


@dataclass(frozen=True)
class SetupSteps:
    """What is left to do, in this order. Zero and False: nothing."""

    ether: int = 0
    """Wei that the operator must hold, and does not."""
    draw: bool = False
    """Draw tokens from the faucet."""
    join: bool = False
    gas: int = 0
    """Wei to send to the node's key."""
    deposit: int = 0
    """Token wei to move into the operator's free balance."""

    @property
    def nothing(self) -> bool:
        return self == SetupSteps()


def steps_left(facts: NodeFacts) -> SetupSteps:
    """Return what is left to do.

    Raises CheckError where the run does not take this node, UnfundedError where the operator lacks tokens and the
    faucet has none for it yet.
    """
    joining, join = facts.joining, facts.status == Status.NONE
    if join:
        check_run_takes(facts)
    elif facts.status != Status.ACTIVE:
        return SetupSteps()
    gas = joining.short if join or facts.gas.low else 0

    # 1. Tokens: the stake, and a validator's for cases.
    deposit = deposit_wanted(facts, join=join)
    wanted = (joining.stake if join else 0) + deposit
    draw = wanted > joining.held and facts.now >= facts.faucet_ready_at
    held = joining.held + (facts.faucet_amount if draw else 0)
    if join and held < joining.stake:
        raise UnfundedError(
            f"the stake is {Tokens(joining.stake)}, and {joining.operator} has {Tokens(joining.held)}",
            hint=f"type this again after {Moment(facts.faucet_ready_at)}: the faucet gives once a day",
        )
    wallet = held - facts.free
    deposit = max(0, min(deposit, held - joining.stake if join else wallet))

    # 2. Ether for all of that.
    transactions = join or draw or deposit > 0
    ether = gas + (2 * SETUP_GAS * facts.gas.price if transactions else 0)
    short = ether if ether > facts.operator_ether else 0
    return SetupSteps(short, draw, join, gas, deposit)


def deposit_wanted(facts: NodeFacts, *, join: bool) -> int:
    """Return the token wei that a validator's operator should have free besides: for its first cases and votes.

    Of a validator that joined already only where the free balance does not pay for one case.
    """
    joining = facts.joining
    if joining.role != Role.VALIDATOR:
        return 0
    case = joining.terms.case_fee + joining.terms.jury_deposit
    free = max(0, facts.free - joining.stake) if join else facts.free
    return max(0, SPARE_CASES * case - free) if join or free < case else 0


def check_run_takes(facts: NodeFacts) -> None:
    """Raise CheckError or UsageError where the run would refuse a node that is not registered yet."""
    joining = facts.joining
    if facts.closed:
        raise CheckError(f"run {joining.run} is closed and takes no more work", hint="join another run")
    if joining.role == Role.WORKER and not 0 <= joining.work_class < len(joining.terms.classes):
        known = ", ".join(map(str, range(len(joining.terms.classes))))
        raise UsageError(f"run {joining.run} has no work class {joining.work_class}", hint=f"its classes: {known}")
    if joining.role != Role.VALIDATOR:
        return
    if facts.other_validator != ZERO_ADDRESS:
        raise CheckError(
            f"{joining.operator} has the validator {facts.other_validator} in run {joining.run}: one at most, ever",
            hint="continue with that node, or use another operator: --operator WALLET",
        )
    if not facts.admitted:
        raise CheckError(
            f"run {joining.run} takes validators from a list that {joining.keys[0].keys.admitter} keeps, and "
            f"{joining.operator} is not on it",
            hint=f"ask its owner to type: muster run admit {joining.operator} {joining.run}",
        )
