"""Verify evidence against a node, so that anybody can check an accusation without trusting anybody.

`verify_evidence` runs the checks again, from a bundle (`muster.verification.bundles`), the chain and the document of
the run's task set: for a juror, and for `muster slash verify`. Neither fetches a shard of tasks.

The accuser is not trusted: everything in a bundle is checked against the chain, and what is not bound to the accused
by a root or a signature counts for nothing.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Final, Protocol

from eth_utils.crypto import keccak

from muster.chain.types import kind_of
from muster.constants import SAMPLE_BLOCKS
from muster.contracts.court import Kind
from muster.errors import CheckError, MalformedError, MismatchError, RefusedError, UnreachableError
from muster.protocol.draws import Draw, draw_pool
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.messages import Reason, Upload
from muster.protocol.receipts import check_receipt, check_upload
from muster.rollouts.leaves import leaf_hash, leaf_of
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.bundles import (
    MAX_ROWS,
    WHOLE_FILE,
    EvidenceBundle,
    Inspection,
    PoolMember,
    ReplayedRow,
    is_about,
    parse_bundle,
)
from muster.verification.checks import (
    MAX_ROW_BYTES,
    CheckedRow,
    Finding,
    check_draw,
    check_place,
    check_root,
    check_rows,
    check_shape,
)
from muster.verification.pools import CONVICT, PoolFinding, pool_findings, pooled_work
from muster.verification.profiles import Profile
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_tasks import read_tasks

MAX_SHOWN_BYTES: Final = 2 * MAX_ROWS * MAX_ROW_BYTES
"""Room for the rows of a bundle, decoded. No row is larger where the whole file is not the evidence, and the terms make
room for a whole file: gigabytes, out of a few packed kilobytes."""
REPLAYED: Final[frozenset[Reason]] = frozenset({"sampling_mismatch", "activation_mismatch", "wrong_logprobs"})
"""Reasons that take a forward pass to check."""


class CannotVerifyError(UnreachableError):
    """The evidence cannot be verified here and now, which says nothing about the node: a juror abstains."""


class VerificationContext(Protocol):
    """What verifying evidence needs besides the bundle. Methods raise UnreachableError when they cannot help."""

    @property
    def rules(self) -> Rules: ...

    @property
    def domain(self) -> Domain: ...

    async def draw(self, commitment: CommittedWork) -> Draw:
        """Draw what the rows of a commitment must be, as the chain has it now."""
        ...

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        """Parse a stranger's file; MalformedError when it does not parse (`muster.rollouts.reader`)."""
        ...

    async def file(self, name: str) -> bytes:
        """Fetch a rollout file by hash; RefusedError with status 404 when the storage says that it has none."""
        ...

    async def upload(self, commitment: CommittedWork) -> Upload:
        """Fetch the upload of a commitment; RefusedError with status 404 when the storage says that there is none."""
        ...

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[ReplayedRow]:
        """Run the replay checks under the weights of a step, one answer per row."""
        ...

    async def master(self, step: int) -> bytes | None:
        """Return the master of the private tests of a step; None in a run without any."""
        ...

    async def committed(self, node: str, index: int, block: int) -> CommittedWork | None:
        """Return the commitment of this number that a block holds, if it holds one and its rows are drawn by now."""
        ...

    async def block_hash(self, number: int) -> bytes:
        """Return the hash of a block."""
        ...

    @property
    def profile(self) -> Profile: ...


async def verify_evidence(
    data: bytes, kind: Kind, commitment: CommittedWork, context: VerificationContext
) -> Inspection:
    """Verify what is shown for an accusation of this kind. `commitment` is what it is about, as the chain has it.

    Raises CannotVerifyError for reasons that are not the evidence's, and what `context.draw` raises.
    """
    # 1. It is a bundle, of this kind, and about this commitment.
    try:
        bundle = parse_bundle(data)
    except MalformedError as error:
        return Inspection(why=str(error))
    if kind_of(bundle.reason) != kind:
        return Inspection(why=f"the evidence is of {bundle.reason}, the case of {kind.name.lower()}")
    if not is_about(bundle, commitment, context.rules):
        return Inspection(why="the evidence is about another commitment")

    # 2. The checks find again what it says.
    draw = await context.draw(commitment)
    try:
        if bundle.reason == "data_missing":
            return await _verify_missing(commitment, context)
        if bundle.reason in WHOLE_FILE:
            return await _verify_file(bundle, commitment, context)
        if bundle.pool:
            return await _verify_pool(bundle, commitment, context)
        return await _verify_rows(bundle, commitment, draw, context)
    except UnreachableError as error:
        raise CannotVerifyError(str(error), hint=error.hint) from error


