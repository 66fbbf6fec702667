"""Gather what evidence is judged by, and have it judged: for jurors, accusers and `muster slash verify`.

The judges are pure (`muster.verification.evidence` and `pool_evidence`). Here the chain, the storage
and the model are asked for what they take, in the order in which a juror has least to do with void evidence.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace

from muster.constants import SAMPLE_BLOCKS
from muster.errors import CheckError, MalformedError, MismatchError, NotFoundError, UnreachableError
from muster.protocol.draws import Draw
from muster.protocol.hashes import keccak
from muster.protocol.messages import Upload
from muster.protocol.reasons import REASONS, UNIT_STATISTICS
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, Inspection, PoolMember
from muster.verification.checks import MAX_ROW_BYTES
from muster.verification.evidence import (
    ShownRows,
    VoidEvidenceError,
    judge_file,
    judge_missing,
    judge_replay,
    judge_rows,
    parse_evidence,
    voiding,
)
from muster.verification.pool_evidence import ShownUnit, check_pool, check_unit, judge_leaning, list_works
from muster.verification.pools import PooledRow, blamed, leans, row_key
from muster.verification.rules import CommittedWork
from validator.context import RunVerificationContext


class CannotVerifyError(UnreachableError):
    """The evidence cannot be verified here and now, which says nothing about the accused: a juror abstains."""


async def verify_evidence(
    data: bytes,
    kind: int,
    commitment: CommittedWork,
    context: RunVerificationContext,
    entropy: bytes = b"",
) -> Inspection:
    """Verify what is shown for an accusation of this kind. `commitment` is what it is about, as the chain has it.

    entropy: what the accuser could not know when it made the bundle, so that it cannot choose what is replayed first:
    the hash of the block in which the case was opened.

    Raises CannotVerifyError for reasons that are not the evidence's, and what `context.draw` raises.
    """
    try:
        bundle = parse_evidence(data, kind, commitment, context.rules, context.domain, await context.keys())
        draw = await context.draw(commitment)
        with _abstaining():
            return await _verify(bundle, commitment, draw, entropy, context)
    except VoidEvidenceError as error:
        return Inspection(why=str(error))


async def fetch_work(commitment: CommittedWork, context: RunVerificationContext) -> tuple[Upload, bytes]:
    """Fetch a commitment's upload and file. Raises NotFoundError where the storage has none, or UnreachableError."""
    try:
        upload = await context.upload(commitment)
        return upload, await context.file(upload.receipt.file_hash)
    except NotFoundError:
        raise
    except CheckError as error:
        raise UnreachableError(f"the storage does not deliver what it should: {error}") from error


async def read_work(commitment: CommittedWork, context: RunVerificationContext) -> list[Rollout]:
    """Fetch the rows of a commitment's file. Raises UnreachableError or CheckError."""
    upload = await context.upload(commitment)
    limits = FileLimits.from_terms(context.rules.terms)
    return await context.reader.read(await context.file(upload.receipt.file_hash), limits)


async def read_rows(shown: EvidenceBundle | PoolMember, context: RunVerificationContext) -> list[Rollout]:
    """Read the rows of a bundle, one per proof. Raises VoidEvidenceError, or UnreachableError."""
    with voiding("the rows shown do not count"):
        try:
            data = base64.b64decode(shown.rows, validate=True)
        except ValueError as error:  # binascii.Error, and what is not even ASCII
            raise MalformedError("the rows are not base64") from error
        limits = FileLimits.from_terms(context.rules.terms, len(shown.proofs))
        most = min(limits.decoded_bytes, 2 * len(shown.proofs) * MAX_ROW_BYTES)
        rows = await context.reader.read(data, replace(limits, decoded_bytes=most))
        if len(rows) != len(shown.proofs):
            raise MismatchError(f"{len(rows)} rows and {len(shown.proofs)} proofs")
    return rows


@contextmanager
def _abstaining() -> Iterator[None]:
    try:
        yield
    except UnreachableError as error:
        raise CannotVerifyError(str(error), hint=error.hint) from error


