"""Pools: what many rows of one node show together, where a single one shows nothing.

Cheaper weights, a cheaper cache or a favoured token move every row a little. The rows that all validators re-run
(`muster.protocol.draws.draw_pool`) of a node's consecutive commitments are taken in order and put together into
*units*: all rows of one step, and of further steps until it has UNIT_TOKENS tokens. Rows of a step share its weights,
and with them whatever moves honest arithmetic there; so no step is in two units. Equal rows count once. A unit's
statistics are means over its tokens, in expected errors, and numbers of rows that a single token rejects. It *leans*
where one of them is above the profile's pool limit, which is at least twice as far out as the mean of the worst honest
cell, or where there is such a row.

Given all before, an honest unit may lean with a chance of at most one in twenty (HONEST_SHARE): a unit is a toss of a
coin that is no worse. Of n units, of which k lean, the likelihood ratio against that coin, averaged over coins that
lean more often, is

    E(k, n) = mean over p in ALTERNATIVES of (p / p0)^k ((1 - p) / (1 - p0))^(n - k)

While the work is honest this is a supermartingale that begins at 1. So, however long one watches, the probability
that it ever reaches 1 / a is at most a (Ville's inequality; for tests of this form see Ramdas et al., arXiv
2210.01948). A pool rejects where E is 10^REJECT, accuses at 10^ACCUSE and convicts at 10^CONVICT. The choice of
statistic, of the first and of the last commitment is paid for by dividing E by their number, so that an honest node's
chance of a conviction in a window of commitments stays below 10^-CONVICT whatever its accuser chooses.

Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from muster.protocol.messages import Reason
from muster.rollouts.schema import Rollout
from muster.verification.profiles import PoolLimits, Profile
from muster.verification.statistics import NOTHING, RowSums

UNIT_TOKENS: Final = 256
"""Tokens of a unit, at least: with fewer a mean says little."""

HONEST_SHARE: Final = 1 / 20
"""Share of an honest node's units that may lean: p0."""

ALTERNATIVES: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of leaning units that the test holds against it."""

REJECT: Final = 3.0
"""Power of ten of the evidence from which a commitment is not used."""

CONVICT: Final = 7.0
"""The same for the evidence by which a juror finds its worker guilty."""

ACCUSE: Final = 8.5
"""The same for the evidence from which its worker is accused: a leaning unit more than a juror needs, whose machine
measures a little differently."""

WINDOW: Final = 48
"""Consecutive commitments that one pool may span: two days' work at one an hour."""

REASONS: Final[dict[str, tuple[Reason, str]]] = {
    "gap_mean": ("sampling_mismatch", "mean gap to the sampled tokens"),
    "activation": ("activation_mismatch", "distance of the activation proofs"),
    "logprob_rms": ("wrong_logprobs", "mean difference of the log-probabilities"),
    "logprob_mean": ("wrong_logprobs", "signed mean difference of the log-probabilities"),
    "gaps_beyond": ("sampling_mismatch", "rows that the largest gap rejects"),
    "logprobs_beyond": ("wrong_logprobs", "rows that the largest difference of a log-probability rejects"),
}
"""By statistic of a unit: what it is a reason for, and its name for people."""

_CHOICES: Final = len(REASONS) * WINDOW * (WINDOW + 1) // 2
"""Statistics, first and last commitments that an accuser may choose from."""


LEAST_LEANING: Final = 6
"""Fewer leaning units never reject a pool."""


@dataclass(frozen=True)
class PooledRow:
    """One row of a pool."""

    position: int
    key: bytes
    """Equal for rows of the same prompt and completion."""
    sums: RowSums


@dataclass(frozen=True)
class PooledWork:
    """The rows of one commitment that all validators re-run, in the order of their positions."""

    index: int
    step: int
    rows: tuple[PooledRow, ...]


@dataclass(frozen=True)
class PoolFinding:
    """What a pool shows."""

    statistic: str
    """A key of REASONS."""
    first: int
    last: int
    """Indices of the commitments that it shows it by."""
    leaning: int
    units: int
    evidence: float
    """log10 of E(leaning, units) divided by the number of choices."""

    @property
    def reason(self) -> Reason:
        return REASONS[self.statistic][0]

    @property
    def accuse(self) -> bool:
        return self.evidence >= ACCUSE

    @property
    def detail(self) -> str:
        return (
            f"{REASONS[self.statistic][1]}: {self.leaning} of {self.units} units are above the pool limit, in "
            f"commitments {self.first} to {self.last}"
        )


def unit_statistics(sums: RowSums) -> dict[str, float]:
    """Return the statistics of a unit by name."""
    return {
        "gap_mean": sums.gaps / sums.tokens,
        "activation": math.sqrt(sums.states / sums.tokens),
        "logprob_rms": math.sqrt(sums.squares / sums.tokens),
        "logprob_mean": abs(sums.signed) / sums.tokens,
        "gaps_beyond": float(sums.gaps_beyond),
        "logprobs_beyond": float(sums.logprobs_beyond),
    }


