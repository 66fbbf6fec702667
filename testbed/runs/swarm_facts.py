"""What is known of a small local swarm after its run: two updates, one worker paid, one cheater convicted."""

from __future__ import annotations

from typing import Any

from muster.chain.types import Solvency
from muster.swarm.summary import CaseResult, Participant, StepMetrics, SwarmFacts

PAY = 2 * 10**18
HONEST, CHEAT, JUDGE = "0x" + "11" * 20, "0x" + "22" * 20, "0x" + "33" * 20


def update(step: int, score: float | None, reward: float = 0.0) -> StepMetrics:
    metrics = {"reward": reward, "completions/mean_length": 10.0 + step, "held_out/tasks": 640.0}
    if score is not None:
        metrics["held_out/reward"] = score
    return StepMetrics(step, metrics, {"update": 1.25, "wait": 0.5})


def published(step: int, root_on_chain: str, root_of_files: str) -> dict[str, object]:
    return {"step": step, "root_on_chain": root_on_chain, "root_of_files": root_of_files}


def votes(guilty: int, not_guilty: int) -> dict[str, int]:
    return {"guilty": guilty, "not_guilty": not_guilty, "jury": 3}


def looked(**changes: object) -> dict[str, Any]:
    """Return what looking brought a validator of whose three looks two were counted."""
    row = {"name": "validator-1", "honest": True, "looked": 3, "counted": 2, "checked": 1, "false": 0, "barred": False}
    return row | {"earned": PAY, "paid": PAY} | changes


def facts(**changes: object) -> SwarmFacts:
    values: dict[str, object] = {
        "participants": [
            Participant("worker-1", "worker", HONEST, "0x" + "a1" * 20),
            Participant("cheater", "worker", CHEAT, "0x" + "a2" * 20, honest=False),
            Participant("validator-1", "validator", JUDGE, "0x" + "a3" * 20),
            Participant("owner", "owner", "0x" + "a4" * 20, "0x" + "a4" * 20),
        ],
        "positions": 128,
        "commitments": {HONEST: 3, CHEAT: 2},
        "pay": PAY,
        "paid": {HONEST: 3 * PAY},
        "voided": {CHEAT: 2 * PAY},
        "case_results": [
            CaseResult(1, CHEAT, "activation_mismatch", "guilty", "0x" + "0f" * 32, 100, 50, 10, votes(2, 1), JUDGE),
            CaseResult(2, CHEAT, "activation_mismatch", "moot", "0x" + "0e" * 32, 50, 50, 0, votes(0, 0), JUDGE),
        ],
        "updates": [update(2, 0.75, 0.5), update(0, 0.5), update(1, 0.625, 0.25)],
        "lines": {
            HONEST: {"accepted": 3, "rejected": {}, "used": 2},
            CHEAT: {"accepted": 0, "rejected": {"activation_mismatch": 2}, "used": 0},
        },
        "solvency": Solvency(500, 500, 1_000, 990, 30, 20),
        "checkpoints": [published(0, "0x01", "0x01"), published(1, "0x02", "0x02")],
        "wall_seconds": 123.456,
        "stage_seconds": {"prepare": 10.04, "train": 100.0},
        "escrow_kept": 2 * PAY,
        "looking": [looked()],
        "charts": {name: f'<svg width="640" height="280"><title>{name}</title></svg>' for name in ("reward", "length")},
    }
    return SwarmFacts(**(values | changes))  # type: ignore[arg-type]
