"""The numbers of a look: sums over rows that only who replayed them has. A validator signs them with its verdict.

Of each drawn row, by position, K sums S of its states and then K sums P of its rivals' leads, under signs that are the
validator's own (`muster.proofs.look_sums`). Once its link is shown, who replays the row sees whether they are true. The
places of S and the noise of P follow from public words, so that no worker's own numbers are a part of them.

    signs   63 bits of keccak("muster.look.v1" ‖ link ‖ validator ‖ block hash ‖ node ‖ index ‖ root ‖ position)
    places  63 bits of keccak("muster.look.places.v1" ‖ block hash ‖ node ‖ index ‖ root ‖ position), also the noise's

Integers are four bytes each. A float32 profile has 4 float32 a sum, 32 bytes a row, a bfloat16 one 16 float16, 64 bytes
a row, little-endian. Machines that compute as the profile says differ by at most its `look` limits. Weights and tokens
can be made so that they differ by more: only where perturbed machines agree is a number that is off a false one.

Pure: arrays in, numbers and outcomes out. `muster.verification.replay` computes the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from muster.protocol.hashes import keccak
from muster.verification.profiles import Profile

LOOK_TAG: Final = b"muster.look.v1"
PLACES_TAG: Final = b"muster.look.places.v1"

FORMATS: Final = {"float32": (4, np.dtype("<f4")), "bfloat16": (16, np.dtype("<f2"))}
"""By the dtype of a profile: how many numbers each sum has, and what each travels as."""

STABLE: Final = 0.5
"""Share of a limit within which perturbed machines have to stay, for a number beyond the limit to be false."""

Outcome = Literal["true", "false", "cannot"]


@dataclass(frozen=True)
class LookSeeds:
    """What the signs, places and noise of one validator's look at one commitment follow from."""

    validator: str
    """Address."""
    link: bytes
    """Of the validator's chain, for the hour of the commitment."""
    block_hash: bytes
    """Of the block that draws the rows."""
    node: str
    """Address."""
    index: int
    root: bytes

    def signs(self, position: int) -> int:
        """Return the seed of a row's signs, 0 ≤ seed < 2^63: only the validator knows it until the link is shown."""
        own = self.link + bytes.fromhex(self.validator[2:])
        return _seed(LOOK_TAG + own + self._public(position))

    def places(self, position: int) -> int:
        """Return the seed of a row's places and noise, 0 ≤ seed < 2^63."""
        return _seed(PLACES_TAG + self._public(position))

    def _public(self, position: int) -> bytes:
        node = bytes.fromhex(self.node[2:])
        return self.block_hash + node + self.index.to_bytes(4, "big") + self.root + position.to_bytes(4, "big")


def _seed(text: bytes) -> int:
    return int.from_bytes(keccak(text)[:8], "big") & (1 << 63) - 1


def numbers_of(profile: Profile) -> int:
    """Return K, how many numbers each of the two sums of a row has."""
    return FORMATS[profile.dtype][0]


def encode_look(rows: Sequence[np.ndarray], profile: Profile) -> str:
    """Write down the numbers of rows, [2, K] each, as `Verdict.look` has them: "" for no rows.

    A row of which the model computes no numbers is written as zeros.
    """
    if not rows:
        return ""
    held = [_held(row, profile) if np.isfinite(row).all() else np.zeros_like(row) for row in rows]
    return "0x" + np.stack(held).astype(FORMATS[profile.dtype][1]).tobytes().hex()


def decode_look(text: str, rows: int, profile: Profile) -> np.ndarray | None:
    """Read the numbers of so many rows: float64 [rows, 2, K]. None if there are fewer or more, or one is not finite."""
    count, dtype = FORMATS[profile.dtype]
    data = bytes.fromhex(text.removeprefix("0x"))
    if not rows or len(data) != rows * 2 * count * dtype.itemsize:
        return None
    numbers = np.frombuffer(data, dtype).astype(np.float64).reshape(rows, 2, count)
    return numbers if np.isfinite(numbers).all() else None


def distance(claimed: np.ndarray, own: np.ndarray, profile: Profile) -> float:
    """Return the largest difference of a row's numbers, [2, K] each, over its limit: infinite if one is no number."""
    limits = np.array([[profile.look.states], [profile.look.leads]])
    apart = np.abs(_held(claimed, profile) - _held(own, profile)) / limits
    return float(apart.max()) if np.isfinite(apart).all() else np.inf


def judge_look(claimed: np.ndarray, own: np.ndarray, others: Sequence[np.ndarray], profile: Profile) -> Outcome:
    """Return whether the claimed numbers of a row are true, by this machine's and those of other, perturbed ones.

    They are false if they are beyond the limit from all machines, and these within STABLE of it from this one.
    """
    if not np.isfinite(own).all():
        return "cannot"
    if distance(claimed, own, profile) <= 1:
        return "true"
    if any(distance(one, own, profile) > STABLE for one in others):
        return "cannot"
    return "true" if any(distance(claimed, one, profile) <= 1 for one in others) else "false"


def _held(numbers: np.ndarray, profile: Profile) -> np.ndarray:
    """Return the numbers within what they travel as holds: float64."""
    most = float(np.finfo(FORMATS[profile.dtype][1]).max)
    return np.clip(numbers.astype(np.float64), -most, most)
