"""Deploying: what is on chain is what was built, and no address book is lost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from muster.chain.anvil import find_anvil
from muster.chain.client import Chain
from muster.chain.connection import connected
from muster.chain.deploy import deploy, plan_deployment, verify_deployment
from muster.chain.keys import Signer
from muster.chain.types import AddressBook
from muster.contracts.abi import CONTRACTS
from muster.errors import ConfigError, MismatchError, UnfundedError, UnreachableError, WrongChainError
from muster.settings.schema import ChainSettings
from testbed.chain.anvil import Anvil, free_port
from testbed.chain.balancer import balanced, first, never
from testbed.chain.contracts import Deployment, deploy_on, funded_on

Start = Callable[..., Anvil]
pytestmark = pytest.mark.usefixtures("built_contracts")


def settings_for(anvil: Anvil, folder: Path) -> ChainSettings:
    return ChainSettings(rpc_url=anvil.url, addresses=folder / "addresses.json", poll_seconds=0.05)


async def test_a_dry_run_foresees_the_deployment_and_sends_nothing(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    (deployer,) = funded_on(anvil, 1)
    settings = settings_for(anvil, tmp_path)
    plan = await plan_deployment(settings, deployer.address)
    assert anvil.request("eth_blockNumber") == "0x0"
    assert not settings.addresses.exists()
    assert 5_000_000 < sum(plan.gas.values()) < 21_300_000
    assert deployer.address in str(plan)
    assert plan.guardian == deployer.address

    book = await deploy(settings, deployer)
    assert plan.addresses == {name: getattr(book, name) for name in CONTRACTS}
    assert AddressBook.load(settings.addresses) == book
    assert book.chain_id == 31_337
    assert book.from_block == 1
    with pytest.raises(ConfigError, match="names contracts that are deployed"):
        await plan_deployment(settings, deployer.address)


async def test_with_a_block_time_all_share_a_block(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(block_time=3)  # long enough to send them all on a busy machine
    (deployer,) = funded_on(anvil, 1)
    book = await deploy(settings_for(anvil, tmp_path), deployer)
    block = anvil.request("eth_getBlockByNumber", hex(book.from_block), False)
    assert len(block["transactions"]) == len(CONTRACTS)


async def test_a_book_in_use_is_not_overwritten_and_a_stale_one_is(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    deployer, other = funded_on(anvil, 2)
    settings = settings_for(anvil, tmp_path)
    await deploy(settings, deployer)
    before = settings.addresses.read_bytes()
    with pytest.raises(ConfigError, match="names contracts that are deployed") as caught:
        await deploy(settings, other)
    assert "move it away" in caught.value.hint
    assert settings.addresses.read_bytes() == before

    fresh = start_anvil()
    fresh.request("anvil_setBalance", other.address, hex(10**20))
    book = await deploy(settings_for(fresh, tmp_path), other)
    assert AddressBook.load(settings.addresses) == book


async def test_an_unfunded_deployer_writes_no_book(start_anvil: Start, tmp_path: Path) -> None:
    settings = settings_for(start_anvil(), tmp_path)
    with pytest.raises(UnfundedError, match="deploy MusterToken"):
        await deploy(settings, Signer.random())
    assert not settings.addresses.exists()


async def test_a_server_that_does_not_have_the_contracts_yet_is_waited_for(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    (deployer,) = funded_on(anvil, 1)
    async with balanced(anvil) as balancer:
        settings = settings_for(anvil, tmp_path).model_copy(update={"rpc_url": balancer.url})
        codes, calls = first(2, "eth_getCode"), first(1, "eth_call")
        balancer.lags = lambda text: codes(text) or calls(text)
        book = await deploy(settings, deployer)
    assert set(book.code_hashes) == set(CONTRACTS)
    assert AddressBook.load(settings.addresses) == book


async def test_a_deployment_that_cannot_be_verified_is_in_the_book(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil()
    (deployer,) = funded_on(anvil, 1)
    async with balanced(anvil) as balancer:
        options = {"rpc_url": balancer.url, "timeout_seconds": 5}
        settings = settings_for(anvil, tmp_path).model_copy(update=options)
        balancer.lags = lambda text: "eth_getCode" in text
        with pytest.raises(UnreachableError, match="the endpoint does not have their code in 5 s") as caught:
            await deploy(settings, deployer)
        assert str(settings.addresses) in caught.value.hint
        balancer.lags = never
        async with await Chain.connect(settings) as chain:
            await verify_deployment(chain.web3, AddressBook.load(settings.addresses))


@pytest.mark.parametrize("damage", ["code", "recorded", "guardian", "wiring"])
async def test_verify_deployment_detects_altered_contracts(start_anvil: Start, tmp_path: Path, damage: str) -> None:
    place = await asyncio.to_thread(deploy_on, start_anvil(), tmp_path)
    book = place.book
    async with connected(place.settings) as web3:
        await verify_deployment(web3, book)
        code = bytearray.fromhex(place.anvil.request("eth_getCode", book.runs, "latest")[2:])
        if damage == "code":
            code[-1] ^= 1
            place.anvil.request("anvil_setCode", book.runs, "0x" + code.hex())
            match = f"the code at {book.runs} is not the Runs of this build"
        elif damage == "recorded":
            book = replace(book, code_hashes=book.code_hashes | {"court": "0x" + "00" * 32})
            match = "not what the address book recorded"
        elif damage == "guardian":
            elsewhere = Signer.random().address
            match = f"Runs.GUARDIAN is {book.guardian} and not {elsewhere}"
            book = replace(book, guardian=elsewhere)
        else:
            elsewhere = Signer.random().address
            token, moved = bytes.fromhex(book.token[2:]), bytes.fromhex(elsewhere[2:])
            assert token in code
            place.anvil.request("anvil_setCode", book.runs, "0x" + bytes(code).replace(token, moved).hex())
            book = replace(book, code_hashes={})
            match = f"Runs.TOKEN is {elsewhere} and not {book.token}"
        with pytest.raises(MismatchError, match=match):
            await verify_deployment(web3, book)


async def test_a_book_of_another_chain_or_deployment_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "addresses.json"
    settings = ChainSettings.model_validate(deployment.settings.model_dump() | {"addresses": path})
    with pytest.raises(ConfigError, match="no address book at"):
        await Chain.connect(settings)
    path.write_text('{"chain_id": 31337}')
    with pytest.raises(ConfigError, match="is no address book"):
        await Chain.connect(settings)
    replace(deployment.book, chain_id=84_532).save(path)
    with pytest.raises(WrongChainError, match="is of chain 84532"):
        await Chain.connect(settings)
    replace(deployment.book, runs=Signer.random().address).save(path)
    with pytest.raises(ConfigError, match="there is no runs contract at"):
        await Chain.connect(settings)
    deployment.book.save(path)
    await (await Chain.connect(settings)).close()
    assert json.loads(path.read_text())["chain_id"] == 31_337


def test_anvil_is_found_started_and_ended_with_nothing_left(tmp_path: Path) -> None:
    assert os.access(find_anvil(), os.X_OK)
    with Anvil(log=tmp_path / "anvil.log") as anvil:
        assert os.getpgid(anvil.pid) == anvil.pid != os.getpgid(0)
        assert anvil.request("eth_chainId") == "0x7a69"
        with pytest.raises(AssertionError, match="Address already in use"):
            Anvil(port=anvil.port, log=tmp_path / "second.log").start()
        pid = anvil.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    anvil.stop()


def test_anvil_starts_on_given_port(start_anvil: Start) -> None:
    port = free_port()
    assert start_anvil(port=port, block_time=1).url == f"http://127.0.0.1:{port}"


def test_a_missing_anvil_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("muster.chain.anvil.__file__", str(tmp_path / "a" / "b" / "anvil.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="anvil is not installed") as caught:
        find_anvil()
    assert caught.value.hint == "make setup"
