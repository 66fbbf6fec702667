"""Read the status of a node from chain and orchestrator, as a document, again and again.

Used by `muster worker status`, `muster validator status` and `muster up`.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from muster.chain.client import Chain
from muster.console.node import nodes
from muster.console.node.income import validator_income
from muster.console.session import Session
from muster.contracts import runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.runs import HourSealed
from muster.protocol.messages import NodeReport, Verdict
from muster.runtime.units import Duration, Moment, Tokens

LAST_VERDICTS: Final = 5
"""Commitments whose verdicts a status shows."""

REORG_DEPTH: Final = 64
"""Blocks read again for events, each time."""


class NodeStatus(Protocol):
    """Reads the status of one node."""

    async def read(self, session: Session) -> dict[str, Any]: ...


def status_of(role: str, address: str) -> NodeStatus:
    """Return what reads the status of a worker or validator."""
    return WorkerStatus(address) if role == "worker" else ValidatorStatus(address)


def pending_of(report: NodeReport) -> int:
    """Return the number of commitments without a final verdict."""
    return max(0, report.commitments - report.accepted - sum(report.rejected.values()))


class WorkerStatus:
    """Reads what a worker has done, what it earned, and what validators said."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def read(self, session: Session) -> dict[str, Any]:
        """Return its status. Raises ConfigError where it never joined; notes an orchestrator that does not answer."""
        async with session.chain() as chain:
            document, report = await nodes.base_status(session, chain, self.address)
            document |= await self._earnings(chain)
            document["newest_step"] = (await chain.call(runs.run_state(document["run"]))).steps - 1
        if report is not None:
            document |= {"rollouts": report.rollouts, "accepted": report.accepted, "pending": pending_of(report)}
            document |= {"rejected": report.rejected, "last_verdicts": last_verdicts(report.verdicts)}
            if report.blocked:
                document["waits_because"] = report.blocked
        return document

    async def _earnings(self, chain: Chain) -> dict[str, Any]:
        work, (_, claimable) = await chain.call(runs.work(self.address)), await chain.call(runs.claimable(self.address))
        document: dict[str, Any] = {
            "commitments": work.next,
            "settled": work.settled,
            "pay_per_commitment": Tokens(work.pay),
            "in_window": Tokens((work.next - work.settled) * work.pay),
            "claimable": Tokens(claimable),
            "open_cases": work.open_cases,
        }
        if not work.left:  # what is voided ends a worker, so that all that is settled was claimed
            document["claimed"] = Tokens(work.settled * work.pay)
        if work.next > work.settled:
            matures_at = await chain.call(runs.matures_at(self.address, work.settled))
            document["next_matures_at"] = Moment(matures_at)
            document["next_matures_in"] = Duration(max(0, matures_at - (await chain.head()).timestamp))
        return document


def last_verdicts(verdicts: list[Verdict]) -> list[str]:
    """Return what was said of the newest commitments, the newest first: a reason where one was rejected."""
    said: dict[int, str] = {}
    for verdict in verdicts:
        reason = verdict.reason or "rejected"
        if verdict.index not in said or not verdict.accepted:
            said[verdict.index] = "accepted" if verdict.accepted else f"rejected: {reason}"
    return [f"{index} {said[index]}" for index in sorted(said, reverse=True)[:LAST_VERDICTS]]


class ValidatorStatus:
    """Reads what a validator has at stake, what it sealed, and its cases: of events only the new ones each time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._last = -1
        self._opened: set[int] = set()
        self._resolved: dict[int, bool] = {}
        """Whether the accused was found guilty, of cases that it opened."""
        self._sealed: set[int] = set()

    async def read(self, session: Session) -> dict[str, Any]:
        """Return its status. Raises ConfigError where it never joined."""
        async with session.chain() as chain:
            document, _ = await nodes.base_status(session, chain, self.address)
            await self._follow(chain)
            terms = await chain.terms(document["run"])
            state = await chain.call(runs.run_state(document["run"]))
        income = validator_income(terms, state.validators - 1)
        return document | {
            "newest_step": state.steps - 1,
            "earns": income["earns"],
            "can_lose": income["can lose"],
            "case_cost": Tokens(terms.case_fee + terms.jury_deposit),
            "open_cases": len(self._opened - self._resolved.keys()),
            "cases_opened": len(self._opened),
            "cases_won": sum(self._resolved.values()),
            "hours_sealed": len(self._sealed),
            "last_sealed_hour": max(self._sealed, default=None),
        }

    async def _follow(self, chain: Chain) -> None:
        """Read the events since the last time; some blocks again, which a reorg may have replaced."""
        last = (await chain.head()).number
        first = max(chain.addresses.from_block, self._last - REORG_DEPTH)
        for event in await chain.events([CaseOpened, CaseResolved, HourSealed], first, last):
            if isinstance(event, CaseOpened) and event.challenger == self.address:
                self._opened.add(event.case_id)
            elif isinstance(event, CaseResolved) and event.case_id in self._opened:
                self._resolved[event.case_id] = event.outcome == Outcome.GUILTY
            elif isinstance(event, HourSealed) and event.validator == self.address:
                self._sealed.add(event.hour)
        self._last = last
