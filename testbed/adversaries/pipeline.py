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

from muster.clients.model import Model
from muster.clients.run_data import CheckpointFetcher
from muster.errors import UnreachableError
from muster.protocol.draws import draw_rows
from muster.protocol.keys import ZERO_ADDRESS
from muster.protocol.looks import FIRST_COMMITMENTS, rows_of_look
from muster.protocol.messages import Upload
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.verification.bundles import Inspection
from muster.verification.checks import Finding, check_rows
from muster.verification.judging import Measurement, judge
from muster.verification.profiles import Limit
from muster.verification.rules import CommittedWork
from muster.verification.sample_policy import detection, detection_over, false_rows
from testbed.adversaries.kinds import Adversary
from testbed.adversaries.lab import AdversaryLab, Job
from validator.context import RunVerificationContext
from validator.inspector import from_replay, from_static, inspect_file

KNOWN = FIRST_COMMITMENTS
"""The commitment from which on a node is known: a look replays the fewest rows."""
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
        self.reader = RolloutReader()
        self.model = Model(cast(CheckpointFetcher, Folders(shop)), shop.profile, shop.rules.terms.temperature)

    async def file(self, name: str) -> bytes:
        raise UnreachableError("there is no storage here")

    async def upload(self, commitment: CommittedWork) -> Upload:
        raise UnreachableError("there is no storage here")

    async def close(self) -> None:
        await self.reader.close()


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
    """Draw the rows of look number so-and-so: each as if another block followed the commitment."""
    return draw_rows(
        block_hash=number.to_bytes(32, "big"),
        link=bytes(32),
        validator=ZERO_ADDRESS,
        node=job.commitment.node,
        index=max(KNOWN, job.commitment.index),
        terms=terms,
    )


async def inspect(
    context: LocalContext, shop: AdversaryLab, job: Job, submission: Submission, number: int = 0
) -> Inspection:
    """Return the validator's inspection of a submission."""
    sample = sample_of(job, number, shop.rules.terms)
    return await inspect_file(
        submission.data, submission.commitment, job.draw, sample, cast(RunVerificationContext, context)
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

    adversary: Adversary
    rows: int
    false: int
    """Rows that are not what honest work would be."""
    found: list[Finding]
    """On the false rows, each by itself; or on the files."""
    values: np.ndarray
    """The telling statistic of the false rows."""
    limit: Limit | None
    in_all: list[Finding | None]
    """On commitments with lies in all rows, each inspected with a separate sample."""
    in_a_tenth: list[Finding | None]
    predicted_tenth: float
    """What is predicted of the last, from the share of rows that are noticed by themselves."""

    @property
    def reasons(self) -> dict[str, int]:
        """Return why, over these rows; or why the file."""
        return dict(Counter(finding.reason for finding in self.found))

    @property
    def rejected(self) -> int:
        """Return the false rows that are rejected, each by itself: none where no row is looked at."""
        return 0 if self.adversary.whole_file else len(self.found)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        whole, values, samples = self.adversary.whole_file, self.values, len(self.in_all)
        caught = [finding for finding in self.in_all if finding]
        in_one = len(caught) / samples
        return {
            "name": self.adversary.name,
            "rows": self.rows,
            "false_rows": self.false,
            "whole_file": whole,
            "caught_by": self.reasons,
            "least": float(values.min()) if len(values) else None,
            "median": float(np.median(values)) if len(values) else None,
            "reject": self.limit.reject if self.limit else None,
            "accuse": self.limit.accuse if self.limit else None,
            "rejected": self.rejected,
            "accused": 0 if whole else sum(finding.accuse for finding in self.found),
            "rows_for_99": rows_needed(self.rejected / self.rows),
            "samples": samples,
            "in_one": in_one,
            "in_one_accused": sum(finding.accuse for finding in caught) / samples,
            "in_a_day": detection_over([in_one] * DAY),
            "tenth": sum(map(bool, self.in_a_tenth)) / samples,
            "tenth_predicted": self.predicted_tenth,
        }


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
        findings, rows = [one.finding for one in made], sum(len(one.rows) for one in made)
        caught = [findings[n % len(findings)] for n in range(samples)]
        return Outcome(adversary, rows, rows, list(filter(None, findings)), np.zeros(0), None, caught, caught, 1.0)
    judged = [(one.job, judge_rows(shop, one.job, one.rows)) for one in made]
    flat = [row for _, rows in judged for row in rows]
    false = [row for row in flat if row.false]
    positions, terms = range(shop.rules.terms.positions), shop.rules.terms
    lies, statistic = false_rows(len(positions), TENTH), adversary.statistic

    def inspected(number: int, lying: Sequence[int]) -> Finding | None:
        job, rows = judged[number % len(judged)]
        return _judge_sample(rows, sample_of(job, number, terms), lying)

    def tenth(n: int) -> Finding | None:
        return inspected(samples + n, Random(f"{adversary.name} {n}").sample(positions, lies))

    return Outcome(
        adversary,
        rows=len(flat),
        false=len(false),
        found=[row.finding for row in false if row.finding],
        values=np.array([getattr(row.measurement, statistic) for row in false if row.measurement and statistic]),
        limit=getattr(shop.profile, statistic) if statistic else None,
        in_all=[inspected(n, positions) for n in range(samples)],
        in_a_tenth=[tenth(n) for n in range(samples)],
        predicted_tenth=_predicted(flat, terms, lies),
    )


def _judge_sample(rows: Sequence[JudgedRow], sample: Sequence[int], lying: Sequence[int]) -> Finding | None:
    """Return the finding on a commitment whose `lying` positions are the adversary's, the rest honest."""
    chosen = set(lying)
    if static := next((row.static for i, row in enumerate(rows) if i in chosen and row.static), None):
        return from_static(static).finding
    return from_replay([rows[i].replay if i in chosen else None for i in sample]).finding


def _predicted(rows: Sequence[JudgedRow], terms: Terms, lies: int) -> float:
    """Return the chance that one look is predicted to have, from the share of the false rows that are noticed.

    Where a check of every row notices them, the whole commitment is the sample.
    """
    static = sum(1 for row in rows if row.static) / len(rows)
    replay = sum(1 for row in rows if row.replay) / len(rows)
    positions = terms.positions
    sample = rows_of_look(terms, KNOWN)
    missed = (1 - detection(positions, lies, positions, static)) * (1 - detection(positions, lies, sample, replay))
    return 1 - missed


def rows_needed(per_row: float, wanted: float = 0.99) -> int | None:
    """Return how many rows to re-run, all of them false, to detect one with probability `wanted`.

    None where no number suffices.
    """
    if per_row <= 0:
        return None
    return 1 if per_row >= wanted else math.ceil(math.log(1 - wanted) / math.log(1 - per_row))
