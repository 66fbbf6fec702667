"""`muster run init --start`: an owner's run trains on this machine, ends at Ctrl-C, and resumes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.keys import read_address
from muster.contracts import runs
from muster.errors import ChainError
from muster.settings.sources import load_settings
from testbed.processes import Muster
from testbed.runs.swarms import processes_of
from testbed.waiting import BOUND, wait_until

SECONDS = 600
"""Longest that a trial may take to its first step, with a model that is warmed up first."""

FEW = (
    *("--levels", "3", "--train", "512", "--held-out", "32", "--workers", "1", "--steps", "200"),
    *("--batch-groups", "4", "--group-size", "8", "--groups-per-commitment", "4"),
)
"""One worker, and a file of 32 rows for a step."""


def start(folder: Path, *words: str) -> Muster:
    typed = ("run", "init", "mine", "--yes", "--start", "--json", *words)
    return Muster(typed, folder / "err", output=folder / "out", folder=folder)


def on_chain(folder: Path) -> tuple[int, list[int]]:
    """Steps of the run, and how much owner and operators have sent."""
    mine = folder / "mine"
    names = ["owner", *(path.stem for path in sorted((mine / "keys").glob("operator-of-*.json")))]
    senders = [to_checksum_address(read_address(mine / "keys" / f"{name}.json")) for name in names]

    async def read() -> tuple[int, list[int]]:
        async with await Chain.connect(load_settings(mine / "orchestrator.toml").chain) as chain:
            sent = [await chain.web3.eth.get_transaction_count(sender) for sender in senders]
            return (await chain.call(runs.run_state(1))).steps, sent

    def answered() -> tuple[int, list[int]] | None:
        with suppress(ChainError):  # an Anvil that keeps no history drops the block that it is asked about
            return asyncio.run(read())
        return None

    return wait_until(answered, "the chain answers")


def shown_by(process: Muster) -> dict[str, Any]:
    """Wait until it shows its document."""
    process.wait_until(lambda: (process.output or Path()).read_text(), "it shows the run", SECONDS)
    return process.document


def end(process: Muster, folder: Path) -> str:
    status, said = process.stop()
    assert (status, said.splitlines()[-1]) == (130, "interrupted")
    assert "SIGKILL" not in said, "every process ends on SIGINT"
    assert processes_of(folder) == []
    return said


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
def test_a_trial_trains_stops_and_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, *FEW, "--port", "0", "--title", "Digits") as process:
        shown = shown_by(process)
        assert (shown["run"], shown["network"]) == (1, "local")
        page = httpx2.get(shown["page"], timeout=BOUND, trust_env=False)
        assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
        process.wait_until(lambda: "trained step=1" in process.said, "a step is trained", SECONDS)
        steps, sent = on_chain(tmp_path)
        first = end(process, tmp_path)
    assert steps >= 2
    assert len(sent) == 6
    assert min(sent) > 0
    assert "rejected" not in first, "honest work is accepted"
    keys = {path.name: path.read_bytes() for path in (tmp_path / "mine" / "keys").iterdir()}
    assert len(keys) == 2 * (3 + 2 * 5), "of the owner, and of five nodes and their operators"

    with start(tmp_path) as process:
        again_shown = shown_by(process)
        assert (again_shown["run"], again_shown["page"]) == (1, shown["page"])
        before, again = on_chain(tmp_path)
        assert before >= steps, "the chain went on from where it was"
        assert again == sent, "nothing is deployed, created, funded or registered twice"
        process.wait_until(lambda: on_chain(tmp_path)[0] > before, "another step", SECONDS)
        end(process, tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine" / "keys").iterdir()} == keys
