"""Rows that a bundle shows: read within their bounds, and checked to be under a committed root."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace

from eth_utils.crypto import keccak

from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import hash_bytes
from muster.rollouts.leaves import leaf_hash, leaf_of
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, PoolMember
from muster.verification.checks import MAX_ROW_BYTES
from muster.verification.context import VerificationContext


async def read_rows(bundle: EvidenceBundle | PoolMember, context: VerificationContext) -> list[Rollout]:
    """Read the rows of a bundle, one per proof. Raises CheckError."""
    try:
        data = base64.b64decode(bundle.rows, validate=True)
    except ValueError as error:  # binascii.Error, and what is not even ASCII
        raise MalformedError("the rows are not base64") from error
    limits = FileLimits.from_terms(context.rules.terms, len(bundle.proofs))
    most = min(limits.decoded_bytes, 2 * len(bundle.proofs) * MAX_ROW_BYTES)
    rows = await context.read(data, replace(limits, decoded_bytes=most))
    if len(rows) != len(bundle.proofs):
        raise MismatchError(f"{len(rows)} rows and {len(bundle.proofs)} proofs")
    return rows


def check_under(rows: Sequence[Rollout], proofs: Sequence[Sequence[str]], root: bytes) -> None:
    """Check that rows are under a root, by one Merkle proof each. Raises MismatchError."""
    for rollout, proof in zip(rows, proofs, strict=True):
        if not _is_under(rollout, proof, root):
            raise MismatchError(f"row {rollout.position} is not under the committed root")


def _is_under(rollout: Rollout, proof: Sequence[str], root: bytes) -> bool:
    """Verify a Merkle proof as OpenZeppelin's MerkleProof.verify does."""
    node = leaf_hash(leaf_of(rollout))
    for sibling in map(hash_bytes, proof):
        node = keccak(min(node, sibling) + max(node, sibling))
    return node == root
