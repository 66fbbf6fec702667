"""What a validator does with an adversary's file, at production constants, and what that comes to.

`inspect` runs the validator's own entry on a real file. `judge_rows` asks for every row by itself whether it would be
noticed; with that, hundreds of samples can be drawn and judged without running the model again, since a row's finding
does not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np

from muster.clients.run_data import CheckpointFetcher
from muster.errors import UnreachableError
from muster.protocol.draws import draw_rows, pool_rows
from muster.protocol.messages import Upload
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.settings.schema import ValidatorSettings
from muster.verification.bundles import Inspection, ReplayedRow
from muster.verification.checks import Finding, check_rows
from muster.verification.evidence import VerificationContext
from muster.verification.profiles import Limit
from muster.verification.rules import CommittedWork
from muster.verification.sample_policy import detection, detection_over, false_rows, sample_size
from testbed.adversaries.kinds import Adversary
from testbed.adversaries.lab import AdversaryLab, Job
from validator.inspector import from_replay, from_static, inspect_file
from validator.model import Model
from validator.replay import Measurement, judge

POLICY = ValidatorSettings()
"""The default one."""
KNOWN = POLICY.newcomer_commitments
"""The commitment from which on a node is known: it gets the smallest sample."""
TENTH = 0.1
DAY = 24
"""Commitments that a worker makes in a day, one an hour."""


class Folders:
    """The run's checkpoints where they lie, in the place of `muster.clients.run_data.Checkpoints`."""

    def __init__(self, shop: AdversaryLab) -> None:
        self._shop = shop

    @asynccontextmanager
    async def used(self, step: int) -> AsyncIterator[Path]:
        yield self._shop.checkpoints[step]


class LocalContext:
    """A verification context without chain and storage: parser and model as they are in production."""

    def __init__(self, shop: AdversaryLab) -> None:
        self.rules = shop.rules
        self._reader = RolloutReader()
        self._model = Model(cast(CheckpointFetcher, Folders(shop)), shop.profile, shop.rules.terms.temperature)

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return await self._reader.read(data, limits)

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[ReplayedRow]:
        return await self._model.replay(step, rollouts)

    async def file(self, name: str) -> bytes:
        raise UnreachableError("there is no storage here")

    async def upload(self, commitment: CommittedWork) -> Upload:
        raise UnreachableError("there is no storage here")

    async def close(self) -> None:
        await self._reader.close()


@dataclass(frozen=True)
class Submission:
    """What an adversary uploads and commits to."""

    data: bytes
    commitment: CommittedWork


def submit(adversary: Adversary, job: Job, rows: Sequence[Rollout], honest: Sequence[Rollout]) -> Submission:
    root = rollout_tree(honest if adversary.commits_to_honest else rows).root
    return Submission(adversary.pack(rows), replace(job.commitment, root=root))


def lie_in_part(lies: Sequence[Rollout], honest: Sequence[Rollout], positions: Sequence[int]) -> list[Rollout]:
    """Honest rows, but for the positions in which the adversary lies."""
    lying = set(positions)
    return [lie if i in lying else true for i, (lie, true) in enumerate(zip(lies, honest, strict=True))]


def sample_of(job: Job, number: int, terms: Terms) -> list[int]:
    """Sample number so-and-so of the default policy: each as if another block followed the commitment."""
    count = sample_size(POLICY, terms.positions, index=max(KNOWN, job.commitment.index), suspect=False)
    return draw_rows(
        block_hash=number.to_bytes(32, "big"),
        preimage=bytes(32),
        node=job.commitment.node,
        index=job.commitment.index,
        terms=terms,
        count=count,
    )


async def inspect(
    context: LocalContext, shop: AdversaryLab, job: Job, submission: Submission, number: int = 0
) -> Inspection:
    """Return the validator's inspection of a submission."""
    sample = sample_of(job, number, shop.rules.terms)
    return await inspect_file(
        submission.data, submission.commitment, job.draw, sample, cast(VerificationContext, context)
    )


