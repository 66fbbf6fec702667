"""Read LiveCodeBench's packed tests: base64 of zlib of a pickle, of which nothing but one text is admitted.

No unpickler runs: the opcodes are read one by one, and whatever is not the start, one text, a note of it and the end is
refused before it could do anything. Sizes are bounded before memory is taken.
"""

from __future__ import annotations

import binascii
import io
import itertools
import pickletools
import re
import zlib
from base64 import b64decode
from typing import Any, Final

from pydantic_core import from_json

from muster.errors import MalformedError

MAX_TEXT_BYTES: Final = 256 * 1024**2
"""Of the tests of one problem, unpacked."""
MAX_OPCODES: Final = 16
"""Of a pickle that is one text: pickle itself writes five. Reading each takes time, and they compress well."""
MAX_VALUES: Final = 100_000
"""Of tests as JSON: a problem has some dozens, of a few texts each. An empty object takes 64 bytes of memory for three
of the file."""

BEFORE: Final = frozenset({"PROTO", "FRAME"})
TEXTS: Final = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
NOTES: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})


_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
"""A text of JSON, or what another value follows. It never goes back, so hostile JSON takes it no longer."""


def read_tests(text: str) -> list[dict[str, Any]]:
    """Return tests that are JSON, or JSON packed. Raises MalformedError for anything else."""
    if not text.lstrip().startswith("["):
        text = unpacked(text)
    if _has_many_values(text):
        raise MalformedError(f"its tests hold more than {MAX_VALUES} values")
    try:
        tests = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedError("its tests are no JSON") from error
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise MalformedError("its tests are no list of objects")
    return tests


def _has_many_values(text: str) -> bool:
    """Return whether JSON holds more than MAX_VALUES, of which each has at most two texts before the next."""
    tokens = itertools.islice(_TOKEN.finditer(text), 3 * (MAX_VALUES + 1))
    return sum(one[0] in "[{," for one in tokens) > MAX_VALUES


def unpacked(text: str) -> str:
    """Return the one text that was pickled, compressed and written in base64. Raises MalformedError."""
    try:
        packed = b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error) as error:
        raise MalformedError("its tests are neither JSON nor base64") from error
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MAX_TEXT_BYTES + 1)
    except zlib.error as error:
        raise MalformedError("its tests cannot be decompressed") from error
    if len(data) > MAX_TEXT_BYTES or unpacker.unconsumed_tail:
        raise MalformedError(f"its tests unpack to more than {MAX_TEXT_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedError("its tests are cut off, or followed by something")
    return pickled_text(data)


def pickled_text(data: bytes) -> str:
    """Return the text of a pickle that is one text and nothing else. Raises MalformedError."""
    found: str | None = None
    stream = io.BytesIO(data)
    try:
        for opcode, argument, _ in itertools.islice(pickletools.genops(stream), MAX_OPCODES):
            if opcode.name in BEFORE and found is None:
                continue
            if opcode.name in TEXTS and found is None:
                found = str(argument)
            elif opcode.name == "STOP" and found is not None:
                if stream.read(1):
                    raise MalformedError("a pickle that goes on after its end")
                found.encode()  # halves of surrogate pairs can be pickled
                return found
            elif opcode.name not in NOTES or found is None:
                raise MalformedError(f"a pickle with {opcode.name}: only one text is admitted")
    except (ValueError, OverflowError, MemoryError) as error:
        raise MalformedError(f"a pickle that cannot be read: {str(error)[:80]}") from error
    raise MalformedError("a pickle without an end")