async def _verify_missing(commitment: CommittedWork, context: VerificationContext) -> Inspection:
    try:
        upload = await context.upload(commitment)
        check_signatures(upload, commitment, context.rules.terms.storage_key, context.domain)
        await context.file(upload.receipt.file_hash)
    except RefusedError as error:
        if error.status == 404:
            finding = Finding("data_missing", detail=str(error))
            return Inspection(finding, "the storage has no file for this commitment")
        raise UnreachableError(str(error)) from error
    except CheckError as error:
        raise UnreachableError(f"the storage answers with something else: {error}") from error
    return Inspection(why="the file is there")


async def _verify_file(bundle: EvidenceBundle, commitment: CommittedWork, context: VerificationContext) -> Inspection:
    rules = context.rules
    if bundle.upload is None:
        return Inspection(why="there is no upload that the node signed")
    try:
        check_signatures(bundle.upload, commitment, rules.terms.storage_key, context.domain)
    except CheckError as error:
        return Inspection(why=f"the upload shown is not the node's: {error}")
    try:
        data = await context.file(bundle.upload.receipt.file_hash)
    except CheckError as error:
        raise UnreachableError(f"the file cannot be fetched: {error}") from error
    try:
        rollouts = await context.read(data, FileLimits.from_terms(rules.terms))
    except MalformedError as error:
        return _guilty(Finding("malformed", detail=str(error)))
    finding = check_shape(rollouts, commitment, rules.terms) or check_root(rollouts, commitment)
    return _guilty(finding) if finding else Inspection(why="the file is well-formed and under the committed root")


async def _verify_rows(
    bundle: EvidenceBundle, commitment: CommittedWork, draw: Draw, context: VerificationContext
) -> Inspection:
    rules = context.rules.at(commitment.step)
    try:
        rows = await read_rows(bundle, context)
        check_under(rows, bundle.proofs, commitment.root)
    except CheckError as error:
        return Inspection(why=f"the rows shown do not count: {error}")
    for rollout in rows:
        # A row beyond the commitment is in the wrong place at any position, the last one included.
        position = min(rollout.position, rules.terms.positions - 1)
        if finding := check_place(rollout, position, commitment, rules.terms):
            return _guilty(finding)
        if finding := check_draw(CheckedRow(rollout, draw, rules)):
            return _guilty(finding)
    try:
        rules = rules.with_tasks(read_tasks(bundle.tasks, rows, rules.task_set))
    except CheckError as error:
        return Inspection(why=f"the tasks shown do not count: {error}")
    if finding := await asyncio.to_thread(check_rows, rows, draw, rules, accusing=True):
        return _guilty(finding)
    if bundle.reason not in REPLAYED:
        return Inspection(why="the rows pass every static check")
    findings = [row.finding for row in await context.replay(commitment.step, rows) if row.finding]
    for finding in findings:
        if finding.accuse:
            return _guilty(finding)
    return Inspection(findings[0] if findings else None, "no row is beyond the accusing thresholds")


