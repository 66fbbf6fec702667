"""A volunteer does what docs/use/join.md says, command for command, on a local chain: from no key to a retired worker.

Real chain, orchestrator, origin of weights and engine. On a local chain `muster faucet --ether` is the public faucet.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.console.money.faucet import LOCAL_ETHER
from muster.contracts.runs import WorkCommitted
from testbed.machine import PASSWORD, Machine
from testbed.paths import ROOT
from testbed.runs.world import World
from testbed.waiting import BOUND, until

PAGE = ROOT / "docs" / "use" / "join.md"
TOKEN = 10**18
ROWS = 40
"""Rows of the engine's check."""
MIN_STEP_SECONDS = 60
"""At least the run's `min_step_interval`."""


class Volunteer(Machine):
    """A machine in whose terminal the passwords are files."""

    def start(self, *words: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        return subprocess.Popen(
            [sys.executable, "-m", "muster", *words],
            cwd=self.folder,
            env=kept | {"HOME": str(self.home), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.slow
async def test_a_volunteer_follows_the_page(world: World, tmp_path: Path) -> None:
    run_fixture, machine = world.run_fixture, Volunteer(tmp_path / "volunteer", world.run_fixture.settings.rpc_url)
    (machine.folder / "muster.toml").unlink()
    password = ("--password-file", machine.password)
    operator = ("--operator", "operator", *password)

    async def say(*words: object, status: int = 0) -> Any:
        return await asyncio.to_thread(lambda: machine.json(*words, status=status))

    rehearsed = await say("up", f"{world.orchestrator.url}/join", "--dry-run")
    assert (rehearsed["run"], rehearsed["node"], rehearsed["steps"]["join"]) == (run_fixture.run, None, True)
    assert not (machine.home / ".muster").exists(), "the long way begins with nothing"
    cold = (await say("wallet", "new", "operator", *password))["address"]
    hot = (await say("wallet", "new", "worker-1", *password))["address"]
    assert (await say("config", "init", "--join", world.orchestrator.url))["run"] == run_fixture.run
    machine.secret("worker-1.password", PASSWORD)
    set_up(machine, world)

    given = await say("faucet", "--ether", "--wallet", "operator")
    assert (given["account"], given["balance"]) == (cold, LOCAL_ETHER)
    assert (await say("faucet", "--wallet", "operator", *password, "--yes"))["account"] == cold
    checks = {check["name"]: check for check in await say("doctor", status=3)}
    assert f"run {run_fixture.run} is judged by" in checks["device"]["found"]
    assert (checks["gas"]["state"], checks["gas"]["fix"]) == ("fail", f"muster faucet --ether --to {hot}")

    assert (await say("run", "show", run_fixture.run))["closed"] is False
    engine = await say("doctor", "--engine", "--rows", ROWS)
    assert (engine["rows"], engine["rejected"], engine["accused"], "error" in engine) == (ROWS, 0, 0, False)
    assert engine["probed"].startswith(f"run {run_fixture.run}, step ")
    assert engine["worst_value"] <= engine["rejected_above"]
    join = ("worker", "join", "--run", run_fixture.run, *operator)
    assert (await say(*join, "--dry-run"))["dry_run"] is True
    joined = await say(*join, "--yes")
    assert (joined["node"], joined["operator"]) == (hot, cold)
    assert (await asyncio.to_thread(lambda: machine.json("doctor")))[0]["state"] == "ok"
    assert (await say("node", "gas", "--days", "1", *operator, "--yes"))["node"] == hot
    for step in (1, 2):
        async with run_fixture.local_chain() as clock:
            await clock.advance(MIN_STEP_SECONDS)
        await run_fixture.publish_model(step)
    await works_and_sees_its_commitment(world, hot, machine, say)

    retired = await say("worker", "retire", *operator, "--yes")
    assert retired["withdrawable_at"] > 0
    assert "can be withdrawn from" in (await say("worker", "withdraw", *operator, "--yes", status=4))["error"]
    last = machine.start("worker", "run")
    said, _ = await asyncio.to_thread(last.communicate, timeout=BOUND)
    assert (last.returncode, "this worker has retired" in said, "error" in said) == (0, True, False), said


def set_up(machine: Machine, world: World) -> None:
    """Write the page's settings over what `config init` wrote."""
    path = machine.folder / "muster.toml"
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    documented = dict(re.findall(r"^(\w+) = (\S+)", block, re.MULTILINE))
    text = path.read_text()
    for name, value in documented.items():
        text, count = re.subn(rf"(?m)^(# )?{name} = .*$", f"{name} = {value}", text)
        assert count == 1, f"{name} stands in what config init writes"
    path.write_text(text + f'\n[shardcast]\nrelays = ["{world.origin.url}"]\n')


async def works_and_sees_its_commitment(world: World, node: str, machine: Volunteer, say: Any) -> None:
    """Run `worker run` until two commitments are on chain, then stop it."""
    worker = machine.start("worker", "run")
    said = ""
    try:

        async def committed() -> bool:
            assert worker.poll() is None, worker.communicate()[0][-3000:]
            return len([event for event in await world.events(WorkCommitted) if event.node == node]) >= 2

        await until(committed, "two commitments")
        assert (await say("worker", "status"))["commitments"] >= 2
    finally:
        worker.terminate()
        said, _ = await asyncio.to_thread(worker.communicate, timeout=BOUND)
        print(said[-3000:])
    assert worker.returncode == 0
    verdict = await say("worker", "why", "0")
    assert (verdict["commitment"], verdict["state"]) == (0, "not judged yet")
    assert (await say("worker", "claim"))["paid"] == 0


def test_the_commands_above_are_those_of_the_page() -> None:
    documented = set(re.findall(r"^muster (\w+(?: [a-z]+)?)", PAGE.read_text(), re.MULTILINE))
    typed = {" ".join(words) for words in re.findall(r'"(\w+)", "([a-z]+)"', Path(__file__).read_text())}
    typed |= set(re.findall(r'say\("(\w+)"', Path(__file__).read_text()))
    assert documented - {"setup worker"} <= typed  # make release types it
