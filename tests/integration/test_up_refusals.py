"""What `muster up` refuses before anything is made or staked: options, URLs, documents, passwords, lists.

Real chain, contracts and orchestrator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from eth_utils.address import to_checksum_address

from muster.chain.client import event_of
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL
from muster.contracts import run_terms
from muster.contracts.run_terms import RunCreated
from muster.contracts.token import FaucetUsed
from muster.protocol.eip712 import Domain, sign_message
from muster.protocol.messages import JoinDocument
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.settings.toml import to_toml
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import deploy_on
from testbed.http import Reply, serving
from testbed.runs.newcomer import Newcomer, events_of
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import World, opened


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


def only(path: str, document: bytes) -> Callable[[BaseHTTPRequestHandler], Reply]:
    """Answer one path with a document, and 404 to all others."""
    return lambda request: Reply(document) if request.path == path else Reply(status=404)


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


def test_urls_without_a_run_are_refused(world: World, newcomer: Newcomer) -> None:
    server = ("--no-start", "--yes", "--password-file", newcomer.password)
    assert refused(newcomer, "http://127.0.0.1:9", *server, status=5)["error"].startswith("GET http://127.0.0.1:9/v1/")
    chain = world.run_fixture.settings.rpc_url
    assert refused(newcomer, chain, *server, status=3)["error"].startswith(f"there is no run at {chain}: ")
    assert "is no URL" in refused(newcomer, "run.example:8600", *server, status=2)["error"]
    elsewhere = refused(newcomer, world.orchestrator.url, *server, "--rpc-url", "http://127.0.0.1:9", status=5)
    assert elsewhere["error"].startswith("the chain at http://127.0.0.1:9 does not answer")


@pytest.mark.parametrize("lie", ["orchestrator", "run", "runs"])
def test_a_false_join_document_makes_nothing(world: World, newcomer: Newcomer, lie: str) -> None:
    """A document signed by another key, for an unknown run, or for other contracts."""
    run_fixture = world.run_fixture

    async def fetched() -> JoinDocument:
        async with OrchestratorClient(world.orchestrator.url, chain_id=CHAIN_ANVIL, registry=ZERO_ADDRESS) as client:
            return await client.join_document()

    document = asyncio.run(fetched())
    changed = {"orchestrator": "http://thief.example", "run": 4_000_000, "runs": document.court}[lie]
    key = run_fixture.key("stranger" if lie == "orchestrator" else "storage")
    false = sign_message(key, Domain(document.chain_id, document.registry), document.model_copy(update={lie: changed}))
    with serving(only("/v1/join", false.model_dump_json().encode())) as url:
        words = (f"{url}/join", "--no-start", "--yes", "--password-file", newcomer.password)
        error = refused(newcomer, *words, status=3)["error"]
    expected = {"orchestrator": f"signed by {key.address}", "run": "there is no run 4000000", "runs": "is not the Runs"}
    assert expected[lie] in error


def test_an_orchestrator_behind_a_path_of_a_proxy(world: World, newcomer: Newcomer) -> None:
    document = world.orchestrator.get("/v1/join")[1]
    with serving(only("/muster/v1/join", document)) as url:
        shown = newcomer.json("up", f"{url}/muster/join", "--dry-run")
    assert shown["run"] == world.run_fixture.run


def test_unadmitted_validator_gets_command_for_owner(world: World, newcomer: Newcomer, tmp_path: Path) -> None:
    run_fixture = world.run_fixture
    owner = run_fixture.key("owner").address

    async def create() -> int:
        async with run_fixture.chain("owner") as chain:
            terms, keys = await chain.terms(run_fixture.run), await chain.keys_now(run_fixture.run)
            created = run_terms.create_run(terms.to_chain(), replace(keys, admitter=owner))
            return event_of(await chain.send(created), RunCreated).run

    run = asyncio.run(create())
    listed = RunFixture(run_fixture.folder, run_fixture.settings, run_fixture.book, run_fixture.seed, run)
    with Orchestrator(listed, tmp_path / "orchestrator", run_folder=run_fixture.folder / "run") as running:
        error = newcomer.up(running.url, "--role", "validator", status=3)
        operator = to_checksum_address(json.loads(newcomer.wallet.read_text())["address"])
        assert error["error"].endswith(f"from a list that {owner} keeps, and {operator} is not on it")
        assert error["hint"] == f"ask its owner to type: muster run admit {operator} {run}"
        assert events_of(world, FaucetUsed, account=operator) == []
        words = error["hint"].removeprefix("ask its owner to type: muster ").split()
        (tmp_path / "owner.toml").write_text(to_toml(run_fixture.settings_file))
        owns = ("--operator", newcomer.secret("owner.key", run_fixture.secret("owner")), "--yes")
        newcomer.json(*words, *owns, "--config", tmp_path / "owner.toml")
        made = newcomer.up(running.url, "--role", "validator")
    assert (made["operator"], made["run"], made["name"]) == (operator, run, f"run-{run}-validator")
