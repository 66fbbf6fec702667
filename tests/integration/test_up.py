"""`muster up` on a machine with an empty home: what it makes, what it asks, what it refuses, and that the same command
goes on wherever it was killed. Real chain, contracts and orchestrator; tests/integration/test_up_story.py runs nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from eth_utils.address import to_checksum_address

from benchmarks.testbed.anvil import Anvil
from benchmarks.testbed.run_fixture import Orchestrator, RunFixture
from muster.chain.client import Chain, event_of
from muster.chain.draw_secret import draw_tip, load_draw_secret
from muster.chain.keys import Signer, load_keystore
from muster.cli.session import Options, Session
from muster.cli.up import setup
from muster.cli.up.prepare import LocalNode
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA
from muster.contracts import registry, runs, token
from muster.contracts.registry import Deposited, Registered, Role
from muster.contracts.runs import RunCreated
from muster.contracts.token import FaucetUsed
from muster.errors import UnfundedError
from muster.protocol.eip712 import Domain, sign_message
from muster.protocol.messages import JoinDocument
from muster.protocol.terms_file import NOBODY
from muster.runtime.journal import FolderLock
from tests.support.chain import deploy_on
from tests.support.machine import Done, Machine
from tests.support.terminal import Terminal
from tests.support.world import World, opened

TOKEN = 10**18
STAKE, GAS = 100 * TOKEN, TOKEN // 50
T = TypeVar("T")

pytestmark = pytest.mark.timeout(180)


CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
"""Where `make setup` left the compiled component that scores: compiling it takes a quarter of a minute."""


class Newcomer(Machine):
    """A machine with an empty home and nothing but a password in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "http://127.0.0.1:9")
        (self.folder / "muster.toml").unlink()
        self.nodes = self.home / ".muster" / "nodes"
        self.wallet = self.home / ".muster" / "keys" / "operator.json"

    def type(self, *words: object, typed: str = "", **environment: str) -> Done:
        return super().type(*words, typed=typed, **{"XDG_CACHE_HOME": CACHE, **environment})

    def up(self, url: str, *words: object, status: int = 0) -> Any:
        """The command with the options of a server, which starts nothing; its document."""
        return self.json("up", url, "--yes", "--password-file", self.password, "--no-start", *words, status=status)

    def kill_at(self, point: str, url: str, *words: str) -> None:
        """The same command in a process of its own, which is killed at a failpoint."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        command = [sys.executable, "-m", "muster", "up", url, "--yes", "--password-file", str(self.password), *words]
        environment = kept | {"HOME": str(self.home), "XDG_CACHE_HOME": CACHE, "MUSTER_FAILPOINT": point}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == -9, done.stdout + done.stderr

    def files(self) -> dict[str, bytes]:
        """What is in its home but the journals and caches, by path."""
        paths = [path for path in sorted(self.home.rglob("*")) if path.is_file()]
        skipped = (".cache", "journals", "state", "lock")
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in paths
            if not set(path.relative_to(self.home).parts) & set(skipped)
        }


@pytest.fixture(scope="module")
def world(built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for the module: each newcomer is another."""
    started: list[Anvil] = []

    def start(**options: Any) -> Anvil:
        started.append(Anvil.start(**options))
        return started[-1]

    try:
        with opened(start, tmp_path_factory.mktemp("up"), workers=()) as made:
            yield made
    finally:
        for one in started:
            one.stop()


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path / "newcomer")


def on_chain(world: World, read: Callable[[Chain], Coroutine[Any, Any, T]]) -> T:
    async def asked() -> T:
        async with world.run_fixture.chain("stranger") as chain:
            return await read(chain)

    return asyncio.run(asked())


def events_of(world: World, kind: type, **wanted: object) -> list[Any]:
    found = asyncio.run(world.events(kind))
    return [event for event in found if all(getattr(event, name) == value for name, value in wanted.items())]


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
    # 1. What is on disk: keys that open with their passwords, and nobody else reads.
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
    assert on_chain(world, lambda chain: chain.eth_balance(node.address)) == GAS
    assert on_chain(world, lambda chain: chain.call(token.balance_of(operator.address))) == 10_000 * TOKEN - STAKE

    # 3. The same again, without the URL, and from its page: nothing is written and nothing sent.
    before, head = newcomer.files(), on_chain(world, lambda chain: chain.eth_balance(operator.address))
    assert newcomer.up(f"{world.orchestrator.url}/join?from=page") == made
    assert newcomer.json("up", "--no-start") == made, "nothing is at stake: nobody is asked, and no password needed"
    assert newcomer.files() == before
    assert on_chain(world, lambda chain: chain.eth_balance(operator.address)) == head
    assert len(events_of(world, Registered, operator=operator.address)) == 1


