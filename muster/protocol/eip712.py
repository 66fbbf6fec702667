"""EIP-712: what a message's signature covers, byte for byte, and who signed it.

Everything is signed in one domain: name "Muster", version PROTOCOL_VERSION, chain id, Registry address. The structs are
derived from the models of `muster.protocol.messages`: every field but the signature, in order, named in camelCase.
Renaming or moving a field of a signed message breaks every signature that is stored.

An absent value is signed as "", -1 or 32 zero bytes. A float is signed as C's "%.17g", which names every double exactly
in every language. Structs are hashed by hand here (0.1 ms a request); tests compare with eth-account's
`encode_typed_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from coincurve import PublicKey
from eth_utils.address import to_canonical_address, to_checksum_address

from muster.constants import PROTOCOL_VERSION
from muster.errors import MalformedError
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.hashes import hash_bytes, keccak
from muster.protocol.messages import (
    DaySummary,
    EnvironmentClaim,
    EnvironmentDecision,
    JoinDocument,
    SignedAs,
    SignedRequest,
    SignedText,
    UploadReceipt,
    Verdict,
)

UNSIGNED: Final = "0x" + "00" * 65
"""Placeholder signature of a message that is about to be signed."""

_ABSENT: Final = {"string": "", "int64": -1, "bytes32": bytes(32)}
_HALF_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141 // 2

SignedMessage = (
    SignedRequest
    | UploadReceipt
    | Verdict
    | EnvironmentClaim
    | EnvironmentDecision
    | DaySummary
    | JoinDocument
    | SignedText
    | NodeName
    | BenchmarkScore
)
M = TypeVar(
    "M",
    SignedRequest,
    UploadReceipt,
    Verdict,
    EnvironmentClaim,
    EnvironmentDecision,
    DaySummary,
    JoinDocument,
    SignedText,
    NodeName,
    BenchmarkScore,
)


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

    @classmethod
    def parse(cls, text: str) -> Struct:
        """Return the struct that EIP-712's encodeType writes as `text`."""
        name, _, fields = text.removesuffix(")").partition("(")
        return cls(name, tuple((field, kind) for kind, field in (part.split() for part in fields.split(","))))

    @cached_property
    def type_hash(self) -> bytes:
        return keccak(f"{self.name}({','.join(f'{kind} {name}' for name, kind in self.fields)})".encode())

    @property
    def types(self) -> dict[str, list[dict[str, str]]]:
        """Return the `types` member of a typed-data document, as eth-account and wallets take it."""
        return {self.name: [{"name": name, "type": kind} for name, kind in self.fields]}

    def hash(self, values: Mapping[str, object]) -> bytes:
        """Compute hashStruct of EIP-712."""
        return keccak(self.type_hash + b"".join(_encode(kind, values[name]) for name, kind in self.fields))


DOMAIN: Final = Struct.parse("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@dataclass(frozen=True)
class Domain:
    """Where a signature counts: one chain, one Registry contract."""

    chain_id: int
    registry: str
    """Address of the Registry contract."""

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
        """Return the 32 bytes that are signed."""
        return keccak(b"\x19\x01" + self.separator + struct.hash(values))


@cache
def struct_of(model: type[SignedMessage]) -> Struct:
    """Derive the struct that the signature of a message covers."""
    hints = get_type_hints(model, include_extras=True)
    return Struct(model.struct, tuple((_camel_case(name), _type_of(hints[name])) for name in _signed_fields(model)))


def values_of(message: SignedMessage) -> dict[str, object]:
    """Return the values of a message's struct, as eth-account takes them."""
    fields = zip(struct_of(type(message)).fields, _signed_fields(type(message)), strict=True)
    return {name: _signed_value(kind, getattr(message, field)) for (name, kind), field in fields}


def sign_message(signer: TypedSigner, where: Domain, message: M) -> M:
    """Return the message with its signature filled in; give it with signature=UNSIGNED."""
    raw = signer.sign_typed(where.as_dict(), struct_of(type(message)).types, values_of(message))
    return message.model_copy(update={"signature": "0x" + bytes(raw).hex()})


def recover_signer(where: Domain, message: SignedMessage) -> str:
    """Return the checksummed address that signed a message. Raises MalformedError as `recover`."""
    return recover(where.digest(struct_of(type(message)), values_of(message)), message.signature)


def recover(digest: bytes, signature: str) -> str:
    """Return the checksummed address that signed `digest`.

    Raises MalformedError when `signature` is not 65 bytes of hex with v 27 or 28 and the lower s: each message has
    one signature per nonce of the curve, as in OpenZeppelin's ECDSA.
    """
    return _address_of(_recover(digest, signature).format(compressed=False))


def _recover(digest: bytes, signature: str) -> PublicKey:
    try:
        raw = bytes.fromhex(signature.removeprefix("0x"))
    except ValueError as error:
        raise MalformedError("the signature is not hex") from error
    if len(raw) != 65 or raw[64] not in (27, 28):
        raise MalformedError("the signature is not 65 bytes that end in 1b or 1c")
    if int.from_bytes(raw[32:64], "big") > _HALF_ORDER:
        raise MalformedError("the signature has the upper s")
    try:
        return PublicKey.from_signature_and_message(raw[:64] + bytes([raw[64] - 27]), digest, hasher=None)
    except ValueError as error:
        raise MalformedError("the signature recovers to no key") from error


@lru_cache(1 << 14)
def _address_of(public_key: bytes) -> str:
    """Return the checksummed address of an uncompressed key, 65 bytes."""
    return to_checksum_address(keccak(public_key[1:])[12:])


@cache
def _signed_fields(model: type[SignedMessage]) -> list[str]:
    return [name for name in model.model_fields if name != "signature"]


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _type_of(hint: Any) -> str:
    """Return the EIP-712 type of a field's annotation. A number that may be absent is signed, as -1 stands for None."""
    if get_origin(hint) in (Union, UnionType):
        (given,) = (option for option in get_args(hint) if option is not NoneType)
        kind = _type_of(given)
        return "int64" if kind.startswith("uint") else kind
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, SignedAs):
            return mark.type
    plain = getattr(hint, "__origin__", hint)
    if plain in (str, float, Literal):
        return "string"
    if plain is bool:
        return "bool"
    raise TypeError(f"{hint} has no EIP-712 type: annotate it with SignedAs")


def _signed_value(kind: str, value: Any) -> object:
    if value is None:
        return _ABSENT[kind]
    if kind == "bytes32":
        return hash_bytes(value)
    return value if kind != "string" or isinstance(value, str) else f"{value:.17g}"


def _encode(kind: str, value: object) -> bytes:
    """Encode one atomic value as encodeData of EIP-712 does: 32 bytes."""
    if isinstance(value, str) and kind == "string":
        return _hash_of(value) if len(value) < 4_096 else keccak(value.encode())
    if isinstance(value, str) and kind == "address":
        return bytes(12) + _bytes_of(value)
    if isinstance(value, bytes) and kind == "bytes32" and len(value) == 32:
        return value
    if isinstance(value, int) and kind.lstrip("u").startswith(("int", "bool")):
        try:
            return value.to_bytes(32, "big", signed=value < 0)
        except OverflowError as error:
            raise MalformedError(f"a number of {value.bit_length()} bits is no {kind}") from error
    raise MalformedError(f"{value!r} is no {kind}")


_hash_of = lru_cache(1 << 10)(lambda text: keccak(text.encode()))
_bytes_of = lru_cache(1 << 14)(to_canonical_address)
"""Most texts are methods, hosts, paths and absent values, which come again, as addresses do."""
