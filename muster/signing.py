"""EIP-712: what is signed, byte for byte, and who signed it.

Three structs share one domain (name "Muster", version PROTOCOL_VERSION, chain id, Registry address):

    Request(string method,string host,string path,string query,bytes32 bodyHash,bytes32 nonce,uint64 expiry)
    Receipt(uint32 run,address node,uint32 index,bytes32 root,bytes32 fileHash,uint64 size)
    Verdict(uint32 run,uint32 step,address node,uint32 index,bytes32 root,bytes32 fileHash,address validator,
            bool accepted,string reason,int64 position,string measured,string threshold,bytes32 evidence,
            uint32 drawIndex,bytes32 preimage,uint32 inspected)

What is absent is written as: reason "", position -1, measured and threshold "", evidence 32 zero bytes. Floats are
C's "%.17g", which names every double exactly in every language.

Who you are is what the signature recovers to, nothing else. `verify_request` is pure: it bounds the life of a
request and recovers its signer; remembering nonces, so that replays fail, is the server's job. Structs are hashed
by hand here (0.1 ms a request); tests hold the result equal to eth-account's `encode_typed_data`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from urllib.parse import urlsplit

from eth_keys.datatypes import Signature
from eth_keys.exceptions import BadSignature
from eth_utils.address import to_canonical_address
from eth_utils.crypto import keccak
from eth_utils.exceptions import ValidationError

from muster.constants import PROTOCOL_VERSION, REQUEST_LIFETIME_SECONDS
from muster.errors import MalformedError, MismatchError
from muster.hashes import content_hash, hash_bytes, is_hash
from muster.messages import Receipt, SignedRequest, Upload, Verdict

HEADER_BODY = "Muster-Body"
HEADER_NONCE = "Muster-Nonce"
HEADER_EXPIRY = "Muster-Expiry"
HEADER_SIGNATURE = "Muster-Signature"

UNSIGNED = "0x" + "00" * 65
"""Placeholder signature of a message that is about to be signed."""

_NO_HASH = "0x" + "00" * 32
_HALF_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 // 2
_DEFAULT_PORTS = {"http": 80, "https": 443}


class TypedSigner(Protocol):
    """What signing needs of a key; `muster.chain.keys.Signer` is one."""

    @property
    def address(self) -> str: ...

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes: ...


@dataclass(frozen=True)
class Struct:
    """An EIP-712 struct of atomic fields: (name, type) in order."""

    name: str
    fields: tuple[tuple[str, str], ...]

    @cached_property
    def type_hash(self) -> bytes:
        return keccak(text=f"{self.name}({','.join(f'{kind} {name}' for name, kind in self.fields)})")

    @property
    def types(self) -> dict[str, list[dict[str, str]]]:
        """The `types` member of a typed-data document, as eth-account and wallets take it."""
        return {self.name: [{"name": name, "type": kind} for name, kind in self.fields]}

    def hash(self, values: Mapping[str, object]) -> bytes:
        """hashStruct of EIP-712."""
        return keccak(self.type_hash + b"".join(_word(kind, values[name]) for name, kind in self.fields))


def _word(kind: str, value: object) -> bytes:
    """encodeData of EIP-712 for one atomic value."""
    if isinstance(value, str) and kind == "string":
        return keccak(text=value)
    if isinstance(value, str) and kind == "address":
        return bytes(12) + to_canonical_address(value)
    if isinstance(value, bytes) and kind == "bytes32" and len(value) == 32:
        return value
    if isinstance(value, int) and kind.lstrip("u").startswith(("int", "bool")):
        try:
            return value.to_bytes(32, "big", signed=value < 0)
        except OverflowError as error:
            raise MalformedError(f"a number of {value.bit_length()} bits is no {kind}") from error
    raise MalformedError(f"{value!r} is no {kind}")


DOMAIN = Struct(
    "EIP712Domain",
    (("name", "string"), ("version", "string"), ("chainId", "uint256"), ("verifyingContract", "address")),
)
REQUEST = Struct(
    "Request",
    (
        ("method", "string"),
        ("host", "string"),
        ("path", "string"),
        ("query", "string"),
        ("bodyHash", "bytes32"),
        ("nonce", "bytes32"),
        ("expiry", "uint64"),
    ),
)
RECEIPT = Struct(
    "Receipt",
    (
        ("run", "uint32"),
        ("node", "address"),
        ("index", "uint32"),
        ("root", "bytes32"),
        ("fileHash", "bytes32"),
        ("size", "uint64"),
    ),
)
VERDICT = Struct(
    "Verdict",
    (
        ("run", "uint32"),
        ("step", "uint32"),
        ("node", "address"),
        ("index", "uint32"),
        ("root", "bytes32"),
        ("fileHash", "bytes32"),
        ("validator", "address"),
        ("accepted", "bool"),
        ("reason", "string"),
        ("position", "int64"),
        ("measured", "string"),
        ("threshold", "string"),
        ("evidence", "bytes32"),
        ("drawIndex", "uint32"),
        ("preimage", "bytes32"),
        ("inspected", "uint32"),
    ),
)


@dataclass(frozen=True)
class Domain:
    """Where a signature counts: one chain, one Registry. Build it with `domain`."""

    chain_id: int
    registry: str

    def as_dict(self) -> dict[str, object]:
        return {
            "name": "Muster",
            "version": str(PROTOCOL_VERSION),
            "chainId": self.chain_id,
            "verifyingContract": self.registry,
        }

    @cached_property
    def separator(self) -> bytes:
        return DOMAIN.hash(self.as_dict())

    def digest(self, struct: Struct, values: Mapping[str, object]) -> bytes:
        """The 32 bytes that are signed."""
        return keccak(b"\x19\x01" + self.separator + struct.hash(values))


def domain(chain_id: int, registry: str) -> Domain:
    """The domain of a deployment. `registry` is the Registry contract's address."""
    return Domain(chain_id, registry)


