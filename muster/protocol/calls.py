"""Who is called to inspect a commitment, and from when on the others take their turn. Pure.

In a run with traps a look is paid. So each validator is called for a share of the commitments, as many of them as the
run needs accepts, and knows at once which: from its link of the commitment's hour, which is secret until the
hour is sealed. `call_hash` and `is_called` are twins of `contracts/libraries/Draws.sol`.
"""

from __future__ import annotations

from typing import Final

from eth_abi.abi import encode

from muster.protocol.hashes import keccak
from muster.protocol.terms import Terms

CALL_TAG: Final = "muster.call.v1"


def call_hash(*, link: bytes, entropy: bytes, node: str, index: int) -> int:
    """Return the number below 2^256 by which a validator is called for a commitment.

    `link`: the validator's, of the commitment's hour. `entropy`: of the step that the node joined for
    (`muster.protocol.draws.DrawSource`). `node`: address.
    """
    types = ["string", "bytes32", "bytes32", "address", "uint32"]
    return int.from_bytes(keccak(encode(types, [CALL_TAG, link, entropy, node, index])), "big")


def is_called(call: int, validators: int, accepts_required: int) -> bool:
    """Return whether a call hash is below its validator's share. `validators`: of the run, when it was committed."""
    return (call * validators) >> 256 < accepts_required


def turn_after(call: int, terms: Terms) -> int:
    """Return how many seconds after a commitment a validator that is not called looks, if the commitment still waits.

    From 0 for the lowest hash to half of the time in which the work is fresh, so that one after the other looks.
    """
    staleness = (terms.async_level + 1) * terms.min_step_interval
    return (call * staleness) >> 257
