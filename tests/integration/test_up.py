"""`muster up` on a machine with an empty home: what it makes, what it asks, what it refuses, and that the same command
goes on wherever it was killed. Real chain, contracts and orchestrator; tests/integration/test_up_story.py runs nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.draw_secret import draw_tip, load_draw_secret
from muster.chain.gas import GasBalance
from muster.chain.keys import Signer, load_keystore
from muster.clients.gas_watch import read_gas
from muster.console.node.nodes import Joining
from muster.console.session import Options, Session
from muster.console.up import setup
from muster.console.up.place import NodePlace
from muster.console.up.prepare import LocalNode
from muster.constants import CHAIN_BASE_SEPOLIA
from muster.contracts import registry, token
from muster.contracts.registry import Deposited, Registered, Role
from muster.contracts.token import FaucetUsed
from muster.errors import UnfundedError
from muster.protocol.hashes import hex_hash
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.runtime.journal import FolderLock
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.runs.newcomer import Newcomer, events_of, on_chain
from testbed.runs.world import World, opened
from testbed.terminal import Terminal
from testbed.waiting import until

TOKEN = 10**18
STAKE = 100 * TOKEN
DAY_GAS = 24 * 255 * 70_000
"""Gas of a day at the most that the run takes: commitments an hour, and what one takes."""
GWEI = 10**9


def days_of_gas(world: World, node: str) -> float:
    """Return for how many days the operator sent gas to a node, at the price then: about a gwei on this chain."""
    held = on_chain(world, lambda chain: chain.eth_balance(node))
    return next(
        (days for days in (1, 2) if not held % (days * DAY_GAS) and GWEI <= held / days / DAY_GAS < 2 * GWEI), 0
    )


@pytest.fixture(scope="module")
def world(own_anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("up")
    with opened(deploy_on(own_anvil, folder), folder, workers=()) as made:
        yield made


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path / "newcomer")
    yield made
    made.end_what_is_left()


def test_one_command_makes_a_node_and_the_same_command_makes_no_second(world: World, newcomer: Newcomer) -> None:
    run = world.run_fixture.run
    made = newcomer.up(f"{world.orchestrator.url}/join?from=page")
    place = newcomer.nodes / "run-1-worker"
    assert {key: made[key] for key in ("name", "role", "run", "stake", "config")} == {
        "name": "run-1-worker",
        "role": "worker",
        "run": run,
        "stake": STAKE,
        "config": str(place / "muster.toml"),
    }
    # 1. On disk: the keys open with their passwords, and only their owner can read them.
    assert {path.name for path in place.iterdir()} >= {"addresses.json", "muster.toml", "node.json", "node.password"}
    for path in (place / "node.json", place / "node.password", newcomer.wallet):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    node = load_keystore(place / "node.json", (place / "node.password").read_text().strip())
    operator = load_keystore(newcomer.wallet, newcomer.password.read_text().strip())
    assert (node.address, operator.address) == (made["node"], made["operator"])
    assert tomllib.loads((place / "muster.toml").read_text())["orchestrator"] == {"url": world.orchestrator.url}

    # 2. What is on chain.
    (joined,) = events_of(world, Registered, operator=operator.address)
    assert (joined.node, joined.run, joined.role, joined.lock) == (node.address, run, Role.WORKER, STAKE)
    assert days_of_gas(world, node.address) == 2
    assert on_chain(world, lambda chain: chain.call(token.balance_of(operator.address))) == 10_000 * TOKEN - STAKE

    # 3. The same again, without the URL, and from its page: nothing is written and nothing sent.
    before, head = newcomer.files(), on_chain(world, lambda chain: chain.eth_balance(operator.address))
    assert newcomer.up(f"{world.orchestrator.url}/join?from=page") == made
    assert newcomer.json("up", "--no-start") == made, "with nothing at stake, it asks no question and needs no password"
    assert newcomer.files() == before
    assert on_chain(world, lambda chain: chain.eth_balance(operator.address)) == head
    assert len(events_of(world, Registered, operator=operator.address)) == 1


def test_second_node_gets_another_name_and_same_operator(world: World, newcomer: Newcomer) -> None:
    first = newcomer.up(world.orchestrator.url)
    second = newcomer.up(world.orchestrator.url, "--name", "Ada's #2", "--gas-days", "1")
    assert (second["name"], second["operator"]) == ("Ada's #2", first["operator"])
    assert second["node"] != first["node"]
    log = world.orchestrator.json(f"/v1/runs/{world.run_fixture.run}/log?kind=name")["entries"]
    named = {entry["node"]: entry["name"] for entry in (json.loads(one["text"]) for one in log)}
    names = [named.get(one["node"]) for one in (first, second)]
    assert names == [None, "Ada's #2"], "only a name that somebody chose is announced"
    assert days_of_gas(world, second["node"]) == 1
    unclear = newcomer.json("up", "--no-start", status=2)
    assert unclear["error"] == "several nodes are here: Ada's #2, run-1-worker"
    assert newcomer.json("up", "--no-start", "--name", "run-1-worker") == first
    listed = newcomer.json("node", "list")
    assert [(one["name"], one["status"]) for one in listed] == [("Ada's #2", "active"), ("run-1-worker", "active")]


def test_killed_at_any_point_the_same_command_goes_on(world: World, newcomer: Newcomer) -> None:
    """Killed at each point in turn, so that every call goes on from where the one before it was killed."""
    secret: dict[str, bytes] = {}
    for point in ("keys.password", "up.key", "up.prepared", "up.drawn", "up.joined", "up.started"):
        newcomer.kill_at(point, world.orchestrator.url, *(() if point == "up.started" else ("--no-start",)))
        files = newcomer.files()
        assert {name: files[name] for name in secret} == secret, f"no second key, {point}"
        names = [name for name in files if name.endswith(("node.json", "node.password", "operator.json"))]
        secret = {name: files[name] for name in names}
        assert len(secret) == (2 if point == "keys.password" else 3), point
    made = newcomer.up(world.orchestrator.url)
    after = newcomer.files()
    assert {name: after[name] for name in secret} == secret, "no second key"
    assert not [name for name in after if ".tmp" in name or "/." in name.removeprefix(".muster")]
    assert len(events_of(world, Registered, operator=made["operator"])) == 1, "no second stake"
    assert len(events_of(world, FaucetUsed, account=made["operator"])) == 1
    assert days_of_gas(world, made["node"]) == 2
    assert not (newcomer.nodes / "run-1-worker" / "swarm.json").exists()
    with FolderLock(newcomer.nodes / "run-1-worker" / "state"):
        pass  # every started process has ended


def test_a_validator_has_its_draw_secret_before_it_joins(world: World, newcomer: Newcomer) -> None:
    newcomer.kill_at("up.drawn", world.orchestrator.url, "--role", "validator", "--no-start")
    place = newcomer.nodes / "run-1-validator"
    secret = (place / "state" / "draw_secret").read_bytes()
    made = newcomer.up(world.orchestrator.url, "--role", "validator")
    assert (place / "state" / "draw_secret").read_bytes() == secret
    (joined,) = events_of(world, Registered, operator=made["operator"])
    assert (joined.node, joined.role) == (made["node"], Role.VALIDATOR)
    assert joined.draw_tip == draw_tip(load_draw_secret(place / "state"))
    case = 10 * TOKEN
    assert on_chain(world, lambda chain: chain.call(registry.free_balance(made["operator"]))) == 10 * case
    assert newcomer.up(world.orchestrator.url, "--role", "validator") == made
    assert len(events_of(world, Deposited, operator=made["operator"])) == 2, "the stake, and once for cases"
    second = newcomer.up(world.orchestrator.url, "--role", "validator", "--name", "v2", status=3)
    assert second["error"].endswith("one at most, ever")


def test_a_dry_run_shows_everything_and_writes_nothing(world: World, newcomer: Newcomer) -> None:
    done = newcomer.type("up", world.orchestrator.url, "--dry-run")
    assert (done.returncode, done.stdout) == (0, "nothing was written or sent\n")
    shown = {line[2:14].strip(): line[15:] for line in done.stderr.splitlines() if line.startswith("  ")}
    read = on_chain(world, lambda chain: chain.run_hash(world.run_fixture.run))
    assert shown == {
        "run hash": hex_hash(read),
        "node": "made when you go on",
        "operator": "made when you go on",
        "stake": "100 MUST; a conviction takes 50 MUST of it",
        "unbonding": "the stake comes back 7 days after you retire",
        "pay": "2 MUST for 16 rollouts (class 0: 8, 12 tokens), 24 hours after their hour, 72 where it is not sealed",
        "a day": "what workers earn is not known yet",
        "cover": "20 commitments may wait for their pay at a time",
        "validators": shown["validators"],
        "gas": shown["gas"],
        "funds": "10,000 MUST from the faucet, ether from the local chain",
    }
    sent, what = shown["gas"].split(" ETH to the node's key, ")
    assert float(sent) == pytest.approx(2 * DAY_GAS / GWEI, rel=0.9)
    assert what == "for 2 days of 255 commitments an hour (--gas-days); as much again while muster up is open"
    assert newcomer.files() == {}
    made = newcomer.up(world.orchestrator.url)
    again = newcomer.json("up", "--dry-run")
    assert (again["node"], again["operator"], set(again["steps"].values())) == (made["node"], made["operator"], {0})


# At a terminal


def test_a_person_is_asked_for_what_only_a_person_knows(world: World, newcomer: Newcomer) -> None:
    at_home = {"HOME": str(newcomer.home)}
    url = world.orchestrator.url
    # 1. Without an address, `up` asks for one. It shows the terms before it makes a key: a no or Ctrl-C leaves no file.
    with Terminal(("up",), newcomer.folder, at_home) as terminal:
        terminal.reads("Address of the run, from the join box of its page: ")
        terminal.types(f"{url}/join\n")
        terminal.reads("Go on? [y/N]: ")
        assert "conviction takes 50 MUST of it" in terminal.said
        terminal.types("n\n")
        assert terminal.ends() == 130
    with Terminal(("up", url), newcomer.folder, at_home) as terminal:
        terminal.reads("Go on? [y/N]: ")
        terminal.types("y\n")
        terminal.reads("New password: ")
        terminal.presses_control_c()
        assert terminal.ends() == 130
    assert not newcomer.wallet.exists()
    assert not newcomer.nodes.exists()

    # 2. If the two passwords differ, it asks again. After that it asks no further question.
    with Terminal(("up", url, "--no-start"), newcomer.folder, at_home) as terminal:
        terminal.reads("Go on? [y/N]: ")
        terminal.types("y\n")
        for repeated in ("a longer password", "a long password"):
            terminal.reads("New password: ")
            terminal.types("a long password\n")
            terminal.reads("Once more: ")
            terminal.types(f"{repeated}\n")
        assert terminal.ends() == 0
        assert "a long password" not in terminal.said
    operator = to_checksum_address(json.loads(newcomer.wallet.read_text())["address"])
    assert len(events_of(world, Registered, operator=operator)) == 1

    # 3. The next call has nothing to do and asks nothing.
    with Terminal(("up", "--no-start"), newcomer.folder, at_home) as terminal:
        assert terminal.ends() == 0
        assert "assword" not in terminal.said
    assert len(events_of(world, Registered, operator=operator)) == 1

    # 4. A node that another process runs is shown: its status once, then its log. Ctrl-C ends that.
    log = newcomer.nodes / "run-1-worker" / "log.jsonl"
    log.write_text('{"event": "written \\u001b[2J before", "level": "info"}\n{"event": "detail", "level": "debug"}\n')
    with (
        FolderLock(newcomer.nodes / "run-1-worker" / "state"),
        Terminal(("up",), newcomer.folder, at_home) as terminal,
    ):
        terminal.reads("written \\x1b[2J before")
        assert "this only watches it" in terminal.said
        assert re.search("pay per commitment +2 MUST\\s", terminal.said)
        with log.open("a") as file:
            file.write('{"event": "written later", "level": "info"}\n')
        terminal.reads("written later")
        assert "detail" not in terminal.said
        terminal.presses_control_c()
        assert terminal.ends() == 130


# Where others run it


def test_up_only_watches_running_node(world: World, newcomer: Newcomer) -> None:
    newcomer.up(world.orchestrator.url)
    place = newcomer.nodes / "run-1-worker"
    for locked, sentence in (
        (place, f"run-1-worker is run by process {os.getpid()}, another muster up: this only watches it"),
        (place / "state", f"process {os.getpid()} runs it, a service or another command: this only watches it"),
    ):
        with FolderLock(locked), newcomer.process("up", world.orchestrator.url) as process:
            process.says("pending")
            status, said = process.stop(signal.SIGTERM)
        rows = [line.split() for line in said.splitlines()]
        last = rows.index(["pending", "0"])
        assert (status, rows[last - 1]) == (130, ["accepted", "0"])
        assert sentence.split() in rows[:last]


def test_a_key_that_is_gone_is_not_replaced(world: World, newcomer: Newcomer) -> None:
    newcomer.up(world.orchestrator.url)
    (newcomer.nodes / "run-1-worker" / "node.json").unlink()
    error = newcomer.up(world.orchestrator.url, status=78)
    assert error["hint"] == "restore it from a backup, or make another node: --name NAME"
    assert not (newcomer.nodes / "run-1-worker" / "node.json").exists()


def test_on_a_public_chain_ether_is_waited_for(
    start_anvil: Callable[..., Anvil], built_contracts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anvil = start_anvil(chain_id=CHAIN_BASE_SEPOLIA)
    deployment = deploy_on(anvil, tmp_path, chain_id=CHAIN_BASE_SEPOLIA)
    operator, said = Signer.random(), []

    class Said(Session):
        def note(self, text: str) -> None:
            said.append(text)
            if "waiting for it" in text:
                anvil.request("anvil_setBalance", operator.address, hex(TOKEN))

    async def wait(seconds: float) -> None:
        monkeypatch.setattr(setup, "ETHER_SECONDS", seconds)
        monkeypatch.setattr(setup, "ETHER_POLL_SECONDS", 0.05)
        node = LocalNode(Said(Options()), None, "worker", ZERO_ADDRESS)  # type: ignore[arg-type]
        async with await Chain.connect(deployment.settings, operator) as chain:
            await setup.bring_ether(node, chain, 2 * TOKEN if seconds < 1 else TOKEN)

    asyncio.run(wait(60))
    assert said[0].startswith(f"send 1 ETH or more to {operator.address} on chain {CHAIN_BASE_SEPOLIA}")
    assert said[-1] == f"{operator.address} holds 1 ETH"
    with pytest.raises(UnfundedError, match="no ether came to") as caught:
        asyncio.run(wait(0.2))
    assert caught.value.hint.endswith("; then type this again")


def test_while_it_is_open_it_sends_gas_up_to_what_was_agreed_to(
    world: World, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's key is emptied twice: once it is filled up, the second time as much as is left of the agreed ether."""
    looks: list[GasBalance] = []

    async def read(*words: Any) -> GasBalance:
        looks.append(await read_gas(*words))
        return looks[-1]

    monkeypatch.setattr(setup, "read_gas", read)
    monkeypatch.setattr(setup, "GAS_POLL_SECONDS", 0.05)
    made = newcomer.up(world.orchestrator.url)
    place = NodePlace(newcomer.nodes / "run-1-worker")
    operator = load_keystore(newcomer.wallet, newcomer.password.read_text().strip())

    async def watched() -> list[int]:
        session, found = Session(Options(config=place.config)), []
        node = LocalNode(session, place, "worker", made["node"], operator.address, operator)
        async with (
            await Chain.connect(world.run_fixture.settings, operator) as chain,
            world.run_fixture.local_chain() as local,
        ):
            await local.fund([operator.address], 10 * TOKEN)
            terms = await chain.terms(made["run"])
            number, run_hash, people = made["run"], await chain.run_hash(made["run"]), (made["node"], made["operator"])
            joining = Joining(number, run_hash, Role.WORKER, 0, *people, terms, [], STAKE, 0, TOKEN, 2.0, 0, 4)
            await setup.keep_gas(replace(node, operator=None), chain, joining)  # a service cannot
            keeper = asyncio.create_task(setup.keep_gas(node, chain, joining))
            for left in (TOKEN // 1_000, 0):
                await local.fund([made["node"]], left)
                await until(lambda left=left: more_than(chain, made["node"], left))
                found.append(await chain.eth_balance(made["node"]))
            await local.fund([made["node"]], 0)
            seen = len(looks)
            await until(lambda: len(looks) > seen + 1)  # the next look began after that
            found.append(await chain.eth_balance(made["node"]))
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        return found

    async def more_than(chain: Chain, node: str, wei: int) -> bool:
        return await chain.eth_balance(node) > wei

    assert asyncio.run(watched()) == [TOKEN, TOKEN // 1_000, 0]
