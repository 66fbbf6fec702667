"""Strict documents: JSON from elsewhere as typed values, and the one form in which they are hashed.

A document is a frozen dataclass or a pydantic model, whose annotations bound each field. One that is hashed is a
`StrictDocument`: equal values have equal bytes, and no other bytes are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from muster.errors import MalformedError
from muster.runtime.printable import printable

T = TypeVar("T")

_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_SHOWN: Final = 60


def canonical_json(value: Any) -> bytes:
    """Return the one ASCII form of a JSON value: keys sorted, no spaces. Raises MalformedError for what JSON lacks."""
    try:
        return _CANONICAL.encode(value).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedError(f"a value that canonical JSON cannot hold: {error}") from error


def parse_json(kind: type[T] | TypeAdapter[T], data: bytes | str, what: str, limit: int, hint: str = "") -> T:
    """Read JSON of at most `limit` bytes as a value of `kind`, which errors call `what`.

    Raises MalformedError that says where it is wrong.
    """
    if len(data) > limit:
        raise MalformedError(f"{what} of {len(data)} bytes; at most {limit} are read", hint=hint)
    try:
        return (kind if isinstance(kind, TypeAdapter) else _adapter(kind)).validate_json(data)
    except ValidationError as error:
        raise MalformedError(f"not {what}: {first_problem(error)}", hint=hint) from error


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON: `object_pairs_hook`. Raises ValueError for a key that is there twice.

    Readers differ in which of two counts.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object with a key twice")
    return found


def read_value(kind: type[T], value: object, what: str, hint: str = "") -> T:
    """Return a parsed document, such as TOML, as a value of `kind`. Raises as `parse_json`."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise MalformedError(f"not {what}: {first_problem(error)}", hint=hint) from error


def few(limit: int) -> BeforeValidator:
    """Return what refuses an object of more members than `limit`: naming each of a million takes seconds and a GB."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > limit:
            raise ValueError(f"{len(value)} members; at most {limit} are allowed")
        return value

    return BeforeValidator(check)


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = printable(".".join(str(part) for part in first["loc"])[:300]) or "the document"
    return f"{where}: {first['msg'][:300]}"


class StrictDocument:
    """Base of documents that are hashed: of frozen dataclasses, and before BaseModel of models.

    Types are strict, bytes are hex. Members that are not known are not named one by one: the form is another then.
    """

    __pydantic_config__: ClassVar = ConfigDict(
        extra="ignore", strict=True, allow_inf_nan=False, ser_json_bytes="hex", val_json_bytes="hex"
    )

    what: ClassVar[str]
    """What errors call it, with its article."""
    max_bytes: ClassVar[int]
    hint: ClassVar[str] = ""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read canonical bytes. Raises MalformedError on anything that `to_bytes` does not write."""
        found = parse_json(cls, data, cls.what, cls.max_bytes, cls.hint)
        if (written := found.to_bytes()) != data:
            pairs = enumerate(zip(data, written, strict=False))
            at = next((at for at, (one, other) in pairs if one != other), min(len(data), len(written)))
            start = max(0, at - _SHOWN // 2)
            given, expected = (one[start : start + _SHOWN].decode(errors="replace") for one in (data, written))
            raise MalformedError(f"{cls.what} is not in canonical form: {given!r}, not {expected!r}", hint=cls.hint)
        return found

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Read what `to_document` returns. Raises MalformedError."""
        return cls.parse(canonical_json(document))

    def to_document(self) -> dict[str, Any]:
        return _adapter(type(self)).dump_python(self, mode="json")

    def to_bytes(self) -> bytes:
        """Return its one form. Raises MalformedError when it is too large, or holds what JSON lacks."""
        data = canonical_json(self.to_document())
        if len(data) > self.max_bytes:
            raise MalformedError(f"{self.what} of {len(data)} bytes; at most {self.max_bytes} are read")
        return data


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)
