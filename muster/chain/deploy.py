"""Deploy the contracts, and verify that what is deployed is what was built.

The contracts name each other in their constructors, so their addresses are computed from the deployer's
nonces before anything is sent, and checked afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes

from muster.chain.connection import Web3, connected
from muster.chain.keys import Signer
from muster.chain.sender import TxSender
from muster.chain.types import AddressBook, TxRequest
from muster.contracts import court, refutations, registry, run_terms, runs, wages
from muster.contracts.abi import CONTRACTS, artifact
from muster.errors import ChainError, ConfigError, MismatchError, UnreachableError
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import keccak
from muster.runtime.units import Ether
from muster.settings.schema import ChainSettings

ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "token": (),
    "registry": ("token", "runs", "court"),
    "run_terms": ("runs",),
    "runs": ("token", "registry", "run_terms", "court", "guardian"),
    "court": ("registry", "runs", "run_terms", "refutations"),
    "refutations": ("runs", "run_terms", "court"),
    "wages": ("token", "registry", "run_terms", "runs"),
}
"""Constructor arguments, by the names of an address book (guardian included), in the order of deployment."""

_GETTERS: Final = {
    "registry": registry,
    "run_terms": run_terms,
    "runs": runs,
    "court": court,
    "refutations": refutations,
    "wages": wages,
}
WIRING: Final = tuple(
    (getattr(contract, "terms" if target == "run_terms" else target)(), target)
    for name, contract in _GETTERS.items()
    for target in ARGUMENTS[name]
    if target != "guardian"
)
"""(getter, contract it must name)."""

POLL_SECONDS: Final = 0.5
"""Pause between two polls for contracts that the endpoint does not have yet."""


@dataclass(frozen=True)
class DeployPlan:
    """What a deployment would do."""

    chain_id: int
    deployer: str
    guardian: str
    """Who will be able to pause new commitments."""
    addresses: Mapping[str, str]
    gas: dict[str, int]
    fee_wei: int
    """Gas at the present price; the deployer must hold about two and a half times that."""

    def __str__(self) -> str:
        lines = [f"{CONTRACTS[name]:<12}{address}  gas {self.gas[name]:,}" for name, address in self.addresses.items()]
        lines += [f"{'guardian':<12}{self.guardian}", f"{'':<12}about {Ether(self.fee_wei)} from {self.deployer}"]
        return "\n".join(lines)


async def deploy(settings: ChainSettings, signer: Signer) -> AddressBook:
    """Deploy all of them, write the address book to `settings.addresses`, and verify them.

    The book is there before anything is verified: what was paid for is found again, whatever the endpoint says next.
    Raises ConfigError when that book names contracts that live on this chain: it is not overwritten. Raises
    UnreachableError when the endpoint does not have the contracts within `settings.timeout_seconds`.
    """
    async with connected(settings) as web3, AsyncExitStack() as stack:
        # 1. Nothing is deployed there yet, and nothing is on its way.
        await _refuse_existing(web3, settings)
        sender = await TxSender.open(web3, signer, settings.addresses.parent / "journals", settings)
        stack.callback(sender.close)
        await sender.await_pending()
        guardian = _guardian(settings, signer.address)
        addresses = await _foresee(web3, signer.address)
        # 2. Create all at once: the sender keeps the order, and they fit into one block.
        mined = await asyncio.gather(*(sender.send(_creation(web3, name, addresses, guardian)) for name in ARGUMENTS))
        for name, receipt in zip(ARGUMENTS, mined, strict=True):
            if receipt.contract is None or to_checksum_address(receipt.contract) != addresses[name]:
                raise ChainError(
                    f"{CONTRACTS[name]} came to lie at {receipt.contract} and not at {addresses[name]}",
                    hint="something else sends with the deployer's key: stop it and deploy again",
                )
        # 3. Write the book down, and verify.
        first = min(receipt.block for receipt in mined)
        book = AddressBook(settings.chain_id, **addresses, from_block=first, code_hashes={}, guardian=guardian)
        await asyncio.to_thread(book.save, settings.addresses)
        book = replace(book, code_hashes=await _code_hashes(web3, addresses, settings))
        await asyncio.to_thread(book.save, settings.addresses)
        await verify_deployment(web3, book, wait_seconds=settings.timeout_seconds)
    return book


async def plan_deployment(settings: ChainSettings, deployer: str) -> DeployPlan:
    """Return addresses, gas and cost of a deployment by `deployer`; send nothing."""
    guardian = _guardian(settings, deployer)
    async with connected(settings) as web3:
        await _refuse_existing(web3, settings)
        addresses = await _foresee(web3, deployer)
        creations = [_creation(web3, name, addresses, guardian).data for name in ARGUMENTS]
        estimates = [web3.eth.estimate_gas({"from": to_checksum_address(deployer), "data": code}) for code in creations]
        gas, price = await web3.in_one_trip(*estimates), await web3.gas_price()
    spent = dict(zip(ARGUMENTS, gas, strict=True))
    return DeployPlan(settings.chain_id, deployer, guardian, addresses, spent, price * sum(gas))


async def verify_deployment(web3: Web3, book: AddressBook, *, wait_seconds: float = 0.0) -> None:
    """Raise MismatchError when code, wiring or signing domain of a deployment is not what was built.

    wait_seconds: time to wait for what the endpoint does not have yet, when the deployment is of just now.
    """
    addresses = {name: getattr(book, name) for name in CONTRACTS}
    codes = await _codes(web3, addresses, wait_seconds)
    for name, code in codes.items():
        build = artifact(name)
        if _masked(code, build.immutables) != _masked(build.deployed_bytecode, build.immutables):
            raise MismatchError(
                f"the code at {addresses[name]} is not the {build.name} of this build",
                hint="use the version of muster that deployed it, or deploy again",
            )
        if book.code_hashes and book.code_hashes[name] != "0x" + keccak(code).hex():
            raise MismatchError(f"the code at {addresses[name]} is not what the address book recorded")
    calls = [*(call for call, _ in WIRING), runs.guardian(), registry.domain_separator()]
    requests = [("eth_call", [{"to": addresses[call.contract], "data": call.encode()}, "latest"]) for call in calls]
    answers = await _poll(web3, requests, wait_seconds)
    *wired, guardian, separator = (call.decode(answer) for call, answer in zip(calls, answers, strict=True))
    for (call, target), found in zip(WIRING, wired, strict=True):
        if found != addresses[target]:
            raise MismatchError(f"{call.label} is {found} and not {addresses[target]}")
    if book.guardian and guardian != book.guardian:
        raise MismatchError(f"Runs.GUARDIAN is {guardian} and not {book.guardian}")
    if separator != Domain(book.chain_id, book.registry).separator:
        raise MismatchError("the Registry's EIP-712 domain is not the one that requests are signed for")


async def _refuse_existing(web3: Web3, settings: ChainSettings) -> None:
    """Raise ConfigError when the address book names a deployment in use; that of an ended local chain is stale."""
    if not await asyncio.to_thread(settings.addresses.exists):
        return
    book = await asyncio.to_thread(AddressBook.load, settings.addresses)
    codes = await _codes(web3, {name: getattr(book, name) for name in CONTRACTS})
    if book.chain_id != settings.chain_id or any(codes.values()):
        raise ConfigError(
            f"{settings.addresses} names contracts that are deployed on chain {book.chain_id}",
            hint="move it away to deploy again, or set chain.addresses to another path",
        )


async def _foresee(web3: Web3, deployer: str) -> dict[str, ChecksumAddress]:
    """Return the addresses that the deployer's next transactions will create."""
    from web3.utils import get_create_address

    sender = to_checksum_address(deployer)
    count = await web3.eth.get_transaction_count(sender, "pending")
    return {name: get_create_address(sender, cast(Any, count + i)) for i, name in enumerate(ARGUMENTS)}


