"""`muster run init`: from an empty folder to a run that exists and is funded; typed again, and after kills."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from muster.chain.client import Chain
from muster.chain.keys import create_keystore, read_address
from muster.console.run_init.files import SERVICES
from muster.console.run_init.steps import GAS
from muster.constants import CHAIN_BASE_SEPOLIA, TOKEN
from muster.contracts import run_terms, runs, token, wages
from muster.protocol.terms_file import read_terms
from muster.runtime.failpoints import POINTS
from muster.settings.sources import load_settings
from testbed.chain.anvil import Anvil
from testbed.machine import PASSWORD, Done, Machine
from testbed.samples.cells import calibration_of
from testbed.samples.models import DEMO, write_model
from testbed.waiting import BOUND

FEW: Final = ("--train", "24", "--held-out", "8", "--steps", "10")
"""As little as makes a task set; an escrow that one draw of the faucet pays for."""
ESCROW: Final = 2 * TOKEN
"""For ten local steps, of four files at most, at 0.05 a file."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small", DEMO)


@pytest.fixture(scope="module")
def chain(built_contracts: None) -> Iterator[Anvil]:
    with Anvil() as running:
        yield running


def bare_machine(folder: Path, anvil: Anvil) -> Machine:
    made = Machine(folder, anvil.url)
    (folder / "muster.toml").unlink()  # the folder of the run has all that it needs
    return made


@pytest.fixture
def machine(chain: Anvil, tmp_path: Path) -> Machine:
    return bare_machine(tmp_path, chain)


def words_of(chain: Anvil, model: Path) -> tuple[str, ...]:
    return ("run", "init", "mine", "--rpc-url", chain.url, "--model", str(model), *FEW, "--port", "0", "--yes")


