"""The demo's summary and report: facts in, exact values out."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from muster.chain.types import Solvency
from muster.contracts.codec import Place
from muster.contracts.wages import Claimed
from muster.protocol.messages import ListedLook, LookList, RowCheck, ValidatorTotal
from muster.protocol.metric_names import CALLS
from muster.runtime.units import Tokens
from muster.swarm.facts import drawn, looking
from muster.swarm.report import html, lead, side_by_side, table_of, terminal_summary
from muster.swarm.summary import (
    CaseResult,
    Participant,
    held_out,
    problems,
    summarise,
)
from testbed.runs.swarm_facts import CHEAT, HONEST, JUDGE, PAY, facts, looked, published, update, votes

DOCUMENT = {
    "run": 1,
    "seed": 0,
    "steps": 2,
    "wall_seconds": 123.5,
    "stage_seconds": {"prepare": 10.0, "train": 100.0, "trainer_update": 2.5, "trainer_wait": 1.0},
    "held_out": {"before": 0.5, "after": 0.6875, "tasks": 640},
    "reward": [0.25, 0.5],
    "length": [11.0, 12.0],
    "calls": [],
    "nodes": [
        {
            "name": "worker-1",
            "role": "worker",
            "honest": True,
            "address": HONEST,
            "commitments": 3,
            "rollouts": 384,
            "accepted": 3,
            "rejected": {},
            "used": 2,
            "earned": 3 * PAY,
        },
        {
            "name": "cheater",
            "role": "worker",
            "honest": False,
            "address": CHEAT,
            "commitments": 2,
            "rollouts": 256,
            "accepted": 0,
            "rejected": {"activation_mismatch": 2},
            "used": 0,
            "earned": 0,
        },
        {
            "name": "validator-1",
            "role": "validator",
            "honest": True,
            "address": JUDGE,
            "commitments": 0,
            "rollouts": 0,
            "accepted": 0,
            "rejected": {},
            "used": 0,
            "earned": PAY,
        },
    ],
    "slashes": [
        {
            "node": "cheater",
            "kind": "activation_mismatch",
            "case": 1,
            "transaction": "0x" + "0f" * 32,
            "stake_before": 100,
            "stake_after": 50,
            "bounty": 10,
            "votes": {"guilty": 2, "not_guilty": 1, "jury": 3},
            "challenger": "validator-1",
        }
    ],
    "cases": [
        {"case": 1, "node": "cheater", "kind": "activation_mismatch", "outcome": "guilty"},
        {"case": 2, "node": "cheater", "kind": "activation_mismatch", "outcome": "moot"},
    ],
    "claims": [
        {"name": "worker-1", "operator": "0x" + "a1" * 20, "committed": 3 * PAY, "voided": 0, "paid": 3 * PAY},
        {"name": "cheater", "operator": "0x" + "a2" * 20, "committed": 2 * PAY, "voided": 2 * PAY, "paid": 0},
    ],
    "voided": 2 * PAY,
    "escrow_kept": 2 * PAY,
    "solvent": True,
    "balances": 1_530,
    "owed": 1_510,
    "contracts": [
        {"contract": "Registry", "balance": 500, "owed": 500},
        {"contract": "Runs", "balance": 1_000, "owed": 990},
        {"contract": "Wages", "balance": 30, "owed": 20},
    ],
    "checkpoints": [
        {"step": 0, "root_on_chain": "0x01", "root_of_files": "0x01"},
        {"step": 1, "root_on_chain": "0x02", "root_of_files": "0x02"},
    ],
    "restarts": {},
    "looking": [looked()],
    "comparison": None,
}
"""The summary of `facts()`."""


def test_the_whole_document() -> None:
    assert summarise(facts()) == DOCUMENT


def test_all_is_well() -> None:
    assert problems(summarise(facts()), steps=2) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"updates": []}, "0 of 2 steps were trained"),
        ({"case_results": []}, "cheater cheats and was not slashed"),
        ({"lines": {CHEAT: {"used": 1}}}, "1 files of cheater, who cheats, were trained on"),
        (
            {"lines": {HONEST: {"rejected": {"malformed": 1}}}},
            "worker-1 is honest, and work of it was rejected: {'malformed': 1}",
        ),
        ({"paid": {}}, f"worker-1 was paid 0 MUST for {Tokens(3 * PAY)} less 0 MUST voided"),
        (
            {"solvency": Solvency(0, 0, 9, 10**18)},
            "the contracts hold 0.000000000000000009 MUST and owe 1 MUST",
        ),
        (
            {"checkpoints": [published(4, "0x01", "0x02")]},
            "the files of steps [4] do not hash to their roots on chain",
        ),
    ],
)
def test_problems_name_each_violation(changes: dict, sentence: str) -> None:
    assert sentence in problems(summarise(facts(**changes)), steps=2)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (looked(paid=0), f"validator-1 looks, earned {Tokens(PAY)} and was paid 0 MUST"),
        (looked(earned=0, paid=0), "validator-1 looks, earned 0 MUST and was paid 0 MUST"),
        (looked(false=1), "1 rows of validator-1, who looks, were called false"),
        (looked(honest=False, barred=True), f"validator-1 invents its looks and earned {Tokens(PAY)}"),
        (looked(honest=False, earned=0, paid=0), "validator-1 invents its looks and was not found"),
    ],
)
def test_problems_name_who_looked_in_vain_and_who_did_not_look(row: dict[str, Any], sentence: str) -> None:
    lazy = looked(name="lazy", honest=False, counted=0, false=2, barred=True, earned=0, paid=0)
    assert problems(summarise(facts(looking=[looked(), lazy])), steps=2) == []
    assert problems(summarise(facts(looking=[row])), steps=2) == [sentence]


def test_report_says_who_looked_and_who_counts_no_more() -> None:
    lazy = looked(name="lazy", honest=False, counted=0, checked=5, false=2, barred=True, earned=0, paid=0)
    heads, rows, _ = table_of(summarise(facts(looking=[looked(), lazy])), "Looks")
    assert heads == ["validator", "looked at", "counted", "rows checked", "false", "earned", "paid"]
    assert rows == [
        ("validator-1", "3", "2", "1", "0", "2 MUST", "2 MUST"),
        ("lazy, invents", "3", "0", "5", "2, counts no more", "0 MUST", "0 MUST"),
    ]


def test_looks_are_what_the_lists_say_and_pay_what_the_chain_says() -> None:
    def look(index: int, counted: int) -> ListedLook:
        about = {"validator": JUDGE, "node": HONEST, "index": index, "root": "0x" + "01" * 32, "came": 5}
        return ListedLook(**about, accepted=True, counted=counted, why=None if counted else "late")

    check = {"validator": JUDGE, "node": HONEST, "index": 0, "root": "0x" + "01" * 32, "position": 3}
    lists = [
        LookList(
            run=1,
            hour=hour,
            looks=[look(2 * hour, 0), look(2 * hour + 1, 7)],
            checks=[RowCheck(**check, outcome="true")],
            totals=[ValidatorTotal(validator=JUDGE, total=7 * (hour + 1))],
        )
        for hour in (0, 1)
    ]
    claimed = [Claimed(Place(1, bytes(32), bytes(32), 0), 1, validator, 9) for validator in (JUDGE, HONEST)]
    assert looking(lists, claimed, facts().participants) == [
        looked(looked=4, counted=2, checked=2, earned=14, paid=9),
    ]


def test_an_honest_node_that_was_slashed_is_a_problem() -> None:
    case = CaseResult(1, HONEST, "malformed", "guilty", "0x01", 100, 50, 10, votes(2, 1), JUDGE)
    assert "worker-1 is honest and was slashed" in problems(summarise(facts(case_results=[case])), steps=2)


def test_after_is_the_mean_of_the_last_three_checkpoints() -> None:
    updates = [update(i, score) for i, score in enumerate([0.5, 0.1, 0.7, 0.8, 0.9])]
    assert held_out(updates) == {"before": 0.5, "after": pytest.approx(0.8), "tasks": 640}


def test_a_checkpoint_without_a_score_does_not_count() -> None:
    updates = [update(0, 0.5), update(1, 0.6), update(2, None), update(3, 0.8)]
    assert held_out(updates)["after"] == pytest.approx(0.7)


def test_before_is_the_first_model_or_nothing() -> None:
    assert held_out([update(0, None), update(1, 0.6)])["before"] is None
    assert held_out([update(0, 0.5)])["after"] is None
    assert held_out([]) == {"before": None, "after": None, "tasks": 0}


def test_one_short_contract_is_insolvency_even_if_the_sums_agree() -> None:
    document = summarise(facts(solvency=Solvency(499, 500, 1_001, 1_000)))
    assert (document["solvent"], document["balances"], document["owed"]) == (False, 1_500, 1_500)


# --- The report


def test_the_page_has_every_chart_and_loads_nothing() -> None:
    given = facts()
    page = html(summarise(given), given)
    charts = dict(re.findall(r'<img alt="(\S+) by step" src="data:image/svg\+xml;base64,([^"]+)">', page))
    assert {name: b64decode(chart).decode() for name, chart in charts.items()} == given.charts
    assert not re.search(r"(src|href)=[\"']https?:", page)
    assert "<script" not in page


def test_a_name_with_markup_stays_text() -> None:
    participants = [Participant("<b>x</b>[red]", "worker", HONEST, HONEST)]
    given = facts(participants=participants)
    document = summarise(given)
    assert "<b>x</b>" not in html(document, given)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal_summary(document))
    assert "<b>x</b>[red]" in console.export_text()
    console.file.close()


def test_the_lead_says_what_happened() -> None:
    assert lead(summarise(facts())) == (
        "2 policy updates in 124 s; held-out score from 0.500 to 0.688 on 640 tasks never trained on; "
        "slashed: cheater; the contracts hold all they owe."
    )
    steps = [replace(update(n, 0.5, 0.5), metrics=update(n, 0.5, 0.5).metrics | {CALLS: n / 4}) for n in (1, 2, 3)]
    document = summarise(facts(updates=steps))
    assert document["calls"] == [0.25, 0.5, 0.75]
    assert "never trained on; calls of tools per answer from 0.25 to 0.75; slashed: cheater" in lead(document)


def test_only_reported_metrics_have_a_chart() -> None:
    assert drawn(facts().updates) == ["reward", "held_out/reward", "completions/mean_length"]
    assert drawn([]) == []


def test_the_picture_has_charts_side_by_side() -> None:
    parts = [f'<svg width="640" height="280"><title>{i}</title></svg>' for i in range(3)]
    assert side_by_side(parts) == (
        '<svg xmlns="http://www.w3.org/2000/svg" width="1280" height="560">'
        '<svg x="0" y="0" width="640" height="280"><title>0</title></svg>'
        '<svg x="640" y="0" width="640" height="280"><title>1</title></svg>'
        '<svg x="0" y="280" width="640" height="280"><title>2</title></svg></svg>\n'
    )
    assert side_by_side([]).startswith("<svg")
