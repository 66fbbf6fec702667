"""From an orchestrator's URL to settings that work, and what a document that is not true comes to. Real chain,
contracts and orchestrator."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.chain.types import AddressBook
from muster.clients.join import check_run, endpoint_of
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA
from muster.contracts.abi import CONTRACTS
from muster.errors import ConfigError, MalformedError, MismatchError
from muster.protocol.eip712 import Domain, sign_message
from muster.protocol.messages import JoinDocument
from muster.protocol.terms_file import ZERO_ADDRESS
from testbed.machine import Machine
from testbed.runs.run_fixture import Orchestrator, RunFixture

pytestmark = pytest.mark.usefixtures("built_contracts")


@pytest.fixture(scope="module")
def place(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunFixture, Orchestrator]]:
    folder = tmp_path_factory.mktemp("join")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="join", workers=()))
    asyncio.run(run_fixture.publish(0))
    with Orchestrator(run_fixture, folder / "orchestrator") as running:
        yield run_fixture, running


async def document_of(running: Orchestrator) -> JoinDocument:
    async with OrchestratorClient(running.url, chain_id=CHAIN_ANVIL, registry=ZERO_ADDRESS) as client:
        return await client.join_document()


def test_a_url_is_enough_for_settings_that_work(place: tuple[RunFixture, Orchestrator], tmp_path: Path) -> None:
    run_fixture, running = place
    machine = Machine(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "muster.toml").unlink()
    made = machine.json("config", "init", "--join", running.url + "/")
    assert (made["run"], made["chain_id"], made["orchestrator"]) == (run_fixture.run, CHAIN_ANVIL, running.url)
    written = tomllib.loads((tmp_path / "muster.toml").read_text())
    assert (written["run"], written["orchestrator"]) == (run_fixture.run, {"url": running.url})
    assert written["chain"]["rpc_url"] == run_fixture.settings.rpc_url
    assert machine.json("run", "show")["run"] == run_fixture.run, "nothing is edited, and nothing followed"
    again = machine.json("config", "init", "--join", running.url, status=78)
    assert again["error"] == "muster.toml exists"
    both = machine.json("config", "init", "--join", running.url, "--network", "local", "--force", status=2)
    assert both["hint"] == "leave out --network"
    alone = machine.json("config", "init", "--rpc-url", "http://127.0.0.1:9", "--force", status=2)
    assert alone["error"] == "--rpc-url belongs to --join"
    assert tomllib.loads((tmp_path / "muster.toml").read_text()) == written
    book = tmp_path / written["chain"]["addresses"]
    names = ("chain_id", *CONTRACTS, "from_block")
    assert [getattr(AddressBook.load(book), name) for name in names] == [
        getattr(run_fixture.book, name) for name in names
    ]
    other = replace(AddressBook.load(book), runs=run_fixture.book.token)
    other.save(book)
    kept = machine.json("config", "init", "--join", running.url, "--force", status=78)
    assert kept["error"].endswith("is the address book of another deployment")
    assert AddressBook.load(book) == other


async def test_join_document_is_checked_on_chain(place: tuple[RunFixture, Orchestrator]) -> None:
    run_fixture, running = place
    document = await document_of(running)
    where = Domain(document.chain_id, document.registry)
    found = await check_run(document)
    assert (found.run, found.orchestrator, found.book.runs) == (run_fixture.run, running.url, document.runs)

    async def refused(changed: JoinDocument, match: str) -> None:
        with pytest.raises(MismatchError, match=match):
            await check_run(changed)

    # 1. Another host, not signed for.
    elsewhere = document.model_copy(update={"orchestrator": "http://thief.example"})
    await refused(elsewhere, "the document is signed by 0x")
    # 2. The same, signed by a key that is not the storage's.
    thief = run_fixture.key("stranger")
    await refused(sign_message(thief, where, elsewhere), f"signed by {thief.address}, and run {run_fixture.run} trusts")
    unprintable = document.model_copy(update={"orchestrator": "http://a.example\x1b[2J"})
    with pytest.raises(MalformedError, match=r"names no URL as its orchestrator: 'http://a.example\\x1b"):
        await check_run(sign_message(run_fixture.key("storage"), where, unprintable))
    # 3. An unknown run, other contracts, and an address without a contract.
    storage = run_fixture.key("storage")
    await refused(
        sign_message(storage, where, document.model_copy(update={"run": 4_000_000})), "there is no run 4000000"
    )
    swapped = document.model_copy(update={"runs": document.court, "court": document.runs})
    await refused(sign_message(storage, where, swapped), "is not the Runs of this build")
    nowhere = document.model_copy(update={"registry": thief.address})
    await refused(sign_message(thief, Domain(document.chain_id, thief.address), nowhere), "is not the Registry of this")


async def test_no_stranger_chooses_the_endpoint(place: tuple[RunFixture, Orchestrator]) -> None:
    """A server could say anything of a chain that only it serves."""
    _, running = place
    document = await document_of(running)

    def at(rpc_url: str, chain_id: int = CHAIN_ANVIL) -> JoinDocument:
        return document.model_copy(update={"rpc_url": rpc_url, "chain_id": chain_id})

    assert endpoint_of(at("http://127.0.0.1:8545"), "run.example") == "http://127.0.0.1:8545"
    assert endpoint_of(at("http://run.example:8545"), "run.example") == "http://run.example:8545"
    assert endpoint_of(at("http://thief.example", CHAIN_BASE_SEPOLIA), "thief.example") == "https://sepolia.base.org"
    for other in (at("http://inside.example:8545"), at(""), at("http://run.example", 5)):
        with pytest.raises(ConfigError, match="no endpoint of chain"):
            endpoint_of(other, "run.example")
