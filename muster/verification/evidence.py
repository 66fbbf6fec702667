"""Evidence: what a validator shows to have a node convicted, so that anybody can check it without trusting anybody.

A bundle is canonical JSON under its content hash. It names one commitment, and holds either the rows concerned with
their Merkle proofs, or, where the whole file is wrong, the node's own signed upload of that file. `verify_evidence`
runs the check again, from the bundle, the chain and the run's task set: as a juror does, and `muster slash verify`.

A bundle comes from an accuser, who may lie: everything in it is checked against the chain, and what is not bound to
the accused by a root or a signature counts for nothing.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol

from eth_utils.crypto import keccak
from pydantic import Field, FiniteFloat, ValidationError

from muster.constants import MAX_EVIDENCE_BYTES
from muster.draws import Draw
from muster.errors import CheckError, MalformedError, MismatchError, RefusedError, UnreachableError
from muster.hashes import hash_bytes, hex_hash
from muster.inspection import Commitment, Finding, Rules, check_file, check_place, check_rows
from muster.messages import Address, Hash, Message, Reason, UInt32, Upload
from muster.rollouts.file import FileLimits, write_rollouts
from muster.rollouts.leaves import leaf_hash, leaf_of, rollout_tree
from muster.rollouts.schema import Rollout
from muster.signing import Domain, check_receipt, check_upload

MAX_ROWS: Final = 8
"""Most rows in a bundle: one that is wrong suffices, a few make up for the numerics of different machines."""

MAX_PROOF: Final = 32
_ROWS_BYTES: Final = MAX_EVIDENCE_BYTES * 2 // 3

WHOLE_FILE: Final[frozenset[Reason]] = frozenset({"malformed", "wrong_root"})
"""Reasons that concern the file and not a row under the root."""

REPLAYED: Final[frozenset[Reason]] = frozenset({"sampling_mismatch", "activation_mismatch", "wrong_logprobs"})
"""Reasons that take a forward pass to check."""


class EvidenceBundle(Message):
    """An accusation with everything it rests on."""

    version: Literal[1] = 1
    chain_id: int
    runs: Address
    """The Runs contract."""
    run: UInt32
    step: UInt32
    node: Address
    index: UInt32
    root: Hash
    accuser: Address
    reason: Reason
    position: UInt32 | None = None
    measured: FiniteFloat | None = None
    threshold: FiniteFloat | None = None
    upload: Upload | None = None
    """The node's signed upload, where the reason concerns the whole file."""
    rows: str = Field(default="", max_length=MAX_EVIDENCE_BYTES)
    """The rows concerned: a rollout file in base64, or nothing."""
    proofs: list[Annotated[list[Hash], Field(max_length=MAX_PROOF)]] = Field(default_factory=list, max_length=MAX_ROWS)
    """A Merkle proof per row."""

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


def parse_bundle(data: bytes) -> EvidenceBundle:
    """Raises MalformedError on anything that is no bundle."""
    if len(data) > MAX_EVIDENCE_BYTES:
        raise MalformedError(f"an evidence bundle of {len(data)} bytes; at most {MAX_EVIDENCE_BYTES}")
    try:
        return EvidenceBundle.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise MalformedError(f"not an evidence bundle: {where}: {first['msg']}") from error


def finite(value: float | None) -> float | None:
    """A measured number as messages carry it: infinite becomes the largest, not a number becomes the largest too."""
    if value is None or math.isfinite(value):
        return value
    return -sys.float_info.max if value < 0 else sys.float_info.max


def make_bundle(
    rules: Rules,
    commitment: Commitment,
    finding: Finding,
    *,
    accuser: str,
    upload: Upload | None = None,
    rollouts: Sequence[Rollout] = (),
    rows: Sequence[int] = (),
) -> EvidenceBundle:
    """The bundle for a finding. `rollouts` is the whole file, `rows` the positions to show, the worst first."""
    shown = [] if finding.reason in WHOLE_FILE or not rollouts else list(rows[:MAX_ROWS])
    data = b""
    while shown and len(data := write_rollouts([rollouts[i] for i in shown])) > _ROWS_BYTES:
        shown.pop()
    tree = rollout_tree(rollouts) if shown else None
    return EvidenceBundle(
        chain_id=rules.chain_id,
        runs=rules.runs,
        run=commitment.run,
        step=commitment.step,
        node=commitment.node,
        index=commitment.index,
        root=hex_hash(commitment.root),
        accuser=accuser,
        reason=finding.reason,
        position=finding.position,
        measured=finite(finding.measured),
        threshold=finite(finding.threshold),
        upload=upload if finding.reason in WHOLE_FILE else None,
        rows=base64.b64encode(data).decode() if shown else "",
        proofs=[[hex_hash(h) for h in tree.proof(i)] for i in shown] if tree else [],
    )


@dataclass(frozen=True)
class Ruling:
    """What somebody who checked the evidence thinks of it."""

    guilty: bool | None
    """None: could not tell, for reasons of one's own. Who cannot tell abstains."""
    why: str
    finding: Finding | None = None


class Bench(Protocol):
    """What checking evidence needs besides the bundle and the chain. Raises UnreachableError when it cannot help."""

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        """Parse a stranger's file; MalformedError when it does not parse (`muster.rollouts.reader`)."""
        ...

    async def file(self, name: str) -> bytes:
        """A rollout file by hash; RefusedError with status 404 when the storage says that it has none."""
        ...

    async def upload(self, commitment: Commitment) -> Upload:
        """The upload of a commitment; RefusedError with status 404 when the storage says that there is none."""
        ...

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[Finding | None]:
        """Run the dear checks under the weights of a step, one answer per row."""
        ...


