"""Summarise what a swarm did in one document. Pure: facts in, summary out.

The facts come from the chain's events and views, the explorer's summary and the checkpoint files, gathered by
`muster.swarm.facts`. Money is in token wei.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from muster.chain.types import Solvency
from muster.protocol.metric_names import CALLS, HELD_OUT, HELD_OUT_TASKS, LENGTH, REWARD
from muster.runtime.units import Tokens

LAST_CHECKPOINTS: Final = 3
"""The held-out score after training is the mean over so many of the last checkpoints."""


@dataclass(frozen=True)
class Participant:
    """A worker or validator of the swarm, and the operator who is paid for it."""

    name: str
    role: str
    node: str = ""
    """Address of its key, once it has one."""
    operator: str = ""
    """Address of its operator's key, once it has one."""
    honest: bool = True


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
    votes: Mapping[str, int]
    """Guilty, not guilty, and how many the jury has."""
    challenger: str


@dataclass(frozen=True)
class StepMetrics:
    """The finite numbers that the trainer reported of a step; step 0 is the model the run began with."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds."""


@dataclass(frozen=True)
class SwarmFacts:
    """Everything the summary is made of."""

    participants: Sequence[Participant]
    positions: int
    """Rollouts per commitment."""
    commitments: Mapping[str, int]
    """By node; each has the same pay."""
    pay: int
    paid: Mapping[str, int]
    """What was claimed, by node."""
    voided: Mapping[str, int]
    """What a conviction took of the pay in the window, by node."""
    case_results: Sequence[CaseResult]
    updates: Sequence[StepMetrics]
    lines: Mapping[str, Mapping[str, Any]]
    """The explorer's line about each node, by address: commitments accepted, rejected and used."""
    solvency: Solvency
    checkpoints: Sequence[Mapping[str, Any]]
    """Each one's root on chain, and the root computed from the files that were served."""
    wall_seconds: float
    stage_seconds: Mapping[str, float]
    escrow_kept: int = 0
    """Voided pay that stays in the run's escrow."""
    run: int = 1
    seed: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)
    looking: Sequence[Mapping[str, Any]] = ()
    """What it brought each validator."""
    comparison: Mapping[str, Any] | None = None
    """The first model and the last one on held-out tasks: `muster.swarm.comparison`."""
    charts: Mapping[str, str] = field(default_factory=dict)
    """Of metrics over the steps, as SVG."""


def summarise(facts: SwarmFacts) -> dict[str, Any]:
    """Return the document that `muster swarm demo --json` prints."""
    # 1. The updates in order, and the books of the contracts.
    updates = sorted(facts.updates, key=lambda update: update.step)
    trained = [update for update in updates if update.step > 0]
    held = facts.solvency
    contracts = (
        ("Registry", held.registry_tokens, held.registry_books),
        ("Runs", held.runs_tokens, held.runs_books),
        ("Wages", held.wages_tokens, held.wages_books),
    )
    # 2. The document: what was trained, by whom, who was slashed and paid, whether books and checkpoints agree.
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
        "calls": [update.metrics[CALLS] for update in trained if CALLS in update.metrics],
        "nodes": [node_row(facts, who) for who in facts.participants if who.role in ("worker", "validator")],
        "slashes": [slash_row(facts, case) for case in facts.case_results if case.outcome == "guilty"],
        "cases": [
            {"case": case.case, "node": name_of(facts, case.node), "kind": case.kind, "outcome": case.outcome}
            for case in facts.case_results
        ],
        "claims": claims(facts),
        "voided": sum(facts.voided.values()),
        "escrow_kept": facts.escrow_kept,
        "solvent": held.solvent,
        "balances": sum(tokens for _, tokens, _ in contracts),
        "owed": sum(books for _, _, books in contracts),
        "contracts": [{"contract": name, "balance": tokens, "owed": books} for name, tokens, books in contracts],
        "checkpoints": list(facts.checkpoints),
        "restarts": dict(facts.restarts),
        "looking": list(facts.looking),
        "comparison": None if facts.comparison is None else dict(facts.comparison),
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
    for row in summary["looking"]:
        name = row["name"]
        if row["honest"] and row["false"]:
            found.append(f"{row['false']} rows of {name}, who looks, were called false")
        if row["honest"] and not row["paid"] == row["earned"] > 0:
            found.append(f"{name} looks, earned {Tokens(row['earned'])} and was paid {Tokens(row['paid'])}")
        if not row["honest"] and not row["barred"]:
            found.append(f"{name} invents its looks and was not found")
        if not row["honest"] and row["earned"]:
            found.append(f"{name} invents its looks and earned {Tokens(row['earned'])}")
    if not summary["solvent"]:
        found.append(f"the contracts hold {Tokens(summary['balances'])} and owe {Tokens(summary['owed'])}")
    wrong = [row["step"] for row in summary["checkpoints"] if row["root_on_chain"] != row["root_of_files"]]
    if wrong:
        found.append(f"the files of steps {wrong} do not hash to their roots on chain")
    return found


def held_out(updates: Sequence[StepMetrics]) -> dict[str, Any]:
    """Return the score before any update, and the mean over the last checkpoints, on tasks never trained on."""
    scores = [update.metrics[HELD_OUT] for update in updates if HELD_OUT in update.metrics]
    tasks = [int(update.metrics[HELD_OUT_TASKS]) for update in updates if HELD_OUT_TASKS in update.metrics]
    before = scores[0] if updates and HELD_OUT in updates[0].metrics else None
    after = fmean(scores[1:][-LAST_CHECKPOINTS:]) if len(scores) > 1 else None
    return {"before": before, "after": after, "tasks": tasks[0] if tasks else 0}


def node_row(facts: SwarmFacts, who: Participant) -> dict[str, Any]:
    commitments = facts.commitments.get(who.node, 0)
    wages = sum(row["paid"] for row in facts.looking if row["name"] == who.name)
    line = facts.lines.get(who.node, {})
    return {
        "name": who.name,
        "role": who.role,
        "honest": who.honest,
        "address": who.node,
        "commitments": commitments,
        "rollouts": commitments * facts.positions,
        "accepted": line.get("accepted", 0),
        "rejected": dict(line.get("rejected", {})),
        "used": line.get("used", 0),
        "earned": facts.paid.get(who.node, 0) + wages,
    }


def slash_row(facts: SwarmFacts, case: CaseResult) -> dict[str, Any]:
    """Return a conviction, with its transaction on chain."""
    shown = "node", "kind", "case", "transaction", "stake_before", "stake_after", "bounty", "votes", "challenger"
    names = {who: name_of(facts, getattr(case, who)) for who in ("node", "challenger")}
    return {name: getattr(case, name) for name in shown} | names


def claims(facts: SwarmFacts) -> list[dict[str, Any]]:
    """Return what each worker's operator was paid, and the pay of its commitments and of those voided."""
    return [
        {
            "name": who.name,
            "operator": who.operator,
            "committed": facts.pay * facts.commitments.get(who.node, 0),
            "voided": facts.voided.get(who.node, 0),
            "paid": facts.paid.get(who.node, 0),
        }
        for who in facts.participants
        if who.role == "worker"
    ]


def name_of(facts: SwarmFacts, node: str) -> str:
    """Return a node's name in this swarm, or its address."""
    return next((who.name for who in facts.participants if who.node == node), node)


def _total_stages(updates: Iterable[StepMetrics]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for update in updates:
        total.update(update.stages)
    return dict(total)
