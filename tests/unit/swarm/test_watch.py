"""Views of a swarm: lines with names instead of addresses, and a live view that draws any state."""

from __future__ import annotations

import io

from rich.console import Console

from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent
from muster.swarm.watch import LiveView, PlainView, process_line, run_event_line, sparkline, watcher

HONEST, CHEAT, JUDGE = "0x" + "11" * 20, "0x" + "22" * 20, "0x" + "33" * 20
PARTICIPANTS = [
    Participant("worker-1", "worker", HONEST, "0x" + "a1" * 20),
    Participant("cheater", "worker", CHEAT, "0x" + "a2" * 20, honest=False),
    Participant("validator-1", "validator", JUDGE, "0x" + "a3" * 20),
]
DOCUMENT = {
    "step": 2,
    "demand": {"wanted": True, "waiting_groups": 12},
    "steps": [
        {"step": 0, "metrics": {"held_out/reward": 0.5}, "stages": {}},
        {"step": 1, "metrics": {"reward": 0.25, "completions/mean_length": None}, "stages": {"update": 1.5}},
        {"step": 2, "metrics": {"reward": 0.5}, "stages": {"update": 2.0, "publish": 0.25}},
        {"step": 3, "metrics": {}, "stages": {}},
    ],
    "nodes": [
        {
            "address": CHEAT,
            "role": "worker",
            "status": "jailed",
            "commitments": 3,
            "accepted": 0,
            "pending": 0,
            "rejected": {"sampling_mismatch": 3},
            "accepts": 0,
            "rejections": 0,
            "slashed": 500 * 10**18,
        },
        {
            "address": JUDGE,
            "role": "validator",
            "status": "active",
            "commitments": 0,
            "accepted": 0,
            "pending": 0,
            "rejected": {},
            "accepts": 7,
            "rejections": 3,
            "slashed": 0,
        },
    ],
}


def line(kind: str, **data: object) -> str:
    return run_event_line({"kind": kind, "data": data}, PARTICIPANTS)


def test_events_in_lines() -> None:
    assert line("committed", node=HONEST, index=3, step=1) == "worker-1 committed index=3 step=1"
    assert line("rejected", node=CHEAT, index=0, reason="sampling_mismatch", validator=JUDGE) == (
        "cheater rejected index=0 reason=sampling_mismatch validator=validator-1"
    )
    assert line("convicted", node=CHEAT, slashed=500 * 10**18, bounty=100 * 10**18, to=JUDGE) == (
        "cheater convicted slashed=500 MUST bounty=100 MUST to=validator-1"
    )
    assert line("checkpoint", step=4, root="0x" + "ab" * 32) == "checkpoint step=4 root=0xabababab…"
    assert line("committed", node="0x" + "99" * 20, index=1, step=1) == "0x99999999… committed index=1 step=1"


def test_step_has_a_line_when_trained_and_when_measured() -> None:
    metrics = {"reward": 0.25, "completions/mean_length": 12.5}
    assert line("step", step=1, files=8, metrics=metrics) == "trained step=1 files=8 reward=0.250 length=12.500"
    assert (
        line("step", step=1, files=8, metrics={**metrics, "held_out/reward": 0.75}) == "measured step=1 held_out=0.750"
    )


def test_a_process_in_a_line() -> None:
    assert process_line(ProcessEvent("died", "trainer", {"status": -9})) == "trainer died (status=-9)"
    assert process_line(ProcessEvent("ended", "chain")) == "chain ended"


def test_without_a_terminal_there_is_a_line_per_event() -> None:
    out = io.StringIO()
    view = watcher(Console(file=out))
    assert isinstance(view, PlainView)
    with view:
        view.stage("deploying [bold]")
        view.process_event(ProcessEvent("ready", "chain", {"seconds": 0.2}))
        view.run_events([{"kind": "finished", "data": {"step": 3}}], PARTICIPANTS)
        view.summary(DOCUMENT, PARTICIPANTS)
    assert [text.split(" s  ")[1] for text in out.getvalue().splitlines()] == [
        "deploying [bold]",
        "chain ready (seconds=0.2)",
        "finished step=3",
    ]


def test_the_live_view_shows_step_reward_nodes_and_the_last_events() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=50)
    view = watcher(console)
    assert isinstance(view, LiveView)
    view.stage("training")
    view.summary(DOCUMENT, PARTICIPANTS)
    view.process_event(ProcessEvent("started", "[worker-1]"))
    with console.capture() as captured:
        console.print(view.render())
    text = captured.get()
    for part in ("training", "0.500", "12 groups", "publish 0.2 s", "cheater", "jailed", "3 sampling_mismatch", "500"):
        assert part in text
    assert "[worker-1] started" in text


def test_the_live_view_draws_before_anything_is_known() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    view = watcher(console)
    assert isinstance(view, LiveView)
    with view:
        view.stage("starting")
        view.summary({}, [])
        with console.capture() as captured:
            console.print(view.render())
    assert "starting" in captured.get()


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([3.0, 3.0]) == "▁▁"


def test_blocked_reason_is_printed_once_and_shown_live() -> None:
    blocked = DOCUMENT | {"blocked": "all commitments of this hour are made"}
    out = io.StringIO()
    view = PlainView(Console(file=out, width=200))
    for document in (DOCUMENT, blocked, blocked, DOCUMENT):
        view.summary(document, PARTICIPANTS)
    assert out.getvalue().count("waiting: all commitments of this hour are made") == 1
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    live = LiveView(console)
    live.summary(blocked, PARTICIPANTS)
    console.print(live.render())
    assert "waiting: all commitments of this hour are made" in out.getvalue()