async def _verify_pool(bundle: EvidenceBundle, commitment: CommittedWork, context: VerificationContext) -> Inspection:
    # 1. It is about consecutive commitments of the node, this one among them.
    indices = [member.index for member in bundle.pool]
    if indices != list(range(indices[0], indices[0] + len(indices))) or commitment.index not in indices:
        return Inspection(why="the pool is not of consecutive commitments with this one among them")

    # 2. Its rows are those that the chain draws of each, and say what they must.
    checked: list[tuple[CommittedWork, list[Rollout]]] = []
    for member in bundle.pool:
        try:
            checked.append(await _check_member(member, commitment, context))
        except CheckError as error:
            return Inspection(why=f"the pool's rows of commitment {member.index} do not count: {error}")

    # 3. What they show together. Replaying comes last: it is what an accuser could waste.
    works = []
    for work, rows in checked:
        replayed = await context.replay(work.step, rows)
        works.append(pooled_work(work.index, work.step, rows, [row.sums for row in replayed]))
    shown = [one for one in pool_findings(works, context.profile) if one.reason == bundle.reason]
    best = max(shown, key=lambda one: one.evidence, default=None)
    if best is None or best.evidence < CONVICT:
        return Inspection(why="the pool's rows do not show it together" + (f": {best.detail}" if best else ""))
    return _guilty(pool_verdict(best, CONVICT, accuse=True))


async def _check_member(
    member: PoolMember, commitment: CommittedWork, context: VerificationContext
) -> tuple[CommittedWork, list[Rollout]]:
    """Return a member's commitment and rows. Raises CheckError where they are not what the chain draws."""
    rules = context.rules
    work = await context.committed(commitment.node, member.index, member.block)
    if work is None or (work.step, hex_hash(work.root)) != (member.step, member.root):
        raise MismatchError(f"block {member.block} holds no such commitment")
    rows = await read_rows(member, context)
    check_under(rows, member.proofs, work.root)
    positions = draw_pool(
        block_hash=await context.block_hash(work.block + SAMPLE_BLOCKS),
        node=work.node,
        index=work.index,
        terms=rules.terms,
    )
    if [row.position for row in rows] != positions:
        raise MismatchError(f"they are not rows {positions}")
    draw = await context.draw(work)
    for row in rows:
        place = check_place(row, row.position, work, rules.terms)
        if finding := place or check_draw(CheckedRow(row, draw, rules)):
            raise MismatchError(finding.detail)
    rules = rules.at(work.step)
    rules = rules.with_tasks(read_tasks(member.tasks, rows, rules.task_set))
    if finding := await asyncio.to_thread(check_rows, rows, draw, rules, accusing=True):
        raise MismatchError(f"row {finding.position} fails a static check: {finding.reason}")
    return work, rows


def pool_verdict(found: PoolFinding, threshold: float, *, accuse: bool) -> Finding:
    """Return a pool's finding as that of a commitment: the evidence and its threshold are powers of ten."""
    return Finding(found.reason, measured=found.evidence, threshold=threshold, accuse=accuse, detail=found.detail)


async def read_rows(bundle: EvidenceBundle | PoolMember, context: VerificationContext) -> list[Rollout]:
    """Read the rows of a bundle, one per proof. Raises CheckError."""
    try:
        data = base64.b64decode(bundle.rows, validate=True)
    except ValueError as error:  # binascii.Error, and what is not even ASCII
        raise MalformedError("the rows are not base64") from error
    most = min(FileLimits.from_terms(context.rules.terms).decoded_bytes, MAX_SHOWN_BYTES)
    rows = await context.read(data, FileLimits(rows=MAX_ROWS, decoded_bytes=most))
    if len(rows) != len(bundle.proofs):
        raise MismatchError(f"{len(rows)} rows and {len(bundle.proofs)} proofs")
    return rows


def check_signatures(upload: Upload, commitment: CommittedWork, storage_key: str, where: Domain) -> None:
    """Check that the run's storage promised an upload of this commitment and the node signed it. Raises CheckError."""
    receipt = upload.receipt
    named = (receipt.run, receipt.node.lower(), receipt.index, receipt.root)
    if named != (commitment.run, commitment.node.lower(), commitment.index, hex_hash(commitment.root)):
        raise MismatchError("the upload is of another commitment")
    check_receipt(where, receipt, storage_key)
    check_upload(where, upload)


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


def _guilty(finding: Finding) -> Inspection:
    return Inspection(finding, f"{finding.reason}: {finding.detail}")
