"""Fetch the document that says where a run is, and check it against the chain before anything is believed.

The document names contracts, and the contracts name the run's storage key, which signed the document. So an impostor at
an orchestrator's URL can send a newcomer only to a run whose storage key the impostor has, on contracts that this
version knows. The endpoint of a public chain is never taken from the document: it checks all the rest.
"""

from __future__ import annotations

import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.connection import connected
from muster.chain.deploy import verify_deployment
from muster.chain.reads import ChainReader
from muster.chain.types import AddressBook
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL, PUBLIC_RPC_URLS
from muster.contracts.abi import CONTRACTS
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, UsageError
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.messages import JoinDocument
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.settings.schema import ChainSettings, is_loopback

MAX_PATH: Final = 4
"""Parts of an address's path that may be an orchestrator's base: each is one more question."""


@dataclass(frozen=True)
class CheckedRun:
    """A run that is what its document says."""

    run: int
    orchestrator: str
    """Base URL."""
    rpc_url: str
    book: AddressBook

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Chain, OrchestratorClient]]:
        """Yield what reads the run without a key: its contracts, and its orchestrator."""
        settings = ChainSettings(rpc_url=self.rpc_url, chain_id=self.book.chain_id)
        async with (
            await Chain.connect(settings, book=self.book) as chain,
            OrchestratorClient.on_chain(self.orchestrator, chain) as client,
        ):
            yield chain, client


async def fetch_run(url: str, rpc_url: str | None = None, *, seconds: float = 30) -> CheckedRun:
    """Fetch the document from an orchestrator's base URL, or the address of one of its pages, and check it.

    `rpc_url`: the endpoint to check it by, instead of the one that is known. Raises UsageError for what is no URL,
    UnreachableError when orchestrator or endpoint do not answer, and what `check_run` raises.
    """
    document = await _fetch_document(base_urls(url), seconds)
    return await check_run(document, rpc_url, host=urlsplit(url).hostname or "", seconds=seconds)


async def _fetch_document(urls: Sequence[str], seconds: float) -> JoinDocument:
    """Return the first document that one of these base URLs answers with. Raises what the last one raised."""
    last: CheckError | None = None
    for url in urls:
        try:
            async with OrchestratorClient(url, chain_id=CHAIN_ANVIL, registry=ZERO_ADDRESS, timeout=seconds) as client:
                return await client.join_document()
        except CheckError as error:  # no document here: that was the path of a page
            last = error
    assert last is not None
    raise CheckError(
        f"there is no run at {urls[-1]}: {last}", hint="copy the address from the join box of the run's page"
    ) from last


_PLAIN: Final = frozenset(string.ascii_letters + string.digits + ":/.-_~%[]")
"""Characters of a URL that a terminal takes as they are."""


def is_plain(url: str, besides: str = "") -> bool:
    """Return whether a URL has only characters that a settings file and a terminal take as they are."""
    return set(url) <= _PLAIN | set(besides)


def base_urls(url: str) -> list[str]:
    """Return the base URLs that the address of an orchestrator's page may have, the longest first.

    Pages have paths below the base, and behind a proxy the base has a path too: another run may be above it. Raises
    UsageError for what is no URL.
    """
    hint = "copy it from the join box of the run's page: it begins with http:// or https://"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UsageError(f"{url!r} is no URL", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{url!r} is no URL of an orchestrator", hint=hint)
    if parts.username is not None:
        raise UsageError("the URL of an orchestrator has no user name or password", hint=hint)
    if not is_plain(url.strip(), "?=&+,@#"):
        raise UsageError(f"{url!r} is no URL", hint=hint)
    names = [name for name in parts.path.split("/") if name][:MAX_PATH]
    base = f"{parts.scheme}://{parts.netloc}"
    return ["/".join([base, *names[:count]]) for count in range(len(names), -1, -1)]


async def check_run(
    document: JoinDocument, rpc_url: str | None = None, *, host: str = "", seconds: float = 30
) -> CheckedRun:
    """Raise unless contracts, run and signature are what the document says. `host`: the one that it came from.

    ConfigError without an endpoint, WrongChainError where it serves another chain, MismatchError where the code on
    chain is not that of this version, there is no such run, or another key than the run's storage key signed,
    MalformedError for an orchestrator that no URL can be.
    """
    for what, url in (("orchestrator", document.orchestrator), ("endpoint", document.rpc_url)):
        if not is_plain(url):
            raise MalformedError(f"the document names no URL as its {what}: {url!r}", hint="ask the run's owner")
    # 1. The endpoint that everything is checked by.
    endpoint = rpc_url or endpoint_of(document, host)

    # 2. The contracts: code, wiring, signing domain.
    addresses: dict[str, Any] = {name: to_checksum_address(getattr(document, name)) for name in CONTRACTS}
    book = AddressBook(chain_id=document.chain_id, from_block=document.from_block, **addresses)
    settings = ChainSettings(rpc_url=endpoint, chain_id=document.chain_id, timeout_seconds=seconds)
    async with connected(settings) as web3:
        await verify_deployment(web3, book)
        storage_key = (await ChainReader(web3, book, settings).keys_now(document.run)).storage_key

    # 3. The run, and who signed.
    if storage_key == ZERO_ADDRESS:
        raise MismatchError(f"there is no run {document.run} on chain {document.chain_id}", hint="ask the run's owner")
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