def _guardian(settings: ChainSettings, deployer: str) -> str:
    return to_checksum_address(settings.guardian or deployer)


def _creation(web3: Web3, name: str, addresses: Mapping[str, str], guardian: str) -> TxRequest:
    build = artifact(name)
    if not build.bytecode:
        raise ConfigError(f"{build.name} was built without code", hint="python scripts/build_contracts.py --force")
    known = {**addresses, "guardian": guardian}
    contract = web3.eth.contract(abi=build.abi, bytecode=build.bytecode)
    creation = contract.constructor(*(known[argument] for argument in ARGUMENTS[name]))
    return TxRequest(None, HexBytes(creation.data_in_transaction), f"deploy {build.name}")


async def _codes(web3: Web3, addresses: Mapping[str, str], wait_seconds: float = 0.0) -> dict[str, bytes]:
    places = [to_checksum_address(address) for address in addresses.values()]
    requests = [("eth_getCode", [place, "latest"]) for place in places]
    codes = await _poll(web3, requests, wait_seconds)
    return dict(zip(addresses, codes, strict=True))


async def _code_hashes(web3: Web3, addresses: Mapping[str, str], settings: ChainSettings) -> dict[str, str]:
    codes = await _codes(web3, addresses, settings.timeout_seconds)
    if not all(codes.values()):
        raise UnreachableError(
            f"the contracts are deployed, but the endpoint does not have their code in {settings.timeout_seconds:g} s",
            hint=f"their addresses are in {settings.addresses}; check them later: muster chain show",
        )
    return {name: "0x" + keccak(code).hex() for name, code in codes.items()}


async def _poll(web3: Web3, requests: Sequence[tuple[str, list[Any]]], wait_seconds: float) -> list[bytes]:
    """Return the answers; while one is empty, read again for up to `wait_seconds`.

    Of the servers behind a public endpoint, the one that answers may lag behind the one that gave the receipts.
    """
    start = time.monotonic()
    while True:
        answers = await web3.data(*requests)
        if all(answers) or time.monotonic() - start >= wait_seconds:
            return answers
        await asyncio.sleep(POLL_SECONDS)


def _masked(code: bytes, immutables: tuple[tuple[int, int], ...]) -> bytes:
    """Return the code with zeros where constructor arguments were put in."""
    masked = bytearray(code)
    for start, length in immutables:
        masked[start : start + length] = bytes(length)
    return bytes(masked)
