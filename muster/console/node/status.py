"""Read one node from chain and orchestrator: a record for tables, a document for a status.

`muster worker status` and `muster validator status` are `status`; `muster node` and `muster up` read nodes too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from muster.chain.client import Chain
from muster.chain.gas import GasBalance
from muster.clients.looks import LooksReader
from muster.clients.orchestrator import OrchestratorClient
from muster.console.money.wallet import address_of
from muster.console.node.nodes import NodeOption, not_joined
from muster.console.session import Session
from muster.constants import BASIS_POINTS
from muster.contracts import registry, runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Node, Role, Status
from muster.contracts.runs import HourSealed, RunState, Work
from muster.errors import MusterError
from muster.protocol.incentives import Looking
from muster.protocol.looks import FIRST_COMMITMENTS
from muster.protocol.messages import NodeReport, Verdict
from muster.protocol.terms import Terms
from muster.runtime.units import Duration, Ether, Moment, Tokens

LAST_VERDICTS: Final = 5
"""Commitments whose verdicts a status shows."""

REPORT_SECONDS: Final = 10.0
"""Longest wait for an orchestrator's report."""


@dataclass(frozen=True)
class NodeReading:
    """What chain and orchestrator know of one node."""

    address: str
    node: Node
    work: Work
    claimable: int
    """Token wei."""
    gas: GasBalance
    report: NodeReport | None = None
    problem: str = ""
    """Why there is no report."""

    @property
    def in_window(self) -> Tokens:
        """Return the pay of commitments that are not settled."""
        return Tokens((self.work.next - self.work.settled) * self.work.pay)

    @property
    def pending(self) -> int:
        """Return the number of commitments without a final verdict."""
        assert self.report is not None
        return max(0, self.report.commitments - self.report.accepted - sum(self.report.rejected.values()))

    @property
    def low_on_gas(self) -> bool:
        return self.gas.low and self.node.status == Status.ACTIVE


async def read_node(
    chain: Chain, client: OrchestratorClient, address: str, *, served: int | None = None
) -> NodeReading:
    """Read a node. `served`: the only run whose nodes the orchestrator is asked about; None: it is asked about any."""
    calls: list[Any] = [registry.node(address), runs.work(address), runs.claimable(address)]
    node, work, (_, claimable) = await chain.call_all(calls)
    report, problem = None, ""
    if node.status != Status.NONE and served in (None, node.run):
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                report = await client.node(address)
        except (MusterError, TimeoutError) as error:
            problem = str(error) or "no answer"
    gas = await chain.gas_balance(address, report.hourly_gas if report else 0.0)
    return NodeReading(address, node, work, claimable, gas, report, problem)


async def read_registered(session: Session, chain: Chain, address: str) -> NodeReading:
    """Read a node that joined a run. Raises ConfigError for another; notes an orchestrator that does not answer."""
    async with session.orchestrator(chain) as client:
        state = await read_node(chain, client, address)
    if state.node.status == Status.NONE:
        raise not_joined(address)
    if state.problem:
        session.note(f"no report from the orchestrator: {state.problem}")
    return state


async def status(session: Session, node: NodeOption = None) -> None:
    """Show what a node did, what was rejected, what it earned, what it has at stake, and its cases."""
    session.result(await read_status(session, await address_of(session, node)))


async def read_status(session: Session, address: str) -> dict[str, Any]:
    """Return the status of a node; warn of little gas. Raises as `read_registered`."""
    async with session.chain() as chain:
        state = await read_registered(session, chain, address)
        if state.low_on_gas:
            session.note(f"warning: {state.gas.sentence}\n  next: {state.gas.refill}")
        run = await chain.call(runs.run_state(state.node.run))
        common = await common_status(chain, state)
        if state.node.role == Role.WORKER:
            return common | await worker_status(chain, state, run)
        return common | await validator_status(session, chain, state, run)


async def validator_status(session: Session, chain: Chain, state: NodeReading, run: RunState) -> dict[str, Any]:
    """Return what a validator sealed, its cases, and what it earns; what looks earned only where that can be read."""
    # 1. Its events, all of them.
    opened, resolved, sealed = set[int](), dict[int, bool](), set[int]()
    for event in await chain.events(
        [CaseOpened, CaseResolved, HourSealed], chain.addresses.from_block, (await chain.head()).number
    ):
        if isinstance(event, CaseOpened) and event.challenger == state.address:
            opened.add(event.case_id)
        elif isinstance(event, CaseResolved) and event.case_id in opened:
            resolved[event.case_id] = event.outcome == Outcome.GUILTY
        elif isinstance(event, HourSealed) and event.validator == state.address:
            sealed.add(event.hour)

    # 2. What its looks earned, by the trainer's lists.
    wages: dict[str, Any] = {}
    try:
        async with session.orchestrator(chain) as client, asyncio.timeout(REPORT_SECONDS):
            wages = await wage_status(LooksReader(chain, client, state.node.run), state.address)
    except (MusterError, TimeoutError) as error:
        session.note(f"what its looks earned is not known: {error or 'no answer'}")
    terms = await chain.terms(state.node.run)
    income = validator_income(terms, run.validators - 1)
    return {
        "newest_step": run.steps - 1,
        "earns": income["earns"],
        "can_lose": income["can lose"],
        "case_cost": Tokens(terms.case_fee + terms.jury_deposit),
        "open_cases": len(opened - resolved.keys()),
        "cases_opened": len(opened),
        "cases_won": sum(resolved.values()),
        "hours_sealed": len(sealed),
        "last_sealed_hour": max(sealed, default=None),
        **wages,
    }


