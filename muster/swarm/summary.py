"""Summarise what a swarm did in one document. Pure: facts in, summary out.

The facts come from the chain's events and views, the orchestrator's reports and the checkpoint files, gathered by
`muster.swarm.facts`. Money is in token wei.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Final

from muster.runtime.units import Tokens

LAST_CHECKPOINTS: Final = 3
"""The held-out score after training is the mean over so many of the last checkpoints."""

REWARD, LENGTH, HELD_OUT = "reward", "completions/mean_length", "held_out/reward"
HELD_OUT_TASKS: Final = "held_out/tasks"
LENGTH_ERROR, HELD_OUT_LENGTH_ERROR = "completions/length_error", "held_out/length_error"


@dataclass(frozen=True)
class Participant:
    """A node and the operator who is paid for it."""

    name: str
    role: str
    node: str
    operator: str
    honest: bool = True


@dataclass(frozen=True)
class CommitmentLine:
    """A commitment on chain."""

    node: str
    index: int
    step: int
    pay: int
    time: int
    """Seconds since the epoch, by the chain's clock."""


@dataclass(frozen=True)
class Payment:
    """Pay that left the window: claimed, or voided by a conviction."""

    node: str
    operator: str
    amount: int
    voided: bool
    time: int


@dataclass(frozen=True)
class CaseResult:
    """A case and how it ended. Stakes are those of the accused, before and after."""

    case: int
    node: str
    kind: str
    outcome: str
    transaction: str
    """Of the conviction, or of what ended the case otherwise."""
    stake_before: int
    stake_after: int
    bounty: int
    guilty_votes: int
    votes: int
    jury: int
    challenger: str


@dataclass(frozen=True)
class Update:
    """One checkpoint as the trainer reported it; step 0 is the model the run began with."""

    step: int
    metrics: Mapping[str, float]
    stages: Mapping[str, float]


@dataclass(frozen=True)
class ContractBalance:
    """The tokens that one contract holds, and those that it owes by its own state."""

    contract: str
    balance: int
    owed: int


@dataclass(frozen=True)
class PublishedStep:
    """A checkpoint's root on chain and the root computed from the files that were served."""

    step: int
    root_on_chain: str
    root_of_files: str


@dataclass(frozen=True)
class WeightFetches:
    """How one worker fetched weights."""

    name: str
    seconds: Sequence[float]
    """Seconds of every fetch but the first, before which there is nothing to generate with."""
    generating: Sequence[float]
    """Seconds of each fetch in which the engine generated."""
    pauses: Sequence[float]
    """Seconds for which the engine stopped to load them."""


@dataclass(frozen=True)
class SwarmFacts:
    """Everything the summary is made of."""

    participants: Sequence[Participant]
    positions: int
    """Rollouts per commitment."""
    committed: Sequence[CommitmentLine]
    settled: Sequence[Payment]
    case_results: Sequence[CaseResult]
    updates: Sequence[Update]
    accepted: Mapping[str, int]
    """Accepted commitments by node."""
    rejected: Mapping[str, Mapping[str, int]]
    """Rejected commitments by node and reason."""
    balances: Sequence[ContractBalance]
    published: Sequence[PublishedStep]
    bytes_broadcast: int
    wall_seconds: float
    stage_seconds: Mapping[str, float]
    seals: Mapping[str, int] = field(default_factory=dict)
    """What validators were paid for sealing, by node."""
    escrow_kept: int = 0
    """Voided pay that stays in the run's escrow."""
    run: int = 1
    seed: int = 0
    used: Mapping[str, int] = field(default_factory=dict)
    """Commitments that went into a batch, by node."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    weight_fetches: Sequence[WeightFetches] = ()


def summarise(facts: SwarmFacts) -> dict[str, Any]:
    """Return the document that `muster swarm demo --json` prints."""
    updates = sorted(facts.updates, key=lambda update: update.step)
    trained = [update for update in updates if update.step > 0]
    return {
        "run": facts.run,
        "seed": facts.seed,
        "steps": len(trained),
        "wall_seconds": round(facts.wall_seconds, 1),
        "stage_seconds": {name: round(value, 1) for name, value in facts.stage_seconds.items()}
        | {f"trainer_{name}": round(value, 1) for name, value in _total_stages(trained).items()},
        "held_out": held_out(updates),
        "reward": [update.metrics[REWARD] for update in trained if REWARD in update.metrics],
        "length": [update.metrics[LENGTH] for update in trained if LENGTH in update.metrics],
        "nodes": [node_row(facts, who) for who in facts.participants if who.role in ("worker", "validator")],
        "slashes": [slash_row(facts, case) for case in facts.case_results if case.outcome == "guilty"],
        "cases": [
            {"case": case.case, "node": name_of(facts, case.node), "kind": case.kind, "outcome": case.outcome}
            for case in facts.case_results
        ],
        "claims": claims(facts),
        "voided": sum(one.amount for one in facts.settled if one.voided),
        "escrow_kept": facts.escrow_kept,
        "solvent": all(one.balance >= one.owed for one in facts.balances),
        "balances": sum(one.balance for one in facts.balances),
        "owed": sum(one.owed for one in facts.balances),
        "contracts": [asdict(one) for one in facts.balances],
        "checkpoints": [asdict(one) for one in facts.published],
        "bytes_broadcast": facts.bytes_broadcast,
        "weights": [weight_row(fetches) for fetches in facts.weight_fetches],
        "restarts": dict(facts.restarts),
    }


def weight_row(fetches: WeightFetches) -> dict[str, Any]:
    """Return a worker's seconds spent fetching, the share of them in which it generated, and its median pause."""
    total = sum(fetches.seconds)
    return {
        "node": fetches.name,
        "fetches": len(fetches.seconds),
        "seconds": round(total, 2),
        "generating": round(sum(fetches.generating) / total, 3) if total else None,
        "pause_seconds": round(median(fetches.pauses), 3) if fetches.pauses else None,
    }