def test_a_second_node_has_a_name_of_its_own_and_the_same_operator(world: World, newcomer: Newcomer) -> None:
    first = newcomer.up(world.orchestrator.url)
    second = newcomer.up(world.orchestrator.url, "--name", "Ada's #2", "--gas", "0.5")
    assert (second["name"], second["operator"]) == ("Ada's #2", first["operator"])
    assert second["node"] != first["node"]
    names = [
        json.loads(world.orchestrator.get(f"/v1/runs/{world.run_fixture.run}/nodes/{one['node']}")[1])["name"]
        for one in (first, second)
    ]
    assert names == ["", "Ada's #2"], "only a name that somebody chose is announced"
    assert on_chain(world, lambda chain: chain.eth_balance(second["node"])) == TOKEN // 2
    unclear = newcomer.json("up", "--no-start", status=2)
    assert unclear["error"] == "several nodes are here: Ada's #2, run-1-worker"
    assert newcomer.json("up", "--no-start", "--name", "run-1-worker") == first
    listed = newcomer.json("node", "list")
    assert [(one["name"], one["status"]) for one in listed] == [("Ada's #2", "active"), ("run-1-worker", "active")]


@pytest.mark.parametrize("point", ["up.password", "up.key", "up.prepared", "up.started", "up.drawn", "up.joined"])
def test_killed_at_any_point_the_same_command_goes_on(world: World, newcomer: Newcomer, point: str) -> None:
    words = () if point == "up.started" else ("--no-start",)
    newcomer.kill_at(point, world.orchestrator.url, *words)
    before = newcomer.files()
    made = newcomer.up(world.orchestrator.url)
    after = newcomer.files()
    secret = [name for name in before if name.endswith(("node.json", "node.password", "operator.json"))]
    assert len(secret) == (2 if point == "up.password" else 3)
    assert {name: after[name] for name in secret} == {name: before[name] for name in secret}, "no second key"
    assert not [name for name in after if ".tmp" in name or "/." in name.removeprefix(".muster")]
    assert len(events_of(world, Registered, operator=made["operator"])) == 1, "no second stake"
    assert len(events_of(world, FaucetUsed, account=made["operator"])) == 1
    assert on_chain(world, lambda chain: chain.eth_balance(made["node"])) == GAS
    assert not (newcomer.nodes / "run-1-worker" / "swarm.json").exists()
    with FolderLock(newcomer.nodes / "run-1-worker" / "state"):
        pass  # nothing that was started is left


def test_a_validator_has_its_draw_secret_before_it_joins(world: World, newcomer: Newcomer) -> None:
    newcomer.kill_at("up.drawn", world.orchestrator.url, "--role", "validator", "--no-start")
    place = newcomer.nodes / "run-1-validator"
    secret = (place / "state" / "draw_secret").read_bytes()
    made = newcomer.up(world.orchestrator.url, "--role", "validator")
    assert (place / "state" / "draw_secret").read_bytes() == secret
    (joined,) = events_of(world, Registered, operator=made["operator"])
    assert (joined.node, joined.role) == (made["node"], Role.VALIDATOR)
    assert joined.draw_tip == draw_tip(load_draw_secret(place / "state"))
    case = 9 * TOKEN
    assert on_chain(world, lambda chain: chain.call(registry.free_balance(made["operator"]))) == 10 * case
    assert newcomer.up(world.orchestrator.url, "--role", "validator") == made
    assert len(events_of(world, Deposited, operator=made["operator"])) == 2, "the stake, and once for cases"
    second = newcomer.up(world.orchestrator.url, "--role", "validator", "--name", "v2", status=3)
    assert second["error"].endswith("one at most, ever")


