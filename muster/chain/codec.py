"""Function calls of our contracts to bytes and back, by the built ABIs, and structs into dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.address import is_address, to_checksum_address

from muster.chain.abi import CONTRACTS, artifact, selector, types
from muster.errors import ConfigError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Function:
    """One function of a contract. Decoded addresses are checksummed, structs are tuples."""

    contract: str
    name: str
    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{CONTRACTS[self.contract]}.{self.name}"

    def encode(self, *arguments: object) -> bytes:
        """Call data. Raises UsageError when an argument does not fit its type."""
        try:
            return self.selector + encode(self.inputs, arguments)
        except (EncodingError, ValueError, TypeError) as error:
            raise UsageError(f"{self.label}: an argument does not fit: {error}") from error

    def decode(self, data: bytes) -> Any:
        """The value returned, a tuple where there are several. Raises ConfigError when nothing answered."""
        try:
            values = decode(self.outputs, data)
        except DecodingError as error:
            raise ConfigError(
                f"{self.label} answers nothing that makes sense: is that contract at this address?",
                hint="check chain.addresses: muster doctor",
            ) from error
        clean = tuple(_clean(kind, value) for kind, value in zip(self.outputs, values, strict=True))
        return clean[0] if len(clean) == 1 else clean


@cache
def _functions() -> dict[tuple[str, str], Function]:
    return {
        (contract, item["name"]): Function(
            contract, item["name"], selector(item), tuple(types(item["inputs"])), tuple(types(item["outputs"]))
        )
        for contract in CONTRACTS
        for item in artifact(contract).items("function")
    }


def function(contract: str, name: str) -> Function:
    """A function by the contract's name in the address book and its own, e.g. ("runs", "commitWork")."""
    return _functions()[contract, name]


def struct(kind: type[T], values: tuple) -> T:
    """A dataclass from a decoded struct, whose fields it mirrors in order; enums become members."""
    hints = [hint for name, hint in get_type_hints(kind).items() if name in kind.__dataclass_fields__]  # type: ignore[attr-defined]
    return kind(*(hint(value) for hint, value in zip(hints, values, strict=True)))


def _clean(kind: str, value: Any) -> Any:
    """Checksum addresses, also within structs; the ABI codec returns them in lower case."""
    if kind == "address":
        return to_checksum_address(value)
    if isinstance(value, tuple):
        return tuple(to_checksum_address(part) if _looks_like_address(part) else part for part in value)
    return value


def _looks_like_address(value: object) -> bool:
    """Whether a struct's member is an address: our structs have no strings, and bytes stay bytes."""
    return isinstance(value, str) and is_address(value)
