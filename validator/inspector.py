"""From a commitment on chain to a signed verdict: fetch, parse, check, sample, replay, judge.

What is the node's doing becomes a verdict. What is not (storage, relays or this machine in trouble) becomes a retry
and never a rejection: honest work must not suffer from other people's trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster import telemetry
from muster.chain.keys import Signer
from muster.constants import SAMPLE_BLOCKS
from muster.draws import Draw, draw_sample
from muster.errors import CheckError, MalformedError, RefusedError, UnreachableError
from muster.evidence import Bench, EvidenceBundle, finite, make_bundle
from muster.hashes import content_hash, hex_hash
from muster.inspection import Commitment, Finding, Rules, check_file
from muster.messages import Upload, Verdict
from muster.rollouts.file import FileLimits
from muster.rollouts.schema import Rollout
from muster.sample_policy import SamplePolicy
from muster.signing import UNSIGNED, sign_verdict
from validator.bench import RunBench
from validator.inspect import Inspection, of_cheap, of_dear

FEW_LEFT: Final = 0.8
"""Share of the hash chain's links that are used when its owner is told so, with time to have another validator join."""

NO_FILE: Final = "0x" + "00" * 32
"""File hash in a verdict about a file that nobody has."""

log = telemetry.logger("validator")


@dataclass(frozen=True)
class Examination:
    """What was found in a commitment, and what in it."""

    commitment: Commitment
    inspection: Inspection
    upload: Upload | None = None
    rollouts: Sequence[Rollout] = ()
    """None of them when the file does not parse."""

    def bundle(self, bench: RunBench, accuser: str) -> EvidenceBundle:
        """The evidence for its finding."""
        assert self.inspection.finding is not None
        return make_bundle(
            bench.rules,
            self.commitment,
            self.inspection.finding,
            accuser=accuser,
            upload=self.upload,
            rollouts=self.rollouts,
            rows=self.inspection.rows,
        )


async def examine(
    bench: RunBench, commitment: Commitment, sample: Sequence[int], *, missing_counts: bool
) -> Examination:
    """Check a commitment, running the positions in `sample` through the dear checks.

    missing_counts: a file that the storage does not have has been waited for long enough. Raises UnreachableError when
    nothing can be said here and now.
    """
    draw = await bench.draw(commitment)
    try:
        upload = await bench.upload(commitment)
        data = await bench.file(upload.receipt.file_hash)
    except RefusedError as error:
        if error.status != 404 or not missing_counts:
            raise UnreachableError(f"the file cannot be had: {error}") from error
        return Examination(commitment, of_cheap(Finding("data_missing", detail=str(error))))
    except CheckError as error:
        raise UnreachableError(f"the storage does not deliver what it should: {error}") from error
    inspection, rollouts = await inspect_file(data, commitment, draw, bench.rules, sample, bench)
    return Examination(commitment, inspection, upload, rollouts)


async def inspect_file(
    data: bytes, commitment: Commitment, draw: Draw, rules: Rules, sample: Sequence[int], bench: Bench
) -> tuple[Inspection, Sequence[Rollout]]:
    """All eight checks on a file, from cheap to dear, the positions in `sample` going through the dear ones; and the
    file's rows, none when it does not parse.

    It follows from the arguments alone: `bench` only parses and runs the model. Raises UnreachableError when it cannot.
    """
    try:
        rollouts = await bench.read(data, FileLimits.of(rules.terms))
    except MalformedError as error:
        return of_cheap(Finding("malformed", detail=str(error))), ()
    finding = await asyncio.to_thread(check_file, rollouts, commitment, draw, rules)
    if finding is not None:
        return of_cheap(finding), rollouts
    return of_dear(await bench.replay(commitment.step, [rollouts[i] for i in sample])), rollouts


@dataclass(frozen=True)
class Judgement:
    """A verdict ready to be told, and the evidence for a rejection."""

    verdict: Verdict
    evidence: bytes | None
    accuse: bool
    detail: str
    """For people."""


class Inspector:
    """Judges commitments of one run in a validator's name."""

    def __init__(self, bench: RunBench, signer: Signer, links: Sequence[bytes], policy: SamplePolicy) -> None:
        """`links` are the preimages of the validator's hash chain, in the order in which they are revealed."""
        self._bench = bench
        self._signer = signer
        self._links = links
        self._policy = policy
        self._warned = False

    async def judge(self, commitment: Commitment, link: int, *, suspect: bool, missing_counts: bool) -> Judgement:
        """The verdict on a commitment, sampled with link number `link` of the hash chain.

        suspect: its node was rejected before. missing_counts and errors as in `examine`.
        """
        self._check_link(link)
        sample = await self._sample(commitment, self._links[link], suspect=suspect)
        examination = await examine(self._bench, commitment, sample, missing_counts=missing_counts)
        return self._conclude(examination, link)

    def _check_link(self, link: int) -> None:
        """There is such a link. An operator has one validator in a run, ever, so a new chain takes another operator."""
        hint = "retire this key, and join with a new key and another operator: muster validator join --operator NAME"
        if link >= len(self._links):
            raise UnreachableError(f"all {len(self._links)} links of this validator's hash chain are used", hint=hint)
        if link + 1 >= FEW_LEFT * len(self._links) and not self._warned:
            self._warned = True
            log.warning("the hash chain comes to its end", used=link + 1, links=len(self._links), hint=hint)

    async def _sample(self, commitment: Commitment, preimage: bytes, *, suspect: bool) -> list[int]:
        positions = self._bench.rules.terms.positions
        return draw_sample(
            block_hash=await self._bench.chain.block_hash(commitment.block + SAMPLE_BLOCKS),
            preimage=preimage,
            node=commitment.node,
            index=commitment.index,
            positions=positions,
            count=self._policy.count(positions, index=commitment.index, suspect=suspect),
        )

    def _conclude(self, examination: Examination, link: int) -> Judgement:
        c, finding = examination.commitment, examination.inspection.finding
        evidence = examination.bundle(self._bench, self._signer.address).to_bytes() if finding else None
        verdict = Verdict(
            run=c.run,
            step=c.step,
            node=c.node,
            index=c.index,
            root=hex_hash(c.root),
            file_hash=examination.upload.receipt.file_hash if examination.upload else NO_FILE,
            validator=self._signer.address,
            accepted=finding is None,
            reason=finding.reason if finding else None,
            position=finding.position if finding else None,
            measured=finite(finding.measured) if finding else None,
            threshold=finite(finding.threshold) if finding else None,
            evidence=content_hash(evidence) if evidence else None,
            draw_index=link,
            preimage=hex_hash(self._links[link]),
            inspected=examination.inspection.inspected,
            signature=UNSIGNED,
        )
        return Judgement(
            verdict=sign_verdict(self._signer, self._bench.client.domain, verdict),
            evidence=evidence,
            accuse=finding is not None and finding.accuse,
            detail=finding.detail if finding else "",
        )