def test_a_dry_run_shows_everything_and_writes_nothing(world: World, newcomer: Newcomer) -> None:
    done = newcomer.type("up", world.orchestrator.url, "--dry-run")
    assert (done.returncode, done.stdout) == (0, "nothing was written or sent\n")
    shown = {line[2:14].strip(): line[15:] for line in done.stderr.splitlines() if line.startswith("  ")}
    assert shown == {
        "node": "made when you go on",
        "operator": "made when you go on",
        "stake": "100 MUST; a conviction takes 50 MUST of it",
        "unbonding": "the stake comes back 7 days after you retire",
        "pay": "2 MUST for 16 rollouts (class 0: 8, 12 tokens), 24 hours after their hour, 72 where it is not sealed",
        "a day": "what workers earn is not known yet",
        "cover": "20 commitments may wait for their pay at a time",
        "validators": shown["validators"],
        "gas": "0.02 ETH to the node's key",
        "funds": "10,000 MUST from the faucet, ether from the local chain",
    }
    assert newcomer.files() == {}
    made = newcomer.up(world.orchestrator.url)
    again = newcomer.json("up", "--dry-run")
    assert (again["node"], again["operator"], set(again["steps"].values())) == (made["node"], made["operator"], {0})


# What is refused, before anything is made


def refused(newcomer: Newcomer, *words: object, status: int) -> dict[str, Any]:
    error = newcomer.json("up", *words, status=status)
    assert newcomer.files() == {}, "nothing is made"
    return error


def test_a_server_must_say_yes_and_have_a_password_file(world: World, newcomer: Newcomer) -> None:
    url, quiet = world.orchestrator.url, ("--no-start",)
    alone = refused(newcomer, url, *quiet, status=2)
    assert alone["error"] == "joining needs a confirmation, and there is no terminal to ask on"
    assert alone["hint"] == "add --yes and --password-file FILE (mode 0600)"
    secret = refused(newcomer, url, *quiet, "--yes", status=2)
    assert secret == secret | {
        "error": "a new key needs a password, and there is no terminal to ask on",
        "hint": "add --password-file",
    }
    newcomer.password.chmod(0o644)
    open_file = refused(newcomer, url, *quiet, "--yes", "--password-file", newcomer.password, status=78)
    assert open_file["hint"] == f"chmod 600 {newcomer.password}"
    short = newcomer.secret("short", "1234567")
    assert "too short" in refused(newcomer, url, *quiet, "--yes", "--password-file", short, status=2)["error"]
    wallet = refused(newcomer, url, *quiet, "--yes", "--operator", "cold", status=78)
    assert wallet["hint"] == "muster wallet new cold; without --operator one is made"
    assert refused(newcomer, *quiet, status=2)["error"] == "which run is not known"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--detach", "--no-start"], "--detach starts a service, and --no-start nothing"),
        ([], "--json prints one document, and a node runs until Ctrl-C"),
        (["--no-start", "--name", "a", "--folder", "b"], "--name and --folder both say where the node is"),
        (["--no-start", "--name", ".x"], "no folder of a node is called '.x'"),
        (
            ["--no-start", "--config", "x.toml"],
            "muster up makes the settings file itself; name the node's folder instead",
        ),
        (["--no-start", "--class", "3", "--yes", "--dry-run"], "run 1 has no work class 3"),
    ],
)
def test_options_that_do_not_go_together(world: World, newcomer: Newcomer, words: list[str], error: str) -> None:
    assert refused(newcomer, world.orchestrator.url, *words, status=2)["error"] == error


def test_a_url_that_leads_nowhere(world: World, newcomer: Newcomer) -> None:
    server = ("--no-start", "--yes", "--password-file", newcomer.password)
    assert refused(newcomer, "http://127.0.0.1:9", *server, status=5)["error"].startswith("GET http://127.0.0.1:9/v1/")
    chain = world.run_fixture.settings.rpc_url
    assert refused(newcomer, chain, *server, status=3)["error"].startswith(f"there is no run at {chain}: ")
    assert "is no URL" in refused(newcomer, "run.example:8600", *server, status=2)["error"]
    elsewhere = refused(newcomer, world.orchestrator.url, *server, "--rpc-url", "http://127.0.0.1:9", status=5)
    assert elsewhere["error"].startswith("the chain at http://127.0.0.1:9 does not answer")


