"""Read rows of JSON Lines, JSON, CSV and Parquet files one after the other, however bad some of them are.

Text may be gzipped. Which kind a file is shows at its beginning, and CSV by its name. A bad row is data: it is yielded
as a `BadRow` with the reason, and reading goes on. Only a file that is no such file at all, or one that lacks a column,
is an error. Parquet is read by a large C++ parser in this process, so import files that you have chosen yourself, never
what a stranger of the swarm sends.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from codecs import BOM_UTF8 as BOM
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic_core import from_json

from muster.errors import ConfigError, MalformedError

MAX_ROW_BYTES: Final = 16 * 1024**2
"""Most bytes of one row. LiveCodeBench's largest tests are below."""
MAX_DOCUMENT_BYTES: Final = 256 * 1024**2
"""Largest JSON file that is one list: it is read as a whole."""
MAX_ROWS: Final = 20_000_000
BATCH_ROWS: Final = 256

Row = Mapping[str, Any]


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used."""

    reason: str


def read_rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, Row | BadRow]]:
    """Yield the number of each row, counted from 1, and the row: its `columns`, and the `optional` ones it has.

    A name in `optional` that ends with * stands for all that begin so. Of JSON Lines, rows are numbered as lines.
    Raises ConfigError when the file is absent or lacks a column, MalformedError when it is no such file or has more
    than MAX_ROWS rows.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="download it first: nothing is fetched here")
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        rows = _parquet_rows(path, columns, optional) if parquet else _text_rows(path, columns, optional)
        for number, row in rows:
            if number > MAX_ROWS:
                raise MalformedError(f"{path} has more than {MAX_ROWS} rows", hint="cut it into several files")
            yield number, row
    except (OSError, EOFError, zlib.error) as error:  # pyarrow's own are of the first kind or of ValueError
        raise MalformedError(f"{path} cannot be read: {error}") from error


def _text_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[int, Row | BadRow]]:
    """Yield the rows of JSON Lines, of one JSON list or of CSV: `columns` and the `optional` ones that a row has."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    known = False
    with gzip.open(path) if packed else path.open("rb") as file:
        for number, row in _objects(path, file):
            if isinstance(row, BadRow):
                yield number, row
                continue
            absent = [name for name in columns if name not in row]
            if absent and not known:
                raise _no_column(path, absent, row)
            known = True
            if absent:
                yield number, BadRow(f"without {', '.join(absent)}")
                continue
            yield number, {name: row[name] for name in (*columns, *_matching(row, columns, optional))}


def _objects(path: Path, file: BinaryIO | gzip.GzipFile) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    if path.name.removesuffix(".gz").lower().endswith(".csv"):
        yield from _csv_rows(path, file)
        return
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if number == 1 and line.removeprefix(BOM).lstrip().startswith(b"["):
            yield from _listed_rows(path, line.removeprefix(BOM) + file.read(MAX_DOCUMENT_BYTES))
            return
        if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_ROW_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, BadRow(f"longer than {MAX_ROW_BYTES} bytes")
        elif not line.isspace():
            yield number, _json_row(line.removeprefix(BOM) if number == 1 else line)


def _listed_rows(path: Path, data: bytes) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise MalformedError(f"{path} is a list of more than {MAX_DOCUMENT_BYTES} bytes", hint="write it as JSON Lines")
    try:
        rows = from_json(data)
    except ValueError as error:
        raise MalformedError(f"{path} begins like a JSON list and is none: {str(error)[:80]}") from error
    for number, row in enumerate(rows, start=1):
        yield number, row if isinstance(row, dict) else BadRow("not a JSON object")


def _csv_rows(path: Path, file: Any) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    before, text = csv.field_size_limit(MAX_ROW_BYTES), io.TextIOWrapper(file, "utf-8-sig", newline="")
    try:
        for number, row in enumerate(csv.DictReader(text, strict=True), start=1):
            plain = None not in row and None not in row.values()
            yield number, row if plain else BadRow("another number of cells than the first line has columns")
    except (csv.Error, UnicodeDecodeError) as error:
        raise MalformedError(f"{path} is no CSV in UTF-8: {str(error)[:80]}") from error
    finally:
        csv.field_size_limit(before)
        text.detach()  # the caller closes the file


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        row = from_json(line)
    except ValueError as error:  # not JSON, not UTF-8, too deep, or half a surrogate pair
        return BadRow(f"not JSON: {str(error)[:80]}")
    return row if isinstance(row, dict) else BadRow("not a JSON object")


def _parquet_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[int, Row | BadRow]]:
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            absent = [name for name in columns if name not in names]
            if absent:
                raise _no_column(path, absent, names)
            wanted = [*columns, *_matching(names, columns, optional)]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
                cells = [_cells(batch.column(name)) for name in wanted]
                for values in zip(*cells, strict=True):
                    number += 1
                    bad = next((value for value in values if isinstance(value, BadRow)), None)
                    yield number, bad or dict(zip(wanted, values, strict=True))
    except ValueError as error:
        raise MalformedError(f"{path} is no Parquet file that can be read: {str(error)[:200]}") from error


def _cells(column: Any) -> list[Any]:
    """Return a column's values; those that are too large or no Unicode as BadRow."""
    if column.nbytes <= MAX_ROW_BYTES:
        try:
            return column.to_pylist()
        except ValueError:
            pass  # some cell is no Unicode: find out which
    return [_cell(cell) for cell in column]


def _cell(cell: Any) -> Any:
    import pyarrow.types as types

    try:
        if types.is_string(cell.type) or types.is_large_string(cell.type) or types.is_binary(cell.type):
            size = 0 if not cell.is_valid else cell.as_buffer().size
            if size > MAX_ROW_BYTES:
                return BadRow(f"a cell of {size} bytes; at most {MAX_ROW_BYTES}")
        return cell.as_py()
    except ValueError as error:
        return BadRow(f"a cell that is no Unicode: {str(error)[:80]}")


def _matching(names: Any, columns: Sequence[str], optional: Sequence[str]) -> list[str]:
    """Return those names that the optional ones stand for, and that are no `columns`."""

    def wanted(name: str) -> bool:
        return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in optional)

    return [name for name in names if name not in columns and wanted(name)]


def _no_column(path: Path, absent: Sequence[str], names: Any) -> ConfigError:
    there = ", ".join(sorted(str(name)[:40] for name in names)[:40]) or "none"
    return ConfigError(
        f"{path} has no column {', '.join(absent)}; there are: {there}",
        hint="is it another data set? muster tasks import mapped takes any columns (--field)",
    )