def problems(summary: Mapping[str, Any], steps: int) -> list[str]:
    """Return in sentences what went wrong in a demo; empty when nothing did."""
    found = []
    if summary["steps"] < steps:
        found.append(f"{summary['steps']} of {steps} steps were trained")
    slashed = {row["node"] for row in summary["slashes"]}
    for row in (row for row in summary["nodes"] if row["role"] == "worker"):
        name = row["name"]
        if row["honest"] and row["rejected"]:
            found.append(f"{name} is honest, and work of it was rejected: {row['rejected']}")
        if row["honest"] and name in slashed:
            found.append(f"{name} is honest and was slashed")
        if not row["honest"] and name not in slashed:
            found.append(f"{name} cheats and was not slashed")
        if not row["honest"] and row["used"]:
            found.append(f"{row['used']} files of {name}, who cheats, were trained on")
    for row in summary["claims"]:
        if row["paid"] != row["committed"] - row["voided"]:
            paid_out, due, voided = (Tokens(row[name]) for name in ("paid", "committed", "voided"))
            found.append(f"{row['name']} was paid {paid_out} for {due} less {voided} voided")
    if not summary["solvent"]:
        found.append(f"the contracts hold {Tokens(summary['balances'])} and owe {Tokens(summary['owed'])}")
    wrong = [row["step"] for row in summary["checkpoints"] if row["root_on_chain"] != row["root_of_files"]]
    if wrong:
        found.append(f"the files of steps {wrong} do not hash to their roots on chain")
    return found


def held_out(updates: Sequence[Update]) -> dict[str, Any]:
    """Return the score before any update, and the mean over the last checkpoints, on tasks never trained on."""
    scores = [update.metrics[HELD_OUT] for update in updates if HELD_OUT in update.metrics]
    tasks = [int(update.metrics[HELD_OUT_TASKS]) for update in updates if HELD_OUT_TASKS in update.metrics]
    before = scores[0] if updates and HELD_OUT in updates[0].metrics else None
    after = fmean(scores[1:][-LAST_CHECKPOINTS:]) if len(scores) > 1 else None
    return {"before": before, "after": after, "tasks": tasks[0] if tasks else 0}


def node_row(facts: SwarmFacts, who: Participant) -> dict[str, Any]:
    """Return what a node did and earned."""
    mine = [one for one in facts.committed if one.node == who.node]
    return {
        "name": who.name,
        "role": who.role,
        "honest": who.honest,
        "address": who.node,
        "commitments": len(mine),
        "rollouts": len(mine) * facts.positions,
        "accepted": facts.accepted.get(who.node, 0),
        "rejected": dict(facts.rejected.get(who.node, {})),
        "used": facts.used.get(who.node, 0),
        "earned": paid(facts.settled, node=who.node) + facts.seals.get(who.node, 0),
    }


def slash_row(facts: SwarmFacts, case: CaseResult) -> dict[str, Any]:
    """Return a conviction, with its transaction on chain."""
    return {
        "node": name_of(facts, case.node),
        "kind": case.kind,
        "case": case.case,
        "transaction": case.transaction,
        "stake_before": case.stake_before,
        "stake_after": case.stake_after,
        "bounty": case.bounty,
        "votes": {"guilty": case.guilty_votes, "not_guilty": case.votes - case.guilty_votes, "jury": case.jury},
        "challenger": name_of(facts, case.challenger),
    }


def claims(facts: SwarmFacts) -> list[dict[str, Any]]:
    """Return what each worker's operator was paid, and the pay of its commitments and of those voided."""
    rows = []
    for who in facts.participants:
        if who.role != "worker":
            continue
        committed = sum(one.pay for one in facts.committed if one.node == who.node)
        voided = sum(one.amount for one in facts.settled if one.voided and one.node == who.node)
        rows.append(
            {
                "name": who.name,
                "operator": who.operator,
                "committed": committed,
                "voided": voided,
                "paid": paid(facts.settled, node=who.node),
            }
        )
    return rows


def paid(settled: Iterable[Payment], *, node: str) -> int:
    """Return the token wei that claims for a node paid out."""
    return sum(one.amount for one in settled if one.node == node and not one.voided)


def name_of(facts: SwarmFacts, node: str) -> str:
    """Return a node's name in this swarm, or its address."""
    return next((who.name for who in facts.participants if who.node == node), node)


def _total_stages(updates: Iterable[Update]) -> dict[str, float]:
    total: dict[str, float] = {}
    for update in updates:
        for name, seconds in update.stages.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