@pytest.fixture(scope="module")
def unopened(chain: Anvil, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with its files written but not on a chain: keys, tasks and checks take seconds."""
    machine = bare_machine(tmp_path_factory.mktemp("unopened"), chain)
    nowhere = [word.replace(chain.url, "http://127.0.0.1:1") for word in words_of(chain, model)]
    failed = machine.json(*nowhere, status=5)
    assert "the files are written, but no chain answers" in failed["error"]
    assert failed["hint"].startswith(f"muster run init {machine.folder / 'mine'} --start starts one")
    assert "run" not in tomllib.loads((machine.folder / "mine" / "orchestrator.toml").read_text())
    return machine.folder / "mine"


def sent_by(anvil: Anvil, address: str) -> int:
    return int(anvil.request("eth_getTransactionCount", address, "latest"), 16)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file but the journal's and the lock, with its bytes and when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock" and path.suffix != ".sqlite"]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def escrow_of(folder: Path, run: int) -> int:
    settings = load_settings(folder / "orchestrator.toml").chain

    async def read() -> int:
        async with await Chain.connect(settings) as there:
            return (await there.call(runs.run_state(run))).balance

    return asyncio.run(read())


# --- A local run


def test_one_command_makes_a_run_that_exists_and_is_funded(machine: Machine, chain: Anvil, model: Path) -> None:
    made = machine.json(*words_of(chain, model), "--title", "Sums", "--about", "Why\nnot")
    folder = machine.folder / "mine"
    assert (made["run"], made["funded"], made["edited"], made["cautions"]) == (1, ESCROW, [], [])
    assert made["wages"] == made["economics"]["wages"] == ESCROW // 4, "of two looks, an eighth of the pay each"
    assert escrow_of(folder, 1) == ESCROW
    assert made["economics"]["step_cost"] == [TOKEN // 10, TOKEN // 5]
    assert [step["done"] for step in made["steps"][:7]] == [True] * 7

    # What is on chain is what the files say.
    new = read_terms(folder / "run.toml")
    settings = {name: load_settings(folder / f"{name}.toml") for name in SERVICES}

    async def on_chain() -> tuple[Any, Any]:
        async with await Chain.connect(settings["orchestrator"].chain) as there:
            return (await there.terms(1), await there.keys_now(1)), await there.call(runs.run_info(1))

    agreed, info = asyncio.run(on_chain())
    assert agreed == new
    keys = {name: read_address(folder / "keys" / f"{name}.json") for name in ("owner", "trainer", "storage")}
    assert (info.owner, new.keys.trainer, new.keys.storage_key) == (keys["owner"], keys["trainer"], keys["storage"])
    assert {one.run for one in settings.values()} == {1}
    assert (settings["orchestrator"].orchestrator.title, settings["orchestrator"].orchestrator.about) == (
        "Sums",
        "Why\nnot",
    )
    assert settings["orchestrator"].orchestrator.run_folder == folder / "run"
    assert made["page"] == f"{settings['orchestrator'].orchestrator.explorer_url}/"
    assert made["page"] == f"http://127.0.0.1:{settings['explorer'].explorer.port}/"
    assert settings["explorer"].orchestrator.url == settings["orchestrator"].orchestrator.url

    # Only the owner can read the keys, and the run folder for newcomers has none.
    secrets = sorted((folder / "keys").iterdir())
    assert [path.name for path in secrets] == [
        f"{name}.{kind}" for name in ("owner", "storage", "trainer") for kind in ("json", "password")
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in (folder / "run").iterdir()} >= {"tasks", "config.json", "tokenizer.json"}
    assert "muster orchestrator run --config orchestrator.toml" in (folder / "README.txt").read_text()

    # The same command with fewer options sends nothing and changes no file.
    sent, before = sent_by(chain, keys["owner"]), contents(folder)
    again = machine.json("run", "init", "mine", "--yes")
    assert (again["run"], again["funded"]) == (1, ESCROW)
    assert machine.json("run", "init", "mine")["run"] == 1, "nothing is left to agree to"
    assert sent_by(chain, keys["owner"]) == sent
    assert contents(folder) == before

    # What is no term can still be chosen, and more steps be paid for; a term cannot.
    other = machine.json("run", "init", "mine", "--yes", "--title", "Other", "--steps", "15")
    assert (other["run"], other["funded"]) == (1, 3 * TOKEN)
    assert load_settings(folder / "orchestrator.toml").orchestrator.title == "Other"
    refused = machine.json("run", "init", "mine", "--yes", "--pay", "1", status=78)
    assert "its terms can never be changed: pay, worker_stake, validator_stake, case_fee" in refused["error"]
    assert machine.json("run", "init", "mine", "--yes")["economics"]["pay"] == TOKEN // 20, (
        "what was refused is not kept"
    )

    # A settings file that was edited stays, but not with another run's number.
    trainer = folder / "trainer.toml"
    trainer.write_text(trainer.read_text().replace("eval_tasks = 64", "eval_tasks = 3"))
    kept = machine.json("run", "init", "mine", "--yes", "--steps", "20")
    assert (kept["edited"], load_settings(trainer).trainer.eval_tasks) == (["trainer.toml"], 3)
    trainer.write_text(trainer.read_text().replace("run = 1\n", "run = 2\n"))
    assert "trainer.toml is not for run 1" in machine.json("run", "init", "mine", "--yes", status=78)["error"]


def test_killed_in_between_it_goes_on_and_makes_one_run(machine: Machine, chain: Anvil, unopened: Path) -> None:
    """It dies once at each of an owner's failpoints, and is typed again in fewer words each time."""
    folder, fired = Path(shutil.copytree(unopened, machine.folder / "mine")), machine.folder / "fired"
    fired.mkdir()
    points = ("owner.deployed", "owner.created", "owner.funded")
    assert set(points) == {point for point in POINTS if point.startswith("owner.")}
    armed = {"MUSTER_FAILPOINT": ",".join(points), "MUSTER_FAILPOINT_DIR": str(fired)}
    keys = contents(folder / "keys")
    words = ("run", "init", "mine", "--yes", "--rpc-url", chain.url)
    for count in range(1, 4):
        with machine.process(*words, **armed) as process:
            assert process.end()[0] == -9, process.said
        assert sorted(os.listdir(fired)) == sorted(points[:count])
        words = ("run", "init", "mine", "--yes")
    made = machine.json(*words)
    assert (made["run"], made["funded"], escrow_of(folder, 1)) == (1, ESCROW, ESCROW)
    assert contents(folder / "keys") == keys, "no new keys"
    settings = load_settings(folder / "orchestrator.toml").chain

    async def count_runs() -> int:
        async with await Chain.connect(settings) as there:
            return await there.call(run_terms.run_count())

    assert asyncio.run(count_runs()) == 1

    # As if it had died before the folder knew: the run may be there, so its terms stay as they are.
    path = folder / ".muster" / "init.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": 0, "funded": 0}))
    assert "the run is on chain" in machine.json(*words, "--pay", "0.06", status=78)["error"]
    assert (machine.json(*words)["run"], asyncio.run(count_runs())) == (1, 1)


