"""Pools: what many rows of one node show together, where a single one shows nothing.

Cheaper weights, a cheaper cache or a favoured token move every row a little. So a node's work is also counted step by
step. A *unit* is its work of one step: of the rows that all validators re-run, over all its commitments there, at most
eight are drawn once it works on a later step (`muster.protocol.draws.draw_unit`), and as many of them count, in drawn
order, as make UNIT_TOKENS tokens. What moves honest arithmetic moves all rows of a step alike, so a step counts once,
however much a node makes of it. Equal rows count once.

A unit's statistics are means over its tokens, in expected errors, and numbers of rows that a single token rejects. It
*leans* where one of them is above the profile's pool limit, which is at least twice as far out as the mean of the worst
honest cell, or where there is such a row. Given all before, an honest unit leans with a chance of at most one in thirty
(HONEST_SHARE): a unit is a toss of a coin that is no worse. Of n units, of which k lean, the likelihood ratio against
that coin, averaged over coins that lean more often, is

    E(k, n) = mean over p in ALTERNATIVES of (p / p0)^k ((1 - p) / (1 - p0))^(n - k)

While the work is honest this is a supermartingale that begins at 1. So, however long one watches, the probability
that it ever reaches 1 / a is at most a (Ville's inequality; for tests of this form see Ramdas et al., arXiv
2210.01948). A pool rejects where E is 10^REJECT, accuses at 10^ACCUSE and convicts at 10^CONVICT. The choice of
statistic, of the first and of the last step is paid for by dividing E by their number, so that an honest node's chance
of a conviction in a window of steps stays below 10^-CONVICT whatever its accuser chooses.

A validator looks at a part of a node's work. Of each step it knows the pools' rows of its own looks, and only where
many of these lean (`suspect_from`) does it replay the rows that count.

Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import Final, TypeVar

from muster.errors import MalformedError
from muster.protocol.reasons import UNIT_STATISTICS, Reason
from muster.rollouts.schema import Rollout
from muster.verification.profiles import PoolLimits, Profile
from muster.verification.statistics import NOTHING, RowSums

T = TypeVar("T")

UNIT_TOKENS: Final = 256
"""Rows are taken into a unit until they have so many tokens."""

LEAST_TOKENS: Final = 64
"""The means of a unit with fewer tokens are taken over so many: a mean over very few says little."""

HONEST_SHARE: Final = 1 / 30
"""Share of an honest node's units that may lean: p0."""

ALTERNATIVES: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Shares of leaning units that the test holds against it."""

REJECT: Final = 3.0
"""Power of ten of the evidence from which a commitment is not used."""

SUSPECT: Final = 2.7
"""The same for the evidence of the rows that a validator replayed in its own looks, from which on it replays those that
count: three steps of four, four of nine, six of 22. For honest nodes it replays less than 1 % of its looks' rows so."""

CONVICT: Final = 7.0
"""The same for the evidence by which a juror finds its worker guilty."""

ACCUSE: Final = 9.5
"""The same for the evidence from which its worker is accused: where all units lean, one of them may lean no more by the
measure of a juror, whose machine differs a little."""

WINDOW: Final = 96
"""Consecutive steps of a node's work that one pool may span: half a day of steps of eight minutes."""

FAULT_SHARE: Final = 0.75
"""Share of a pool limit from which on the honest spread of a unit keeps it from leaning. Honest units of usual models
stay below 0.8 of the limit in 99 of 100, by the way it is set."""

HONEST_DRAWS: Final = 2
"""Honest machines over which that spread is the largest: each costs a juror one replay more of the rows that lean."""

_CHOICES: Final = len(UNIT_STATISTICS) * WINDOW * (WINDOW + 1) // 2
"""Statistics, first and last steps that an accuser may choose from."""


LEAST_LEANING: Final = 6
"""Fewer leaning units never reject a pool."""


@dataclass(frozen=True)
class PooledRow:
    key: bytes
    """Equal for rows of the same prompt and completion."""
    sums: RowSums


@dataclass(frozen=True)
class Unit:
    """What counts of a node's work of one step."""

    step: int
    first: int
    last: int
    """Indices of its commitments of this step, consecutive ones."""
    rows: tuple[PooledRow, ...]
    """Those that count."""


@dataclass(frozen=True)
class PoolFinding:
    statistic: str
    """A key of UNIT_STATISTICS."""
    first: int
    last: int
    """Indices of the first and the last commitment of the steps that it shows it by."""
    leaning: tuple[int, ...]
    """The steps whose units lean."""
    units: int
    evidence: float
    """log10 of E(leaning units, units) divided by the number of choices."""

    @property
    def reason(self) -> Reason:
        return UNIT_STATISTICS[self.statistic][0]

    @property
    def accuse(self) -> bool:
        return self.evidence >= ACCUSE

    @property
    def detail(self) -> str:
        _, words = UNIT_STATISTICS[self.statistic]
        return (
            f"{words}: {len(self.leaning)} of {self.units} steps are above the pool limit, in commitments "
            f"{self.first} to {self.last}"
        )