@dataclass(frozen=True)
class JudgedRow:
    """One row, judged by itself."""

    false: bool
    """It is not what honest work would be."""
    static: Finding | None
    """Of the checks that every row goes through."""
    replay: Finding | None
    """Of those that only sampled rows go through."""
    measurement: Measurement | None

    @property
    def finding(self) -> Finding | None:
        return self.static or self.replay


def judge_rows(shop: AdversaryLab, job: Job, rows: Sequence[Rollout]) -> list[JudgedRow]:
    """Judge every row of a commitment by itself."""
    honest = shop.honest(job)
    static = [check_rows([row], job.draw, shop.rules) for row in rows]
    sound = [i for i, finding in enumerate(static) if finding is None]
    measured = dict(zip(sound, shop.measure(job, [rows[i] for i in sound]), strict=True))
    return [
        JudgedRow(
            false=row is not true,
            static=static[i],
            replay=judge([measured[i]], shop.profile) if i in measured else None,
            measurement=measured.get(i),
        )
        for i, (row, true) in enumerate(zip(rows, honest, strict=True))
    ]


@dataclass(frozen=True)
class Outcome:
    """What became of one kind of adversary."""

    name: str
    rows: int
    false: int
    """Rows that are not what honest work would be."""
    whole_file: bool
    """It is the file that lies, and no row is looked at."""
    rejected: int
    accused: int
    """False rows that are rejected, and beyond the accusing threshold, each by itself."""
    reasons: dict[str, int]
    """Why, over these rows; or why the file."""
    values: np.ndarray
    """The telling statistic of the false rows."""
    limit: Limit | None
    samples: int
    """Commitments inspected with a sample of their own: so many with lies in all rows, so many with a tenth."""
    caught: int
    caught_accused: int
    caught_tenth: int
    predicted_tenth: float
    """What the policy predicts of the last, from the share of rows that are noticed by themselves."""

    @property
    def needed(self) -> int | None:
        """Rows to look at for 99%, of somebody who does it in all of them; None where it is no matter of rows."""
        return rows_needed(self.rejected / self.rows)

    @property
    def in_one(self) -> float:
        """Share of the samples that reject a commitment with lies in all rows."""
        return self.caught / self.samples


@dataclass(frozen=True)
class Made:
    """A commitment that an adversary made, and the validator's own verdict on its file."""

    job: Job
    rows: list[Rollout]
    finding: Finding | None


async def make(context: LocalContext, shop: AdversaryLab, adversary: Adversary, job: Job) -> Made:
    """Let the adversary do a job, and let the validator inspect what it uploads."""
    rows = adversary.lie(shop, job)
    inspection = await inspect(context, shop, job, submit(adversary, job, rows, shop.honest(job)))
    return Made(job, rows, inspection.finding)


def outcome(shop: AdversaryLab, adversary: Adversary, made: Sequence[Made], *, samples: int) -> Outcome:
    """Judge the rows of an adversary's commitments, and samples of these with all rows false and with a tenth.

    `samples` of each are drawn. A file that is false as a whole has no honest rows in it: what the validator found
    counts in either form.
    """
    if adversary.whole_file:
        return _whole_file(adversary, made, samples)
    judged = [(one.job, judge_rows(shop, one.job, one.rows)) for one in made]
    flat = [row for _, rows in judged for row in rows]
    false = [row for row in flat if row.false]
    found = [row.finding for row in false if row.finding]
    positions = shop.rules.terms.positions
    lies = false_rows(positions, TENTH)

    def inspected(number: int, lying: Sequence[int]) -> Finding | None:
        job, rows = judged[number % len(judged)]
        return _judge_sample(rows, sample_of(job, number, shop.rules.terms), lying)

    caught = [inspected(n, range(positions)) for n in range(samples)]
    tenth = [
        inspected(samples + n, Random(f"{adversary.name} {n}").sample(range(positions), lies)) for n in range(samples)
    ]
    values = [getattr(row.measurement, adversary.statistic) for row in false if row.measurement and adversary.statistic]
    return Outcome(
        name=adversary.name,
        rows=len(flat),
        false=len(false),
        whole_file=False,
        rejected=len(found),
        accused=sum(finding.accuse for finding in found),
        reasons=dict(Counter(finding.reason for finding in found)),
        values=np.array(values),
        limit=getattr(shop.profile, adversary.statistic) if adversary.statistic else None,
        samples=samples,
        caught=sum(finding is not None for finding in caught),
        caught_accused=sum(finding is not None and finding.accuse for finding in caught),
        caught_tenth=sum(finding is not None for finding in tenth),
        predicted_tenth=_predicted(flat, shop.rules.terms, lies),
    )


