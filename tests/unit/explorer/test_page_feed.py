"""The feed: which events it shows, with which words, and that it leaves routine out."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.feed import feed_lines, folded, state_sentence
from muster.constants import TOKEN
from muster.ledger.events import EventLine
from muster.protocol.messages import Demand

NODE, JUDGE = "0x00000000000000000000000000000000000000A1", "0x00000000000000000000000000000000000000B2"
NAMES = {JUDGE: "judge \u202eone"}


def lines_of(kind: str, data: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return who, text, link and tone of the event's line; empty if it has no line."""
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
            ("0x0000…00A1", "is paid 3 MUST", f"/nodes/{NODE}", "good"),
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
            ("0x0000…00A1", "is convicted: 50 MUST of its stake are gone, its pay is void", f"/nodes/{NODE}", "bad"),
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
        ("step", {"step": 0, "metrics": {}, "files": 0}, ("", "Step 0: the model to begin with", "/steps/0", "plain")),
        (
            "step",
            {"step": 47, "metrics": {}, "files": 0},
            ("", "Step 47: the same weights, published again without new work", "/steps/47", "plain"),
        ),
        ("finished", {"step": 50}, ("", "Training is finished at step 50", "/", "good")),
        (
            "relay misbehaved",
            {"relay": "http://x\x1b[31m", "by": NODE, "root": "0x", "why": "", "evidence": ""},
            ("", "A relay sent wrong bytes: http://x\\x1b[31m", "/leaderboard?list=others", "warn"),
        ),
    ],
)
def test_notable_event_is_a_sentence_with_a_link(kind: str, data: dict[str, Any], line: tuple) -> None:
    assert lines_of(kind, data) == [line]


@pytest.mark.parametrize("kind", ["committed", "sealed", "voted", "checkpoint", "unheard of"])
def test_routine_is_left_out(kind: str) -> None:
    assert lines_of(kind, {"node": NODE, "index": 1, "step": 1, "hour": 3, "case": 1, "guilty": True}) == []


def test_rejected_commitment_has_one_line() -> None:
    data = {"node": NODE, "index": 4, "reason": "wrong_reward", "validator": JUDGE}
    assert len(lines_of("rejected", data | {"rejections": 1})) == 1
    assert lines_of("rejected", data | {"rejections": 2}) == []


@pytest.mark.parametrize(
    ("kind", "data", "who", "text", "href"),
    [
        ("committed", {"node": NODE, "index": 4}, "0x0000…00A1", "commits work 4", f"/nodes/{NODE}/4"),
        ("sealed", {"node": NODE, "hour": 3}, "0x0000…00A1", "seals the hour Jan 01, 03:00", f"/nodes/{NODE}"),
        ("voted", {"judge": JUDGE, "case": 9, "guilty": True}, "judge \\u202eone", "votes in case 9", "/court/9"),
        ("checkpoint", {"step": 5, "root": "0x"}, "", "Step 5 is on chain", "/steps/5"),
    ],
)
def test_page_of_all_events_includes_routine(kind: str, data: dict[str, Any], who: str, text: str, href: str) -> None:
    (line,) = feed_lines([EventLine(id=7, kind=kind, time=1.5, data=data)], NAMES, routine=True)
    assert (line.who, line.text, line.href) == (who, text, href)


def test_steps_between_other_events_fold_into_one_line() -> None:
    def step(number: int, reward: float) -> tuple[str, dict[str, Any]]:
        return "step", {"step": number, "metrics": {"reward": reward}, "files": 2}

    events = [step(1, 0.1), step(2, 0.2), ("retired", {"node": NODE}), step(3, 0.3), step(2, 0.4), step(3, 0.5)]
    lines = [EventLine(id=i, kind=kind, time=i, data=data) for i, (kind, data) in enumerate(events)]
    assert [(line.id, line.text, line.href) for line in folded(feed_lines(lines[::-1], {}))] == [
        (5, "Steps 2 to 3; the last: reward 0.5", "/steps/3"),
        (2, "retires", f"/nodes/{NODE}"),
        (0, "Step 1: reward 0.1", "/steps/1"),
    ]


def test_lines_keep_the_order_of_the_events() -> None:
    events = [
        EventLine(id=i, kind=kind, time=i, data={"node": NODE})
        for i, kind in enumerate(("retired", "committed", "withdrawn"))
    ]
    assert [line.kind for line in feed_lines(events, {})] == ["retired", "withdrawn"]


def test_state_sentence_names_what_the_swarm_waits_for() -> None:
    def said(wanted: bool = True, blocked: str = "", **more: Any) -> tuple[str, str]:
        demand = Demand(run=1, step=4, wanted=wanted, waiting_groups=1_024)
        return state_sentence(**{"step": 4_000, "finished": False, "blocked": blocked, "demand": demand, **more})

    assert said() == ("Work continues: 1,024 groups wait for the trainer, and it wants more.", "go")
    assert said(stale=True) == ("What the swarm does now is not known: chain or log are not read.", "wait")
    assert said(unended=0.49)[1] == "go"
    assert said(unended=0.984) == ("Little is learnt: 98.4 % of completions never end their thinking.", "wait")
    assert said(wanted=False) == ("Enough work: 1,024 groups wait for the trainer, and it wants no more for now.", "go")
    assert said(blocked="no worker is registered") == ("Waiting: no worker is registered.", "wait")
    assert said(blocked="training is finished", finished=True) == ("Training is finished at step 4,000.", "done")