async def verify_evidence(
    bundle: EvidenceBundle, commitment: Commitment, draw: Draw, rules: Rules, where: Domain, bench: Bench
) -> Ruling:
    """Check an accusation. `commitment` is what the case is about, as the chain tells it, and `draw` its draw."""
    named = (bundle.chain_id, bundle.runs.lower(), bundle.run, bundle.step, bundle.node.lower(), bundle.index)
    meant = (rules.chain_id, rules.runs.lower(), commitment.run, commitment.step, commitment.node.lower())
    if named != (*meant, commitment.index) or bundle.root != hex_hash(commitment.root):
        return Ruling(False, "the evidence is about another commitment")
    try:
        if bundle.reason == "data_missing":
            return await _verify_missing(commitment, rules, where, bench)
        if bundle.reason in WHOLE_FILE:
            return await _verify_file(bundle, commitment, draw, rules, where, bench)
        return await _verify_rows(bundle, commitment, draw, rules, bench)
    except UnreachableError as error:
        return Ruling(None, str(error))


async def _verify_missing(commitment: Commitment, rules: Rules, where: Domain, bench: Bench) -> Ruling:
    try:
        upload = await bench.upload(commitment)
        check_signatures(upload, commitment, rules.terms.storage_key, where)
        await bench.file(upload.receipt.file_hash)
    except RefusedError as error:
        if error.status == 404:
            finding = Finding("data_missing", detail=str(error))
            return Ruling(True, "the storage has no file for this commitment", finding)
        return Ruling(None, str(error))
    except CheckError as error:
        return Ruling(None, f"the storage answers with something else: {error}")
    return Ruling(False, "the file is there")


async def _verify_file(
    bundle: EvidenceBundle, commitment: Commitment, draw: Draw, rules: Rules, where: Domain, bench: Bench
) -> Ruling:
    if bundle.upload is None:
        return Ruling(False, "there is no upload that the node signed")
    try:
        check_signatures(bundle.upload, commitment, rules.terms.storage_key, where)
    except CheckError as error:
        return Ruling(False, f"the upload shown is not the node's: {error}")
    try:
        data = await bench.file(bundle.upload.receipt.file_hash)
    except CheckError as error:
        return Ruling(None, f"the file cannot be had: {error}")
    try:
        rollouts = await bench.read(data, FileLimits.of(rules.terms))
    except MalformedError as error:
        return _guilty(Finding("malformed", detail=str(error)))
    finding = check_file(rollouts, commitment, draw, rules)
    return _guilty(finding) if finding else Ruling(False, "the file is well-formed and under the committed root")


async def _verify_rows(
    bundle: EvidenceBundle, commitment: Commitment, draw: Draw, rules: Rules, bench: Bench
) -> Ruling:
    try:
        rows = await read_rows(bundle, rules, bench)
    except CheckError as error:
        return Ruling(False, f"the rows shown do not parse: {error}")
    for rollout, proof in zip(rows, bundle.proofs, strict=True):
        if not _is_under(rollout, proof, commitment.root):
            return Ruling(False, f"row {rollout.position} is not under the committed root")
    for rollout in rows:
        # A row beyond the commitment says nothing true of itself at any position, the last one included.
        position = min(rollout.position, rules.terms.positions - 1)
        if finding := check_place(rollout, position, commitment, rules.terms):
            return _guilty(finding)
    if finding := check_rows(rows, draw, rules):
        return _guilty(finding)
    if bundle.reason not in REPLAYED:
        return Ruling(False, "the rows pass every check that needs no forward pass")
    findings = [finding for finding in await bench.replay(commitment.step, rows) if finding]
    accusing = [finding for finding in findings if finding.accuse]
    if accusing:
        return _guilty(accusing[0])
    return Ruling(False, "no row is beyond the accusing thresholds", findings[0] if findings else None)


async def read_rows(bundle: EvidenceBundle, rules: Rules, bench: Bench) -> list[Rollout]:
    """The rows of a bundle, one per proof. Raises CheckError."""
    try:
        data = base64.b64decode(bundle.rows, validate=True)
    except ValueError as error:  # binascii.Error, and what is not even ASCII
        raise MalformedError("the rows are not base64") from error
    rows = await bench.read(data, FileLimits(rows=MAX_ROWS, decoded_bytes=FileLimits.of(rules.terms).decoded_bytes))
    if len(rows) != len(bundle.proofs):
        raise MismatchError(f"{len(rows)} rows and {len(bundle.proofs)} proofs")
    return rows


def check_signatures(upload: Upload, commitment: Commitment, storage_key: str, where: Domain) -> None:
    """The upload is of this commitment, promised by the run's storage and signed by the node. Raises CheckError."""
    receipt = upload.receipt
    named = (receipt.run, receipt.node.lower(), receipt.index, receipt.root)
    if named != (commitment.run, commitment.node.lower(), commitment.index, hex_hash(commitment.root)):
        raise MismatchError("the upload is of another commitment")
    check_receipt(where, receipt, storage_key)
    check_upload(where, upload)


def _is_under(rollout: Rollout, proof: Sequence[str], root: bytes) -> bool:
    """OpenZeppelin's MerkleProof.verify."""
    node = leaf_hash(leaf_of(rollout))
    for sibling in map(hash_bytes, proof):
        node = keccak(min(node, sibling) + max(node, sibling))
    return node == root


def _guilty(finding: Finding) -> Ruling:
    return Ruling(True, f"{finding.reason}: {finding.detail}", finding)
