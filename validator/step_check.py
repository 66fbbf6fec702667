"""python -m validator.step_check: say of a worker's own rows whether its step is worth working on.

Reads a `StepQuestion` from each line of stdin, writes a `StepAnswer` to stdout, and ends with stdin. It measures what a
validator measures, and the honest spread (`muster.verification.replay`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Final

from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout
from muster.verification.calibration import UNIT_MARGIN
from muster.verification.calibration_document import narrowed
from muster.verification.pools import UNIT_TOKENS, unit_statistics
from muster.verification.profiles import PROFILES, Profile
from muster.verification.replay import Replayer, spread_share
from muster.verification.statistics import NOTHING, scaled_errors
from muster.verification.step_checks import MAX_LINE, StepAnswer, StepQuestion

TOLERATED: Final = {"float32": 0.5, "bfloat16": 1.5}
"""By dtype: share of a rejecting limit from which on a row makes a worker sit a step out. Rows of usual models stay
below 0.3 in float32; in bfloat16 those of a few tokens come to 1.0, and one of a thousand beyond
(`benchmarks/inspection.py --only sat_out`)."""

FAULTS: Final = 2
"""Rows beyond that share which make a step one to sit out: of usual models a single one is. Where fewer rows are asked
about, all of them."""


def check(replayer: Replayer, profile: Profile, rows: Sequence[Rollout], seconds: float) -> StepAnswer:
    """Measure rows, the shortest first, until the time is over or they show that the step's work would be lost."""
    begun, own, honest, measured, faults, least = time.monotonic(), NOTHING, NOTHING, 0, 0, 1
    for row in sorted(rows, key=lambda row: len(row.prompt_tokens) + len(row.completion_tokens)):
        # The next one takes as long as those before, or longer.
        if measured >= least and (time.monotonic() - begun) * (measured + 1) / measured > seconds:
            break
        measured += 1
        [mine], [spread] = replayer.errors([row]), next(replayer.spread(row))
        for words, found in (("rows of this machine are off by", mine.errors), ("honest machines differ by", spread)):
            if not (share := spread_share(found, profile)) < TOLERATED[profile.dtype]:
                faults, least = faults + 1, measured + 1
                if faults >= min(FAULTS, len(rows)):
                    return StepAnswer(rows=measured, fault=f"{words} {share:.2f} of what rejects a row")
                break
        own += scaled_errors(mine.errors, profile).sums(profile)
        honest += scaled_errors(spread, profile).sums(profile)
    if own.tokens >= UNIT_TOKENS:
        for words, sums in (("this machine's rows", own), ("honest machines' rows", honest)):
            for name, value in unit_statistics(sums).items():
                limit = UNIT_MARGIN * getattr(profile.pool, name, 0.0)
                if value > limit:
                    return StepAnswer(rows=measured, fault=f"{words} have a {name} of {value:.3g}, above {limit:.3g}")
    return StepAnswer(rows=measured, fault="")


def main() -> int:
    """Answer until stdin ends; return the exit code."""
    os.nice(19)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    replayer: Replayer | None = None
    while line := sys.stdin.readline(MAX_LINE):
        question = StepQuestion.model_validate_json(line)
        if replayer is None:  # of a process that asks about one run alone
            made = PROFILES[question.profile], question.temperature
            replayer = Replayer(question.model, *made, keep=1, matmul=question.matmul)
        replayer.load_weights(question.model)
        profile = narrowed(replayer.profile, question.pool, question.limits, replayer.profile.look)
        answer = check(replayer, profile, read_rollouts(question.rows.read_bytes()), question.seconds)
        print(answer.model_dump_json(), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
