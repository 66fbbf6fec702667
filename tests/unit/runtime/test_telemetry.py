"""Telemetry: JSON lines in the file, short lines for people, third parties quiet."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from muster.runtime import telemetry

pytestmark = pytest.mark.usefixtures("kept_logging")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_call_gives_a_json_line_and_a_short_line(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "logs" / "worker.jsonl"
    telemetry.configure("worker-1", log_file=path, stream=stream)
    telemetry.logger("worker").info("committed", step=3, root=b"\x01" * 32, loss=1.23456)
    (line,) = lines(path)
    assert line.pop("time").endswith("Z")
    assert line == {
        "process": "worker-1",
        "level": "info",
        "event": "committed",
        "step": 3,
        "root": "0x" + "01" * 32,
        "loss": 1.23456,
    }
    assert stream.getvalue()[8:] == " worker-1 committed step=3 root=0x01010101… loss=1.235\n"


def test_process_goes_on_in_a_new_file_where_the_log_was_rotated(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    telemetry.configure("worker", log_file=path, stream=io.StringIO())
    telemetry.logger("worker").info("before")
    path.rename(tmp_path / "x.jsonl.1")
    telemetry.logger("worker").info("after")
    assert [line["event"] for file in ("x.jsonl.1", "x.jsonl") for line in lines(tmp_path / file)] == [
        "before",
        "after",
    ]


def test_lines_about_a_request_have_its_id(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "x.jsonl"
    telemetry.configure("orchestrator", log_file=path, stream=stream)
    with telemetry.about_request("1f2e"):
        telemetry.logger("orchestrator").info("uploaded")
        logging.getLogger("uvicorn").warning("third party")
    telemetry.logger("orchestrator").info("read a block")
    assert [line.get("request_id") for line in lines(path)] == ["1f2e", "1f2e", None]


def test_request_ids_are_bounded() -> None:
    assert telemetry.request_id("A-1") == "A-1"
    assert telemetry.request_id("a" * 64) == "a" * 64
    for given in ("", "a" * 65, "a b", "a\n", "ä", 'a"b'):
        assert re.fullmatch("[0-9a-f]{16}", telemetry.request_id(given))
    assert telemetry.request_id() != telemetry.request_id()


def test_debug_goes_to_the_file_only(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "x.jsonl"
    telemetry.configure("trainer", log_file=path, stream=stream)
    telemetry.logger("trainer").debug("detail")
    assert [line["event"] for line in lines(path)] == ["detail"]
    assert stream.getvalue() == ""


def test_third_parties_speak_from_warning_upwards(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "x.jsonl"
    telemetry.configure("trainer", log_file=path, stream=stream)
    logging.getLogger("web3.providers").info("chatter")
    logging.getLogger("web3.providers").warning("broken %s", "pipe")
    assert [(line["event"], line["level"]) for line in lines(path)] == [("broken pipe", "warning")]
    assert stream.getvalue()[8:] == " trainer warning: broken pipe logger=web3.providers\n"


def test_known_harmless_warnings_are_lines_for_debugging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that imported vLLM before it configured its log has vLLM's own settings.
    caplog.set_level(logging.WARNING, "vllm")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    stream, path = io.StringIO(), tmp_path / "x.jsonl"
    telemetry.configure("worker-1", log_file=path, stream=stream)
    layers = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    for name in ("RotaryEmbedding", "ParallelLMHead", "Linear"):
        layers.warning("%s: Failed to load weights", name)
    logging.getLogger("vllm").warning("RotaryEmbedding: Failed to load weights")
    assert [line["level"] for line in lines(path)] == ["debug", "debug", "warning", "warning"]
    shown = stream.getvalue().splitlines()
    assert [line.split("warning: ")[1].split(":")[0] for line in shown] == ["Linear", "RotaryEmbedding"]


def test_a_traceback_is_in_the_file_and_on_stderr_only_when_debugging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for debug in ("", "1"):
        monkeypatch.setenv("MUSTER_DEBUG", debug)
        stream, path = io.StringIO(), tmp_path / f"x{debug}.jsonl"
        telemetry.configure("trainer", log_file=path, stream=stream)
        try:
            raise ValueError("no")
        except ValueError:
            telemetry.logger("trainer").exception("failed")
        assert "ValueError: no" in lines(path)[0]["exception"]
        assert ("Traceback" in stream.getvalue()) is bool(debug)


def test_configuring_again_replaces_the_first(tmp_path: Path) -> None:
    first, second = io.StringIO(), io.StringIO()
    telemetry.configure("a", stream=first)
    telemetry.configure("b", stream=second)
    telemetry.logger("x").info("once")
    assert (first.getvalue(), second.getvalue()[8:]) == ("", " b once\n")


def test_metrics_carry_the_prefix() -> None:
    telemetry.counter("test_things", "Things seen.").inc(2)
    assert b"muster_test_things_total 2.0" in generate_latest(telemetry.REGISTRY)
