"""From a commitment on chain to a signed verdict: fetch, parse, check, sample, replay, judge.

What is the node's doing becomes a verdict. What is not (storage, relays or this machine in trouble) becomes a retry
and never a rejection: honest work must not suffer from other people's trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.chain.keys import Signer
from muster.constants import SAMPLE_BLOCKS
from muster.draws import Draw, draw_sample
from muster.errors import CheckError, MalformedError, RefusedError, UnreachableError
from muster.evidence import finite, make_bundle
from muster.hashes import content_hash, hex_hash
from muster.inspection import Commitment, Finding, check_file
from muster.messages import Upload, Verdict
from muster.rollouts.file import FileLimits
from muster.rollouts.schema import Rollout
from muster.signing import UNSIGNED, sign_verdict
from validator.bench import RunBench
from validator.inspect import Inspection, SamplePolicy, of_cheap, of_dear

NO_FILE: Final = "0x" + "00" * 32
"""File hash in a verdict about a file that nobody has."""


@dataclass(frozen=True)
class Judgement:
    """A verdict ready to be told, and the evidence for a rejection."""

    verdict: Verdict
    evidence: bytes | None
    accuse: bool


@dataclass(frozen=True)
class Work:
    """What a node uploaded for a commitment; `rollouts` is None when the file does not parse, as `problem` says."""

    upload: Upload | None
    rollouts: list[Rollout] | None
    problem: Finding | None = None


class Inspector:
    """Judges commitments of one run."""

    def __init__(self, bench: RunBench, signer: Signer, links: Sequence[bytes], policy: SamplePolicy) -> None:
        """`links` are the preimages of the validator's hash chain, in the order in which they are revealed."""
        self._bench = bench
        self._rules = bench.rules
        self._signer = signer
        self._links = links
        self._policy = policy

    async def judge(self, commitment: Commitment, link: int, *, suspect: bool, missing_counts: bool) -> Judgement:
        """The verdict on a commitment, sampled with link number `link` of the hash chain.

        suspect: its node was rejected before. missing_counts: a file the storage does not have has been waited for
        long enough. Raises UnreachableError when no verdict can be given here and now.
        """
        if link >= len(self._links):
            raise UnreachableError(
                f"all {len(self._links)} links of this validator's hash chain are used",
                hint="retire this key and join with a new one: muster validator join",
            )
        draw = await self._bench.draw(commitment)
        work = await self._fetch(commitment, missing_counts=missing_counts)
        if work.rollouts is None:
            inspection = Inspection(work.problem)
        else:
            inspection = await self._inspect(commitment, draw, work.rollouts, link, suspect=suspect)
        return self._conclude(commitment, link, work, inspection)

    async def _fetch(self, commitment: Commitment, *, missing_counts: bool) -> Work:
        """The file that the node itself says it committed to."""
        try:
            upload = await self._bench.upload(commitment)
            data = await self._bench.file(upload.receipt.file_hash)
        except RefusedError as error:
            if error.status != 404 or not missing_counts:
                raise UnreachableError(f"the file cannot be had: {error}") from error
            return Work(None, None, Finding("data_missing", detail=str(error)))
        except CheckError as error:
            raise UnreachableError(f"the storage does not deliver what it should: {error}") from error
        try:
            return Work(upload, await self._bench.read(data, FileLimits.of(self._rules.terms)))
        except MalformedError as error:
            return Work(upload, None, Finding("malformed", detail=str(error)))

    async def _inspect(
        self, commitment: Commitment, draw: Draw, rollouts: list[Rollout], link: int, *, suspect: bool
    ) -> Inspection:
        finding = await asyncio.to_thread(check_file, rollouts, commitment, draw, self._rules)
        if finding is not None:
            return of_cheap(finding)
        block_hash = await self._bench.chain.block_hash(commitment.block + SAMPLE_BLOCKS)
        positions = self._rules.terms.positions
        sample = draw_sample(
            block_hash=block_hash,
            preimage=self._links[link],
            node=commitment.node,
            index=commitment.index,
            positions=positions,
            count=self._policy.count(positions, suspect=suspect),
        )
        return of_dear(await self._bench.replay(commitment.step, [rollouts[i] for i in sample]))

    def _conclude(self, commitment: Commitment, link: int, work: Work, inspection: Inspection) -> Judgement:
        finding = inspection.finding
        evidence = None
        if finding is not None:
            bundle = make_bundle(
                self._rules,
                commitment,
                finding,
                accuser=self._signer.address,
                upload=work.upload,
                rollouts=work.rollouts or (),
                rows=inspection.rows,
            )
            evidence = bundle.to_bytes()
        verdict = Verdict(
            run=commitment.run,
            step=commitment.step,
            node=commitment.node,
            index=commitment.index,
            root=hex_hash(commitment.root),
            file_hash=work.upload.receipt.file_hash if work.upload else NO_FILE,
            validator=self._signer.address,
            accepted=finding is None,
            reason=finding.reason if finding else None,
            position=finding.position if finding else None,
            measured=finite(finding.measured) if finding else None,
            threshold=finite(finding.threshold) if finding else None,
            evidence=content_hash(evidence) if evidence else None,
            draw_index=link,
            preimage=hex_hash(self._links[link]),
            inspected=inspection.inspected,
            signature=UNSIGNED,
        )
        signed = sign_verdict(self._signer, self._bench.client.domain, verdict)
        return Judgement(signed, evidence, accuse=finding is not None and finding.accuse)
