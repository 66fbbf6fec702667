"""Python values as JSON that keeps their types apart: a tuple is no list, 1 is no text, and any mapping has keys.

Plain: None, booleans, integers of 64 bits, finite floats, texts, lists, and mappings whose keys are texts without a
leading "$". Everything else is a mapping with one key: `$int` (hexadecimal), `$float` ("nan", "inf", "-inf"), `$tuple`,
`$set`, `$frozenset`, `$bytes` (hexadecimal), `$complex`, and `$dict` with a list of pairs.

The texts of tasks and the answers of strangers' code cross in this form. It is data: reading it runs nothing.
"""

from __future__ import annotations

import collections
import math
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 1_000_000
_INTEGER = 1 << 63


class NotPlainError(Exception):
    """A value has a type that does not cross, or is too deep or too large."""


def encode(value: Any) -> Any:
    """Return the JSON form. Subclasses count as their base and are read by the base's own methods."""
    return _Encoder().encode(value, 0)


def decode(value: Any) -> Any:
    """Return the Python value of a JSON form. Raises NotPlainError for a form that `encode` never returns."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: decode(one) for key, one in value.items()}
    ((tag, body),) = value.items()
    match tag:
        case "$int":
            return int(body, 16)
        case "$float":
            return float(body)
        case "$tuple":
            return tuple(decode(one) for one in body)
        case "$set":
            return {decode(one) for one in body}
        case "$frozenset":
            return frozenset(decode(one) for one in body)
        case "$bytes":
            return bytes.fromhex(body)
        case "$complex":
            return complex(decode(body[0]), decode(body[1]))
        case "$dict":
            return {decode(key): decode(one) for key, one in body}
    raise NotPlainError(f"an unknown tag {tag[:40]!r}")


class _Encoder:
    def __init__(self) -> None:
        self._nodes = 0

    def encode(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise NotPlainError("too deep or too large")
        if value is None or value is True or value is False:
            return value
        if isinstance(value, int):
            plain = int.__add__(value, 0)
            return plain if -_INTEGER < plain < _INTEGER else {"$int": hex(plain)}
        if isinstance(value, float):
            plain = float.__add__(value, 0.0) if value else float.__abs__(value)  # -0.0 is 0.0
            return plain if math.isfinite(plain) else {"$float": float.__repr__(plain)}
        if isinstance(value, str):
            return str.__str__(value)
        return self._collection(value, depth + 1)

    def _collection(self, value: Any, depth: int) -> Any:
        if isinstance(value, list):
            return [self.encode(one, depth) for one in list.__iter__(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(one, depth) for one in tuple.__iter__(value)]}
        if isinstance(value, dict):
            pairs = [(key, self.encode(one, depth)) for key, one in dict.items(value)]
            if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
                return dict(pairs)
            return {"$dict": [[self.encode(key, depth), one] for key, one in pairs]}
        if isinstance(value, collections.deque):
            return [self.encode(one, depth) for one in collections.deque.__iter__(value)]
        if isinstance(value, set):
            return {"$set": [self.encode(one, depth) for one in set.__iter__(value)]}
        if isinstance(value, frozenset):
            return {"$frozenset": [self.encode(one, depth) for one in frozenset.__iter__(value)]}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": bytes(value).hex()}
        if isinstance(value, complex):
            return {"$complex": [self.encode(value.real, depth), self.encode(value.imag, depth)]}
        raise NotPlainError(f"a value of type {type(value).__name__[:40]}")
