"""Deploying the contracts, and checking that what is deployed is what was built.

Registry, Runs and SlashCourt name each other in their constructors, so their addresses are computed from the deployer's
nonces before anything is sent, and checked afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from rlp import encode as rlp_encode

from muster.chain.abi import CONTRACTS, artifact, types
from muster.chain.contracts import court, registry, runs
from muster.chain.keys import Signer
from muster.chain.rpc import Request, Rpc, connect
from muster.chain.sender import TxSender
from muster.chain.transactions import Call, ether
from muster.chain.types import AddressBook
from muster.errors import ChainError, ConfigError, MismatchError, UnreachableError
from muster.settings import ChainSettings
from muster.signing import domain

ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "token": (),
    "registry": ("token", "runs", "court"),
    "runs": ("token", "registry", "court", "guardian"),
    "court": ("registry", "runs"),
}
"""Constructor arguments, by the names of an address book (guardian included), in the order of deployment."""

WIRING: Final = (
    (registry.token(), "token"),
    (registry.runs(), "runs"),
    (registry.court(), "court"),
    (runs.token(), "token"),
    (runs.registry(), "registry"),
    (runs.court(), "court"),
    (court.registry(), "registry"),
    (court.runs(), "runs"),
)
"""(getter, contract it must name)."""

LOOK_SECONDS: Final = 0.5
"""Pause between two looks for contracts that the endpoint does not have yet."""


@dataclass(frozen=True)
class Plan:
    """What a deployment would do."""

    chain_id: int
    deployer: str
    guardian: str
    """Who will be able to pause new commitments."""
    addresses: dict[str, str]
    gas: dict[str, int]
    fee_wei: int
    """Gas at the present price; the deployer must hold about two and a half times that."""

    def __str__(self) -> str:
        lines = [f"{CONTRACTS[name]:<12}{address}  gas {self.gas[name]:,}" for name, address in self.addresses.items()]
        lines += [f"{'guardian':<12}{self.guardian}", f"{'':<12}about {ether(self.fee_wei)} ETH from {self.deployer}"]
        return "\n".join(lines)


async def deploy(settings: ChainSettings, signer: Signer) -> AddressBook:
    """Deploy all four, write the address book to `settings.addresses`, and verify them.

    The book is there before anything is verified: what was paid for is found again, whatever the endpoint says next.
    Raises ConfigError when that book names contracts that live on this chain: it is not overwritten. Raises
    UnreachableError when the endpoint does not have the contracts within `settings.timeout_seconds`.
    """
    rpc = await connect(settings)
    sender: TxSender | None = None
    try:
        await _refuse_existing(rpc, settings)
        sender = await TxSender.open(rpc, signer, settings.addresses.parent / "journals", settings)
        await sender.settle()
        guardian = _guardian(settings, signer.address)
        addresses = await _foresee(rpc, signer)
        # All at once: the sender keeps the order, and they fit into one block.
        mined = await asyncio.gather(*(sender.send(_creation(name, addresses, guardian)) for name in ARGUMENTS))
        for name, receipt in zip(ARGUMENTS, mined, strict=True):
            if receipt.contract is None or to_checksum_address(receipt.contract) != addresses[name]:
                raise ChainError(
                    f"{CONTRACTS[name]} came to lie at {receipt.contract} and not at {addresses[name]}",
                    hint="something else sends with the deployer's key: stop it and deploy again",
                )
        first = min(receipt.block for receipt in mined)
        book = AddressBook(settings.chain_id, **addresses, from_block=first, code_hashes={}, guardian=guardian)
        await asyncio.to_thread(book.save, settings.addresses)
        book = replace(book, code_hashes=await _code_hashes(rpc, addresses, settings))
        await asyncio.to_thread(book.save, settings.addresses)
        await verify_deployment(rpc, book, patience=settings.timeout_seconds)
    finally:
        if sender is not None:
            sender.close()
        await rpc.close()
    return book


async def plan_deployment(settings: ChainSettings, deployer: str) -> Plan:
    """A dry run: addresses, gas and cost of a deployment by `deployer`, nothing sent."""
    guardian = _guardian(settings, deployer)
    rpc = await connect(settings)
    try:
        await _refuse_existing(rpc, settings)
        count = int(await rpc.request("eth_getTransactionCount", deployer, "pending"), 16)
        addresses = {name: _created(deployer, count + i) for i, name in enumerate(ARGUMENTS)}
        answers = await rpc.batch(
            [
                ("eth_gasPrice", []),
                *(
                    ("eth_estimateGas", [{"from": deployer, "data": _creation(n, addresses, guardian).data}])
                    for n in ARGUMENTS
                ),
            ]
        )
    finally:
        await rpc.close()
    price, *gas = (int(answer, 16) for answer in answers)
    spent = dict(zip(ARGUMENTS, gas, strict=True))
    return Plan(settings.chain_id, deployer, guardian, addresses, spent, price * sum(gas))


async def verify_deployment(rpc: Rpc, book: AddressBook, *, patience: float = 0.0) -> None:
    """Raises MismatchError when code, wiring or signing domain of a deployment is not what was built.

    patience: seconds to wait for what the endpoint does not have yet, when the deployment is of just now.
    """
    addresses = {name: getattr(book, name) for name in CONTRACTS}
    codes = await _codes(rpc, addresses, patience)
    for name, code in codes.items():
        build = artifact(name)
        if _masked(code, build.immutables) != _masked(build.deployed_bytecode, build.immutables):
            raise MismatchError(
                f"the code at {addresses[name]} is not the {build.name} of this build",
                hint="use the version of muster that deployed it, or deploy again",
            )
        if book.code_hashes and book.code_hashes[name] != "0x" + keccak(code).hex():
            raise MismatchError(f"the code at {addresses[name]} is not what the address book recorded")
    views = [*(view for view, _ in WIRING), runs.guardian(), registry.domain_separator()]
    questions = [("eth_call", [{"to": addresses[view.contract], "data": view.encode()}, "latest"]) for view in views]
    answers = await _ask(rpc, questions, patience)
    *wired, guardian, separator = (view.decode(answer) for view, answer in zip(views, answers, strict=True))
    for (view, target), found in zip(WIRING, wired, strict=True):
        if found != addresses[target]:
            raise MismatchError(f"{view.label} is {found} and not {addresses[target]}")
    if book.guardian and guardian != book.guardian:
        raise MismatchError(f"Runs.GUARDIAN is {guardian} and not {book.guardian}")
    if separator != domain(book.chain_id, book.registry).separator:
        raise MismatchError("the Registry's EIP-712 domain is not the one that requests are signed for")


async def _refuse_existing(rpc: Rpc, settings: ChainSettings) -> None:
    """Never lose the addresses of a deployment that is in use; a book left over from an ended local chain is stale."""
    if not await asyncio.to_thread(settings.addresses.exists):
        return
    book = await asyncio.to_thread(AddressBook.load, settings.addresses)
    codes = await _codes(rpc, {name: getattr(book, name) for name in CONTRACTS})
    if book.chain_id != settings.chain_id or any(codes.values()):
        raise ConfigError(
            f"{settings.addresses} names contracts that are deployed on chain {book.chain_id}",
            hint="move it away to deploy again, or set chain.addresses to another path",
        )


async def _foresee(rpc: Rpc, signer: Signer) -> dict[str, str]:
    count = int(await rpc.request("eth_getTransactionCount", signer.address, "pending"), 16)
    return {name: _created(signer.address, count + i) for i, name in enumerate(ARGUMENTS)}


def _guardian(settings: ChainSettings, deployer: str) -> str:
    return to_checksum_address(settings.guardian or deployer)


def _created(sender: str, nonce: int) -> str:
    """Address of the contract that a transaction creates."""
    return to_checksum_address(keccak(rlp_encode([bytes.fromhex(sender[2:]), nonce]))[12:])


def _creation(name: str, addresses: dict[str, str], guardian: str) -> Call:
    build = artifact(name)
    if not build.bytecode:
        raise ConfigError(f"{build.name} was built without code", hint="python scripts/build_contracts.py --force")
    inputs = next(iter(build.items("constructor")), {"inputs": []})["inputs"]
    known = {**addresses, "guardian": guardian}
    arguments = encode(types(inputs), [known[argument] for argument in ARGUMENTS[name]])
    return Call(None, build.bytecode + arguments, f"deploy {build.name}")


async def _codes(rpc: Rpc, addresses: dict[str, str], patience: float = 0.0) -> dict[str, bytes]:
    codes = await _ask(rpc, [("eth_getCode", [address, "latest"]) for address in addresses.values()], patience)
    return dict(zip(addresses, codes, strict=True))


async def _code_hashes(rpc: Rpc, addresses: dict[str, str], settings: ChainSettings) -> dict[str, str]:
    codes = await _codes(rpc, addresses, settings.timeout_seconds)
    if not all(codes.values()):
        raise UnreachableError(
            f"the contracts are deployed, but the endpoint does not have their code in {settings.timeout_seconds:g} s",
            hint=f"their addresses are in {settings.addresses}; check them later: muster chain show",
        )
    return {name: "0x" + keccak(code).hex() for name, code in codes.items()}


async def _ask(rpc: Rpc, questions: Sequence[Request], patience: float) -> list[bytes]:
    """The answers; while one is empty, they are asked for again for `patience` seconds.

    Of the servers behind a public endpoint, the one that is asked may lag behind the one that gave the receipts.
    """
    start = time.monotonic()
    while True:
        answers = [bytes.fromhex(answer[2:]) for answer in await rpc.batch(questions)]
        if all(answers) or time.monotonic() - start >= patience:
            return answers
        await asyncio.sleep(LOOK_SECONDS)


def _masked(code: bytes, immutables: tuple[tuple[int, int], ...]) -> bytes:
    """Code with zeros where constructor arguments were put in."""
    masked = bytearray(code)
    for start, length in immutables:
        masked[start : start + length] = bytes(length)
    return bytes(masked)
