"""How the command line shows amounts and times, and what it says where ether for gas is missing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from muster.chain.gas import COMMITMENT_GAS, TRANSACTION_GAS
from muster.chain.keys import Signer
from muster.console.money.faucet import LOCAL_ETHER
from testbed.chain.anvil import Anvil
from testbed.chain.senders import GWEI, opened, payment
from testbed.machine import Machine, set_ether
from testbed.terminal import Terminal

TOKEN = 10**18
RAW = re.compile(r"\b\d{13,}\b|\b[12]\d{9}\b")
"""Raw token wei and seconds since the epoch, which no output for people may show."""


def test_people_read_tokens_ether_and_local_time(machine: Machine, run: int) -> None:
    machine.secret("leaver.key", os.urandom(32).hex())
    operator, node = ("--operator", "./operator.key"), ("--node", "./leaver.key")
    typed = [
        machine.type("worker", "join", "--no-check", *operator, *node, "--run", run, "--yes"),
        machine.type("worker", "retire", *operator, *node, "--yes"),
        machine.type("worker", "status", *node),
        machine.type("run", "show", run),
        machine.type("run", "list"),
        machine.type("chain", "show"),
        machine.type("wallet", "deposit", "12.5", *operator, "--dry-run"),
        machine.type("run", "fund", "1.5", run, "--operator", "./owner.key", "--yes"),
    ]
    assert [done.returncode for done in typed] == [0] * len(typed)
    early = machine.type("worker", "withdraw", *operator, *node, "--yes")
    assert early.returncode == 4
    for done in [*typed, early]:
        assert not RAW.search(done.stdout + done.stderr), done.stdout + done.stderr
    joined, retired, status, *_, funded = typed
    assert re.search(r"^stake +1,000 MUST *$", joined.stdout, re.MULTILINE)
    assert re.search(
        r"^withdrawable at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+ \((in )?\d.*\) *$", retired.stdout, re.MULTILINE
    )
    assert re.search(r"^gas +[\d.]+ ETH *$", status.stdout, re.MULTILINE)
    assert re.search(r"^amount +1\.5 MUST *$", funded.stdout, re.MULTILINE)
    assert re.search(r"can be withdrawn from \d{4}-\d\d-\d\d", early.stderr)
    shown = machine.json("worker", "status", *node)
    assert (shown["stake"], shown["gas"] % (48 * COMMITMENT_GAS)) == (1_000 * TOKEN, 0), "two days of its gas"
    assert isinstance(shown["withdrawable_at"], int)


# --- A person at a terminal


def test_ctrl_c_at_a_question_ends_the_command(machine: Machine) -> None:
    """Though an event loop runs that would wait for the answer."""
    environment = {"HOME": str(machine.home)}
    machine.json("wallet", "new", "./asked.json", "--password-file", machine.password)
    with Terminal(("wallet", "withdraw", "--operator", "./asked.json"), machine.folder, environment) as terminal:
        terminal.reads("Password of asked.json: ")
        terminal.presses_control_c()
        assert terminal.ends() == 130
    with Terminal(("wallet", "deposit", "1", "--operator", "./operator.key"), machine.folder, environment) as terminal:
        terminal.reads("Go on? [y/N]: ")
        terminal.presses_control_c()
        assert terminal.ends() == 130
    with Terminal(("run", "init", "asked"), machine.folder, environment) as terminal:
        terminal.reads("]: ")
        terminal.presses_control_c()
        assert terminal.ends() == 130
    with Terminal(("wallet", "new", "./never.json"), machine.folder, environment) as terminal:
        terminal.reads("New password: ")
        terminal.types("\x04")
        assert terminal.ends() == 78
        assert "nothing was typed" in terminal.said
    assert machine.json("wallet", "show", "./asked.json")["keystore"] == "asked.json"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("role", ["orchestrator", "trainer"])
def test_a_signal_at_a_process_s_password_ends_it(machine: Machine, role: str, ending: signal.Signals) -> None:
    """As at any other time: no thread waits for the answer."""
    wallet = f"{role}-{ending.name}.json"
    machine.json("wallet", "new", f"./{wallet}", "--password-file", machine.password)
    environment = {"HOME": str(machine.home), "MUSTER_KEYS__KEYSTORE": wallet, "MUSTER_DEBUG": ""}
    with Terminal((role, "run"), machine.folder, environment) as terminal:
        terminal.reads(f"Password of {wallet}: ")
        terminal.process.send_signal(ending)
        assert terminal.ends() == 0
        assert "Traceback" not in terminal.said


# --- Ether for gas


def test_joining_without_ether_is_refused_with_a_way_to_get_it(machine: Machine, run: int) -> None:
    """A dry run says it before anything is sent: an operator with tokens and no ether, and one with too little."""
    for name in ("broke", "fresh"):
        machine.secret(f"{name}.key", os.urandom(32).hex())
    address = Signer.from_key((machine.folder / "broke.key").read_text().strip()).address
    machine.json("faucet", "--ether", "--wallet", "./broke.key")
    machine.json("faucet", "--wallet", "./broke.key", "--yes")
    set_ether(machine, address, 10**15)
    for role in ("worker", "validator"):
        join = (role, "join", "--no-check", "--operator", "./broke.key", "--node", "./fresh.key", "--run", run)
        refused = machine.json(*join, "--dry-run", status=4)
        assert (refused["kind"], refused["hint"]) == ("UnfundedError", f"muster faucet --ether --to {address}")
        assert re.match(
            rf"Join run {run} as a {role}: {address} holds 0.001 ETH, less than the [01]\.\d+ ETH it may cost",
            refused["error"],
        ), "gas, and two days of it for the node's key"
    set_ether(machine, address, 0)
    assert "holds 0 ETH" in machine.json(*join, "--dry-run", status=4)["error"]
    given = machine.json(*refused["hint"].split()[1:])
    assert (given["account"], given["balance"]) == (address, LOCAL_ETHER)
    assert machine.json(*join, "--dry-run")["dry_run"] is True


def test_ether_is_given_away_on_a_local_chain_only(machine: Machine) -> None:
    address = Signer.random().address
    assert machine.json("faucet", "--ether", "--to", address, "--dry-run")["dry_run"] is True
    assert machine.json("faucet", "--ether", "--to", address)["balance"] == LOCAL_ETHER
    assert machine.json("faucet", "--ether", "--to", address)["balance"] == 2 * LOCAL_ETHER
    assert "is no address" in machine.json("faucet", "--ether", "--to", "0x12", status=2)["error"]
    elsewhere = machine.type("faucet", "--ether", "--to", address, MUSTER_CHAIN__CHAIN_ID="84532")
    assert elsewhere.returncode == 2
    assert f"next: a public faucet of chain 84532 gives test ether: send it to {address}" in elsewhere.stderr


def test_a_key_that_is_low_on_gas_is_named_in_status_and_doctor(machine: Machine, run: int) -> None:
    key = machine.secret("thirsty.key", os.urandom(32).hex())
    address = Signer.from_key(key.read_text().strip()).address
    join = (
        "worker",
        "join",
        "--no-check",
        "--operator",
        "./operator.key",
        "--node",
        "./thirsty.key",
        "--run",
        run,
        "--yes",
    )
    machine.json(*join)
    assert machine.json("worker", "status", "--node", address)["gas_transactions"] >= 25
    assert "warning" not in machine.type("worker", "status", "--node", address).stderr
    set_ether(machine, address, 1)
    status = machine.type("worker", "status", "--node", address)
    assert (
        f"warning: {address} holds 0.000000000000000001 ETH for gas, enough for about 0 transactions" in status.stderr
    )
    assert f"next: muster faucet --ether --to {address}" in status.stderr
    text = (machine.folder / "muster.toml").read_text() + f"[keys]\nraw_key_file = '{key}'\n"
    (machine.folder / "thirsty.toml").write_text(text)
    checks = {check["name"]: check for check in machine.json("doctor", "--config", "thirsty.toml", status=3)}
    assert (checks["gas"]["state"], checks["gas"]["fix"]) == ("fail", f"muster faucet --ether --to {address}")


def test_the_operator_sends_a_node_its_gas_by_one_command(machine: Machine, run: int) -> None:
    """Without an orchestrator that knows its pace: at the most that the run takes."""
    key = machine.secret("driver.key", os.urandom(32).hex())
    address = Signer.from_key(key.read_text().strip()).address
    operator = ("--operator", "./operator.key")
    machine.json("worker", "join", "--no-check", *operator, "--node", "./driver.key", "--run", run, "--yes")
    set_ether(machine, address, 10**15)
    words = ("node", "gas", "--node", address, "--days", "1")
    assert "gas comes from the operator's wallet" in machine.json(*words, status=2)["error"]
    rehearsed = machine.json(*words, *operator, "--dry-run")
    assert (rehearsed["dry_run"], rehearsed["balance"]) == (True, 10**15)
    sent = machine.json(*words, *operator, "--yes")
    held = machine.json("worker", "status", "--node", address)["gas"]
    assert held == sent["amount"] + 10**15
    assert held % (24 * COMMITMENT_GAS) == 0
    set_ether(machine, address, 100 * TOKEN)
    enough = machine.type(*words, *operator, "--yes")
    assert enough.stdout.startswith(f"nothing to send: {address} holds 100 ETH for gas")


async def test_a_key_whose_ether_ends_soon_warns_once(start_anvil: Callable[..., Anvil], tmp_path: Path) -> None:
    anvil = start_anvil()  # whose gas price no other test has changed
    signer = Signer.random()
    wei = 20 * TRANSACTION_GAS * 2 * GWEI
    anvil.request("anvil_setBalance", signer.address, hex(wei))
    with capture_logs() as lines:
        async with opened(anvil, signer, tmp_path) as sender:
            for _ in range(2):
                await sender.send(payment(Signer.random()))
    (line,) = [line for line in lines if line["event"] == "the key is low on gas"]
    assert line["log_level"] == "warning"
    assert line["reason"].startswith(f"{signer.address} holds 0.006 ETH for gas, enough for about ")
    assert line["next"] == f"muster faucet --ether --to {signer.address}"


async def test_the_data_fee_of_an_op_chain_counts_in_the_warning(
    start_anvil: Callable[..., Anvil], tmp_path: Path
) -> None:
    anvil = start_anvil()
    signer = Signer.random()
    anvil.request("anvil_setBalance", signer.address, hex(TOKEN))
    returns_half = f"0x7f{TOKEN // 2:064x}60005260206000f3"
    anvil.request("anvil_setCode", "0x420000000000000000000000000000000000000F", returns_half)
    with capture_logs() as lines:
        async with opened(anvil, signer, tmp_path) as sender:
            await sender.send(payment(Signer.random()))
    (line,) = [line for line in lines if line["event"] == "the key is low on gas"]
    assert "holds 1 ETH for gas" in line["reason"]
