"""Log lines about retried requests: the target, the reason, and a limited rate."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from muster.chain.provider import BoundedProvider
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import UnreachableError
from muster.runtime import retries, telemetry
from muster.runtime.retries import MAX_REMEMBERED, Repeats

ZERO_ADDRESS = "0x" + "00" * 20


def test_the_same_trouble_is_said_once_a_minute_and_counted() -> None:
    repeats = Repeats(60)
    assert [repeats.count(("chain", "gone"), now) for now in (0, 1, 59.9)] == [1, None, None]
    assert repeats.count(("chain", "slow"), 59.9) == 1, "another reason is news"
    assert repeats.count(("chain", "gone"), 60) == 3
    assert repeats.count(("chain", "gone"), 120) == 1


def test_memory_of_repeats_is_bounded() -> None:
    repeats = Repeats(60)
    for number in range(MAX_REMEMBERED + 1):
        repeats.count((str(number), "gone"), 0)
    assert repeats.count(("0", "gone"), 1) == 1, "the oldest was forgotten"
    assert repeats.count((str(MAX_REMEMBERED), "gone"), 1) is None


def test_another_number_or_hash_in_a_reason_is_no_news() -> None:
    repeats = Repeats(60)
    reasons = [
        f"block {n} is unknown; the head is 0x{n:064x}, its parent {n:064x}, {n / 7:.2f} s old" for n in range(300)
    ]
    assert [repeats.count(("chain", reason), 1) for reason in reasons] == [1] + [None] * 299
    assert repeats.count(("chain", "block 7 is known"), 1) == 1


@pytest.mark.usefixtures("kept_logging")
async def test_a_service_that_is_gone_is_named_and_its_retries_are_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_REPEATS", Repeats())
    telemetry.configure("worker", log_file=tmp_path / "log.jsonl", level="critical")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with OrchestratorClient(url, chain_id=31337, registry=ZERO_ADDRESS, timeout=5) as client:
            for _ in range(2):
                with pytest.raises(UnreachableError):
                    await client.demand(1)
        async with BoundedProvider(url, timeout=5) as provider:
            with pytest.raises(UnreachableError):
                await provider.request("eth_chainId")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["service"], line["request"], line["times"]) for line in lines] == [
        ("trying again", f"the orchestrator at {url}", "GET /v1/runs/1/demand", 1),
        ("trying again", f"the chain at {url}", "JSON-RPC", 1),
    ]
    assert all(line["reason"] == "All connection attempts failed" for line in lines)
