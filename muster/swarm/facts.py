"""Gather the facts for a swarm's summary: from chain, orchestrator and explorer, and the files that were served."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.contracts import wages
from muster.contracts.codec import Event
from muster.contracts.court import CaseOpened, CaseResolved, VoteRevealed
from muster.contracts.refutations import Refuted
from muster.contracts.registry import Convicted, Fined, Registered
from muster.contracts.runs import CheckpointPublished, Claimed, Voided, WorkCommitted
from muster.errors import CheckError, StorageError
from muster.protocol.kinds import reason_of, reason_of_flaw
from muster.protocol.messages import LookList
from muster.protocol.metric_names import HELD_OUT, LENGTH, LENGTH_ERROR, REWARD
from muster.shardcast.format.store import verify_folder, version_path
from muster.swarm.summary import CaseResult, Participant, StepMetrics

KINDS = (
    CaseOpened,
    CaseResolved,
    CheckpointPublished,
    Claimed,
    Convicted,
    Fined,
    Refuted,
    Registered,
    Voided,
    VoteRevealed,
    WorkCommitted,
    wages.Claimed,
)
"""Events that the summary reads."""

CHARTS = (REWARD, HELD_OUT, LENGTH, LENGTH_ERROR)
"""Metrics whose charts a report has, as the run's page draws them."""

NOT_SERVED = "not served"
"""Root of files of a step that the origin no longer has."""


def looking(
    lists: Sequence[LookList], events: Sequence[Event], participants: Sequence[Participant]
) -> list[dict[str, Any]]:
    """Return what each validator looked at, earned and was paid, and how many of its rows were checked.

    `lists`: of the trainer, in the order of their hours.
    """
    totals = {one.validator: one for shown in lists for one in shown.totals}
    rows = []
    for who in participants:
        if who.role != "validator":
            continue
        looks = [one for shown in lists for one in shown.looks if one.validator == who.node]
        checks = [one for shown in lists for one in shown.checks if one.validator == who.node]
        total = totals.get(who.node)
        row = {
            "name": who.name,
            "honest": who.honest,
            "looked": len(looks),
            "counted": sum(one.counted > 0 for one in looks),
            "checked": len(checks),
            "false": sum(one.outcome == "false" for one in checks),
            "barred": total is not None and total.barred_until > 0,
            "earned": 0 if total is None else total.total,
            "paid": sum(one.amount for one in events if isinstance(one, wages.Claimed) and one.validator == who.node),
        }
        rows.append(row)
    return rows


def work(events: Sequence[Event]) -> list[WorkCommitted]:
    return [one for one in events if isinstance(one, WorkCommitted)]


def settled(events: Sequence[Event]) -> tuple[Counter[str], Counter[str]]:
    """Return pay that left the window, by node: what was claimed, and what convictions voided."""
    paid, voided = Counter[str](), Counter[str]()
    for one in events:
        if isinstance(one, Claimed):
            paid[one.node] += one.paid
        elif isinstance(one, Voided):
            voided[one.node] += one.amount
    return paid, voided


def case_results(events: Sequence[Event]) -> list[CaseResult]:
    """Return cases and objective proofs, each with the conviction of the same transaction."""
    stakes = {one.node: one.lock for one in events if isinstance(one, Registered)}
    convictions = {(one.at.transaction, one.node): one for one in events if isinstance(one, Convicted)}
    fines = {(one.at.transaction, one.node): one.amount for one in events if isinstance(one, Fined)}
    ends = {one.case_id: one for one in events if isinstance(one, CaseResolved)}
    cases = [one for one in events if isinstance(one, CaseOpened)]
    found = []
    for one in [*cases, *(proof for proof in events if isinstance(proof, Refuted))]:
        if isinstance(one, CaseOpened):
            end = ends.get(one.case_id)
            number, jury, challenger, kind = one.case_id, one.jury, one.challenger, reason_of(one.kind)
            outcome, last = (end.outcome.name.lower(), end) if end else ("open", one)
        else:
            number, jury, challenger, kind = 0, 0, one.prover, reason_of_flaw(one.flaw)
            outcome, last = "guilty", one
        votes = [vote.guilty for vote in events if isinstance(vote, VoteRevealed) and vote.case_id == number]
        ended = last.at.transaction, one.node
        stake, conviction = stakes.get(one.node, 0), convictions.get(ended)
        found.append(
            CaseResult(
                case=number,
                node=one.node,
                kind=kind,
                outcome=outcome,
                transaction="0x" + last.at.transaction.hex(),
                stake_before=stake,
                stake_after=stake - (conviction.slashed if conviction else fines.get(ended, 0)),
                bounty=conviction.bounty if conviction else 0,
                votes={"guilty": sum(votes), "not_guilty": len(votes) - sum(votes), "jury": jury},
                challenger=challenger,
            )
        )
    return found


def updates(document: Mapping[str, Any]) -> list[StepMetrics]:
    """Return the trainer's reports, as the explorer's summary has them."""
    return [
        StepMetrics(
            step=line["step"],
            metrics={name: value for name, value in line["metrics"].items() if value is not None},
            stages=line["stages"],
        )
        for line in document["steps"]
        if line["metrics"]
    ]


def drawn(updates: Sequence[StepMetrics]) -> list[str]:
    """Return the metrics of CHARTS that the trainer reported."""
    return [name for name in CHARTS if any(name in one.metrics for one in updates)]


async def checkpoints(events: Sequence[Event], shards: Path) -> list[dict[str, Any]]:
    """Return every checkpoint's root on chain, and the root computed from the bytes that the origin serves."""
    found = []
    for one in events:
        if isinstance(one, CheckpointPublished):
            root = await asyncio.to_thread(root_of_files, version_path(shards, one.manifest_root))
            found.append({"step": one.step, "root_on_chain": "0x" + one.manifest_root.hex(), "root_of_files": root})
    return found


def root_of_files(version: Path) -> str:
    """Return the root that a version's bytes hash to: its manifest's, if every byte is as the manifest says."""
    try:
        verification = verify_folder(version)
    except StorageError:
        return NOT_SERVED
    except CheckError as error:
        return f"unreadable: {error}"
    return verification.problems[0] if verification.problems else "0x" + verification.manifest.root.hex()
