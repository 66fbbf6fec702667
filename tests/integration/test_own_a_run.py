"""An owner does what docs/use/own-a-run.md says, command for command, on a chain with Base Sepolia's id.

There a raw key is refused, terms have public bounds, and acts wait for confirmations.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.chain.client import Chain
from muster.chain.keys import Signer
from muster.constants import CHAIN_BASE_SEPOLIA
from muster.contracts import token
from muster.contracts.registry import Role
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil, free_port
from testbed.http import get_json
from testbed.machine import PASSWORD, Machine
from testbed.paths import ROOT
from testbed.processes import ended
from testbed.samples.models import DEMO, write_model
from testbed.waiting import wait_until

PAGE = ROOT / "docs" / "use" / "own-a-run.md"
TOKEN = 10**18


@pytest.mark.usefixtures("built_contracts")
def test_an_owner_sets_up_a_run_on_base_sepolia(start_anvil: Callable[..., Anvil], tmp_path: Path) -> None:
    anvil = start_anvil(block_time=0.2, chain_id=CHAIN_BASE_SEPOLIA)
    machine = Machine(tmp_path, anvil.url)
    (tmp_path / "muster.toml").unlink()
    keys = ("--password-file", machine.password)
    owner = ("--operator", "owner", "--password-file", machine.password)

    machine.json("tasks", "make", "tasks", "--seed", "0", "--family", "sort", "--levels", "3,4,5,6")
    write_model(tmp_path / "model", DEMO, seed=0)
    address = {name: machine.json("wallet", "new", name, *keys)["address"] for name in ("owner", "trainer", "storage")}
    machine.json("config", "init", "--network", "base-sepolia")
    settings = tmp_path / "muster.toml"
    text = settings.read_text().replace("https://sepolia.base.org", anvil.url)
    settings.write_text(re.sub(r"(?m)^poll_seconds = 2$", "poll_seconds = 0.1", text))
    anvil.request("anvil_setBalance", address["owner"], hex(10**18))

    rehearsed = machine.json("chain", "deploy", *owner, "--dry-run")
    assert rehearsed["dry_run"] is True
    assert rehearsed["chain_id"] == CHAIN_BASE_SEPOLIA
    assert not (tmp_path / "addresses.json").exists()
    book = machine.json("chain", "deploy", *owner, "--yes")
    assert {name: book[name] for name in rehearsed["addresses"]} == rehearsed["addresses"]
    assert machine.json("chain", "show")["code"] == "as built"
    assert machine.json("faucet", "--wallet", "owner", *keys, "--yes")["account"] == address["owner"]

    places = ("--trainer", address["trainer"], "--storage-key", address["storage"])
    machine.json("run", "template", "--tasks", "tasks", "--model", "model", *places, "--out", "run.toml")
    create = ("run", "create", "run.toml", "--model", "model", "--tasks", "tasks", *owner)
    unchecked = machine.json("run", "create", "run.toml", "--model", "model", *owner, "--yes", status=2)
    assert unchecked["hint"] == "--model, --tasks", "a public chain's run is checked with both"
    assert machine.json(*create, "--dry-run")["dry_run"] is True
    created = machine.json(*create, "--yes")
    assert created["run"] == 1
    machine.json("run", "fund", "500", "1", *owner, "--yes")
    shown = machine.json("run", "show", "1")
    assert (shown["escrow"], shown["owner"], shown["closed"]) == (500 * TOKEN, address["owner"], False)
    assert shown["trainer"] == address["trainer"]
    funded = machine.json("run", "wages", "fund", "400", "1", *owner, "--yes")
    pot = machine.json("run", "wages", "show", "1")
    assert (funded["amount"], pot["wages"], pot["wages_owed"]) == (400 * TOKEN, 400 * TOKEN, 0)
    assert shown["terms"]["max_prompt_tokens"] + shown["terms"]["max_completion_tokens"] == 512, "the model's context"
    assert min(shown["terms"]["commit_phase"], shown["terms"]["reveal_phase"]) >= 13 * 3600, "a public run's phases"
    anvil.request("anvil_setBalance", address["trainer"], hex(10**18))
    serve_and_train(machine, anvil)
    assert machine.json("run", "close", "1", *owner, "--yes")["closed"] is False

    terms = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(terms.replace("max_completion_tokens = 410", "max_completion_tokens = 411"))
    assert "do not fit the model's context of 512" in machine.json(*create, "--yes", status=78)["error"]
    write_model(tmp_path / "other", DEMO)
    other = ("run", "create", "run.toml", "--model", "other", "--tasks", "tasks", *owner)
    assert "the terms name the model 0x" in machine.json(*other, "--yes", status=78)["error"]

    raw = machine.secret("raw.key", "11" * 32)
    refused = machine.type("faucet", "--wallet", raw, "--yes")
    assert refused.returncode == 78
    assert "raw" in refused.stderr


async def join_validators(anvil: Anvil, folder: Path) -> None:
    """Four validators of different operators join, for whom the trainer waits with the first step."""
    settings = ChainSettings(
        rpc_url=anvil.url, chain_id=CHAIN_BASE_SEPOLIA, addresses=folder / "addresses.json", poll_seconds=0.1
    )
    for _ in range(4):
        operator = Signer.random()
        anvil.request("anvil_setBalance", operator.address, hex(10**18))
        async with await Chain.connect(settings, operator) as chain:
            await chain.send(token.faucet())
            await chain.deposit_with_permit((await chain.terms(1)).validator_stake)
            await chain.join(Signer.random(), 1, Role.VALIDATOR, draw_tip=b"\x01" * 32)


def serve_and_train(machine: Machine, anvil: Anvil) -> None:
    """Run the page's four processes until the first step can be fetched and is shown, then stop them."""
    ports, folder = {port: str(free_port()) for port in ("8600", "8700", "8800")}, machine.folder
    chain = (folder / "muster.toml").read_text().partition("[chain]")[2].partition("\n[")[0]
    section = PAGE.read_text().partition("\n## Serve and train\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    names = ("orchestrator", "weights", "explorer", "trainer")
    for name, block, own in zip(names, blocks, ("8600", "8700", "8800", ""), strict=True):
        text = block.replace('host = "0.0.0.0"', f'host = "127.0.0.1"\nport = {ports.get(own)}')
        for port, free in ports.items():
            text = text.replace(f"run.example.org:{port}", f"127.0.0.1:{free}")
        (folder / f"{name}.toml").write_text(f"{text}[chain]{chain}\n")
    for name in ("storage", "trainer"):
        machine.secret(f"{name}.password", PASSWORD)
    (folder / "run").mkdir()
    shutil.copytree(folder / "tasks", folder / "run" / "kept")
    commands = (("orchestrator", "run"), ("weights", "serve"), ("explorer",), ("trainer", "run"))
    processes = [machine.process(*words, "--config", f"{words[0]}.toml").spawn() for words in commands]
    with ended(*processes):
        asyncio.run(join_validators(anvil, folder))

        def is_published() -> bool:
            assert all(process.is_running for process in processes), logs(folder)
            return machine.json("run", "show", "1")["steps"] > 0

        wait_until(is_published, lambda: logs(folder))
        fetched = machine.json("weights", "fetch", "--out", "fetched", "--config", "trainer.toml")
        (there,) = (folder / "fetched").rglob("model.safetensors")
        assert (fetched["step"], there.read_bytes()) == (0, (folder / "model" / "model.safetensors").read_bytes())
        assert machine.json("weights", "verify", fetched["path"], "--config", "trainer.toml")["good"]
        summary = f"http://127.0.0.1:{ports['8800']}/v1/runs/1/summary"
        wait_until(lambda: get_json(summary).get("step") == 0, lambda: logs(folder))
        assert [process.stop(signal.SIGTERM)[0] for process in processes] == [0] * 4, logs(folder)


def logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log")))


def test_the_commands_above_are_those_of_the_page() -> None:
    documented = set(re.findall(r"(?:^|&& )muster (\w+ [a-z]+)", PAGE.read_text(), re.MULTILINE))
    typed = {" ".join(words) for words in re.findall(r'"(\w+)", "(\w+)"', Path(__file__).read_text())}
    # Other tests cover these: `run init` (tests/integration/test_run_init.py), commands that need an engine
    # (tests/engine/test_examination.py, test_calibration.py, test_serve.py), the download
    # (tests/unit/authoring/models/test_fetch.py), and a change of keys (tests/integration/test_cli_owner.py).
    # `model init` takes a minute, and `run admit` needs an admitter.
    elsewhere = {
        "run init",
        "run keys",
        "model init",
        "run admit",
        "tasks filter",
        "eval model",
        "run calibrate",
        "serve model",
        "model fetch",
    }
    assert documented - elsewhere <= typed
