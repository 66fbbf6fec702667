"""The feed: which events are told, in which words, and that routine is not."""

from __future__ import annotations

from typing import Any

import pytest

from muster.constants import TOKEN
from muster.protocol.messages import Demand
from orchestrator.page.feed import feed_lines, state_sentence
from orchestrator.summary import EventLine

NODE, JUDGE = "0x00000000000000000000000000000000000000A1", "0x00000000000000000000000000000000000000B2"
NAMES = {JUDGE: "judge \u202eone"}


def told(kind: str, data: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return who, text, link and tone of an event's line; nothing where it has none."""
    lines = feed_lines([EventLine(id=7, kind=kind, time=1.5, data=data)], NAMES)
    assert all((line.id, line.time, line.kind) == (7, 1.5, kind) for line in lines)
    return [(line.who, line.text, line.href, line.tone) for line in lines]


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        (
            "joined",
            {"node": NODE, "operator": JUDGE, "role": "worker"},
            ("0x0000…00A1", "joins as a worker", f"/nodes/{NODE}", "good"),
        ),
        (
            "claimed",
            {"node": NODE, "amount": 3 * TOKEN},
            ("0x0000…00A1", "is paid 3", f"/nodes/{NODE}", "good"),
        ),
        (
            "case opened",
            {"node": NODE, "index": 4, "kind": "wrong_reward", "challenger": JUDGE, "case": 9},
            (
                "0x0000…00A1",
                "is accused of wrong reward in commitment 4, by judge \\u202eone",
                "/court/9",
                "warn",
            ),
        ),
        (
            "case ended",
            {"node": NODE, "index": 4, "case": 9, "outcome": "not_guilty", "guilty": 1, "reveals": 3, "jury": 3},
            ("0x0000…00A1", "case 9 ended: not guilty, 1 of 3 votes guilty", "/court/9", "plain"),
        ),
        (
            "convicted",
            {"node": NODE, "slashed": 50 * TOKEN, "bounty": TOKEN, "to": JUDGE},
            ("0x0000…00A1", "is convicted: 50 of its stake are gone, its pay is void", f"/nodes/{NODE}", "bad"),
        ),
        (
            "rejected",
            {"node": NODE, "index": 4, "reason": "sampling_mismatch", "validator": JUDGE},
            (
                "0x0000…00A1",
                "commitment 4 is rejected for sampling mismatch, by judge \\u202eone",
                f"/nodes/{NODE}/4",
                "warn",
            ),
        ),
        (
            "step",
            {"step": 12, "metrics": {"reward": 0.5, "held_out/reward": 0.75}, "files": 16},
            ("", "Step 12: reward 0.5, held out 0.75", "/steps/12", "good"),
        ),
        ("step", {"step": 3, "metrics": {}, "files": 16}, ("", "Step 3: from 16 files", "/steps/3", "plain")),
        ("finished", {"step": 50}, ("", "Training is finished at step 50", "/", "good")),
        (
            "relay misbehaved",
            {"relay": "http://x\x1b[31m", "by": NODE, "root": "0x", "why": "", "evidence": ""},
            ("", "A relay sent wrong bytes: http://x\\x1b[31m", "/leaderboard?list=others", "warn"),
        ),
    ],
)
def test_what_is_notable_is_a_sentence_with_a_link(kind: str, data: dict[str, Any], line: tuple) -> None:
    assert told(kind, data) == [line]


@pytest.mark.parametrize("kind", ["committed", "sealed", "voted", "checkpoint", "unheard of"])
def test_routine_is_left_out(kind: str) -> None:
    assert told(kind, {"node": NODE, "index": 1, "step": 1, "hour": 3, "case": 1, "guilty": True}) == []


def test_a_commitment_is_told_to_be_rejected_once() -> None:
    data = {"node": NODE, "index": 4, "reason": "wrong_reward", "validator": JUDGE}
    assert len(told("rejected", data | {"rejections": 1})) == 1
    assert told("rejected", data | {"rejections": 2}) == []


def test_lines_keep_the_order_of_the_events() -> None:
    events = [
        EventLine(id=i, kind=kind, time=i, data={"node": NODE})
        for i, kind in enumerate(("retired", "committed", "withdrawn"))
    ]
    assert [line.kind for line in feed_lines(events, {})] == ["retired", "withdrawn"]


def test_what_the_swarm_waits_for_is_a_sentence() -> None:
    def said(wanted: bool = True, blocked: str = "", *, finished: bool = False) -> tuple[str, str]:
        demand = Demand(run=1, step=4, wanted=wanted, waiting_groups=1_024)
        return state_sentence(step=4_000, finished=finished, blocked=blocked, demand=demand)

    assert said() == ("Work goes on: 1,024 groups wait for the trainer, and it wants more.", "go")
    assert said(wanted=False) == ("Enough work: 1,024 groups wait for the trainer, and it wants no more for now.", "go")
    assert said(blocked="no worker is registered") == ("Waiting: no worker is registered.", "wait")
    assert said(blocked="training is finished", finished=True) == ("Training is finished at step 4,000.", "done")
