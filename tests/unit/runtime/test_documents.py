"""Strict documents: one form, bounded input, and errors that say where something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import FailFast, Field

from muster.errors import MalformedError
from muster.runtime.documents import StrictDocument, canonical_json, few, parse_json


@dataclass(frozen=True)
class Row:
    count: Annotated[int, Field(ge=1, le=9)]
    root: bytes = b""


@dataclass(frozen=True)
class Table(StrictDocument):
    what: ClassVar = "a table"
    max_bytes: ClassVar = 200
    hint: ClassVar = "write it again"

    rows: Annotated[tuple[Row, ...], FailFast()]
    notes: Annotated[Mapping[str, Any], few(2)] = field(default_factory=dict)


DATA = b'{"notes":{"a":[1,2.5,null,"\\u00fc"]},"rows":[{"count":2,"root":"00ff"}]}'


def test_canonical_bytes_round_trip() -> None:
    table = Table((Row(2, b"\x00\xff"),), {"a": [1, 2.5, None, "ü"]})
    assert table.to_bytes() == DATA
    assert Table.parse(DATA) == Table.from_document(table.to_document()) == table


@pytest.mark.parametrize(
    "data",
    [
        DATA + b"\n",
        DATA.replace(b":2,", b": 2,"),
        DATA.replace(b"\\u00fc", "ü".encode()),
        DATA.replace(b"00ff", b"00FF"),
        DATA.replace(b"2.5", b"2.50"),
        DATA.replace(b'"rows"', b'"more":1,"rows"'),
        DATA.replace(b'"count":2', b'"count":2,"count":2'),
        b'{"rows":[]}',
    ],
)
def test_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="a table is not in canonical form") as caught:
        Table.parse(data)
    assert caught.value.hint == "write it again"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the document: Invalid JSON"),
        (b"\xff", "the document: Invalid JSON"),
        (b"[]", "the document: Input should be an object"),
        (b"[" * 200, "the document: Invalid JSON"),
        (b" " * 201, "a table of 201 bytes; at most 200 are read"),
        (DATA.replace(b":2,", b":2.0,"), "not a table: rows.0.count: Input should be a valid integer"),
        (DATA.replace(b":2,", b":true,"), "rows.0.count: Input should be a valid integer"),
        (DATA.replace(b":2,", b":10,"), "rows.0.count: Input should be less than or equal to 9"),
        (DATA.replace(b"00ff", b"0x00"), "rows.0.root: Data should be valid hex"),
        (DATA.replace(b"\\u00fc", b"\\ud800"), "the document: Invalid JSON"),
        (DATA.replace(b"2.5", b"NaN"), "canonical form: .*NaN.* not .*null"),
        (DATA.replace(b'"a":', b'"b":1,"c":1,"a":'), "notes: Value error, 3 members; at most 2"),
    ],
)
def test_bad_input_is_refused_and_located(data: bytes, says: str) -> None:
    with pytest.raises(MalformedError, match=says):
        Table.parse(data)


def test_only_the_first_of_many_bad_elements_is_named() -> None:
    with pytest.raises(MalformedError) as caught:
        parse_json(tuple[Row, ...], b"[" + b"{}," * 9 + b"{}]", "rows", 1000)
    assert str(caught.value) == "not rows: 0.count: Field required"


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"x": object()}])
def test_canonical_json_refuses_other_values(value: object) -> None:
    with pytest.raises(MalformedError, match="canonical JSON cannot hold"):
        canonical_json(value)


def test_too_large_a_document_is_not_written() -> None:
    with pytest.raises(MalformedError, match="a table of 228 bytes; at most 200"):
        Table((), {"a": "x" * 200}).to_bytes()