def _whole_file(adversary: Adversary, made: Sequence[Made], samples: int) -> Outcome:
    """Count a whole file's outcome, which depends on no sample, as often as the others have samples."""
    findings = [made[n % len(made)].finding for n in range(samples)]
    caught = [finding for finding in findings if finding is not None]
    rows = sum(len(one.rows) for one in made)
    return Outcome(
        name=adversary.name,
        rows=rows,
        false=rows,
        whole_file=True,
        rejected=0,
        accused=0,
        reasons=dict(Counter(one.finding.reason for one in made if one.finding)),
        values=np.zeros(0),
        limit=None,
        samples=samples,
        caught=len(caught),
        caught_accused=sum(finding.accuse for finding in caught),
        caught_tenth=len(caught),
        predicted_tenth=1.0,
    )


def _judge_sample(rows: Sequence[JudgedRow], sample: Sequence[int], lying: Sequence[int]) -> Finding | None:
    """Return the finding on a commitment whose `lying` positions are the adversary's, the rest honest."""
    chosen = set(lying)
    if static := next((row.static for i, row in enumerate(rows) if i in chosen and row.static), None):
        return from_static(static).finding
    return from_replay([rows[i].replay if i in chosen else None for i in sample]).finding


def _predicted(rows: Sequence[JudgedRow], terms: Terms, lies: int) -> float:
    """Return the chance that the policy predicts, from the share of the false rows that are noticed.

    Where a check of every row notices them, the whole commitment is the sample.
    """
    static = sum(1 for row in rows if row.static) / len(rows)
    replay = sum(1 for row in rows if row.replay) / len(rows)
    positions = terms.positions
    sample = sample_size(POLICY, positions, index=KNOWN, suspect=False) + pool_rows(terms)
    missed = (1 - detection(positions, lies, positions, static)) * (1 - detection(positions, lies, sample, replay))
    return 1 - missed


def describe(outcome: Outcome) -> dict[str, Any]:
    """As JSON."""
    least, median = None, None
    if len(outcome.values):
        least, median = float(outcome.values.min()), float(np.median(outcome.values))
    return {
        "name": outcome.name,
        "rows": outcome.rows,
        "false_rows": outcome.false,
        "whole_file": outcome.whole_file,
        "caught_by": outcome.reasons,
        "least": least,
        "median": median,
        "reject": outcome.limit.reject if outcome.limit else None,
        "accuse": outcome.limit.accuse if outcome.limit else None,
        "rejected": outcome.rejected,
        "accused": outcome.accused,
        "rows_for_99": outcome.needed,
        "samples": outcome.samples,
        "in_one": outcome.in_one,
        "in_one_accused": outcome.caught_accused / outcome.samples,
        "in_a_day": detection_over([outcome.in_one] * DAY),
        "tenth": outcome.caught_tenth / outcome.samples,
        "tenth_predicted": outcome.predicted_tenth,
    }


def rows_needed(per_row: float, wanted: float = 0.99) -> int | None:
    """Return how many rows to re-run, all of them false, to detect one with probability `wanted`.

    None where no number suffices.
    """
    if per_row <= 0:
        return None
    return 1 if per_row >= wanted else math.ceil(math.log(1 - wanted) / math.log(1 - per_row))
