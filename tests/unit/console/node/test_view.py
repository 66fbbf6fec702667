"""What a person who watches a node sees, to the letter; and what is worth a line where there is no terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from muster.console.node.log_lines import GeneratedFile, NodeLog
from muster.console.node.view import StatusRow, changes, countdown, node_rows, picture
from muster.constants import TOKEN
from muster.runtime.units import Duration, Ether, Tokens

WORKER: dict[str, Any] = {
    "role": "worker",
    "status": "active",
    "newest_step": 13,
    "commitments": 14,
    "accepted": 11,
    "pending": 2,
    "rejected": {"wrong_draw": 1},
    "in_window": Tokens(12 * TOKEN // 20),
    "pay_per_commitment": Tokens(TOKEN // 20),
    "next_matures_in": Duration(23 * 3600 + 12 * 60 + 10),
    "claimable": Tokens(0),
    "claimed": Tokens(2 * TOKEN // 20),
    "open_cases": 0,
    "last_verdicts": ["13 accepted", "12 rejected: wrong_draw", "11 accepted"],
    "gas": Ether(TOKEN // 50),
    "gas_transactions": 1333,
}
VALIDATOR: dict[str, Any] = {
    "role": "validator",
    "status": "active",
    "newest_step": 13,
    "open_cases": 1,
    "cases_opened": 3,
    "cases_won": 2,
    "hours_sealed": 5,
    "operator_free": Tokens(90 * TOKEN),
    "case_cost": Tokens(9 * TOKEN),
    "looks_hour": 500_000,
    "looks": 5,
    "looks_counted": 4,
    "wages_earned": Tokens(3 * TOKEN),
    "wages_paid": Tokens(TOKEN),
    "wages_due": Tokens(TOKEN // 2),
    "counts_again_at": None,
    "gas": Ether(TOKEN // 50),
    "gas_transactions": 1333,
}
NOW = 1_000.0


def log_at_work() -> NodeLog:
    log = NodeLog(step=12)
    log.work.append(GeneratedFile(NOW - 60, 46_500, 25.0))
    return log


def shown(title: str, rows: list[StatusRow], log: NodeLog, notes: str = "", width: int = 120) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(picture(title, rows, log, notes))
        return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_worker_on_one_screen() -> None:
    log = log_at_work()
    log.warnings.append(
        {"event": "waiting", "level": "warning", "time": "2026-11-24T10:00:00Z", "process": "w", "reason": "no answer"}
    )
    rows = node_rows(WORKER, log, now=NOW, elapsed=5)
    assert shown("run-1-worker: worker 0x12 of run 1", rows, log, "not read: the chain does not answer\n") == [
        "run-1-worker: worker 0x12 of run 1",
        "step           12, newest on chain 13",
        "tokens/s       1,860 while generating, 155 over the last 5 minutes",
        "commitments    11 accepted, 2 pending, 1 rejected",
        "in the window  0.6 MUST at 0.05 MUST for each, the next matures in 23:12:05",
        "claimable      0 MUST, claimed 0.1 MUST",
        "verdicts       13 accepted, 12 rejected: wrong_draw, 11 accepted",
        "gas            0.02 ETH, about 1,333 transactions",
        "2026-11-24 10:00:00 w warning: waiting reason=no answer",
        "not read: the chain does not answer",
    ]


def test_a_worker_that_begins() -> None:
    status = {name: value for name, value in WORKER.items() if name != "next_matures_in"}
    status |= {"commitments": 0, "waits_because": "it begins at step 15", "in_window": Tokens(0)}
    for known in ("accepted", "pending", "rejected", "last_verdicts"):
        del status[known]
    rows = {row.name: row.value for row in node_rows(status, NodeLog(), now=NOW)}
    assert rows == {
        "step": "no engine yet, newest on chain 13",
        "commitments": "0 on chain",
        "waits": "it begins at step 15",
        "in the window": "0 MUST at 0.05 MUST for each",
        "claimable": "0 MUST, claimed 0.1 MUST",
        "gas": "0.02 ETH, about 1,333 transactions",
    }
    starting = node_rows(status | {"newest_step": -1}, NodeLog(step=0, starting=True), now=NOW)
    assert starting[0].value == "starting the engine with 0, newest on chain none"


def test_a_worker_that_is_accused_and_one_that_has_left() -> None:
    status = WORKER | {"open_cases": 2, "status": "jailed", "next_matures_in": Duration(3)}
    rows = {row.name: row.value for row in node_rows(status, NodeLog(), now=NOW, elapsed=3)}
    assert (rows["cases"], rows["status"]) == ("2 open against it", "jailed")
    assert rows["in the window"].endswith(", the next has matured")


def test_a_validator_on_one_screen() -> None:
    log = NodeLog(accepted=7, rejected=1)
    log.judged.extend(["0x000000…:6 accepted", "0x000000…:5 rejected: wrong_draw"])
    rows = node_rows(VALIDATOR, log, now=NOW)
    assert shown("v: validator 0x12 of run 1", rows, log) == [
        "v: validator 0x12 of run 1",
        "newest step  13",
        "inspected    7 accepted, 1 rejected, since it started",
        "last ones    0x000000…:6 accepted, 0x000000…:5 rejected: wrong_draw",
        "cases        1 open, 3 opened, 2 won",
        "sealed       5 hours",
        "looks        3 MUST earned, 1 MUST paid, 0.5 MUST due; 4 of 5 counted in the latest list",
        "free         90 MUST for cases and votes",
        "gas          0.02 ETH, about 1,333 transactions",
    ]
    poor = {row.name: row.value for row in node_rows(VALIDATOR | {"operator_free": Tokens(1)}, log, now=NOW)}
    assert poor["free"].endswith("MUST for cases and votes, too little for one (9 MUST): muster wallet deposit")


def test_lines_are_for_what_changed() -> None:
    log = log_at_work()
    before = node_rows(WORKER, log, now=NOW)
    assert changes([], before) == [
        "commitments: 11 accepted, 2 pending, 1 rejected",
        "claimable: 0 MUST, claimed 0.1 MUST",
        "verdicts: 13 accepted, 12 rejected: wrong_draw, 11 accepted",
    ]
    assert changes(before, node_rows(WORKER | {"gas_transactions": 1332}, log, now=NOW + 1, elapsed=9)) == []
    later = WORKER | {"accepted": 12, "pending": 1, "last_verdicts": ["14 accepted", "12 rejected: wrong_draw"]}
    assert changes(before, node_rows(later, log, now=NOW)) == ["commitments: 12 accepted, 1 pending, 1 rejected"]
    log.take({"event": "waiting", "what": "produce", "reason": "no more work is wanted now"}, NOW)
    assert changes(before, node_rows(WORKER, log, now=NOW)) == ["waits: no more work is wanted now"]


def test_text_of_strangers_is_escaped() -> None:
    hostile = "\x1b[2J[red]\u202e" + "x" * 400
    log = NodeLog()
    log.take({"event": "waiting", "what": "produce", "reason": hostile, "level": "warning"}, NOW)
    rows = node_rows(WORKER | {"last_verdicts": [hostile]}, log, now=NOW)
    lines = shown(hostile, rows, log, hostile, width=2_000)
    assert not {letter for line in lines for letter in line} & {"\x1b", "\u202e"}
    assert lines[0].startswith("\\x1b[2J[red]\\u202e")
    waits = next(line for line in lines if line.startswith("waits"))
    assert waits.endswith("x…")
    assert 300 < len(waits) < 340
    assert all("\x1b" not in line for line in changes([], rows))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00:00"), (-5, "00:00:00"), (59.6, "00:01:00"), (3_661, "01:01:01"), (259_200, "72:00:00")],
)
def test_countdowns(seconds: float, text: str) -> None:
    assert countdown(seconds) == text
