"""What a run's owner types against a real chain to close it, to take tokens out, and to change its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from muster.chain.client import Chain
from muster.chain.keys import Signer
from muster.contracts import runs
from muster.protocol.keys import ZERO_ADDRESS
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


def test_an_owner_changes_keys_after_a_notice(machine: Machine, run: int, later: Callable[[int], None]) -> None:
    words, owner = ("run", "keys", run), ("--operator", "./owner.key", "--yes")
    before, trainer, storage = machine.json("run", "show", run), Signer.random().address, Signer.random().address
    assert before["keys_change_at"] is None
    assert machine.json(*words, "--trainer", trainer, "--dry-run", *owner)["dry_run"] is True
    first = machine.json(*words, "--trainer", trainer, *owner)
    # The next adds to what is announced, and its notice is for all of it.
    later(60)
    made = machine.json(*words, "--storage-key", storage.lower(), *owner)
    assert (made["trainer"], made["storage_key"], made["admitter"]) == (trainer, storage, ZERO_ADDRESS)
    assert made["from"] >= first["from"] + 60
    shown = machine.json("run", "show", run)
    assert (shown["trainer"], shown["storage_key"]) == (before["trainer"], before["storage_key"])
    assert (shown["keys_change_at"], shown["next_trainer"]) == (made["from"], trainer)
    assert shown["next_storage_key"] == storage
    assert f'trainer = "{before["trainer"]}"' in machine.type("run", "show", run, "--terms").stdout
    later(3600)
    shown = machine.json("run", "show", run)
    assert (shown["trainer"], shown["storage_key"], shown["keys_change_at"]) == (trainer, storage, None)

    # What is refused, and why.
    assert "no key is named" in machine.json(*words, *owner, status=2)["error"]
    assert "'me' is no address" in machine.json(*words, "--trainer", "me", *owner, status=2)["error"]
    assert "name no trainer" in machine.json(*words, "--trainer", ZERO_ADDRESS, *owner, status=78)["error"]
    assert "there is no run 99" in machine.json("run", "keys", 99, "--trainer", trainer, *owner, status=3)["error"]
    refused = machine.json(*words, "--trainer", trainer, "--operator", "./operator.key", "--yes", status=4)
    assert "does not own run" in refused["error"]


def test_an_owner_funds_wages_and_takes_back_what_is_not_owed(
    machine: Machine, run: int, later: Callable[[int], None]
) -> None:
    owner = (run, "--operator", "./owner.key", "--yes")
    before = machine.json("run", "wages", "show", run)
    assert machine.json("run", "wages", "fund", "10", *owner)["amount"] == 10 * TOKEN
    shown = machine.json("run", "wages", "show", run)
    assert (shown["wages"] - before["wages"], shown["wages_owed"], shown["wages_paid"]) == (10 * TOKEN, 0, 0)
    assert machine.json("run", "show", run)["wages"] == shown["wages"]
    words = ("run", "wages", "take-back")
    assert machine.json(*words, "4", *owner)["taken_back"] is False
    waiting = machine.json(*words, "4", *owner)
    assert (waiting["taken_back"], DAY - 100 < waiting["wait_seconds"] <= DAY) == (False, True)
    assert machine.json("run", "wages", "show", run)["wages_take_back_at"] == waiting["ready_at"]
    machine.json(*words, "3", *owner)  # another amount is announced in its place
    later(DAY)
    taken = machine.json(*words, "3", *owner)
    assert (taken["taken_back"], taken["amount"]) == (True, 3 * TOKEN)
    assert machine.json("run", "wages", "show", run)["wages"] == before["wages"] + 7 * TOKEN
    later(1)
    refused = machine.json(*words, "1", run, "--operator", "./operator.key", "--yes", status=4)
    assert "does not own run" in refused["error"]