async def _verify(
    bundle: EvidenceBundle,
    commitment: CommittedWork,
    draw: Draw,
    entropy: bytes,
    context: RunVerificationContext,
) -> Inspection:
    if bundle.reason == "data_missing":
        return await _verify_missing(commitment, context)
    if REASONS[bundle.reason].shown_by == "file":
        return await _verify_file(bundle, commitment, context)
    if bundle.pool and REASONS[bundle.reason].of_unit:
        return await _verify_pool(bundle, commitment, entropy, context)
    shown = await _gather_rows(bundle, commitment, draw, context)
    if judged := await asyncio.to_thread(judge_rows, shown, bundle.reason):
        return judged
    return judge_replay(await context.model.replay(commitment.step, list(shown.rows)))


async def _verify_missing(commitment: CommittedWork, context: RunVerificationContext) -> Inspection:
    try:
        await fetch_work(commitment, context)
    except NotFoundError as error:
        return judge_missing(str(error))
    return judge_missing(None)


async def _verify_file(
    bundle: EvidenceBundle, commitment: CommittedWork, context: RunVerificationContext
) -> Inspection:
    assert bundle.upload is not None
    try:
        data = await context.file(bundle.upload.receipt.file_hash)
    except CheckError as error:
        raise UnreachableError(f"the file cannot be fetched: {error}") from error
    try:
        file = await context.reader.read(data, FileLimits.from_terms(context.rules.terms))
    except MalformedError as error:
        file = error
    return await asyncio.to_thread(judge_file, file, commitment, context.rules.terms)


async def _verify_pool(
    bundle: EvidenceBundle, commitment: CommittedWork, entropy: bytes, context: RunVerificationContext
) -> Inspection:
    # 1. It is of consecutive steps, what is said of them convicts if it is true, and the rows are those that count: of
    # equal ones the first unit's. No more than the rows of one unit are in memory at a time.
    assert bundle.pool is not None
    works = {place: await context.committed(commitment.node, *place) for place in list_works(bundle.pool)}
    units, needed = check_pool(bundle.pool, commitment, works)
    shown = [unit for unit in units if unit.members]
    counted: list[set[bytes]] = []
    for unit in shown:
        rows = await _read_unit(unit, context)
        counted.append(set(map(row_key, rows)).difference(*counted))

    # 2. Replay one unit after the other, in an order that the accuser could not know, until it is decided.
    leaning = Counter[str]()
    order = sorted(range(len(shown)), key=lambda place: keccak(entropy + place.to_bytes(4, "big")))
    for done, place in enumerate(order, 1):
        leaning.update(await _blamed(shown[place], counted[place], context))
        left = len(shown) - done
        if judged := judge_leaning(bundle.reason, leaning, left=left, count=len(units), needed=needed):
            return judged
    raise AssertionError("a claim that convicts is decided by its last unit")


async def _blamed(unit: ShownUnit, counted: Container[bytes], context: RunVerificationContext) -> list[str]:
    """Replay the rows of a unit that count; return by which statistics it leans, but for what is the step's fault."""
    rows = [row for member, _ in unit.members for row in await read_rows(member, context) if row_key(row) in counted]
    replayed, limits = await context.model.replay(unit.step, rows), context.model.profile.pool
    pooled = [PooledRow(row_key(row), one.sums) for row, one in zip(rows, replayed, strict=True)]
    if not any(leans(pooled, name, limits) for name in UNIT_STATISTICS):
        return []
    return blamed(pooled, await context.model.honest_sums(unit.step, rows), limits)


async def _gather_rows(
    shown: EvidenceBundle | PoolMember, commitment: CommittedWork, draw: Draw, context: RunVerificationContext
) -> ShownRows:
    rows = await read_rows(shown, context)
    return ShownRows(commitment, draw, context.rules, rows, shown.proofs, shown.tasks)


async def _read_unit(unit: ShownUnit, context: RunVerificationContext) -> list[Rollout]:
    shown = []
    for member, work in unit.members:
        rows = await _gather_rows(member, work, await context.draw(work), context)
        shown.append((rows, await context.chain.block_hash(work.block + SAMPLE_BLOCKS)))
    return await asyncio.to_thread(
        check_unit, unit, shown, await context.chain.block_hash(unit.closing_block + SAMPLE_BLOCKS)
    )