async def common_status(chain: Chain, state: NodeReading) -> dict[str, Any]:
    """Return the status that workers and validators have in common."""
    node, gas = state.node, state.gas
    calls = [registry.free_balance(node.operator), registry.withdrawable_at(state.address)]
    free, withdrawable_at = await chain.call_all(calls)
    _, *announced = (await chain.keys(node.run)).since((await chain.head()).timestamp)
    return {
        "node": state.address,
        "operator": node.operator,
        "run": node.run,
        "role": node.role.name.lower(),
        "status": node.status.name.lower(),
        "stake": Tokens(node.lock),
        "gas": Ether(gas.balance),
        "gas_transactions": gas.transactions,
        "gas_hours": None if gas.hours is None else round(gas.hours, 1),
        "operator_free": Tokens(free),
        "withdrawable_at": Moment(withdrawable_at) if withdrawable_at else None,
        "keys_change_at": Moment(announced[0].from_) if announced else None,
    }


async def worker_status(chain: Chain, state: NodeReading, run: RunState) -> dict[str, Any]:
    """Return what a worker has done, what it earned, and what validators said."""
    work, report = state.work, state.report
    document: dict[str, Any] = {
        "commitments": work.next,
        "settled": work.settled,
        "pay_per_commitment": Tokens(work.pay),
        "in_window": state.in_window,
        "claimable": Tokens(state.claimable),
        "open_cases": work.open_cases,
    }
    if not work.left:  # what is voided ends a worker, so that all that is settled was claimed
        document["claimed"] = Tokens(work.settled * work.pay)
    if work.next > work.settled:
        matures_at = await chain.call(runs.matures_at(state.address, work.settled))
        document["next_matures_at"] = Moment(matures_at)
        document["next_matures_in"] = Duration(max(0, matures_at - (await chain.head()).timestamp))
    document["newest_step"] = run.steps - 1
    if report is not None:
        document |= {"rollouts": report.rollouts, "accepted": report.accepted, "pending": state.pending}
        document |= {"rejected": report.rejected, "last_verdicts": last_verdicts(report.verdicts)}
        if report.blocked:
            document["waits_because"] = report.blocked
    return document


def last_verdicts(verdicts: list[Verdict]) -> list[str]:
    """Return the verdicts on the newest commitments, the newest first, with the reason of a rejection."""
    lines: dict[int, str] = {}
    for verdict in verdicts:
        if verdict.index not in lines or not verdict.accepted:
            lines[verdict.index] = "accepted" if verdict.accepted else f"rejected: {verdict.reason or 'rejected'}"
    return [f"{index} {lines[index]}" for index in sorted(lines, reverse=True)[:LAST_VERDICTS]]


def validator_income(terms: Terms, judges: int) -> dict[str, str]:
    """Return what a validator earns and can lose, by name. `judges`: that a case has, without its challenger."""
    # A case's judges share its fee, and the deposits of those whom more than half of them outvoted.
    judges = max(judges, 2)
    majority = judges // 2 + 1
    least = terms.case_fee // judges
    most = (terms.case_fee + (judges - majority) * terms.jury_deposit) // majority
    bounty = terms.validator_stake * terms.slash_bps * terms.bounty_bps // BASIS_POINTS**2
    judging = f"{Tokens(least)} to {Tokens(most)} for each case that it judges with the majority"
    looks = looks_income(terms, judges + 1) if terms.wage_bps else "looks are unpaid"
    slashed = terms.validator_stake * terms.slash_bps // BASIS_POINTS
    return {
        "earns": f"{looks}; {Tokens(terms.bounty)} for each worker whose conviction it brings about ({Tokens(bounty)} "
        f"for a validator), {judging}",
        "can lose": f"{Tokens(slashed)} of the stake by a conviction; {Tokens(terms.case_fee)} by a case that it opens "
        f"and loses; {Tokens(terms.jury_deposit)} by a vote that most of the jury does not share, and as much of the "
        "stake for each day on which it shows no vote, with its seat after the third in a row",
    }


def looks_income(terms: Terms, validators: int) -> str:
    """Return what one of so many validators earns by looks: the wage, and from how much work on it is left with it."""
    rate = Looking.of(terms, 0).least_rate(validators)
    enough = "less than looks cost" if rate is None else f"more than it costs from {rate:,.1f} commitments an hour on"
    return (
        f"{Tokens(terms.wage_of(0))} for each look that counts, twice that for a node's first {FIRST_COMMITMENTS} "
        f"commitments: with {validators} validators and {terms.accepts_required} looks at a commitment {enough}"
    )


async def wage_status(reader: LooksReader, validator: str) -> dict[str, Any]:
    """Return what the trainer's lists say of a validator's looks, and what the chain has paid for them."""
    account, cover, latest = await reader.account(validator), await reader.cover(), await reader.list()
    looks = [one for one in latest.looks if one.validator == validator] if latest else []
    hours = cover.hours
    return {
        "looks_hour": latest.hour if latest else None,
        "looks": len(looks),
        "looks_counted": sum(one.counted > 0 for one in looks),
        "looks_not_counted": dict(Counter(one.why for one in looks if one.why)),
        "rows_checked": sum(one.validator == validator for one in latest.checks) if latest else 0,
        "wages_earned": Tokens(account.earned),
        "wages_paid": Tokens(account.paid),
        "wages_due": Tokens(account.due),
        "wages_last_hours": None if hours is None else round(hours, 1),
        "counts_again_at": Moment(account.barred_until) if account.barred_until else None,
    }
