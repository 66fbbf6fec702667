"""The command line against a real chain: what it prints, what it asks, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.chain.keys import Signer
from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.errors import EXIT_CODES
from muster.protocol.hashes import hex_hash
from muster.protocol.terms import WorkClass, run_hash
from muster.protocol.terms_file import LOCAL_DEFAULTS, read_terms, write_terms
from testbed.http import Reply, serving
from testbed.machine import Machine
from testbed.samples.terms import keys_of, terms_of
from testbed.waiting import BOUND

TOKEN = 10**18


# --- Reading


def test_show_has_exact_money_in_json_and_tokens_for_people(machine: Machine, run: int) -> None:
    shown = machine.json("run", "show", run)
    assert (shown["escrow"], shown["pay"], shown["closed"]) == (1_500_500_000_000_000_000_000, TOKEN // 20, False)
    assert shown["terms"]["group_size"] == 16
    text = machine.type("run", "show", run).stdout
    assert "1,500.5 MUST" in text
    assert "anyone who locks a stake" in text
    assert (shown["burned_by_a_conviction"], shown["bounty"]) == (400 * TOKEN, 100 * TOKEN)
    assert "from one conviction in 8,000 false commitments on" in text
    assert [row["run"] for row in machine.json("run", "list")] == [run]

    # Its hash is of the owner and the terms file that it prints.
    file = machine.folder / "shown.toml"
    file.write_text(machine.type("run", "show", run, "--terms").stdout)
    assert shown["run_hash"] == hex_hash(run_hash(shown["owner"], *read_terms(file)))


def test_the_books_are_covered(machine: Machine, run: int) -> None:
    shown = machine.json("chain", "show")
    assert (shown["solvent"], shown["runs_tokens"], shown["runs_books"]) == (True, 1500_500 * 10**15, 1500_500 * 10**15)


def test_settings_tell_where_they_come_from(machine: Machine) -> None:
    done = machine.type("config", "show", "--json", MUSTER_CHAIN__POLL_SECONDS="2")
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert rows["chain.poll_seconds"]["source"] == "MUSTER_CHAIN__POLL_SECONDS"
    assert rows["chain.rpc_url"]["source"] == "muster.toml"
    assert rows["chain.confirmations"]["source"] == "default"


def test_init_writes_a_file_that_loads_and_refuses_to_replace_it(machine: Machine) -> None:
    path = machine.folder / "fresh.toml"
    machine.json("config", "init", "--config", path, "--network", "base-sepolia")
    shown = shown_setting(machine, path, "chain.chain_id")
    assert (shown["value"], shown["source"]) == ("84532", str(path))
    assert len(path.read_text().splitlines()) < 25
    set_there = {line.split(" = ")[0] for line in path.read_text().splitlines() if " = " in line}
    assert {"run", "rpc_url", "chain_id", "addresses", "# keystore", "# password_file", "url"} <= set_there
    again = machine.json("config", "init", "--config", path, status=78)
    assert again["error"] == f"{path} exists"


def shown_setting(machine: Machine, path: Path, key: str) -> dict[str, Any]:
    return {row["key"]: row for row in machine.json("config", "show", "--config", path)}[key]


def test_help_has_the_exit_codes(machine: Machine) -> None:
    said = " ".join(machine.type("--help").stdout.split())
    assert EXIT_CODES in said
    for code in (0, 1, 2, 3, 4, 5, 78, 130):
        assert re.search(rf"\b{code} [a-z]", EXIT_CODES)


# --- Keys


def test_wallets_are_made_once_with_mode_0600(machine: Machine) -> None:
    made = machine.json("wallet", "new", "cold", "--password-file", machine.password)
    path = machine.home / ".muster" / "keys" / "cold.json"
    assert made["keystore"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert machine.json("wallet", "show", "cold")["address"] == made["address"]
    again = machine.json("wallet", "new", "cold", "--password-file", machine.password, status=78)
    assert "is not overwritten" in again["error"]


def test_a_keystore_without_address_hides_no_other_wallet(machine: Machine) -> None:
    made = machine.json("wallet", "new", "one", "--password-file", machine.password)
    keys = machine.home / ".muster" / "keys"
    document = json.loads((keys / "one.json").read_text())
    del document["address"]
    (keys / "two.json").write_text(json.dumps(document))
    (keys / "three.json").write_text("[]")
    rows = {row["wallet"]: row["address"] for row in machine.json("wallet", "show")}
    assert (rows["one"], rows["two"], rows["three"]) == (made["address"], "unknown", "unknown")
    assert machine.json("wallet", "show", "two")["address"] == "unknown"
    assert "is not a keystore" in machine.json("wallet", "show", "three", status=78)["error"]


def test_an_imported_key_is_the_same_key_and_stays_out_of_sight(machine: Machine) -> None:
    key = os.urandom(32)
    words = ("wallet", "import", machine.folder / "imported.json", "--password-file", machine.password)
    done = machine.type(*words, "--json", typed=key.hex() + "\n")
    assert json.loads(done.stdout)["address"] == Signer.from_key(key).address
    assert key.hex() not in done.stdout + done.stderr + (machine.folder / "imported.json").read_text()


def test_a_new_key_without_a_terminal_needs_a_password_file(machine: Machine) -> None:
    assert machine.json("wallet", "new", "other", status=2)["hint"] == "add --password-file"
    (machine.folder / "trainer").mkdir()
    made = machine.json("wallet", "new", "trainer", "--password-file", machine.password)
    assert made["keystore"] == str(machine.home / ".muster" / "keys" / "trainer.json"), "not the folder of that name"


# --- Joining and leaving


def test_a_worker_joins_sees_its_state_and_leaves(machine: Machine, run: int) -> None:
    operator, node = ("--operator", "./operator.key"), ("--node", "./node.key")
    join = ("worker", "join", "--no-check", *operator, *node, "--run", run)
    address = Signer.from_key((machine.folder / "node.key").read_text().strip()).address

    asked = machine.type(*join)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "1,000 MUST, of which a conviction takes 50%" in asked.stderr
    assert "next: add --yes" in asked.stderr

    rehearsed = machine.json(*join, "--dry-run")
    assert rehearsed["dry_run"] is True
    assert machine.json("worker", "status", "--node", address, status=78)["error"] == f"{address} has joined no run"

    joined = machine.json(*join, "--yes")
    assert (joined["node"], joined["stake"]) == (address, 1_000 * TOKEN)
    assert joined["transaction"].startswith("0x")

    state = machine.json("worker", "status", "--node", address)
    expected = {"status": "active", "commitments": 0, "claimable": 0, "gas_hours": None, "run": run}
    assert {name: state[name] for name in expected} == expected

    claimed = machine.json("worker", "claim", "--node", address, status=78)
    assert claimed["hint"].startswith("muster wallet new")

    retired = machine.json("worker", "retire", *operator, "--node", address, "--yes")
    early = machine.json("worker", "withdraw", *operator, "--node", address, "--yes", status=4)
    assert early["revert"] == "StillUnbonding"
    assert early["values"]["withdrawableAt"] == str(retired["withdrawable_at"])


def test_claiming_nothing_says_why_and_sends_nothing(machine: Machine, run: int) -> None:
    worker = machine.folder / "worker"
    other = machine.folder / "idle.key"
    machine.secret(other.name, os.urandom(32).hex())
    machine.json("worker", "join", "--no-check", "--operator", "./operator.key", "--node", other, "--run", run, "--yes")
    text = (machine.folder / "muster.toml").read_text() + f"[keys]\nraw_key_file = '{other}'\n"
    (machine.folder / "idle.toml").write_text(text)
    done = machine.type("worker", "claim", "--config", "idle.toml")
    assert (done.returncode, done.stdout) == (0, "nothing to claim: everything is settled\n")
    assert not worker.exists()


def test_a_validator_joins_with_a_draw_secret(machine: Machine, run: int) -> None:
    machine.secret("judge.key", os.urandom(32).hex())
    words = (
        "validator",
        "join",
        "--no-check",
        "--operator",
        "./operator.key",
        "--node",
        "./judge.key",
        "--run",
        run,
        "--yes",
    )
    joined = machine.json(*words)
    secret = machine.folder / ".muster" / "validator" / "draw_secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    state = machine.json("validator", "status", "--node", joined["node"])
    assert (state["role"], state["status"], state["cases_opened"]) == ("validator", "active", 0)
    assert machine.json("run", "show", run)["validators"] == 1


def test_an_operator_keeps_tokens_for_fees_and_takes_them_out_again(machine: Machine, run: int) -> None:
    operator = ("--operator", "./operator.key", "--yes")
    assert machine.json("wallet", "deposit", "12.5", *operator)["amount"] == 12_500_000_000_000_000_000
    assert machine.json("wallet", "withdraw", "2.5", *operator, "--dry-run")["dry_run"] is True
    assert machine.json("wallet", "withdraw", "2.5", *operator)["amount"] == 2_500_000_000_000_000_000
    assert machine.json("wallet", "withdraw", *operator)["amount"] == 10 * TOKEN
    assert "0 MUST free" in machine.json("wallet", "withdraw", *operator, status=2)["error"]
    assert "holds" in machine.json("wallet", "deposit", "1000000", *operator, status=2)["error"]


# --- Failures


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (("run", "show", "77"), 3, "there is no run 77"),
        (("slash", "show", "1"), 3, "there is no case 1"),
        (("worker", "why", "0", "--node", "./node.key"), 3, "has made no commitment 0"),
        (("run", "fund", "many", "1"), 2, "'many' is not an amount"),
        (("run", "fund", "1000000", "1", "--operator", "./owner.key"), 2, "MUST"),
        (("faucet", "--wallet", "./owner.key"), 4, "the faucet gives to"),
        (("faucet", "--wallet", "./poor.key", "--yes"), 4, "holds 0 ETH"),
        (("run", "create", "./none.toml", "--operator", "./owner.key"), 78, "no terms at none.toml"),
        (("weights", "fetch"), 3, "has published no checkpoint yet"),
    ],
)
def test_errors_have_a_reason_and_a_status(
    machine: Machine, run: int, words: tuple[str, ...], status: int, error: str
) -> None:
    document = machine.json(*words, status=status)
    assert error in document["error"]
    assert document["exit_code"] == status


def test_an_error_for_people_has_a_next_step_and_no_traceback(machine: Machine) -> None:
    done = machine.type("run", "show", "1", "--config", "none.toml")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == "error: no settings file at none.toml\n  next: muster config init --config none.toml\n"
    assert "Traceback" in machine.type("run", "show", "1", "--config", "none.toml", MUSTER_DEBUG="1").stderr


def test_another_chain_than_the_settings_name(machine: Machine) -> None:
    done = machine.type("run", "list", "--json", MUSTER_CHAIN__CHAIN_ID="84532")
    document = json.loads(done.stdout)
    assert (done.returncode, document["kind"]) == (4, "WrongChainError")


def test_a_chain_that_does_not_answer(machine: Machine) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = machine.type("run", "list", "--json", MUSTER_CHAIN__RPC_URL=url, MUSTER_CHAIN__TIMEOUT_SECONDS="1")
    assert (done.returncode, json.loads(done.stdout)["kind"]) == (5, "UnreachableError")


def test_an_unknown_setting_in_the_environment(machine: Machine) -> None:
    done = machine.type("run", "list", MUSTER_CHAIN__RPC="x")
    assert done.returncode == 78
    assert "unknown setting chain.rpc (from MUSTER_CHAIN__RPC)" in done.stderr
    assert "did you mean chain.rpc_url?" in done.stderr


def test_an_occupied_port_is_named_before_a_swarm_starts(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        document = machine.json("swarm", "demo", "--port", port, "--folder", "swarm", status=78)
    assert document["error"] == f"port {port} is occupied"
    assert not (machine.folder / "swarm").exists()


def test_without_anvil_the_way_to_get_it_is_named(machine: Machine, tmp_path: Path) -> None:
    """A checkout without node_modules, and nothing on PATH."""
    package = Path(muster.__file__).parent
    shutil.copytree(package, tmp_path / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "muster", "swarm", "demo", "--json", "--folder", str(tmp_path / "swarm")],
        cwd=tmp_path,
        env={"PATH": str(tmp_path), "HOME": str(machine.home), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["error"], document["hint"]) == (78, "anvil is not installed", "make setup")


def test_a_folder_that_no_swarm_made_is_left_alone(machine: Machine) -> None:
    precious = machine.folder / "precious"
    precious.mkdir()
    (precious / "letter").write_text("dear")
    document = machine.json("swarm", "demo", "--folder", precious, status=2)
    assert "holds something that no swarm made" in document["error"]
    assert (precious / "letter").read_text() == "dear"


def test_no_swarm_is_running(machine: Machine) -> None:
    assert machine.json("swarm", "down") == {"ended": []}


def test_the_command_itself(machine: Machine) -> None:
    """Run the command in a separate process: a usage error exits with 2, and --version needs no settings."""
    command = Path(sys.executable).with_name("muster")
    for words, status, said in ((["worker", "jion"], 2, "Did you mean 'join'?"), (["--version"], 0, "")):
        done = subprocess.run([command, *words], cwd=machine.folder, capture_output=True, text=True, timeout=BOUND)
        assert (done.returncode, said in done.stderr) == (status, True)


def test_doctor_names_what_is_wrong_and_the_way_out(machine: Machine) -> None:
    checks = {check["name"]: check for check in machine.json("doctor", status=3)}
    assert checks["chain"]["state"] == "ok"
    assert checks["contracts"]["state"] == "ok"
    assert checks["device"]["found"].startswith(("cpu (", "cuda; serves "))
    assert checks["orchestrator"]["state"] == "fail"
    assert "orchestrator.url" in checks["orchestrator"]["fix"]


@pytest.mark.parametrize(
    ("ahead", "state", "words"),
    [
        (0, "ok", "/readyz"),
        (-REQUEST_LIFETIME_SECONDS, "fail", "the clocks differ"),
        (None, "warn", "no date"),
    ],
)
def test_doctor_compares_clocks(machine: Machine, ahead: int | None, state: str, words: str) -> None:
    def answer(_: BaseHTTPRequestHandler) -> Reply:
        return Reply(headers={} if ahead is None else {"Date": formatdate(time.time() + ahead, usegmt=True)})

    with serving(answer) as url:
        done = machine.type("doctor", "--json", MUSTER_ORCHESTRATOR__URL=url, NO_PROXY="127.0.0.1")
    found = next(check for check in json.loads(done.stdout) if check["name"] == "orchestrator")
    assert found["state"] == state
    assert words in found["found"]


def test_terms_file_names_what_is_wrong(tmp_path: Path) -> None:
    classes = (WorkClass(10_000, (8, 12)), WorkClass(15_000, (12, 18)))
    keys = keys_of("0x" + "11" * 20, "0x" + "22" * 20).at(0)
    terms = terms_of(**LOCAL_DEFAULTS, classes=classes)
    path = tmp_path / "run.toml"
    path.write_text(write_terms(replace(terms, pay=1_234_567_890_123_456_789), keys))
    assert read_terms(path) == (replace(terms, pay=1_234_567_890_123_456_789), keys)
    for wrong, message in (
        ("pay = 'lots'", "pay = 'lots'"),
        ("task_root = '0x12'", "task_root"),
        ("group_size = true", "group_size = True"),
        ("colour = 'red'", "unknown term colour"),
        ("trainer = 'somebody'", "trainer = 'somebody': an address is needed"),
    ):
        name = wrong.partition(" ")[0]
        kept = [line for line in write_terms(terms, keys).splitlines() if not line.startswith(name + " =")]
        path.write_text("\n".join([wrong, *kept]))
        with pytest.raises(Exception, match=message):
            read_terms(path)
