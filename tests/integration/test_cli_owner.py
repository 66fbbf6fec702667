"""What a run's owner types against a real chain to close it and to take tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from muster.chain.client import Chain
from muster.chain.keys import Signer
from muster.contracts import runs
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil
from testbed.machine import Machine

TOKEN = 10**18
DAY = 24 * 3600
WEEK = 7 * DAY
"""By which a run without validators delays a notice."""


@pytest.fixture
def later(own_anvil: Anvil) -> Iterator[Callable[[int], None]]:
    """Moves the chain's clock by so many seconds; what happened since is undone after the test."""
    before = own_anvil.request("evm_snapshot")

    def move(seconds: int) -> None:
        own_anvil.request("evm_increaseTime", seconds)
        own_anvil.request("evm_mine")

    yield move
    assert own_anvil.request("evm_revert", before) is True


def test_an_owner_announces_before_closing(machine: Machine, run: int, later: Callable[[int], None]) -> None:
    words = ("run", "close", run, "--operator", "./owner.key", "--yes")
    notice = machine.json(*words)
    assert (notice["closed"], notice["notice_seconds"]) == (False, 3600)
    waiting = machine.json(*words)
    assert (waiting["closed"], 3500 < waiting["wait_seconds"] - WEEK <= 3600) == (False, True)
    later(3600 + WEEK + DAY)
    assert "run 1 has an announcement; the next can be made from" in machine.json(*words, status=4)["error"]
    later(DAY)
    assert machine.json(*words)["notice_seconds"] == 3600, "the announcement has rested, and is made again"
    later(3600 + WEEK)
    assert machine.json(*words)["closed"] is True
    assert "is closed" in machine.json(*words, status=4)["error"]
    shown = machine.json("run", "show", run)
    assert (shown["closed"], shown["escrow"]) == (True, 0)


def test_after_a_pause_the_notice_starts_over(
    machine: Machine, run: int, own_anvil: Anvil, later: Callable[[int], None]
) -> None:
    """The deployer is the guardian unless the settings name another address."""
    words = ("run", "close", run, "--operator", "./owner.key", "--yes")
    machine.json(*words)

    async def pause() -> int:
        key = Signer.from_key(bytes.fromhex((machine.folder / "owner.key").read_text().strip()))
        settings = ChainSettings(rpc_url=own_anvil.url, addresses=machine.folder / "addresses.json", poll_seconds=0.05)
        async with await Chain.connect(settings, key) as guardian:
            await guardian.send(runs.pause())
            # The pause ends later than the week.
            return await guardian.call(runs.paused_until())

    later(WEEK)
    until = asyncio.run(pause())
    later(3600)
    now = int(own_anvil.request("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
    assert abs(machine.json(*words)["wait_seconds"] - (until + 3600 - now)) <= 2
    later(until + 3600 - now)
    assert machine.json(*words)["closed"] is True


def test_an_owner_takes_out_what_it_announced(machine: Machine, run: int, later: Callable[[int], None]) -> None:
    words, owner = ("run", "withdraw"), (run, "--operator", "./owner.key", "--yes")
    assert machine.json(*words, "2000", *owner)["notice_seconds"] == 3600
    waiting = machine.json(*words, "0.5", *owner)
    assert (waiting["withdrawn"], 3500 < waiting["wait_seconds"] - WEEK <= 3600) == (False, True)
    assert machine.json("run", "show", run)["withdrawal_at"] == waiting["ready_at"]
    later(3600 + WEEK)
    before = machine.json("run", "show", run)["escrow"]
    for _ in range(2):
        paid = machine.json(*words, "0.5", *owner)
        assert (paid["withdrawn"], paid["amount"]) == (True, TOKEN // 2)
    shown = machine.json("run", "show", run)
    assert (shown["escrow"], shown["closed"]) == (before - TOKEN, False)
    refused = machine.json(*words, "1", run, "--operator", "./operator.key", "--yes", status=4)
    assert "does not own run" in refused["error"]