def test_dry_run_writes_nothing_and_creation_requires_yes(machine: Machine, chain: Anvil, model: Path) -> None:
    words = words_of(chain, model)
    shown = machine.json(*words, "--dry-run")
    assert (shown["dry_run"], shown["economics"]["escrow"]) == (True, ESCROW)
    assert not (machine.folder / "mine").exists()
    unasked = machine.json(*words[:-1], status=2)
    assert unasked["hint"] == "add --yes"
    assert not (machine.folder / "mine").exists()
    refused = machine.json(*words, "--stake", "0.1", status=78)
    assert "the term pay is 0.05 MUST and must be" in refused["error"]
    assert not (machine.folder / "mine").exists()


def test_files_written_offline_lead_to_a_run_later(machine: Machine, chain: Anvil, unopened: Path) -> None:
    folder = Path(shutil.copytree(unopened, machine.folder / "mine"))
    terms = (folder / "run.toml").read_bytes()
    assert machine.json("run", "init", "mine", "--yes", "--rpc-url", chain.url)["funded"] == ESCROW
    assert (folder / "run.toml").read_bytes() == terms


def test_an_owner_may_bring_a_wallet(machine: Machine, chain: Anvil, unopened: Path) -> None:
    folder = Path(shutil.copytree(unopened, machine.folder / "mine"))
    for kind in ("json", "password"):
        (folder / "keys" / f"owner.{kind}").unlink()
    create_keystore(machine.folder / "cold.json", PASSWORD)
    bring = ("--operator", "./cold.json", "--password-file", machine.password)
    made = machine.json("run", "init", "mine", "--yes", "--rpc-url", chain.url, *bring)
    assert (
        f"--operator {machine.folder / 'cold.json'} --password-file {machine.password}"
        in made["steps"][1]["commands"][0]
    )
    assert not (folder / "keys" / "owner.json").exists()
    assert machine.json("run", "init", "mine", "--yes")["run"] == made["run"], "it is remembered"

    async def owner() -> str:
        async with await Chain.connect(load_settings(folder / "orchestrator.toml").chain) as there:
            return (await there.call(runs.run_info(made["run"]))).owner

    assert asyncio.run(owner()) == read_address(machine.folder / "cold.json")


def test_terms_that_were_edited_by_hand_hold_until_the_run_is_on_chain(
    machine: Machine, chain: Anvil, unopened: Path
) -> None:
    folder = Path(shutil.copytree(unopened, machine.folder / "mine"))
    path = folder / "run.toml"
    path.write_text(path.read_text().replace("async_level = 2", "async_level = 4"))
    refused = machine.json("run", "init", "mine", "--yes", "--pay", "0.06", status=78)
    assert "run.toml was edited, and options would change pay" in refused["error"]
    made = machine.json("run", "init", "mine", "--yes", "--rpc-url", chain.url)
    assert made["edited"] == ["run.toml"]

    async def on_chain() -> int:
        async with await Chain.connect(load_settings(folder / "orchestrator.toml").chain) as there:
            return (await there.terms(made["run"])).async_level

    assert asyncio.run(on_chain()) == 4
    assert machine.json("run", "init", "mine", "--yes")["run"] == made["run"]


def test_a_calibration_made_elsewhere_is_named_by_the_terms(
    machine: Machine, chain: Anvil, model: Path, unopened: Path
) -> None:
    folder = Path(shutil.copytree(unopened, machine.folder / "mine"))
    words = ("run", "init", "mine", "--yes", "--rpc-url", chain.url)
    other = write_model(machine.folder / "other", DEMO, seed=2)
    (machine.folder / "calibration.json").write_bytes(calibration_of(other).to_bytes())
    wrong = machine.json(*words, "--calibration", "calibration.json", status=3)
    assert "the calibration is of model" in wrong["error"]
    (machine.folder / "calibration.json").write_bytes(calibration_of(model).to_bytes())
    machine.json(*words, "--calibration", "calibration.json")
    assert read_terms(folder / "run.toml").terms.profile == calibration_of(model).hash
    assert (folder / "run" / "calibration.json").read_bytes() == calibration_of(model).to_bytes()
    assert "--calibration run/calibration.json" in (folder / "README.txt").read_text()
    assert machine.json("run", "init", "mine", "--yes")["run"] == 1


