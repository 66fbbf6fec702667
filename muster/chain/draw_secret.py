"""A validator's secret: the end of the hash chain it fixes when it registers.

Each hour has a link of the chain, which helps to draw the rows that are re-run of the hour's commitments
(`muster.protocol.draws`), and is shown when the hour is sealed. So neither the worker nor the validator chooses them. A
validator that loses the secret can no longer inspect or seal, and must register another key. With a leaked secret,
the builder of the block after a commitment can predict its sample.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from muster.chain.keys import read_secret, write_secret
from muster.constants import DRAW_CHAIN_LENGTH
from muster.errors import ConfigError
from muster.protocol.draws import chain_preimages
from muster.protocol.hashes import keccak

FILE_NAME: Final = "draw_secret"


def create_draw_secret(state_dir: Path) -> bytes:
    """Return the secret in a validator's folder; make it, with mode 0600, where there is none."""
    path = state_dir / FILE_NAME
    if path.exists():
        return load_draw_secret(state_dir)
    secret = secrets.token_bytes(32)
    write_secret(path, secret.hex())
    return secret


def load_draw_secret(state_dir: Path) -> bytes:
    """Return the secret in a validator's folder. Raises ConfigError when there is none, or others may read it."""
    path = state_dir / FILE_NAME
    if not path.exists():
        raise ConfigError(
            f"no draw secret at {path}", hint="muster validator join makes it; or restore it from a backup"
        )
    try:
        secret = bytes.fromhex(read_secret(path))
    except ValueError as error:
        raise ConfigError(f"{path} does not hold a draw secret") from error
    if len(secret) != 32:
        raise ConfigError(f"{path} does not hold 32 bytes in hex")
    return secret


def draw_tip(secret: bytes) -> bytes:
    """Return what the validator registers: the tip of its hash chain."""
    return keccak(chain_preimages(secret, DRAW_CHAIN_LENGTH)[0])
