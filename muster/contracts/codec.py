"""What the generated `muster.contracts` are made of: calls and events of our contracts, to bytes and back.

A function of a generated module makes a `Call[T]` (a read) or a `Transaction[T]`; both are plain data, and
`muster.chain.client.Chain` calls and sends them. Structs are frozen dataclasses, enums are IntEnums, several
return values are a NamedTuple; a `maker` brings decoded words into that shape, `plain` brings arguments out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache, lru_cache
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
        text = "".join(topic[2:] for topic in log["topics"][1:]) + log["data"][2:]
        if len(log["topics"]) != 1 + len(abi.indexed):
            raise ValueError(f"{len(log['topics'])} topics")
        words, readers = bytes.fromhex(text), _readers(kind)
        if len(words) < 32 * len(readers):
            raise ValueError("its data is too short")
        arguments = {name: read(words[32 * i : 32 * i + 32]) for i, (name, read) in enumerate(readers)}
        return kind(place_of(log), **arguments)
    except (ValueError, KeyError, OverflowError) as error:
        raise MalformedError(f"a log does not decode as {kind.__name__}: {error}") from error


@cache
def _readers(kind: type[Event]) -> tuple[tuple[str, Callable[[bytes], Any]], ...]:
    """Return the names of an event's fields in the order of the log's words, and what makes each out of its word.

    Thousands of logs are decoded a second while old blocks are read: the general codec takes ten times as long.
    """
    makers = _makers(kind)
    return tuple((name, _reader(type_, makers[name])) for name, type_ in (*kind.ABI.indexed, *kind.ABI.plain))


def _reader(type_: str, make: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """Return what reads a word of a type: one of those that events have. It raises ValueError for no such value."""
    if type_ == "bytes32":
        return lambda word: make(word)
    bits = {"address": 160, "bool": 1}.get(type_) or int(type_.removeprefix("uint"))
    shape = {"address": "0x{:040x}".format, "bool": bool}.get(type_, int)

    def read(word: bytes) -> Any:
        number = int.from_bytes(word)
        if number >> bits:
            raise ValueError(f"{number} is no {type_}")
        return make(shape(number))

    return read


def place_of(log: Mapping[str, Any]) -> Place:
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


_checksummed: Callable[[str], str] = lru_cache(1 << 16)(to_checksum_address)
"""The same nodes come again and again."""


@cache
def maker(hint: Any) -> Callable[[Any], Any]:
    """Return the function that makes a value of this type out of a decoded one; it raises ValueError for no enum's."""
    if hint == Address:
        return _checksummed
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
