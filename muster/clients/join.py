"""Fetch the document that says where a run is, and check it against the chain before anything is believed.

The document names contracts, and the contracts name the run's storage key, which signed the document. So whoever
answers at an orchestrator's URL can send a newcomer only to a run whose storage key they have, on contracts that this
version knows. The endpoint of a public chain is never taken from the document: all else is checked by what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from eth_utils.address import to_checksum_address
from web3.types import TxParams

from muster.chain.deploy import verify_deployment
from muster.chain.provider import connected
from muster.chain.types import AddressBook
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL, PUBLIC_RPC_URLS
from muster.contracts import runs
from muster.contracts.abi import CONTRACTS
from muster.errors import ConfigError, MismatchError
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.messages import JoinDocument
from muster.protocol.terms_file import NOBODY
from muster.settings.schema import ChainSettings, is_loopback


@dataclass(frozen=True)
class CheckedRun:
    """A run that is what its document says."""

    run: int
    orchestrator: str
    """Base URL."""
    rpc_url: str
    book: AddressBook


async def fetch_run(url: str, rpc_url: str | None = None, *, seconds: float = 30) -> CheckedRun:
    """Fetch the document from an orchestrator's base URL and check it.

    `rpc_url`: the endpoint to check it by, instead of the one that is known. Raises UnreachableError
    when orchestrator or endpoint do not answer, and what `check_run` raises.
    """
    async with OrchestratorClient(url, chain_id=CHAIN_ANVIL, registry=NOBODY, timeout=seconds) as client:
        document = await client.join_document()
    return await check_run(document, rpc_url, host=urlsplit(url).hostname or "", seconds=seconds)


async def check_run(
    document: JoinDocument, rpc_url: str | None = None, *, host: str = "", seconds: float = 30
) -> CheckedRun:
    """Raise unless contracts, run and signature are what the document says. `host`: the one that it came from.

    ConfigError without an endpoint, WrongChainError where it serves another chain, MismatchError where the code on
    chain is not that of this version, there is no such run, or another key than the run's storage key signed.
    """
    # 1. The endpoint that everything is checked by.
    endpoint = rpc_url or endpoint_of(document, host)

    # 2. The contracts: code, wiring, signing domain.
    addresses: dict[str, Any] = {name: to_checksum_address(getattr(document, name)) for name in CONTRACTS}
    book = AddressBook(chain_id=document.chain_id, from_block=document.from_block, **addresses)
    settings = ChainSettings(rpc_url=endpoint, chain_id=document.chain_id, timeout_seconds=seconds)
    asked = runs.storage_key_of(document.run)
    async with connected(settings) as web3:
        await verify_deployment(web3, book)
        answer = await web3.eth.call(TxParams(to=to_checksum_address(book.runs), data=asked.encode()))

    # 3. The run, and who signed.
    storage_key = asked.decode(answer)
    if storage_key == NOBODY:
        raise MismatchError(f"there is no run {document.run} on chain {document.chain_id}")
    signer = recover_signer(Domain(document.chain_id, book.registry), document)
    if signer != storage_key:
        raise MismatchError(
            f"the document is signed by {signer}, and run {document.run} trusts {storage_key}",
            hint="ask the run's owner for the orchestrator's URL",
        )
    return CheckedRun(document.run, document.orchestrator.rstrip("/"), endpoint, book)


def endpoint_of(document: JoinDocument, host: str) -> str:
    """Return the endpoint to check a document by. Raises ConfigError where none is known.

    A local chain's is taken where it is on this machine or on the orchestrator's, and from nowhere else.
    """
    named = urlsplit(document.rpc_url).hostname or ""
    if document.chain_id == CHAIN_ANVIL and named and (is_loopback(named) or named == host):
        return document.rpc_url
    if endpoint := PUBLIC_RPC_URLS.get(document.chain_id):
        return endpoint
    raise ConfigError(
        f"no endpoint of chain {document.chain_id} is known", hint="name one that you trust: --rpc-url URL"
    )
