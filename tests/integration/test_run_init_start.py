"""`muster run init --start`: an owner's run trains on this machine, ends at Ctrl-C, and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.console.money.wallet import read_address
from muster.contracts import runs
from muster.settings.sources import load_settings
from testbed.commands import clean_environment
from testbed.runs.demo_process import processes_of
from testbed.waiting import BOUND

SECONDS = 600
"""Longest that a trial may take to its first step, with a model that is warmed up first."""

FEW = (
    *("--levels", "3", "--train", "512", "--held-out", "32", "--workers", "1", "--steps", "200"),
    *("--batch-groups", "4", "--group-size", "8", "--groups-per-commitment", "4"),
)
"""One worker, and a file of 32 rows for a step."""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "muster", "run", "init", "mine", "--yes", "--start", "--json", *words],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )


def wait_for(process: subprocess.Popen[str], folder: Path, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert process.poll() is None, (folder / "err").read_text()[-6000:]
        assert time.monotonic() < deadline, (folder / "err").read_text()[-6000:]
        time.sleep(0.5)


def on_chain(folder: Path) -> tuple[int, list[int]]:
    """Steps of the run, and how much owner and operators have sent."""
    mine = folder / "mine"
    names = ["owner", *(path.stem for path in sorted((mine / "keys").glob("operator-of-*.json")))]
    senders = [to_checksum_address(read_address(mine / "keys" / f"{name}.json")) for name in names]

    async def read() -> tuple[int, list[int]]:
        async with await Chain.connect(load_settings(mine / "orchestrator.toml").chain) as chain:
            sent = [await chain.web3.eth.get_transaction_count(sender) for sender in senders]
            return (await chain.call(runs.run_state(1))).steps, sent

    return asyncio.run(read())


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out").read_text())


def end(process: subprocess.Popen[str], folder: Path) -> str:
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND) == 130
    said = (folder / "err").read_text()
    assert said.splitlines()[-1] == "interrupted"
    assert "SIGKILL" not in said, "everybody ends when told to"
    assert processes_of(folder) == []
    return said


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_a_trial_trains_stops_and_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, *FEW, "--port", "0", "--title", "Digits") as process:
        wait_for(process, tmp_path, lambda: bool((tmp_path / "out").read_text()))
        shown = told(tmp_path)
        assert (shown["run"], shown["network"]) == (1, "local")
        page = httpx2.get(shown["page"], timeout=BOUND, trust_env=False)
        assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
        wait_for(process, tmp_path, lambda: "trained step=1" in (tmp_path / "err").read_text())
        steps, sent = on_chain(tmp_path)
        first = end(process, tmp_path)
    assert steps >= 2
    assert len(sent) == 6
    assert min(sent) > 0
    assert "rejected" not in first, "honest work is accepted"
    keys = {path.name: path.read_bytes() for path in (tmp_path / "mine" / "keys").iterdir()}
    assert len(keys) == 2 * (3 + 2 * 5), "of the owner, and of five nodes and their operators"

    with start(tmp_path) as process:
        wait_for(process, tmp_path, lambda: bool((tmp_path / "out").read_text()))
        assert (told(tmp_path)["run"], told(tmp_path)["page"]) == (1, shown["page"])
        before, again = on_chain(tmp_path)
        assert before >= steps, "the chain went on from where it was"
        assert again == sent, "nothing is deployed, created, funded or registered twice"
        wait_for(process, tmp_path, lambda: on_chain(tmp_path)[0] > before)
        end(process, tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine" / "keys").iterdir()} == keys
