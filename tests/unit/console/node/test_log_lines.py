"""The state of a node from its log: the step, the rate, the reason for a wait, its verdicts and its end."""

from __future__ import annotations

from typing import Any

from muster.console.node.log_lines import GeneratedFile, NodeLog


def log_of(*lines: dict[str, Any]) -> NodeLog:
    log = NodeLog()
    for second, line in enumerate(lines):
        log.take({"level": "info", **line}, 1_000.0 + second)
    return log


def waiting(what: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"event": "waiting", "what": what, "reason": reason, **more}


def test_the_engine_and_its_step() -> None:
    log = log_of({"event": "ready"}, {"event": "starting the engine", "step": 4})
    assert (log.step, log.starting) == (4, True)
    log.take({"event": "engine started", "step": 4, "seconds": 31.2}, 0)
    assert (log.step, log.starting) == (4, False)
    log.take({"event": "weights loaded", "step": 6}, 0)
    log.take({"event": "generated", "step": 5, "tokens": 900, "seconds": 3.0}, 0)
    assert log.step == 5


def test_the_rate_while_generating_and_over_five_minutes() -> None:
    log = NodeLog()
    assert log.rate(1_000) == (0.0, 0.0)
    log.take({"event": "generated", "step": 1, "tokens": 600, "seconds": 2.0}, 600)
    log.take({"event": "generated", "step": 1, "tokens": 900, "seconds": 3.0}, 990)
    assert log.rate(1_000) == (300.0, 900 / 300)
    assert log.rate(900) == (300.0, 1_500 / 300)
    assert list(log.work) == [GeneratedFile(600, 600, 2.0), GeneratedFile(990, 900, 3.0)]
    log.take({"event": "generated", "step": 1, "tokens": "many", "seconds": None}, 995)
    log.take({"event": "generated", "step": 1, "tokens": 5, "seconds": 0.0}, 996)
    assert log.rate(1_000) == (0.0, 905 / 300), "a time of nothing has no rate"


def goes_on(what: str) -> dict[str, Any]:
    return {"event": "goes on", "what": what, "level": "debug"}


def test_why_it_waits_ends_with_the_loop_that_goes_on() -> None:
    log = log_of(
        waiting("produce", "its first step is 3"), waiting("commit", "no finished work to deliver"), {"event": "x"}
    )
    assert log.waits == "its first step is 3"
    log.take(goes_on("commit"), 0)
    assert log.waits == "its first step is 3", "another loop's"
    log.take(goes_on("produce"), 0)
    assert log.waits == ""
    log.take(waiting("commit", "CoverShort"), 0)
    assert log.waits == "CoverShort"
    log.take({"event": "ended", "exit_code": 0}, 0)
    assert log.waits == "", "it ends with its process"
    log.take(waiting("offer", "a loop that blocks no other"), 0)
    assert log.waits == ""


def test_a_validator_s_verdicts() -> None:
    lines = [
        {"event": "judged", "node": f"0x{number:040d}", "index": number, "accepted": number != 2, "reason": reason}
        for number, reason in enumerate([None, None, "wrong_draw", None, None, None, None])
    ]
    log = log_of(waiting("preparation", "no checkpoint yet"), goes_on("preparation"), *lines)
    assert (log.accepted, log.rejected, log.waits) == (6, 1, "")
    assert list(log.judged) == [
        "0x000000…:6 accepted",
        "0x000000…:5 accepted",
        "0x000000…:4 accepted",
        "0x000000…:3 accepted",
        "0x000000…:2 rejected: wrong_draw",
    ]


def test_new_process_resets_the_state_but_keeps_warnings() -> None:
    warning = {"level": "warning", "event": "the key is low on gas"}
    log = log_of(
        warning,
        {"event": "judged", "accepted": True},
        {"event": "generated", "step": 9, "tokens": 9, "seconds": 1},
        waiting("produce", "x"),
        {"event": "ended", "error": "crashed", "exit_code": 1},
    )
    assert log.ended is not None
    assert log.ended["error"] == "crashed"
    log.take({"event": "ready", "level": "info"}, 0)
    assert (log.step, log.accepted, list(log.work), log.waits, log.ended) == (None, 0, [], "", None)
    assert (list(log.warnings), log.warned) == ([warning], 1)


def test_only_the_last_warnings_are_kept() -> None:
    log = log_of(*({"event": f"warning {number}", "level": "error"} for number in range(7)))
    assert [line["event"] for line in log.warnings] == ["warning 4", "warning 5", "warning 6"]
    assert log.warned == 7
