"""From a commitment on chain to a signed verdict: fetch, parse, check, sample, replay, conclude.

What the node did becomes a verdict. Trouble of storage, relays or this machine becomes a retry and never a rejection:
honest work must not suffer from the failures of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster.chain.keys import Signer
from muster.constants import SAMPLE_BLOCKS
from muster.errors import CheckError, NotFoundError, UnreachableError
from muster.protocol.draws import Draw, draw_pool, draw_rows
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.kinds import kind_of
from muster.protocol.messages import Verdict
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.audit import audit_file
from muster.verification.bundles import Inspection, finite, make_bundle
from muster.verification.checks import Finding
from muster.verification.look import LookSeeds, encode_look
from muster.verification.pools import ACCUSE, REJECT, PooledRow, row_key
from muster.verification.rules import CommittedWork
from validator.context import RunVerificationContext
from validator.evidence import fetch_work
from validator.pool import PoolJudge

NO_FILE: Final = "0x" + "00" * 32
"""File hash in a verdict about missing data."""

log = telemetry.logger("validator")


async def inspect_commitment(
    context: RunVerificationContext,
    commitment: CommittedWork,
    sample: Sequence[int],
    *,
    seeds: LookSeeds | None = None,
    missing_counts: bool,
) -> Inspection:
    """Check a commitment, running the positions in `sample` through the replay checks; with `seeds` as a look.

    missing_counts: whether a file that the storage does not have has been waited for long enough. Raises
    UnreachableError when the commitment cannot be inspected here and now.
    """
    draw = await context.draw(commitment)
    await context.ensure_tasks((group.task for group in draw.groups), commitment.step)
    try:
        upload, data = await fetch_work(commitment, context)
    except NotFoundError as error:
        if not missing_counts:
            raise UnreachableError(f"the file cannot be fetched: {error}") from error
        return from_static(Finding("data_missing", detail=str(error)))
    return replace(await inspect_file(data, commitment, draw, sample, context, seeds), upload=upload)


async def inspect_file(
    data: bytes,
    commitment: CommittedWork,
    draw: Draw,
    sample: Sequence[int],
    context: RunVerificationContext,
    seeds: LookSeeds | None = None,
) -> Inspection:
    """Run the static checks on a file, then the replay checks on the positions in `sample`; with `seeds` as a look.

    The result follows from the arguments alone: `context` only parses and runs the model. Raises UnreachableError when
    it cannot.
    """
    audit = await audit_file(data, commitment, draw, context.rules, context.reader.read)
    rollouts, finding = audit.rollouts, audit.finding
    if finding is not None and (finding.accuse or not rollouts):
        return from_static(finding, rollouts)
    # A score that only rejects must not keep the rest from being judged.
    replayed = await context.model.replay(commitment.step, [rollouts[i] for i in sample], seeds)
    sums = {position: row.sums for position, row in zip(sample, replayed, strict=True)}
    look = encode_look([row.look for row in replayed if row.look is not None], context.model.profile)
    inspection = from_replay([row.finding for row in replayed], rollouts)
    if finding is not None and not inspection.guilty:
        inspection = replace(from_static(finding, rollouts), replayed=inspection.replayed)
    return replace(inspection, sums=sums, look=look)


def from_static(finding: Finding, rollouts: Sequence[Rollout] = ()) -> Inspection:
    """Conclude from a failed static check: the row it concerns, if any, is the one to show."""
    rows = () if finding.position is None else (finding.position,)
    return Inspection(finding, finding.detail, rows, rollouts=rollouts)


def from_replay(findings: Sequence[Finding | None], rollouts: Sequence[Rollout] = ()) -> Inspection:
    """Conclude from the replay checks of sampled rows, one answer per row: the clearest finding decides."""
    failed = sorted((finding for finding in findings if finding is not None), key=_clearest_first)
    rows = tuple(finding.position for finding in failed if finding.position is not None)
    first = failed[0] if failed else None
    return Inspection(first, first.detail if first else "", rows, len(findings), rollouts=rollouts)


def _clearest_first(finding: Finding) -> tuple[bool, int, float]:
    """Sort what accuses before what only rejects, then by the order of the checks, then the worst first."""
    beyond = 0.0 if finding.measured is None or not finding.threshold else finding.measured / finding.threshold
    return not finding.accuse, kind_of(finding.reason), -beyond


@dataclass
class Inspector:
    """Inspects commitments of one run and signs verdicts with a validator's key."""

    context: RunVerificationContext
    signer: Signer
    pools: PoolJudge

    async def inspect(self, commitment: CommittedWork, link: bytes, *, signs: bool, missing_counts: bool) -> Inspection:
        """Inspect a commitment: replay the rows that a link of the hash chain draws.

        signs: whether the link is still secret, so that the numbers of these rows make a look. missing_counts and
        errors as in `inspect_commitment`.
        """
        # 1. Draw the rows: those that every validator re-runs, and this one's own.
        c, me, terms = commitment, self.signer.address, self.context.rules.terms
        block_hash = await self.context.chain.block_hash(c.block + SAMPLE_BLOCKS)
        drawn = {"block_hash": block_hash, "node": c.node, "index": c.index, "terms": terms}
        sample = draw_rows(**drawn, link=link, validator=me)
        seeds = LookSeeds(me, link, block_hash, c.node, c.index, c.root) if signs else None

        # 2. Inspect them one by one.
        found = await inspect_commitment(self.context, c, sample, seeds=seeds, missing_counts=missing_counts)
        inspection = replace(found, drawn_by=hex_hash(block_hash))
        if not inspection.sums:
            return inspection

        # 3. Judge the pool that its rows belong to.
        shared = draw_pool(**drawn)
        rows = [PooledRow(row_key(inspection.rollouts[one]), inspection.sums[one]) for one in shared]
        inspection = replace(inspection, pooled=rows)
        return inspection if inspection.guilty else await self._judge_pool(c, inspection, tuple(shared))

    async def _judge_pool(
        self, commitment: CommittedWork, inspection: Inspection, shared: tuple[int, ...]
    ) -> Inspection:
        """Return the inspection with what its pool shows, where that says more than the rows by themselves."""
        # 1. What the pool shows.
        found = await self.pools.judge(commitment, inspection.pooled)
        if found is None or (inspection.finding is not None and not found.accuse):
            return inspection

        # 2. Accuse, where its rows can be shown.
        if found.accuse:
            try:
                shown = await self.pools.show(found, commitment)
                finding = Finding(found.reason, measured=found.evidence, threshold=ACCUSE, detail=found.detail)
                return replace(inspection, finding=finding, why=found.detail, rows=shared, pool=shown)
            except (CheckError, UnreachableError) as error:
                # Work that follows tries again. Rows too large for a bundle are never accused by their pool.
                log.warning("the pool accuses, but cannot be shown: rejected", node=commitment.node, error=str(error))

        # 3. Otherwise only reject, unless a row does so already and can be named.
        if inspection.finding is not None:
            return inspection
        finding = Finding(found.reason, measured=found.evidence, threshold=REJECT, accuse=False, detail=found.detail)
        return replace(inspection, finding=finding, why=found.detail, rows=shared)

    def conclude(self, c: CommittedWork, inspection: Inspection) -> tuple[Verdict, bytes | None]:
        """Return the signed verdict on a commitment, and the evidence bundle for a rejection."""
        finding, evidence = inspection.finding, None
        if finding is not None:
            evidence = make_bundle(self.context.rules, c, inspection, accuser=self.signer.address).to_bytes()
        verdict = Verdict.of(
            c,
            finding,
            root=hex_hash(c.root),
            file_hash=inspection.upload.receipt.file_hash if inspection.upload else NO_FILE,
            validator=self.signer.address,
            accepted=finding is None,
            measured=finite(finding.measured) if finding else None,
            threshold=finite(finding.threshold) if finding else None,
            evidence=content_hash(evidence) if evidence else None,
            inspected=inspection.replayed,
            drawn_by=inspection.drawn_by,
            look=inspection.look,
            signature=UNSIGNED,
        )
        return sign_message(self.signer, self.context.domain, verdict), evidence
