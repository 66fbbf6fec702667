"""What the generated `muster.contracts` are made of: calls and events of our contracts, to bytes and back.

A function of a generated module makes a `Call[T]` (a read) or a `Transaction[T]`; both are plain data, and
`muster.chain.client.Chain` calls and sends them. Structs are frozen dataclasses, enums are IntEnums, several
return values are a NamedTuple; a `maker` brings decoded words into that shape, `plain` brings arguments out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.address import to_checksum_address

from muster.errors import ConfigError, MalformedError, UsageError

T = TypeVar("T")
R = TypeVar("R", covariant=True)

Address: TypeAlias = Annotated[str, "address"]
"""A checksummed address. A type hint that differs from a plain string at run time too."""


@dataclass(frozen=True)
class Function:
    """One function of a contract, as its ABI has it."""

    contract: str
    """The contract's name in an address book."""
    label: str
    """In words, for journal and errors, e.g. Runs.commitWork."""
    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    result: Any
    """The Python type that `outputs` become; None without any."""


@dataclass(frozen=True)
class _Bound(Generic[R]):
    """A function with its arguments."""

    function: Function
    arguments: tuple[object, ...]

    @property
    def contract(self) -> str:
        return self.function.contract

    @property
    def label(self) -> str:
        return self.function.label

    def encode(self) -> bytes:
        """Return the call data. Raises UsageError when an argument does not fit its type."""
        try:
            return self.function.selector + encode(self.function.inputs, plain(self.arguments))
        except (EncodingError, ValueError, TypeError) as error:
            raise UsageError(f"{self.label}: an argument does not fit: {error}") from error

    def decode(self, data: bytes) -> R:
        """Decode what was returned. Raises ConfigError when it does not decode."""
        try:
            values = decode(self.function.outputs, data)
            return maker(self.function.result)(values if len(values) > 1 else values[0] if values else None)
        except (DecodingError, ValueError) as error:
            raise ConfigError(
                f"{self.label} answers nothing that makes sense: is that contract at this address?",
                hint="check chain.addresses: muster doctor",
            ) from error


class Call(_Bound[R]):
    """A read of a contract: `await chain.call(call)`."""


class Transaction(_Bound[R]):
    """A transaction: `await chain.send(transaction)`. `R` is what its function returns."""


@dataclass(frozen=True)
class Place:
    """Where an event is in the chain."""

    block: int
    block_hash: bytes
    transaction: bytes
    log_index: int
    """Within the block."""


@dataclass(frozen=True)
class EventAbi:
    """How one event lies in a log."""

    contract: str
    """Who emits it: the contract's name in an address book."""
    topic: bytes
    indexed: tuple[tuple[str, str], ...]
    """(field, type) of topics 1 to 3."""
    plain: tuple[tuple[str, str], ...]
    """(field, type) of the data."""


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    ABI: ClassVar[EventAbi]
    at: Place


E = TypeVar("E", bound=Event)


def decode_log(kind: type[E], log: Mapping[str, Any]) -> E:
    """Decode a log as the event that its topic names. Raises MalformedError when it does not fit."""
    abi = kind.ABI
    try:
        words = [bytes.fromhex(text[2:]) for text in log["topics"][1:]]
        values = [decode([type_], word)[0] for (_, type_), word in zip(abi.indexed, words, strict=True)]
        values += decode([type_ for _, type_ in abi.plain], bytes.fromhex(log["data"][2:]))
        makers = _makers(kind)
        names = (name for name, _ in (*abi.indexed, *abi.plain))
        arguments = {name: makers[name](value) for name, value in zip(names, values, strict=True)}
        return kind(place_of(log), **arguments)
    except (DecodingError, ValueError, KeyError, OverflowError) as error:
        raise MalformedError(f"a log does not decode as {kind.__name__}: {error}") from error


def place_of(log: Mapping[str, Any]) -> Place:
    """Return where a log is."""
    return Place(
        block=int(log["blockNumber"], 16),
        block_hash=bytes.fromhex(log["blockHash"][2:]),
        transaction=bytes.fromhex(log["transactionHash"][2:]),
        log_index=int(log["logIndex"], 16),
    )


def plain(value: object) -> Any:
    """Return a value with every dataclass in it as the tuple of its fields, as the ABI codec takes structs."""
    if is_dataclass(value):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(plain(part) for part in value)
    return value


@cache
def maker(hint: Any) -> Callable[[Any], Any]:
    """Return the function that makes a value of this type out of a decoded one; it raises ValueError for no enum's."""
    if hint == Address:
        return to_checksum_address
    if get_origin(hint) is list:
        each = maker(get_args(hint)[0])
        return lambda values: [each(value) for value in values]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint
    if isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, tuple)):
        makers = tuple(_makers(hint).values())
        return lambda values: hint(*(make(value) for make, value in zip(makers, values, strict=True)))
    return lambda value: value


@cache
def _makers(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Return the makers of a dataclass's or NamedTuple's fields, by name and in order."""
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return {name: maker(hints[name]) for name in names}