def unit_statistics(sums: RowSums) -> dict[str, float]:
    tokens = max(sums.tokens, LEAST_TOKENS)
    return {
        "gap_mean": sums.gaps / tokens,
        "activation": math.sqrt(sums.states / tokens),
        "logprob_rms": math.sqrt(sums.squares / tokens),
        "logprob_mean": abs(sums.signed) / tokens,
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


@lru_cache(maxsize=1 << 12)
def fewest_leaning(count: int) -> int:
    """Return how many of so many units must lean to convict; one more than there are where not even all do."""
    return next((k for k in range(count + 1) if pool_evidence(k, count) >= CONVICT), count + 1)


def row_key(rollout: Rollout) -> bytes:
    """Return what is equal for rows of the same prompt and completion: 32 bytes."""
    return sha256(rollout.prompt_tokens.tobytes() + b"|" + rollout.completion_tokens.tobytes()).digest()


def rows_to_json(rows: Iterable[PooledRow]) -> str:
    return json.dumps([[row.key.hex(), *astuple(row.sums)] for row in rows])


def rows_from_json(text: str) -> tuple[PooledRow, ...]:
    """Read what `rows_to_json` wrote."""
    return tuple(PooledRow(bytes.fromhex(key), RowSums(*sums)) for key, *sums in json.loads(text))


def take_rows(drawn: Iterable[T], tokens: Callable[[T], int]) -> Iterator[T]:
    """Yield those of a unit's drawn rows that count, in order: until they have UNIT_TOKENS sampled tokens."""
    taken = 0
    for row in drawn:
        yield row
        taken += tokens(row)
        if taken >= UNIT_TOKENS:
            return


def suspect_from(rows: Sequence[Sequence[PooledRow]], limits: PoolLimits) -> int | None:
    """Return the first of the steps from which on a validator replays what counts; None where it suspects nothing.

    rows: by step, those of the pools that it replayed in its looks. It suspects the longest row of steps up to the last
    whose evidence is SUSPECT, by any statistic. That accuses no one, so no choice is paid for.
    """
    firsts = [_suspect_from([leans(some, name, limits) for some in rows]) for name in UNIT_STATISTICS]
    return min((first for first in firsts if first is not None), default=None)


def _suspect_from(lean: Sequence[bool]) -> int | None:
    places = [place for place, one in enumerate(lean) if one]
    for skipped, first in enumerate(places):
        if evidence(len(places) - skipped, len(lean) - first) >= SUSPECT:
            return first
    return None


def judge_pool(units: Sequence[Unit], profile: Profile, *, about: int) -> PoolFinding | None:
    """Return the clearest finding of a pool that includes the commitment number `about`; None when it shows nothing.

    `units` are of one node and of consecutive steps of its work; each is over, so one that `about` ends includes it.
    """
    # 1. Windows that begin and end with a unit that leans by itself: no other shows more.
    found: list[PoolFinding] = []
    for statistic in UNIT_STATISTICS:
        lean = [leans(unit.rows, statistic, profile.pool) for unit in units]
        if sum(lean) < LEAST_LEANING:
            continue
        for start in range(len(units)):
            if lean[start] and units[start].first <= about:
                window = units[start : start + WINDOW]
                found += [one for one in _findings(window, statistic, profile.pool) if one.last + 1 >= about]

    # 2. Of those that accuse the shortest: a jury replays it.
    best = min((one for one in found if one.accuse), key=lambda one: (one.units, -one.evidence), default=None)
    best = best or max(found, key=lambda one: one.evidence, default=None)
    return best if best is not None and best.evidence >= REJECT else None


def _findings(units: Sequence[Unit], statistic: str, limits: PoolLimits) -> Iterator[PoolFinding]:
    """Yield what the first unit shows, the first two, and so on, where the last of them leans."""
    leaning: list[int] = []
    seen: set[bytes] = set()
    for count, unit in enumerate(units, 1):
        fresh = [row for row in unit.rows if row.key not in seen]
        if not leans(fresh, statistic, limits):
            continue
        seen.update(row.key for row in fresh)
        leaning.append(unit.step)
        evidence_of_all = pool_evidence(len(leaning), count)
        yield PoolFinding(statistic, units[0].first, unit.last, tuple(leaning), count, evidence_of_all)


def leans(rows: Sequence[PooledRow], statistic: str, limits: PoolLimits, share: float = 1.0) -> bool:
    """Return whether a unit of these rows is above a share of a pool limit. Equal ones count once."""
    sums = sum({row.key: row.sums for row in rows}.values(), NOTHING)
    return unit_statistics(sums)[statistic] > share * getattr(limits, statistic, 0.0)


def blamed(rows: Sequence[PooledRow], honest: Sequence[RowSums], limits: PoolLimits) -> list[str]:
    """Return by which statistics a unit leans that honest machines' rows in its place would not come near.

    honest: the honest spread of each row.
    """
    near = [replace(row, sums=sums) for row, sums in zip(rows, honest, strict=True)]
    leaning = [name for name in UNIT_STATISTICS if leans(rows, name, limits)]
    return [name for name in leaning if not leans(near, name, limits, share=FAULT_SHARE)]


def check_claim(leaning: Sequence[bool], *, about: int) -> int:
    """Return how many of the units that are claimed to lean must do so to convict.

    leaning: by unit of a window, whether it is claimed to lean. about: place of the unit that has to be in the window.
    Raises MalformedError where the claim does not convict even if it is true, and where a part of the window accuses as
    well: a juror is not asked for more than it takes.
    """
    count, sums = len(leaning), [0, *accumulate(leaning)]
    if sums[-1] < fewest_leaning(count):
        raise MalformedError(f"{sums[-1]} of {count} steps that lean do not convict")
    for length in range(1, count):
        for start in range(max(0, about - length + 1), min(about, count - length) + 1):
            if pool_evidence(sums[start + length] - sums[start], length) >= ACCUSE:
                raise MalformedError(f"{length} of the {count} steps accuse as well")
    return fewest_leaning(count)
