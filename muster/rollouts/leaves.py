"""Leaves and roots: the bytes by which a commitment binds every column of every row.

A leaf is OpenZeppelin's standard one: keccak256(keccak256(abi.encode(position, task, seed, budget, length,
taskReward, completionHash, proofHash, rowHash))). Its twin is `contracts/libraries/Leaves.sol`; the two are tested
against each other. Trees are those of `muster.protocol.merkle`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from muster.contracts.codec import plain
from muster.contracts.refutations import Leaf
from muster.protocol.hashes import keccak
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.rollouts.schema import VERSION, Rollout


def _int32_bytes(tokens: np.ndarray) -> bytes:
    return np.ascontiguousarray(tokens, dtype="<i4").tobytes()


def _sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def completion_hash(rollout: Rollout) -> bytes:
    """Compute keccak256 of the completion's tokens as little-endian int32."""
    return keccak(_int32_bytes(rollout.completion_tokens))


def row_hash(rollout: Rollout) -> bytes:
    """Hash the version and every column, in schema order.

    Integers are little-endian at their width, the rest is length-prefixed. The fuel of calls is hashed only where the
    row has more than one span.
    """
    calls = b"" if len(rollout.spans) <= 1 else _sized(np.ascontiguousarray(rollout.call_fuel, dtype="<u8").tobytes())
    fixed = struct.pack(
        "<HIIIIIQQH",
        VERSION,
        rollout.run,
        rollout.step,
        rollout.position,
        rollout.group,
        rollout.sample,
        rollout.task,
        rollout.seed,
        rollout.budget,
    )
    return keccak(
        fixed
        + _sized(_int32_bytes(rollout.prompt_tokens))
        + _sized(_int32_bytes(rollout.completion_tokens))
        + _sized(_int32_bytes(rollout.spans))
        + _sized(np.ascontiguousarray(rollout.logprobs, dtype="<f4").tobytes())
        + struct.pack("<q", rollout.task_reward)
        + _sized(np.ascontiguousarray(rollout.parts, dtype="<i8").tobytes())
        + struct.pack("<qQ", rollout.length_reward, rollout.fuel)
        + _sized(rollout.finish_reason.encode())
        + _sized(rollout.proof)
        + calls
    )


def leaf_of(rollout: Rollout) -> Leaf:
    """Return the leaf that commits to a row."""
    return Leaf(
        position=rollout.position,
        task=rollout.task,
        seed=rollout.seed,
        budget=rollout.budget,
        length=len(rollout.completion_tokens),
        task_reward=rollout.task_reward,
        completion_hash=completion_hash(rollout),
        proof_hash=keccak(rollout.proof),
        row_hash=row_hash(rollout),
    )


def leaf_hash(leaf: Leaf) -> bytes:
    """Compute the double keccak of the leaf's ABI encoding (nine static words)."""
    return leaf_of_words(plain(leaf))


def rollout_tree(rollouts: Sequence[Rollout]) -> LeafTree:
    """Build the tree a worker commits to: one leaf per row, rows in position order."""
    return LeafTree.from_hashes([leaf_hash(leaf_of(rollout)) for rollout in rollouts])