@pytest.mark.parametrize("lie", ["orchestrator", "run", "runs"])
def test_a_document_that_is_not_true_makes_nothing(world: World, newcomer: Newcomer, lie: str) -> None:
    """Signed by somebody else, of a run that there is not, of other contracts."""
    run_fixture = world.run_fixture

    async def fetched() -> JoinDocument:
        async with OrchestratorClient(world.orchestrator.url, chain_id=CHAIN_ANVIL, registry=NOBODY) as client:
            return await client.join_document()

    document = asyncio.run(fetched())
    changed = {"orchestrator": "http://thief.example", "run": 4_000_000, "runs": document.court}[lie]
    key = run_fixture.key("stranger" if lie == "orchestrator" else "storage")
    false = sign_message(key, Domain(document.chain_id, document.registry), document.model_copy(update={lie: changed}))
    with serving({"/v1/join": false.model_dump_json().encode()}) as url:
        words = (f"{url}/join", "--no-start", "--yes", "--password-file", newcomer.password)
        error = refused(newcomer, *words, status=3)["error"]
    expected = {"orchestrator": f"signed by {key.address}", "run": "there is no run 4000000", "runs": "is not the Runs"}
    assert expected[lie] in error


@contextmanager
def serving(answers: dict[str, bytes]) -> Iterator[str]:
    """Answer these paths, and 404 to all others; the URL."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path, b"")
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_orchestrator_behind_a_path_of_a_proxy(world: World, newcomer: Newcomer) -> None:
    document = world.orchestrator.get("/v1/join")[1]
    with serving({"/muster/v1/join": document}) as url:
        shown = newcomer.json("up", f"{url}/muster/join", "--dry-run")
    assert shown["run"] == world.run_fixture.run


def test_who_is_not_on_the_list_is_told_what_its_owner_types(world: World, newcomer: Newcomer, tmp_path: Path) -> None:
    run_fixture = world.run_fixture
    owner = run_fixture.key("owner").address

    async def create() -> int:
        async with run_fixture.chain("owner") as chain:
            terms = replace(await chain.terms(run_fixture.run), admitter=owner)
            return event_of(await chain.send(runs.create_run(terms.to_chain())), RunCreated).run

    async def admit(operator: str) -> None:
        async with run_fixture.chain("owner") as chain:
            await chain.send(runs.admit(run, operator, True))

    run = asyncio.run(create())
    listed = RunFixture(run_fixture.folder, run_fixture.settings, run_fixture.book, run_fixture.seed, run)
    files = f'run_folder = "{run_fixture.folder / "run"}"'
    running = Orchestrator(listed, tmp_path / "orchestrator", extra=files).start()
    try:
        error = newcomer.up(running.url, "--role", "validator", status=3)
        operator = to_checksum_address(json.loads(newcomer.wallet.read_text())["address"])
        assert error["error"].endswith(f"from a list that {owner} keeps, and {operator} is not on it")
        assert error["hint"] == f"ask its owner to type: muster run admit {operator} {run}"
        assert events_of(world, FaucetUsed, account=operator) == []
        asyncio.run(admit(operator))
        made = newcomer.up(running.url, "--role", "validator")
    finally:
        running.stop()
    assert (made["operator"], made["run"], made["name"]) == (operator, run, f"run-{run}-validator")


# At a terminal


def test_a_person_is_asked_for_what_only_a_person_knows(world: World, newcomer: Newcomer) -> None:
    at_home = {"HOME": str(newcomer.home), "XDG_CACHE_HOME": CACHE}
    # 1. Ctrl-C at a question ends the command at once; before the first answer nothing is made.
    with Terminal(("up", world.orchestrator.url), newcomer.folder, at_home) as terminal:
        terminal.reads("New password: ")
        terminal.presses_control_c()
        assert terminal.ends(10) == 130
    assert newcomer.files() == {}

    # 2. Where no address is typed it is asked for, then the wallet's password, twice, and whether to go on.
    with Terminal(("up",), newcomer.folder, at_home) as terminal:
        terminal.reads("Address of the run, from the join box of its page: ")
        terminal.types(f"{world.orchestrator.url}/join\n")
        terminal.reads("New password: ")
        terminal.types("a long password\n")
        terminal.reads("Once more: ")
        terminal.types("a long password\n")
        terminal.reads("Go on? [y/N]: ")
        assert "conviction takes 50 MUST of it" in terminal.shown
        assert "a long password" not in terminal.shown
        terminal.presses_control_c()
        assert terminal.ends(10) == 130
    operator = to_checksum_address(json.loads(newcomer.wallet.read_text())["address"])
    assert events_of(world, FaucetUsed, account=operator) == []

    # 3. The next time its keys are there, and its password is asked for once. It ends where the answer is no.
    with Terminal(("up", world.orchestrator.url, "--no-start"), newcomer.folder, at_home) as terminal:
        terminal.reads(f"Password of {newcomer.wallet}: ")
        terminal.types("a long password\n")
        terminal.reads("Go on? [y/N]: ")
        terminal.types("n\n")
        assert terminal.ends(10) == 130
    assert events_of(world, Registered, operator=operator) == []
    with Terminal(("up", "--no-start"), newcomer.folder, at_home) as terminal:
        terminal.reads("Password of ")
        terminal.types("a long password\n")
        terminal.reads("Go on? [y/N]: ")
        terminal.types("y\n")
        assert terminal.ends() == 0
    assert len(events_of(world, Registered, operator=operator)) == 1

    # 4. A live picture; Ctrl-C ends it.
    with (
        FolderLock(newcomer.nodes / "run-1-worker" / "state"),
        Terminal(("up",), newcomer.folder, at_home) as terminal,
    ):
        terminal.reads("this only watches it")
        terminal.reads("in the window  0 MUST at 2 MUST for each")
        terminal.reads("commitments    0 accepted, 0 pending, 0 rejected")
        terminal.presses_control_c()
        assert terminal.ends(20) == 130


@pytest.mark.parametrize("role", ["worker", "validator"])
def test_a_status_that_is_watched_on_a_terminal_is_the_same_picture(
    world: World, newcomer: Newcomer, role: str
) -> None:
    made = newcomer.up(world.orchestrator.url, "--role", role)
    words = (role, "status", "--watch", "--config", made["config"])
    with Terminal(words, newcomer.folder, {"HOME": str(newcomer.home)}) as terminal:
        terminal.reads(f"{role} {made['node']} of run {made['run']}")
        terminal.reads("gas ")
        terminal.reads("0.02 ETH, about ")
        terminal.presses_control_c()
        assert terminal.ends(20) == 130


# Where others run it


def test_what_runs_already_is_only_watched(world: World, newcomer: Newcomer) -> None:
    newcomer.up(world.orchestrator.url)
    place = newcomer.nodes / "run-1-worker"
    for locked, sentence in (
        (place, f"run-1-worker is run by process {os.getpid()}, another muster up: this only watches it"),
        (place / "state", f"process {os.getpid()} runs it, a service or another command: this only watches it"),
    ):
        with FolderLock(locked):
            command = [sys.executable, "-m", "muster", "up", world.orchestrator.url]
            kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
            with subprocess.Popen(
                command, env=kept | {"HOME": str(newcomer.home)}, stderr=subprocess.PIPE, text=True, cwd=newcomer.folder
            ) as process:
                assert process.stderr is not None
                seen = []
                for line in process.stderr:
                    seen.append(line.rstrip())
                    if "commitments: " in line:
                        break
                process.terminate()
                assert process.wait(30) == 130
        assert sentence in seen
        assert seen[-1].endswith("commitments: 0 accepted, 0 pending, 0 rejected")


def test_a_service_is_installed_instead(world: World, newcomer: Newcomer) -> None:
    words = ("up", world.orchestrator.url, "--yes", "--password-file", newcomer.password, "--detach", "--json")
    done = newcomer.type(*words, PATH="")
    assert done.returncode == 0, done.stderr
    installed = json.loads(done.stdout)
    unit = newcomer.home / ".config" / "systemd" / "user" / "muster-run-1-worker.service"
    assert (installed["path"], installed["started"]) == (str(unit), False)
    assert "systemctl is not here" in done.stderr
    assert f"--config {newcomer.nodes / 'run-1-worker' / 'muster.toml'}\n" in unit.read_text()
    assert len(events_of(world, Registered, operator=installed["operator"])) == 1


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
        node = LocalNode(Said(Options()), None, "worker", NOBODY)  # type: ignore[arg-type]
        async with await Chain.connect(deployment.settings, operator) as chain:
            await setup.bring_ether(node, chain, 2 * TOKEN if seconds < 1 else TOKEN)

    asyncio.run(wait(60))
    assert said[0].startswith(f"send 1 ETH or more to {operator.address} on chain {CHAIN_BASE_SEPOLIA}")
    assert said[-1] == f"{operator.address} holds 1 ETH"
    with pytest.raises(UnfundedError, match="no ether came to") as caught:
        asyncio.run(wait(0.2))
    assert caught.value.hint.endswith("; then type this again")
