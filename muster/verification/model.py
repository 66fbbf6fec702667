"""Judge rows under the weights that are loaded: what is wrong with them, and whether a look's numbers are true."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import astuple, replace
from itertools import islice
from typing import Final

import numpy as np

from muster.models.arithmetic import HONEST, computing, perturbing
from muster.rollouts.schema import Rollout
from muster.verification.bundles import ReplayedRow
from muster.verification.checks import Finding
from muster.verification.judging import Measurement, judge, judge_stable
from muster.verification.look import LookSeeds, Outcome, judge_look
from muster.verification.pools import HONEST_DRAWS
from muster.verification.replay import Replayer, RowErrors, spread_share
from muster.verification.statistics import RowSums, TokenErrors, scaled_errors

DRAWS: Final = 32
"""Honest machines that a row is measured on before it is blamed: some differ only now and then from all others."""
_DRAW_TOKENS: Final = 4096
"""Tokens of these together, from which on there are fewer, and DRAWS_AT_ONCE at least."""
DRAWS_AT_ONCE: Final = 8
LOOK_DRAWS: Final = 16
"""Honest machines whose numbers of a row are computed before a look's are false."""


def replay_rows(
    replayer: Replayer, rollouts: Sequence[Rollout], seeds: LookSeeds | None = None, *, blame: bool = True
) -> list[ReplayedRow]:
    """Measure and judge the rows under the loaded weights, in order; with `seeds` of a look also its numbers.

    A row is blamed only by tokens on which honest machines agree. The clearest such row decides: the others' findings
    lead to no accusation. None does without `blame`.
    """
    # 1. What is wrong with each by itself.
    profile = replayer.profile
    errors = replayer.errors(rollouts, seeds)
    measured = [Measurement.of(row.errors, profile, row.position, row.detail) for row in errors]
    alone = [judge([row], profile) for row in measured]
    rows = [
        ReplayedRow(finding, row.sums, beyond=finding is not None and finding.accuse, look=error.look)
        for finding, row, error in zip(alone, measured, errors, strict=True)
    ]
    accusing = [(i, row.finding) for i, row in enumerate(rows) if row.finding is not None and row.finding.accuse]

    # 2. What is wrong with it where honest machines agree.
    for i, finding in sorted(accusing, key=_clearest_first):
        judged = blamed_for(replayer, rollouts[i], errors[i], finding) if blame else replace(finding, accuse=False)
        rows[i], blame = replace(rows[i], finding=judged), blame and not judged.accuse
    return rows


def _clearest_first(found: tuple[int, Finding]) -> float:
    """Return the key by which the worst finding comes first."""
    finding = found[1]
    assert finding.measured is not None, "a replay check measures something"
    assert finding.threshold
    return -min(finding.measured / finding.threshold, sys.float_info.max)


def blamed_for(replayer: Replayer, rollout: Rollout, row: RowErrors, finding: Finding) -> Finding:
    """Return what accuses a row by tokens on which honest machines agree; else `finding`, which then only rejects."""
    tokens = len(rollout.prompt_tokens) + len(rollout.completion_tokens)
    most = max(DRAWS_AT_ONCE, min(DRAWS, _DRAW_TOKENS // tokens))
    draws: list[TokenErrors] = []
    for some in islice(replayer.spread(rollout, DRAWS_AT_ONCE), -(-most // DRAWS_AT_ONCE)):
        draws += some
        stays = judge_stable(row.errors, draws, replayer.profile, row.position, row.detail)
        if stays is None or not stays.accuse:
            share = max(spread_share(draw, replayer.profile) for draw in draws)
            fault = f"the step is at fault: honest machines differ by {share:.1f} limits on this row"
            return replace(finding, accuse=False, detail=f"{finding.detail}; {fault}")
    return stays


def check_row(
    replayer: Replayer, rollout: Rollout, claimed: np.ndarray, seeds: LookSeeds, *, accepted: bool = False
) -> Outcome:
    """Return whether a look's numbers of a row, [2, K], are true under the loaded weights (`judge_look`).

    They are false as well where the row was `accepted` and is to blame. Other arithmetics and perturbed machines, which
    cost about as many replays as they are, compute it only where the claim is beyond the limit.
    """
    [row] = replayer.errors([rollout], seeds)
    assert row.look is not None
    finding = judge([Measurement.of(row.errors, replayer.profile, row.position, row.detail)], replayer.profile)
    if accepted and finding is not None and finding.accuse and blamed_for(replayer, rollout, row, finding).accuse:
        return "false"
    found = judge_look(claimed, row.look, [], replayer.profile)
    if found != "false":
        return found
    others: list[RowErrors] = []
    for arithmetic in HONEST[replayer.profile.dtype]:
        with computing(replayer.model, arithmetic):
            others += replayer.errors([rollout], seeds)
    with perturbing(replayer.model):
        others += replayer.errors([rollout] * LOOK_DRAWS, seeds)
    return judge_look(claimed, row.look, [one.look for one in others if one.look is not None], replayer.profile)


def shares_rejection(replayer: Replayer, rollout: Rollout) -> bool:
    """Return whether this machine or a perturbed one finds anything wrong with a row under the loaded weights."""
    errors = replayer.errors([rollout])
    with perturbing(replayer.model):
        errors += replayer.errors([rollout] * LOOK_DRAWS)
    profile = replayer.profile
    return judge([Measurement.of(row.errors, profile, row.position, row.detail) for row in errors], profile) is not None


def honest_sums(replayer: Replayer, rollouts: Sequence[Rollout]) -> list[RowSums]:
    """Return the most that a few honest machines' rows in the contexts of these would add to a pool, in order."""
    draws = [next(replayer.spread(row, HONEST_DRAWS)) for row in rollouts]
    sums = [[scaled_errors(one, replayer.profile).sums(replayer.profile) for one in row] for row in draws]
    return [
        RowSums(*(max(values, key=abs) for values in zip(*(astuple(one) for one in row), strict=True))) for row in sums
    ]