def test_run_init_names_lost_local_chain_and_restarts(
    machine: Machine, start_anvil: Callable[..., Anvil], unopened: Path
) -> None:
    folder = Path(shutil.copytree(unopened, machine.folder / "mine"))
    first = start_anvil()
    words = ("run", "init", "mine", "--yes")
    assert machine.json(*words, "--rpc-url", first.url)["run"] == 1
    first.stop()
    start_anvil(port=first.port)
    gone = machine.json(*words, status=78)
    assert gone["error"] == "run 1 of this folder is on a chain that is not there any more"
    assert "--anew" in gone["hint"]
    keys, terms = contents(folder / "keys"), (folder / "run.toml").read_bytes()
    again = machine.json(*words, "--anew")
    assert (again["run"], again["funded"], escrow_of(folder, 1)) == (1, ESCROW, ESCROW)
    assert (contents(folder / "keys"), (folder / "run.toml").read_bytes()) == (keys, terms)


def test_on_a_terminal_it_asks(machine: Machine, chain: Anvil) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "muster", "run", "init", "mine", "--dry-run"]
    environment = {**os.environ, "HOME": str(machine.home), "TERM": "dumb"}
    process = subprocess.Popen(
        command, cwd=machine.folder, env=environment, stdin=child, stdout=subprocess.PIPE, stderr=child, text=True
    )
    os.close(child)
    os.write(parent, b"local\n\n\nDigits\n" + b"\n" * 5)
    out, _ = process.communicate(timeout=BOUND)
    said = b""
    while True:
        try:
            part = os.read(parent, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(parent)
    text = said.decode()
    assert (process.returncode, out) == (0, "nothing was written\n"), text
    assert "Network (local, base-sepolia) [local]: " in text
    assert "Make Digits in " in text
    assert "worker earns 0.05 MUST for each commitment of 64 rollouts" in text
    assert not (machine.folder / "mine").exists()


# --- A public run


@pytest.fixture
def public(start_anvil: Callable[..., Anvil], unopened: Path, tmp_path: Path) -> tuple[Machine, Anvil]:
    """A chain with Base Sepolia's id, whose endpoint the settings will name, and a folder with keys and parts."""
    anvil = start_anvil(chain_id=CHAIN_BASE_SEPOLIA)
    shutil.copytree(unopened, tmp_path / "mine")
    (tmp_path / "mine" / "choices.toml").unlink()
    return bare_machine(tmp_path, anvil), anvil


def public_words(anvil: Anvil, model: Path) -> tuple[str, ...]:
    where = ("--network", "base-sepolia", "--host", "run.example.org", "--rpc-url", anvil.url)
    return ("run", "init", "mine", *where, "--model", str(model), *FEW, "--unmeasured", "--yes")


HURRY: Final = {"MUSTER_CHAIN__POLL_SECONDS": "0.1"}
"""A public chain is polled every two seconds, and this one mines at once."""


def test_the_printed_deployment_of_a_public_run_is_typed_step_by_step(
    public: tuple[Machine, Anvil], model: Path
) -> None:
    machine, anvil = public
    folder = machine.folder / "mine"
    printed = machine.type(*public_words(anvil, model))
    assert printed.returncode == 0, printed.stderr
    owner, trainer = (read_address(folder / "keys" / f"{name}.json") for name in ("owner", "trainer"))
    assert sent_by(anvil, owner) == 0, "nothing is sent that the owner has not typed"
    assert "muster up http://run.example.org:8600" in printed.stdout
    asked = re.findall(r"send ([\d.]+) ETH or more to (0x\w+)", printed.stdout)
    assert [address for _, address in asked] == [owner, trainer]
    for amount, address in asked:
        anvil.request("anvil_setBalance", address, hex(int(float(amount) * 10**18) + 1))

    # Every command as it is printed, until the number of the run is there.
    inside = Machine.__new__(Machine)
    inside.__dict__ |= machine.__dict__ | {"folder": folder}

    def type_in(command: str, *more: str) -> Done:
        done = inside.type(*shlex.split(command)[1:], *more, **HURRY)
        assert done.returncode == 0, command + done.stderr
        return done

    commands = re.findall(r"^     (muster .+)$", printed.stdout, re.MULTILINE)
    number = commands.index("muster run init .")
    assert [command.split()[1:3] for command in commands[:number]] == [
        ["chain", "deploy"],
        ["faucet", "--config"],
        ["run", "create"],
    ]
    for command in commands[:number]:
        type_in(command, "--yes")
    assert "run" not in tomllib.loads((folder / "orchestrator.toml").read_text())
    later = type_in(commands[number]).stdout
    assert {load_settings(folder / f"{name}.toml").run for name in SERVICES} == {1}

    # The rest, now with that number.
    commands = re.findall(r"^     (muster .+)$", later, re.MULTILINE)
    (fund,) = [command for command in commands if command.startswith("muster run fund 40 1 ")]
    (wage,) = [command for command in commands if command.startswith("muster run wages fund 5 1 ")]
    type_in(fund, "--yes")
    type_in(wage, "--yes")
    for command in commands:
        if command.startswith("muster service install"):
            assert "Type=exec" in type_in(command, "--dry-run").stdout
    marks = re.findall(r"^\d+\. \(([a-z ]+)\) ", type_in("muster run init .").stdout, re.MULTILINE)
    assert marks == ["done"] * 7
    assert escrow_of(folder, 1) == 40 * TOKEN
    nonce, before = sent_by(anvil, owner), contents(folder)
    type_in("muster run init .")
    assert (sent_by(anvil, owner), contents(folder)) == (nonce, before)


def test_a_public_run_of_a_model_that_was_not_measured_says_how(public: tuple[Machine, Anvil], model: Path) -> None:
    machine, anvil = public
    words = [word for word in public_words(anvil, model) if word != "--unmeasured"]
    refused = machine.json(*words, status=78)
    assert "are not known to agree on" in refused["error"]
    assert refused["hint"] == f"muster model check {model}, or --unmeasured"


def test_a_public_run_is_sent_where_that_is_asked_for(public: tuple[Machine, Anvil], model: Path) -> None:
    machine, anvil = public
    folder = machine.folder / "mine"
    machine.json(*public_words(anvil, model))
    owner, trainer = (read_address(folder / "keys" / f"{name}.json") for name in ("owner", "trainer"))
    poor = machine.json("run", "init", "mine", "--send", "--yes", status=4)
    assert poor["kind"] == "UnfundedError"
    assert owner in poor["hint"]

    for address in (owner, trainer):
        anvil.request("anvil_setBalance", address, hex(10**18))
    sent = machine.json("run", "init", "mine", "--send", "--yes", **HURRY)
    assert (sent["run"], sent["funded"]) == (1, 40 * TOKEN)
    assert [step["done"] for step in sent["steps"][:6]] == [True] * 6
    assert {load_settings(folder / f"{name}.toml").run for name in SERVICES} == {1}
    nonce, before = sent_by(anvil, owner), contents(folder)
    assert machine.json("run", "init", "mine", "--send", "--yes")["funded"] == 40 * TOKEN
    assert (sent_by(anvil, owner), contents(folder)) == (nonce, before)
    refused = machine.json("run", "init", "mine", "--start", "--yes", status=2)
    assert refused["error"] == "a public run is started by its four processes"

    # What the steps are said to take is what they took.
    used: dict[str, int] = {}
    for number in range(1, int(anvil.request("eth_blockNumber"), 16) + 1):
        for entry in anvil.request("eth_getBlockByNumber", hex(number), True)["transactions"]:
            receipt = anvil.request("eth_getTransactionReceipt", entry["hash"])
            name = "deploy" if entry["to"] is None else entry["input"][:10]
            used[name] = used.get(name, 0) + int(receipt["gasUsed"], 16)
    selectors = {
        "faucet": token.faucet(),
        "create": run_terms.create_run((new := read_terms(folder / "run.toml")).terms.to_chain(), new.keys),
        "approve": token.approve(owner, 1),
        "fund": runs.fund(1, bytes(32), 1),
        "wages": wages.fund(1, 1),
    }
    named = {name: used["0x" + call.encode()[:4].hex()] for name, call in selectors.items()}
    measured = {
        "deploy": used["deploy"],
        "faucet": named["faucet"],
        "create": named["create"],
        "fund": named["approve"] // 2 + named["fund"],
        "wages": named["approve"] // 2 + named["wages"],
    }
    for name, gas in measured.items():
        assert gas <= GAS[name] <= 1.1 * gas, name


def test_gas_of_a_step_is_that_of_the_snapshot() -> None:
    snapshot = json.loads((Path(__file__).parents[2] / "benchmarks" / "gas.snapshot.json").read_text())
    for name, unit in (("publish", 10_000), ("deploy", 100_000)):
        assert GAS[name] == -(-snapshot[name]["median"] // unit) * unit
