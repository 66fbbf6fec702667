"""Show what a node takes, what it can lose and what it earns, before anything is staked."""

from __future__ import annotations

from muster.chain.client import Chain
from muster.clients.explorer import ExplorerClient
from muster.console.node.nodes import Joining
from muster.console.node.status import validator_income
from muster.console.owner.show import admits
from muster.console.session import Session
from muster.console.up.facts import UNKNOWN
from muster.console.up.steps import NodeFacts, SetupSteps
from muster.constants import BASIS_POINTS, CHAIN_ANVIL
from muster.contracts import registry, runs
from muster.contracts.registry import Role
from muster.errors import CheckError, MusterError
from muster.protocol.announcements import DayEarnings
from muster.protocol.hashes import hex_hash
from muster.runtime.printable import printable
from muster.runtime.units import Duration, Ether, Tokens
from muster.shardcast.fetch.connection import url_problem

MAX_AMOUNT = 1 << 96
"""Token wei; who says more is wrong."""
EXPLORER_SECONDS = 5.0
"""Longest wait for an explorer."""


async def fetch_earnings(session: Session, chain: Chain, run: int) -> DayEarnings | None:
    """Return what workers of the run made in the last day, by its explorer; None where that is not known."""
    try:
        async with session.orchestrator(chain) as client:
            url = (await client.run_info(run)).explorer
        if url_problem(url):
            raise CheckError("the run names no explorer")
        async with ExplorerClient.at(url, chain, timeout=EXPLORER_SECONDS) as explorer:
            return await explorer.earnings(run)
    except (MusterError, ValueError) as error:  # ValueError: a host name that no name can be
        session.note(f"what workers earn is not known: {printable(str(error))}")
        return None


async def fetch_windows(chain: Chain) -> tuple[Duration, int, int]:
    """Return the time of unbonding, and hours until pay matures: of a sealed hour, and of one that is not."""
    calls = [registry.unbonding(), runs.window_hours(), runs.unsealed_window_hours()]
    unbonding, sealed, unsealed = await chain.call_all(calls)
    return Duration(unbonding), sealed, unsealed


def at_stake(
    facts: NodeFacts, steps: SetupSteps, windows: tuple[Duration, int, int], earnings: DayEarnings | None
) -> dict[str, object]:
    """Return the lines of the preview, by name. `windows` as `fetch_windows` returns them."""
    joining = facts.joining
    unbonding, sealed, unsealed = windows
    lost = joining.stake * joining.terms.slash_bps // BASIS_POINTS
    rows: dict[str, object] = {
        "run hash": hex_hash(joining.run_hash),
        "node": _address(joining.node),
        "operator": _address(joining.operator),
        "stake": f"{Tokens(joining.stake)}; a conviction takes {Tokens(lost)} of it",
        "unbonding": f"the stake comes back {unbonding} after you retire",
    }
    if joining.role == Role.WORKER:
        rows |= _pay(joining, sealed, unsealed, earnings)
    else:
        rows |= _duties(joining, steps)
    rows["validators"] = f"{joining.validators} active; their majority decides cases"
    return rows | _funds(facts, steps)


def _address(address: str) -> str:
    return "made when you go on" if address == UNKNOWN else address


def _pay(joining: Joining, sealed: int, unsealed: int, earnings: DayEarnings | None) -> dict[str, object]:
    terms, number = joining.terms, joining.work_class
    budgets = ", ".join(map(str, terms.classes[number].budgets))
    return {
        "pay": f"{Tokens(terms.pay_of(number))} for {terms.positions} rollouts (class {number}: {budgets} tokens), "
        f"{sealed} hours after their hour, {unsealed} where it is not sealed",
        "a day": earnings_sentence(earnings),
        "cover": f"{terms.cover_of(number):,} commitments may wait for their pay at a time",
    }


def earnings_sentence(earnings: DayEarnings | None) -> str:
    """Return what workers make in a day, as far as that is known."""
    if earnings is None or earnings.workers <= 0:
        return "what workers earn is not known yet"
    low, median, high = earnings.low, earnings.median, earnings.high
    if not 0 <= low <= median <= high < MAX_AMOUNT:
        return "what workers earn is not known: the explorer's numbers cannot be"
    who = f"{earnings.workers} active worker{'s' if earnings.workers > 1 else ''}"
    if earnings.estimated:
        each = f"{Tokens(median)} each (the median); half of them {Tokens(low)} to {Tokens(high)}"
        return f"an estimate by the pace of the last minutes: {who} would make {each}"
    return (
        f"{who} made {Tokens(median)} each in the last day (the median); half of them {Tokens(low)} to {Tokens(high)}"
    )


def _duties(joining: Joining, steps: SetupSteps) -> dict[str, object]:
    terms = joining.terms
    case = f"{Tokens(terms.case_fee)} a case, {Tokens(terms.jury_deposit)} a vote"
    moved = f"{Tokens(steps.deposit)} go to the free balance for that; " if steps.deposit else ""
    return {
        **validator_income(terms, joining.validators),
        "puts down": f"{case}; {moved}muster wallet withdraw takes out what is left",
        "admits": admits(joining.keys[0].keys),
    }


def _funds(facts: NodeFacts, steps: SetupSteps) -> dict[str, object]:
    rows: dict[str, object] = {"gas": f"{facts.joining.gas_line(steps.gas)}; as much again while muster up is open"}
    sources = [f"{Tokens(facts.faucet_amount)} from the faucet"] if steps.draw else []
    if steps.ether:
        local = facts.gas.chain_id == CHAIN_ANVIL
        sources.append("ether from the local chain" if local else f"{Ether(steps.ether)} that you send to the operator")
    return rows | ({"funds": ", ".join(sources)} if sources else {})
