"""What a swarm shows while it runs: a line per event, with names instead of addresses."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from muster.swarm.summary import Participant
from muster.swarm.supervisor import ProcessEvent
from muster.swarm.watch import SwarmView, process_line, run_event_line

HONEST, CHEAT, JUDGE = "0x" + "11" * 20, "0x" + "22" * 20, "0x" + "33" * 20
PARTICIPANTS = [
    Participant("worker-1", "worker", HONEST, "0x" + "a1" * 20),
    Participant("cheater", "worker", CHEAT, "0x" + "a2" * 20, honest=False),
    Participant("validator-1", "validator", JUDGE, "0x" + "a3" * 20),
]


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


@pytest.mark.parametrize("terminal", [False, True])
def test_each_event_is_a_line(terminal: bool) -> None:
    out = io.StringIO()
    view = SwarmView(Console(file=out, width=20, force_terminal=terminal))
    view.stage("deploying [bold]")
    view.page("http://127.0.0.1:1/")
    view.process_event(ProcessEvent("ready", "chain", {"seconds": 0.2}))
    view.run_events([{"kind": "finished", "data": {"step": 3}}], PARTICIPANTS)
    assert [re.sub("\x1b\\[[0-9;]*m", "", text).split(" s  ")[1] for text in out.getvalue().splitlines()] == [
        "deploying [bold]",
        "the run's page: http://127.0.0.1:1/",
        "chain ready (seconds=0.2)",
        "finished step=3",
    ]
    assert ("\x1b[1m" in out.getvalue()) == terminal


def test_blocked_reason_is_printed_once() -> None:
    out = io.StringIO()
    view = SwarmView(Console(file=out, width=200))
    for reason in ("", "all commitments of this hour are made", "all commitments of this hour are made", ""):
        view.blocked(reason)
    assert out.getvalue().count("waiting: all commitments of this hour are made") == 1