def evidence(leaning: int, count: int) -> float:
    """Return log10 of E(leaning, count)."""
    logs = [
        leaning * math.log(share / HONEST_SHARE) + (count - leaning) * math.log((1 - share) / (1 - HONEST_SHARE))
        for share in ALTERNATIVES
    ]
    most = max(logs)
    return (most + math.log(sum(math.exp(one - most) for one in logs) / len(logs))) / math.log(10)


@lru_cache(maxsize=1 << 12)
def pool_evidence(leaning: int, count: int) -> float:
    """Return the evidence of a pool, its choices paid for."""
    return evidence(leaning, count) - math.log10(_CHOICES)


def pooled_row(rollout: Rollout, sums: RowSums) -> PooledRow:
    """Return a row of a pool."""
    tokens = rollout.prompt_tokens.tobytes() + b"|" + rollout.completion_tokens.tobytes()
    return PooledRow(rollout.position, sha256(tokens).digest(), sums)


def pooled_work(index: int, step: int, rows: Sequence[Rollout], sums: Sequence[RowSums]) -> PooledWork:
    """Return what a pool takes of one commitment: its rows that all validators re-run, in the order of positions."""
    return PooledWork(index, step, tuple(pooled_row(row, one) for row, one in zip(rows, sums, strict=True)))


def pooled_to_json(work: PooledWork) -> str:
    """Write what a pool takes of a commitment."""
    rows = [[row.position, row.key.hex(), *astuple(row.sums)] for row in work.rows]
    return json.dumps({"index": work.index, "step": work.step, "rows": rows})


def pooled_from_json(text: str) -> PooledWork:
    """Read what `pooled_to_json` wrote."""
    document = json.loads(text)
    rows = [PooledRow(position, bytes.fromhex(key), RowSums(*sums)) for position, key, *sums in document["rows"]]
    return PooledWork(document["index"], document["step"], tuple(rows))


def judge_pool(works: Sequence[PooledWork], profile: Profile, *, about: int) -> PoolFinding | None:
    """Return the clearest finding of a pool that includes the commitment number `about`; None when it shows nothing.

    `works` are of one node, by consecutive indices, and at most WINDOW of them around it count.
    """
    known = [work for work in works if abs(work.index - about) < WINDOW]
    if not _may_reject(known, profile.pool):
        return None
    found = [
        finding
        for first, work in enumerate(known)
        if work.index <= about
        for finding in _findings(known[first : first + WINDOW], profile.pool)
        if finding.last >= about
    ]
    # Of those that accuse the shortest: a jury replays it all.
    best = min(
        (one for one in found if one.accuse), key=lambda one: (one.last - one.first, -one.evidence), default=None
    )
    best = best or max(found, key=lambda one: one.evidence, default=None)
    return best if best is not None and best.evidence >= REJECT else None


def _may_reject(works: Sequence[PooledWork], limits: PoolLimits) -> bool:
    """Return whether enough rows lean for any window to reject: a mean leans only where one of its rows does."""
    rows = [unit_statistics(row.sums) for work in works for row in work.rows]
    return any(sum(row[name] > getattr(limits, name, 0.0) for row in rows) >= LEAST_LEANING for name in REASONS)


def pool_findings(works: Sequence[PooledWork], profile: Profile) -> list[PoolFinding]:
    """Return what exactly these consecutive commitments show, by each statistic."""
    return [finding for finding in _findings(works, profile.pool) if finding.last == works[-1].index]


def _findings(works: Sequence[PooledWork], limits: PoolLimits) -> Iterator[PoolFinding]:
    """Yield what the first commitment shows, the first two, and so on, by each statistic.

    A unit counts once a commitment of another step follows it: to look into an open one again and again would be to
    choose when to count it.
    """
    seen: set[bytes] = set()
    unit, last_step = NOTHING, None
    count, leaning = 0, dict.fromkeys(REASONS, 0)
    for work in works:
        if unit.tokens >= UNIT_TOKENS and work.step != last_step:
            count += 1
            for name in leaning:
                leaning[name] += leans(unit, name, limits)
            unit = NOTHING
        unit, last_step = _added(unit, work, seen), work.step
        for name, lean in leaning.items():
            yield PoolFinding(name, works[0].index, work.index, lean, count, pool_evidence(lean, count))


def leans(unit: RowSums, statistic: str, limits: PoolLimits) -> bool:
    """Return whether a unit is above a pool limit; one row that a single token rejects is."""
    return unit_statistics(unit)[statistic] > getattr(limits, statistic, 0.0)


def _added(unit: RowSums, work: PooledWork, seen: set[bytes]) -> RowSums:
    """Add the rows of a commitment to a unit, without rows that are equal to one seen before."""
    for row in work.rows:
        if row.key not in seen:
            seen.add(row.key)
            unit += row.sums
    return unit
