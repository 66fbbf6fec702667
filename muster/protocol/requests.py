"""Signed HTTP requests: four headers that bind method, host, path, query and body to a key.

The sender is the address that the signature recovers to, nothing else. `verify_request` is pure: it bounds the lifetime
of a request and recovers its signer. The server remembers nonces, so that replays fail.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from httpx2 import URL, InvalidURL

from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.errors import MalformedError, MismatchError
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, recover_signer, sign_message
from muster.protocol.hashes import is_hash
from muster.protocol.messages import SignedRequest

HEADER_BODY: Final = "Muster-Body"
HEADER_NONCE: Final = "Muster-Nonce"
HEADER_EXPIRY: Final = "Muster-Expiry"
HEADER_SIGNATURE: Final = "Muster-Signature"

_HEADERS: Final = (HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE)


def host_of(url: str) -> str:
    """Return the host a request to `url` is signed for: lower case, with the port unless it is the scheme's own.

    A name with letters beyond ASCII is in the form that DNS has (IDNA 2008), and none ends with a dot. Raises
    MalformedError for what is no name.
    """
    try:
        parts = URL(url)
        host = parts.raw_host.decode("ascii").removesuffix(".")
        host = f"[{ip_address(host)}]" if ":" in host else host
    except (InvalidURL, ValueError) as error:
        raise MalformedError(f"{url[:200]!r} has no host name: {error}") from None
    return host if parts.port is None else f"{host}:{parts.port}"


def host_as_sent(header: str) -> str:
    """Return the host that a Host header names, as `host_of` has it."""
    return header.lower().replace(".:", ":").removesuffix(".")


def sign_request(
    signer: TypedSigner, where: Domain, method: str, url: str, body_hash: str, *, now: float
) -> dict[str, str]:
    """Return the headers that sign a request.

    `url` is absolute, as sent; `body_hash` the `content_hash` of the body; `now` in Unix seconds (wall clock). The
    request expires after half the longest lifetime: a clock that is behind the server's by the other half still works.
    """
    parts = urlsplit(url)
    request = SignedRequest(
        method=method.upper(),
        host=host_of(url),
        path=parts.path or "/",
        query=parts.query,
        body_hash=body_hash,
        nonce="0x" + secrets.token_hex(32),
        expiry=int(now) + REQUEST_LIFETIME_SECONDS // 2,
        signature=UNSIGNED,
    )
    return {
        HEADER_BODY: request.body_hash,
        HEADER_NONCE: request.nonce,
        HEADER_EXPIRY: str(request.expiry),
        HEADER_SIGNATURE: sign_message(signer, where, request).signature,
    }


def verify_request(
    where: Domain, *, method: str, host: str, path: str, query: str, headers: Mapping[str, str], now: float
) -> tuple[str, SignedRequest]:
    """Return who sends this request, and its signed form. `host` is the server's own name, not the Host header.

    The body is not inspected: the caller reads it bounded and compares it with `body_hash`. The caller refuses replays,
    by (signer, nonce) until `expiry`. Header names are matched as given or in lower case.

    Raises MalformedError when a header is missing or unreadable, MismatchError when the request has expired or its
    lifetime exceeds REQUEST_LIFETIME_SECONDS.
    """
    # 1. All four headers, each of the right form.
    found = {name: headers.get(name) or headers.get(name.lower()) or "" for name in _HEADERS}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise MalformedError(f"unsigned: the request has no {', '.join(missing)} header", hint="sign it with your key")
    expiry = found[HEADER_EXPIRY]
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 15):
        raise MalformedError(f"{HEADER_EXPIRY} is not a Unix time in whole seconds")
    for name in (HEADER_BODY, HEADER_NONCE):
        if not is_hash(found[name]):
            raise MalformedError(f"{name} is not 0x and 64 lower-case hex digits")

    # 2. Neither expired nor signed for longer than replays are remembered.
    left = int(expiry) - now
    clock = "set this machine's clock (timedatectl set-ntp true)"
    if left <= 0:
        raise MismatchError(f"the request expired {-left:.0f} s ago", hint=clock)
    if left > REQUEST_LIFETIME_SECONDS:
        raise MismatchError(f"the request expires in {left:.0f} s; at most {REQUEST_LIFETIME_SECONDS}", hint=clock)

    # 3. The signer. The fields are not validated again: whatever they are, the signature covers them.
    if len(found[HEADER_SIGNATURE]) != 132:
        raise MalformedError(f"{HEADER_SIGNATURE} is not 0x and 130 hex digits")
    request = SignedRequest.model_construct(
        method=method,
        host=host,
        path=path,
        query=query,
        body_hash=found[HEADER_BODY],
        nonce=found[HEADER_NONCE],
        expiry=int(expiry),
        signature=found[HEADER_SIGNATURE].lower(),
    )
    return recover_signer(where, request), request
