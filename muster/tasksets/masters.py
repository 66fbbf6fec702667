"""An owner's masters, one secret per epoch (`muster.protocol.masters`), and the text of the file that holds them."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Final

from muster.errors import ConfigError
from muster.protocol.hashes import hash_bytes, is_hash
from muster.protocol.masters import earlier_master

FORMAT: Final = "muster.masters.v1"
MAX_EPOCHS: Final = (1 << 16) - 1
"""`Terms.grade_epochs` is a uint16."""


@dataclass(frozen=True)
class Masters:
    """The master of one epoch, which gives those of all epochs before it."""

    epoch: int
    """Counted from 1."""
    master: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.epoch <= MAX_EPOCHS or len(self.master) != 32:
            raise ConfigError(f"a master of 32 bytes and an epoch from 1 to {MAX_EPOCHS} are needed")

    @classmethod
    def make(cls, epochs: int) -> Masters:
        """Make the masters of so many epochs from the system's randomness."""
        return cls(epochs, secrets.token_bytes(32))

    @property
    def tip(self) -> bytes:
        """Return what the terms name: the hash of the first epoch's master."""
        return earlier_master(self.master, self.epoch, 0)

    def of(self, epoch: int) -> bytes:
        """Return the master of an epoch. Raises ConfigError for one that this does not reach."""
        if not 1 <= epoch <= self.epoch:
            raise ConfigError(
                f"these masters reach from epoch 1 to {self.epoch}, not to {epoch}",
                hint="use the file that muster tasks seal wrote",
            )
        return earlier_master(self.master, self.epoch, epoch)

    def to_text(self) -> str:
        """Return the one line that a secret file holds (`muster.chain.masters_file`)."""
        return json.dumps({"epoch": self.epoch, "format": FORMAT, "master": "0x" + self.master.hex()})

    @classmethod
    def from_text(cls, text: str) -> Masters:
        """Invert `to_text`. Raises ConfigError, which never quotes the text."""
        try:
            document = json.loads(text)
        except ValueError:  # not chained: the cause may quote the secret
            document = None
        match document:
            case {"epoch": int(epoch), "format": str(name), "master": str(master), **rest} if name == FORMAT:
                if not rest and is_hash(master) and type(epoch) is int and 1 <= epoch <= MAX_EPOCHS:
                    return cls(epoch, hash_bytes(master))
        raise ConfigError("these are no masters", hint="use the file that muster tasks seal wrote")
