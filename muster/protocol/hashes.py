"""Hashes: sha256 names every file that crosses a border, as 0x and 64 lower-case hex digits; contracts use keccak.

A content hash is sha256 and not keccak, because hashlib does it at GB/s; keccak is for what a contract recomputes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from sha3 import keccak_256

_HEX_HASH: Final = re.compile(r"0x[0-9a-f]{64}")


def content_hash(data: bytes) -> str:
    """Return the name under which `data` is stored and fetched."""
    return "0x" + hashlib.sha256(data).hexdigest()


def keccak(data: bytes) -> bytes:
    """Compute what the EVM's KECCAK256 gives, 32 bytes."""
    return keccak_256(data).digest()


NOTHING_HASH: Final = content_hash(b"")
"""What a request without a body is signed for."""


def is_hash(text: str) -> bool:
    """Return whether `text` is a hash as we write it: 0x and 64 lower-case hex digits."""
    return _HEX_HASH.fullmatch(text) is not None


def hex_hash(value: bytes | str) -> str:
    """Write 32 bytes, or a hash already written out, as 0x and 64 hex digits. Raises ValueError on anything else."""
    text = value.lower() if isinstance(value, str) else "0x" + value.hex()
    if not is_hash(text):
        raise ValueError(f"{value!r} is not a 32-byte hash")
    return text


def hash_bytes(text: str) -> bytes:
    """Invert `hex_hash`. Raises ValueError when `text` is not a hash as we write it."""
    if not is_hash(text):
        raise ValueError(f"{text!r} is not 0x and 64 lower-case hex digits")
    return bytes.fromhex(text[2:])
