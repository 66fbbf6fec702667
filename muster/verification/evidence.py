"""Verify evidence against a node, so that an accusation can be checked without trust in the accuser.

`verify_evidence` runs the checks again, from a bundle (`muster.verification.bundles`), the chain and the document of
the run's task set: for a juror, and for `muster slash verify`. Neither fetches a shard of tasks.

The accuser is not trusted: everything in a bundle is checked against the chain, and what is not bound to the accused
by a root or a signature counts for nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

from muster.chain.types import kind_of
from muster.contracts.court import Kind
from muster.errors import CheckError, MalformedError, MismatchError, RefusedError, UnreachableError
from muster.protocol.draws import Draw
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import Reason, Upload
from muster.protocol.receipts import check_receipt, check_upload
from muster.rollouts.parquet import FileLimits
from muster.verification.bundles import (
    WHOLE_FILE,
    EvidenceBundle,
    Inspection,
    is_about,
    parse_bundle,
)
from muster.verification.checks import (
    CheckedRow,
    Finding,
    check_draw,
    check_place,
    check_root,
    check_rows,
    check_shape,
)
from muster.verification.context import CannotVerifyError, VerificationContext
from muster.verification.pool_evidence import verify_pool
from muster.verification.rules import CommittedWork
from muster.verification.shown_rows import check_under, read_rows
from muster.verification.shown_tasks import read_tasks

REPLAYED: Final[frozenset[Reason]] = frozenset({"sampling_mismatch", "activation_mismatch", "wrong_logprobs"})
"""Reasons that take a forward pass to check."""


async def verify_evidence(
    data: bytes, kind: Kind, commitment: CommittedWork, context: VerificationContext, entropy: bytes = b""
) -> Inspection:
    """Verify what is shown for an accusation of this kind. `commitment` is what it is about, as the chain has it.

    entropy: what the accuser could not know when it made the bundle, so that it cannot choose what is replayed first:
    the hash of the block in which the case was opened.

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
            return await verify_pool(bundle, commitment, entropy, context)
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


def check_signatures(upload: Upload, commitment: CommittedWork, storage_key: str, where: Domain) -> None:
    """Check that the run's storage promised an upload of this commitment and the node signed it. Raises CheckError."""
    receipt = upload.receipt
    named = (receipt.run, receipt.node.lower(), receipt.index, receipt.root)
    if named != (commitment.run, commitment.node.lower(), commitment.index, hex_hash(commitment.root)):
        raise MismatchError("the upload is of another commitment")
    check_receipt(where, receipt, storage_key)
    check_upload(where, upload)


def _guilty(finding: Finding) -> Inspection:
    return Inspection(finding, f"{finding.reason}: {finding.detail}")