def recover(digest: bytes, signature: str) -> str:
    """The checksummed address that signed `digest`.

    Raises MalformedError when `signature` is not 65 bytes of hex with v 27 or 28 and the lower s: each message has
    one signature per nonce of the curve, as in OpenZeppelin's ECDSA.
    """
    try:
        raw = bytes.fromhex(signature.removeprefix("0x"))
    except ValueError as error:
        raise MalformedError("the signature is not hex") from error
    if len(raw) != 65 or raw[64] not in (27, 28):
        raise MalformedError("the signature is not 65 bytes that end in 1b or 1c")
    if int.from_bytes(raw[32:64], "big") > _HALF_ORDER:
        raise MalformedError("the signature has the upper s")
    try:
        parsed = Signature(raw[:64] + bytes([raw[64] - 27]))
        return parsed.recover_public_key_from_msg_hash(digest).to_checksum_address()
    except (BadSignature, ValidationError) as error:
        raise MalformedError("the signature recovers to no key") from error


def _sign(signer: TypedSigner, where: Domain, struct: Struct, values: dict[str, object]) -> str:
    return "0x" + bytes(signer.sign_typed(where.as_dict(), struct.types, values)).hex()


# Requests


def host_of(url: str) -> str:
    """The host a request to `url` is signed for: lower case, with the port unless it is the scheme's own."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    port = parts.port
    return host if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f"{host}:{port}"


def _request_values(request: SignedRequest) -> dict[str, object]:
    return {
        "method": request.method,
        "host": request.host,
        "path": request.path,
        "query": request.query,
        "bodyHash": hash_bytes(request.body_hash),
        "nonce": hash_bytes(request.nonce),
        "expiry": request.expiry,
    }


def sign_request(
    signer: TypedSigner, where: Domain, method: str, url: str, body: bytes, *, now: float
) -> dict[str, str]:
    """The headers that make a request ours. `url` is absolute, as sent; `now` in Unix seconds (wall clock).

    Signed for half the longest life, so that a clock half of it ahead of the server's still works.
    """
    parts = urlsplit(url)
    request = SignedRequest(
        method=method.upper(),
        host=host_of(url),
        path=parts.path or "/",
        query=parts.query,
        body_hash=content_hash(body),
        nonce="0x" + secrets.token_hex(32),
        expiry=int(now) + REQUEST_LIFETIME_SECONDS // 2,
        signature=UNSIGNED,
    )
    return {
        HEADER_BODY: request.body_hash,
        HEADER_NONCE: request.nonce,
        HEADER_EXPIRY: str(request.expiry),
        HEADER_SIGNATURE: _sign(signer, where, REQUEST, _request_values(request)),
    }


def recover_request(where: Domain, request: SignedRequest) -> str:
    """The address that signed `request`, at any time after: how an old upload is shown to be a node's own."""
    return recover(where.digest(REQUEST, _request_values(request)), request.signature)


def verify_request(
    where: Domain, *, method: str, host: str, path: str, query: str, headers: Mapping[str, str], now: float
) -> tuple[str, SignedRequest]:
    """Who sends this request, and the signed form of it. `host` is the server's own name, not the Host header.

    The body is not looked at: the caller reads it bounded and compares it with `body_hash`. Replays are the
    caller's to refuse, by (signer, nonce) until `expiry`. Header names are matched as given or in lower case.

    Raises MalformedError when a header is missing or unreadable, MismatchError when it has expired or lives longer
    than REQUEST_LIFETIME_SECONDS.
    """
    found = {name: headers.get(name) or headers.get(name.lower()) for name in _HEADERS}
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise MalformedError(f"unsigned: the request has no {', '.join(missing)} header", hint="sign it with your key")
    expiry = found[HEADER_EXPIRY] or ""
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 15):
        raise MalformedError(f"{HEADER_EXPIRY} is not a Unix time in whole seconds")
    for name in (HEADER_BODY, HEADER_NONCE):
        if not is_hash(found[name] or ""):
            raise MalformedError(f"{name} is not 0x and 64 lower-case hex digits")
    left = int(expiry) - now
    clock = "set this machine's clock (timedatectl set-ntp true)"
    if left <= 0:
        raise MismatchError(f"the request expired {-left:.0f} s ago", hint=clock)
    if left > REQUEST_LIFETIME_SECONDS:
        raise MismatchError(f"the request expires in {left:.0f} s; at most {REQUEST_LIFETIME_SECONDS}", hint=clock)
    signature = found[HEADER_SIGNATURE] or ""
    if len(signature) != 132:
        raise MalformedError(f"{HEADER_SIGNATURE} is not 0x and 130 hex digits")
    request = SignedRequest.model_construct(
        method=method,
        host=host,
        path=path,
        query=query,
        body_hash=found[HEADER_BODY],
        nonce=found[HEADER_NONCE],
        expiry=int(expiry),
        signature=signature.lower(),
    )
    return recover_request(where, request), request


