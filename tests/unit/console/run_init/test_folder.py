"""The folder of an owner's run: edited files stay, keys are created once, and steps record progress."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from muster.chain.keys import ensure_keystore
from muster.console.run_init.choices import RunChoices
from muster.console.run_init.design import OwnerKeys, design_of
from muster.console.run_init.files import readme_text
from muster.console.run_init.folder import InitProgress, RunFolder
from muster.console.run_init.steps import (
    GAS,
    ChainStatus,
    RunMoney,
    RunOnDisk,
    owner_steps,
    step_documents,
    step_lines,
)
from muster.constants import TOKEN
from muster.errors import ConfigError
from muster.runtime.units import Ether
from muster.settings.schema import ChainSettings
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml
from muster.swarm.launch import participants
from muster.swarm.trial import VALIDATORS, TrialRun, make_node_keys

KEYS = OwnerKeys(*(f"0x{number:040x}" for number in (1, 2, 3)))
PUBLIC = RunChoices(network="base-sepolia", host="run.example.org")
MONEY = RunMoney(4_000 * TOKEN, 500 * TOKEN)


# --- Files


def test_a_file_that_a_person_edited_is_left_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    path = folder.settings("trainer")
    assert folder.write(path, "a = 1\n")
    assert folder.write(path, "a = 2\n"), "the file was not edited"
    path.write_text("a = 3 # mine\n")
    assert folder.is_edited(path)
    assert not folder.write(path, "a = 4\n")
    assert path.read_text() == "a = 3 # mine\n"
    again = RunFolder(tmp_path)
    assert again.progress == folder.progress, "what was written is on disk"
    path.write_text("a = 4\n")
    assert again.write(path, "a = 4\n")
    assert not again.is_edited(path), "the file has the expected content"
    path.unlink()
    assert again.write(path, "a = 5\n")


def test_a_file_written_before_a_kill_is_no_edit(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.settings("trainer").write_text("a = 1\n")
    assert folder.write(folder.settings("trainer"), "a = 1\n")
    assert RunFolder(tmp_path).write(folder.settings("trainer"), "a = 2\n")


def test_unreadable_progress_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.record(run=3, funded=5, wages=1)
    assert RunFolder(tmp_path).progress == InitProgress(run=3, funded=5, wages=1)
    (folder.state / "init.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        _ = RunFolder(tmp_path).progress


def test_restarted_trial_keeps_files_independent_of_its_chain(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    gone = [folder.chain, folder.addresses, folder.weights / "v", tmp_path / "nodes" / "n", tmp_path / "journals" / "j"]
    kept = [folder.key("owner"), folder.tasks / "taskset.json", folder.terms, folder.state / "models" / "m"]
    for path in (*gone, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    folder.record(run=1, funded=2, sending=True, made_of={"tasks": "sort"}, checked={"a": 9})
    folder.reset_chain()
    assert [path for path in gone if path.exists()] == []
    assert all(path.exists() for path in kept)
    assert RunFolder(tmp_path).progress == InitProgress(made_of={"tasks": "sort"}, checked={"a": 9})


# --- Keys


def test_a_key_is_made_once_with_a_password_of_its_own(tmp_path: Path) -> None:
    path, password = tmp_path / "keys" / "node.json", tmp_path / "keys" / "node.password"
    made = ensure_keystore(path, password, iterations=2)
    assert ensure_keystore(path, password).address == made.address
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, password)] == [0o600, 0o600]
    assert len(password.read_text().strip()) == 32
    other = ensure_keystore(tmp_path / "other.json", tmp_path / "other.password", iterations=2)
    assert other.address != made.address
    password.write_text("another password\n")
    with pytest.raises(ConfigError, match="wrong password"):
        ensure_keystore(path, password)


def test_a_password_whose_key_was_never_made_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "node.password").write_text("")
    made = ensure_keystore(tmp_path / "node.json", tmp_path / "node.password", iterations=2)
    assert ensure_keystore(tmp_path / "node.json", tmp_path / "node.password").address == made.address


# --- Steps


def lines(status: ChainStatus, choices: RunChoices = PUBLIC, *, marked: bool = True) -> list[str]:
    design = design_of(choices, 512)
    disk = RunOnDisk(Path("/r"), Path("/r/model"), has_calibration=True)
    return step_lines(owner_steps(design, MONEY, status, KEYS, disk), status, marked=marked).splitlines()


def test_the_steps_of_an_empty_chain_say_what_each_takes() -> None:
    price = 10**7
    said = lines(ChainStatus(reachable=True, price=price))
    owners = sum(GAS[name] for name in ("deploy", "faucet", "create", "fund", "wages"))
    need = Ether(owners * price * 5 // 2)
    assert said[0] == f"1. (to do) Give the owner ether for gas ({owners:,} gas, about {Ether(owners * price)})"
    assert said[1] == f"   send {need} or more to {KEYS.owner}: public faucets of the chain give test ether"
    deploy = GAS["deploy"]
    assert said[2] == f"2. (to do) Deploy the contracts ({deploy:,} gas, about {Ether(deploy * price)})"
    sends = "--config orchestrator.toml --operator keys/owner.json --password-file keys/owner.password"
    assert f"     muster chain deploy {sends}" in said
    create = "muster run create run.toml --model model --tasks run/tasks --calibration run/calibration.json"
    assert f"     {create} {sends}" in said
    assert f"     muster run fund 4000 RUN {sends}" in said, "a number that is not known is no other run's"
    assert f"     muster run wages fund 500 RUN {sends}" in said
    need = Ether(1_000 * GAS["publish"] * price * 5 // 2)
    assert f"   send {need} or more to {KEYS.trainer}: public faucets of the chain give test ether" in said
    assert "     muster service install --role origin --name weights --config weights.toml" in said
    assert "     muster explorer --config explorer.toml" in said
    assert "     muster service install --role explorer --config explorer.toml" in said
    assert said[-1].startswith(
        "   the run's page is http://run.example.org:8800/; volunteers join with muster up http://run.example.org:8600."
    )
    assert not any("admit" in line for line in said)


def test_completed_steps_are_marked_done() -> None:
    rich = {"reachable": True, "deployed": True, "run": 7, "price": 10**7, "owner_ether": 0, "trainer_ether": 10**18}
    said = lines(ChainStatus(**rich, funded=4_000 * TOKEN, wages=500 * TOKEN))  # type: ignore[arg-type]
    assert [line.split(")")[0] for line in said if line[0].isdigit() and ". (" in line] == [
        f"{number}. (done" for number in range(1, 8)
    ]
    partly = lines(ChainStatus(**rich, funded=1_000 * TOKEN, tokens=3_499 * TOKEN))  # type: ignore[arg-type]
    assert any(line.startswith("3. (to do) Draw test tokens") for line in partly)
    assert any(line.startswith("5. (to do) Fund its escrow") for line in partly)
    assert any(line.startswith("     muster run fund 4000 7 ") for line in partly)
    assert any(line.startswith("6. (to do) Fund the wages of looks") for line in partly)
    assert any(line.startswith("     muster run wages fund 500 7 ") for line in partly)


def test_admitter_in_the_terms_keeps_the_validator_list() -> None:
    owner = lines(ChainStatus(run=7), RunChoices(**PUBLIC.model_dump(exclude_none=True) | {"validators": "owner"}))
    assert any(line.startswith("     muster run admit OPERATOR 7 --config orchestrator.toml") for line in owner)
    address = "0x" + "ab" * 20
    other = lines(ChainStatus(run=7), RunChoices(**PUBLIC.model_dump(exclude_none=True) | {"validators": address}))
    assert f"   {address} keeps the list, and types muster run admit OPERATOR 7 for each" in other


def test_the_readme_is_the_same_whatever_gas_costs() -> None:
    design = design_of(PUBLIC, 512)
    disk = RunOnDisk(Path("/r"), Path("/elsewhere/model"), has_calibration=False)
    text = readme_text(design, Path("/r"), owner_steps(design, RunMoney(TOKEN), ChainStatus(run=2), KEYS, disk))
    assert "(to do)" not in text
    assert "muster run create run.toml --model /elsewhere/model --tasks run/tasks --config orchestrator.toml" in text
    assert "muster run fund 1 2 --config orchestrator.toml" in text
    assert "muster run wages fund" not in text, "looks are unpaid"
    document = step_documents(owner_steps(design, RunMoney(TOKEN), ChainStatus(), KEYS, disk), 0)
    assert [step["fee"] for step in document] == [None] * len(document)


# --- A trial


@pytest.fixture
def trial(tmp_path: Path) -> TrialRun:
    return TrialRun(
        folder=tmp_path,
        chain=ChainSettings(rpc_url="http://127.0.0.1:1", addresses=tmp_path / "addresses.json"),
        saved=tmp_path / "chain.json",
        services={name: tmp_path / f"{name}.toml" for name in ("orchestrator", "origin", "explorer", "trainer")},
        ports={"chain": 1, "orchestrator": 2, "origin": 3, "explorer": 4},
        orchestrator_url="http://127.0.0.1:2",
        explorer_url="http://127.0.0.1:4",
        nodes=participants(VALIDATORS, workers=2),
        validator={"stagger_seconds": 30.0},
    )


def test_every_node_of_a_trial_has_keys_and_settings_of_its_own(trial: TrialRun, tmp_path: Path) -> None:
    names = [node.name for node in trial.nodes]
    assert names == [*(f"validator-{i}" for i in (1, 2, 3, 4)), "worker-1", "worker-2"]
    keys = make_node_keys(trial)
    assert len({key.address for key in keys.values()}) == len(keys) == 12
    assert {name: key.address for name, key in make_node_keys(trial).items()} == {
        name: key.address for name, key in keys.items()
    }
    states = set()
    for name in names:
        path = tmp_path / f"{name}.toml"
        path.write_text(to_toml(trial.settings(name, 5)))
        settings = load_settings(path)
        assert (settings.run, settings.name, settings.orchestrator.url) == (5, name, "http://127.0.0.1:2")
        assert settings.keys.keystore == tmp_path / "keys" / f"{name}.json"
        states |= {settings.worker.state_dir, settings.validator.state_dir}
    assert load_settings(tmp_path / "validator-1.toml").validator.stagger_seconds == 30
    assert load_settings(tmp_path / "worker-1.toml").shardcast.share
    assert len(states) == len(names) + 2, "and the defaults of the role that each does not have"


def test_a_trials_processes_are_started_with_files_of_the_folder(trial: TrialRun, tmp_path: Path) -> None:
    orchestrator, trainer = trial.process("orchestrator"), trial.process("trainer")
    assert orchestrator.command[-3:] == ("orchestrator", "--config", str(tmp_path / "orchestrator.toml"))
    assert (orchestrator.ready_url, trainer.ready_url) == ("http://127.0.0.1:2/readyz", "")
    assert trial.process("origin").command[-3] == "muster.shardcast"
    explorer = trial.process("explorer")
    assert explorer.command[-3:] == ("explorer", "--config", str(tmp_path / "explorer.toml"))
    assert explorer.ready_url == "http://127.0.0.1:4/readyz"
    worker = trial.process("worker-2")
    assert worker.command[-2:] == ("--config", str(tmp_path / "nodes" / "worker-2" / "muster.toml"))
    secrets = [str(path) for path in (tmp_path / "keys").glob("*")]
    assert not any(secret in " ".join(worker.command) for secret in secrets)
