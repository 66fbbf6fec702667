"""What pools see of a node's steps, and what their evidence asks of a juror: the figures of `inspection.py` about both.

Rows have errors that are drawn here, no model runs. Draws, units, the test, bundles and a juror's verification are the
project's own. Errors of a step lean together: half of their variance is the step's.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.report import Figure, figure, none
from muster.contracts.court import Outcome
from muster.protocol.draws import draw_unit, shared_rows
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.looks import rows_of_look
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.pools import (
    CONVICT,
    HONEST_SHARE,
    WINDOW,
    PooledRow,
    Unit,
    judge_pool,
    pool_evidence,
    take_rows,
)
from muster.verification.profiles import BF16
from muster.verification.statistics import RowSums
from testbed.samples.commitments import rules
from testbed.samples.court import HEAD, CourtChain, CourtContext, case_of, take_turn
from testbed.samples.validator import ME, receive
from testbed.samples.verification_context import STRAIGHT, Context, pool_case
from validator.evidence import verify_evidence
from validator.journal import ValidatorJournal
from validator.juror import Juror

RATES: Final = (1, 5, 20, 60)
"""Commitments a step."""
ROW_TOKENS: Final = 48
NODES: Final = 1_000_000
NODE: Final = "0x" + "11" * 20


# --- What pools see


def rows_of_step(source: random.Random, mean: float, places: int) -> list[PooledRow]:
    """Return the rows of a step that all validators re-run, with gaps around a mean, as a share of the pool limit."""
    step = source.gauss(0, 0.07)
    gaps = [max(0.0, mean + step + source.gauss(0, 0.07)) * BF16.pool.gap_mean for _ in range(places)]
    return [PooledRow(source.randbytes(8), RowSums(ROW_TOKENS, ROW_TOKENS * gap, 0.0, 0.0, 0.0)) for gap in gaps]


def steps_until_accused(source: random.Random, each: int, is_false: Callable[[int], bool]) -> int:
    """Return in how many steps a node is accused that makes `each` commitments in one; those that are false are all."""
    units: list[Unit] = []
    terms = replace(rules().terms, groups_per_commitment=32)
    places = each * shared_rows(terms)
    for step in range(2 * WINDOW):
        first, last = step * each, (step + 1) * each - 1
        found = judge_pool(units, BF16, about=first)
        if found is not None and found.accuse:
            return step + 1
        rows = rows_of_step(source, 1.5 if is_false(step) else 0.5, places)
        drawn = draw_unit(block_hash=source.randbytes(32), node=NODE, first=first, last=last, terms=terms)
        shown = [rows[(index - first) * shared_rows(terms) + place] for index, place in drawn]
        units.append(Unit(step, first, last, tuple(take_rows(shown, lambda row: row.sums.tokens))))
    raise AssertionError(f"not accused in {2 * WINDOW} steps")


def pool_every() -> list[Figure]:
    found = [steps_until_accused(random.Random(each), each, lambda _: True) for each in RATES]
    return [figure("pool_every", max(found), unit="steps", target=12, at_most=True, rates=found)]


def pool_third() -> list[Figure]:
    """Measure a third of the steps in turn; beside it a third that is drawn, by 30 nodes."""
    found = [steps_until_accused(random.Random(each), each, lambda step: step % 3 == 0) for each in RATES]
    drawn = []
    for seed in range(30):
        falses = random.Random(seed)
        drawn.append(steps_until_accused(random.Random(seed), 5, lambda _, falses=falses: falses.random() < 1 / 3))
    about = {"rates": found, "drawn_median": statistics.median(drawn), "drawn_most": max(drawn)}
    return [figure("pool_third", max(found), unit="steps", target=96, at_most=True, **about)]


def pool_honest() -> list[Figure]:
    """Simulate the worst case allowed: all rows of one step in thirty lean, and a reader may stop at any time."""
    table = np.array([[pool_evidence(k, n) if k <= n else -99.0 for k in range(WINDOW + 1)] for n in range(WINDOW + 1)])
    source, convicted, most = np.random.default_rng(1), 0, -99.0
    for _ in range(NODES // 10_000):
        seen, best = np.zeros(10_000, dtype=int), np.full(10_000, -99.0)
        for count in range(1, WINDOW + 1):
            seen += source.random(10_000) < HONEST_SHARE
            best = np.maximum(best, table[count][seen])
        convicted, most = convicted + int((best >= CONVICT).sum()), max(most, float(best.max()))
    return [none("pool_honest", convicted, unit="of 1,000,000 nodes", most_evidence=round(most, 2))]


# --- What a juror is asked for


def inspections(rows: float) -> float:
    """Convert so many of the longest rows into inspections, by public defaults: a unit is one such row."""
    terms = replace(rules().terms, group_size=16, groups_per_commitment=8, max_completion_tokens=4096)
    return rows / rows_of_look(terms, 1000)


async def _asked(sums: RowSums | None) -> list[int]:
    """Return how many rows a juror replays of one bundle, by the block in which its case was opened."""
    with tempfile.TemporaryDirectory() as name:
        journal = ValidatorJournal(Path(name), "me", 1, ME)
        bundle, work, context = await pool_case(journal, **({} if sums is None else {"sums": sums}))
        journal.close()
    asked = []
    for number in range(50):
        context.replayed = 0
        await verify_evidence(bundle.to_bytes(), kind_of(bundle.reason), work, context, number.to_bytes(32, "big"))
        asked.append(context.replayed)
    return asked


def juror_founded() -> list[Figure]:
    found = inspections(max(asyncio.run(_asked(None))))
    return [figure("juror_founded", found, unit="inspections", target=2, at_most=True)]


def juror_unfounded() -> list[Figure]:
    found = inspections(statistics.mean(asyncio.run(_asked(STRAIGHT))))
    return [figure("juror_unfounded", found, unit="inspections", target=0.5, at_most=True)]


class Counted(Context):
    """Counts the decoded bytes that are alive at a time."""

    alive = most = unit = 0

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        rows = await super().read(data, limits)
        for row in rows:
            Counted.alive += row.nbytes
            Counted.unit = max(Counted.unit, row.nbytes * len(rows))
            weakref.finalize(row, _freed, row.nbytes)
        Counted.most = max(Counted.most, Counted.alive)
        return rows


def _freed(size: int) -> None:
    Counted.alive -= size


async def _ten() -> tuple[int, float]:
    """Return how many of ten cases at once a juror has no vote in, and the most decoded bytes, in bundle members."""
    with tempfile.TemporaryDirectory() as name:
        made = ValidatorJournal(Path(name) / "accuser", "me", 1, ME)
        bundle, work, context = await pool_case(made)
        made.close()
        data, chain = bundle.to_bytes(), CourtChain()
        court: Any = CourtContext(chain, data)
        counted: Any = Counted(**vars(context))
        counted.client = court.client
        journal = ValidatorJournal(Path(name) / "juror", "me", 1, ME)
        about = {"node": work.node, "index": work.index, "step": work.step, "root": work.root}
        kind = kind_of(bundle.reason)
        evidence = hash_bytes(content_hash(data))
        receive(journal, *(case_of(n, **about, kind=kind, evidence_hash=evidence) for n in range(1, 11)))
        await take_turn(Juror(chain, journal, counted, stagger_seconds=0), HEAD)  # type: ignore[arg-type]
        late = sum(case.ballot != "sealed" for case in journal.cases() if case.outcome == Outcome.OPEN)
        journal.close()
    return late, Counted.most / Counted.unit


def juror_ten() -> list[Figure]:
    late, members = asyncio.run(_ten())
    return [
        none("juror_ten", late, unit="votes that are missing"),
        figure("juror_ten_memory", members, unit="members at a time", target=2, at_most=True),
    ]