_HEADERS = (HEADER_BODY, HEADER_NONCE, HEADER_EXPIRY, HEADER_SIGNATURE)


# Receipts and uploads


def _receipt_values(receipt: Receipt) -> dict[str, object]:
    return {
        "run": receipt.run,
        "node": receipt.node,
        "index": receipt.index,
        "root": hash_bytes(receipt.root),
        "fileHash": hash_bytes(receipt.file_hash),
        "size": receipt.size,
    }


def sign_receipt(signer: TypedSigner, where: Domain, receipt: Receipt) -> Receipt:
    """The receipt with its signature filled in."""
    return receipt.model_copy(update={"signature": _sign(signer, where, RECEIPT, _receipt_values(receipt))})


def recover_receipt(where: Domain, receipt: Receipt) -> str:
    """The address that signed the receipt; the run's `terms.storage_key` if it counts."""
    return recover(where.digest(RECEIPT, _receipt_values(receipt)), receipt.signature)


def check_receipt(where: Domain, receipt: Receipt, storage_key: str) -> None:
    """Raise MismatchError unless the run's storage key signed the receipt."""
    signer = recover_receipt(where, receipt)
    if signer.lower() != storage_key.lower():
        raise MismatchError(f"the receipt is signed by {signer}, not by the run's storage key {storage_key}")


def upload_target(file_hash: str, run: int, index: int, root: str) -> tuple[str, str]:
    """Path and query of an upload, in the one form that counts: what the node signs when it uploads."""
    return f"/v1/files/{file_hash}", f"run={run}&index={index}&root={root}"


def check_upload(where: Domain, upload: Upload) -> None:
    """Raise MismatchError unless the node itself signed that this file is the one of (run, index, root).

    The storage's receipt does not prove that: whoever holds the storage key could sign one over any file.
    """
    receipt, request = upload.receipt, upload.request
    path, query = upload_target(receipt.file_hash, receipt.run, receipt.index, receipt.root)
    if (request.method, request.path, request.body_hash) != ("PUT", path, receipt.file_hash):
        raise MismatchError(f"the request signed by the node is not an upload of {receipt.file_hash}")
    if request.query != query:
        raise MismatchError(f"the upload was for {request.query}, the receipt says {query}")
    signer = recover_request(where, request)
    if signer.lower() != receipt.node.lower():
        raise MismatchError(f"the upload is signed by {signer}, not by the node {receipt.node}")


# Verdicts


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.17g}"


def _verdict_values(verdict: Verdict) -> dict[str, object]:
    return {
        "run": verdict.run,
        "step": verdict.step,
        "node": verdict.node,
        "index": verdict.index,
        "root": hash_bytes(verdict.root),
        "fileHash": hash_bytes(verdict.file_hash),
        "validator": verdict.validator,
        "accepted": verdict.accepted,
        "reason": verdict.reason or "",
        "position": -1 if verdict.position is None else verdict.position,
        "measured": _number(verdict.measured),
        "threshold": _number(verdict.threshold),
        "evidence": hash_bytes(verdict.evidence or _NO_HASH),
        "drawIndex": verdict.draw_index,
        "preimage": hash_bytes(verdict.preimage),
        "inspected": verdict.inspected,
    }


def sign_verdict(signer: TypedSigner, where: Domain, verdict: Verdict) -> Verdict:
    """The verdict with its signature filled in; give it with signature=UNSIGNED."""
    return verdict.model_copy(update={"signature": _sign(signer, where, VERDICT, _verdict_values(verdict))})


def recover_verdict(where: Domain, verdict: Verdict) -> str:
    """The address that signed the verdict; it counts only when that is `verdict.validator`."""
    return recover(where.digest(VERDICT, _verdict_values(verdict)), verdict.signature)


def check_verdict(where: Domain, verdict: Verdict) -> None:
    """Raise MismatchError unless `verdict.validator` signed the verdict."""
    signer = recover_verdict(where, verdict)
    if signer.lower() != verdict.validator.lower():
        raise MismatchError(f"the verdict is signed by {signer}, not by its validator {verdict.validator}")
