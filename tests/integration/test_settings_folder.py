"""A settings file means the same from every folder. Real commands and a real orchestrator, started from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from testbed.machine import Machine
from testbed.processes import MUSTER, clean_environment
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.waiting import BOUND


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, in a separate process."""
    command = [*MUSTER, *words]
    return subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=BOUND)


def test_commands_find_keys_and_contracts_from_every_folder(machine: Machine, tmp_path: Path) -> None:
    settings = machine.folder / "beside.toml"
    rpc_url = (machine.folder / "muster.toml").read_text().partition("rpc_url = '")[2].partition("'")[0]
    settings.write_text(
        f"[chain]\nrpc_url = '{rpc_url}'\naddresses = 'addresses.json'\n[keys]\nraw_key_file = 'node.key'\n"
    )
    for folder, given in ((machine.folder, "beside.toml"), (tmp_path, str(settings))):
        done = typed(folder, "doctor", "--json", "--config", given)
        checks = {check["name"]: check for check in json.loads(done.stdout)}
        assert checks["chain"]["state"] == "ok", checks["chain"]
        assert (checks["key"]["state"], Path(checks["key"]["found"]).name) == ("ok", "node.key")
        shown = typed(folder, "config", "show", "--json", "--config", given)
        rows = {row["key"]: (row["value"], row["source"]) for row in json.loads(shown.stdout)}
        assert rows["keys.raw_key_file"] == (str(machine.folder / "node.key"), given)
        assert rows["worker.state_dir"] == (str(machine.folder / ".muster/worker"), "default")
        assert rows["orchestrator.storage_url"] == (f"file:{machine.folder}/.muster/storage", "default")
        assert rows["orchestrator.database_url"] == (
            f"sqlite:///{machine.folder}/.muster/orchestrator.db",
            "default",
        )


def test_a_first_file_says_the_same_from_every_folder(tmp_path: Path) -> None:
    node, elsewhere = tmp_path / "node", tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = typed(tmp_path, "config", "init", "--network", "base-sepolia", "--config", "node/muster.toml")
    assert made.returncode == 0
    text = (node / "muster.toml").read_text()
    assert 'addresses = "addresses.json"' in text
    shown = typed(elsewhere, "config", "show", "--json", "--config", "../node/muster.toml")
    (addresses,) = (row for row in json.loads(shown.stdout) if row["key"] == "chain.addresses")
    assert Path(addresses["value"]).resolve() == node / "addresses.json"
    assert addresses["source"] == "../node/muster.toml"


def test_an_orchestrator_keeps_its_files_beside_its_settings(deployment: Any, tmp_path: Path) -> None:
    run_fixture = asyncio.run(RunFixture.build(tmp_path, deployment.settings, seed="beside", workers=()))
    orchestrator = Orchestrator(run_fixture, tmp_path / "place")
    text = orchestrator.config.read_text()
    relative = text.replace(f"sqlite:///{orchestrator.folder}/", "sqlite:///").replace(f"{orchestrator.folder}/", "")
    assert 'storage_url = "file:storage"' in relative
    assert 'database_url = "sqlite:///orchestrator.db"' in relative
    orchestrator.config.write_text(relative)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with contextlib.chdir(elsewhere):
        orchestrator.start()
    assert orchestrator.stop()[0] == 0
    assert list(elsewhere.iterdir()) == []
    kept = {path.name for path in orchestrator.folder.iterdir()}
    assert kept >= {"orchestrator.db", "storage", "state", "log.jsonl"}
