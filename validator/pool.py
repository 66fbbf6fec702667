"""A node's pool as a validator knows it: its units are put together, judged, and shown where they accuse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from muster.constants import SAMPLE_BLOCKS
from muster.errors import CheckError, MismatchError, UnreachableError
from muster.protocol.draws import draw_pool, draw_unit
from muster.protocol.reasons import UNIT_STATISTICS
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.bundles import PoolMember, PoolUnit, ShownPool, check_size, make_member
from muster.verification.checks import Finding, check_root, check_rows, check_shape
from muster.verification.pools import (
    PooledRow,
    PoolFinding,
    Unit,
    blamed,
    judge_pool,
    leans,
    row_key,
    suspect_from,
    take_rows,
)
from muster.verification.rules import CommittedWork
from validator.context import RunVerificationContext
from validator.evidence import read_work
from validator.pool_journal import PoolJournal, StepWork

log = telemetry.logger("validator")


@dataclass
class PoolJudge:
    """Judges the pools of one run's nodes."""

    context: RunVerificationContext
    journal: PoolJournal

    async def judge(self, c: CommittedWork, rows: Sequence[PooledRow]) -> PoolFinding | None:
        """Return what the pool shows that a commitment is in, or ends; None when it shows nothing.

        rows: those of the commitment that all validators re-run, which the journal does not have yet. Rows that count
        are replayed only of steps that these make suspect.
        """
        works = self.journal.steps_around(c)
        if (suspect := self._suspect(works, c, rows)) is None:
            return None
        runs: list[list[Unit]] = [[]]
        for work in works:
            unit = await self._unit(work) if work.first.step >= suspect else None
            if unit is None or (runs[-1] and unit.first != runs[-1][-1].last + 1):
                runs.append([])
            if unit is not None:
                runs[-1].append(unit)
        for units in filter(None, runs):
            if units[0].first <= c.index <= units[-1].last + 1:
                return judge_pool(units, self.context.model.profile, about=c.index)
        return None

    def _suspect(self, works: Sequence[StepWork], c: CommittedWork, rows: Sequence[PooledRow]) -> int | None:
        """Return the step from which on a node's work is suspect by the rows of this validator's looks."""
        if not works:
            return None
        own = self.journal.rows_by_step(c.node, works[0].first.step, works[-1].first.step)
        own[c.step] = [*own.get(c.step, ()), *rows]
        steps = [work.first.step for work in works if work.first.step in own]
        taken = [list(take_rows(own[step], lambda row: row.sums.tokens)) for step in steps]
        first = suspect_from(taken, self.context.model.profile.pool)
        return None if first is None else steps[first]

    async def show(self, found: PoolFinding, c: CommittedWork) -> ShownPool:
        """Return the steps of a finding, and the rows of those that lean, as evidence.

        Raises what fetching their files does, and MalformedError where they are too large to be shown.
        """
        works = [one for one in self.journal.steps_around(c) if found.first <= one.first.index <= found.last]
        before, units = works[0].before, []
        for work in works:
            members = await self._members(work) if work.first.step in found.leaning else []
            first, last = work.first, work.last
            units.append(
                PoolUnit(
                    first=first.index,
                    first_block=first.block,
                    last=last.index,
                    last_block=last.block,
                    members=members,
                )
            )
        pool = ShownPool(before_block=before.block if before else None, units=units, next_block=works[-1].closing.block)
        check_size(pool)
        return pool

    async def _unit(self, work: StepWork) -> Unit | None:
        """Return the unit of a step; None where its rows are not drawn yet, or cannot be replayed here and now."""
        if (kept := self.journal.unit(work)) is not None:
            return kept
        if work.closing.block + SAMPLE_BLOCKS > (await self.context.chain.head()).number:
            return None
        first, model = work.first, self.context.model
        try:
            rollouts = [file[position] for _, file, some in await self._files(work) for position in some]
            replayed = await model.replay(first.step, rollouts)
            rows = tuple(PooledRow(row_key(row), one.sums) for row, one in zip(rollouts, replayed, strict=True))
            if any(leans(rows, name, model.profile.pool) for name in UNIT_STATISTICS):
                honest = await model.honest_sums(first.step, rollouts)
                if not blamed(
                    rows, honest, model.profile.pool
                ):  # the step's fault: it counts as one that does not lean
                    rows = ()
        except (CheckError, UnreachableError) as error:  # of older work: what is inspected now must not wait for it
            log.warning("a step of a pool cannot be measured", node=first.node, step=first.step, error=str(error))
            return None
        unit = Unit(first.step, first.index, work.last.index, rows)
        self.journal.keep_unit(work, unit)
        return unit

    async def _draw(self, work: StepWork) -> list[tuple[int, int]]:
        block_hash = await self.context.chain.block_hash(work.closing.block + SAMPLE_BLOCKS)
        first, last, terms = work.first, work.last, self.context.rules.terms
        return draw_unit(block_hash=block_hash, node=first.node, first=first.index, last=last.index, terms=terms)

    async def _members(self, work: StepWork) -> list[PoolMember]:
        """Return the rows of a step that count, by commitment."""
        return [make_member(self.context.rules, *one) for one in await self._files(work)]

    async def _files(self, work: StepWork) -> list[tuple[CommittedWork, list[Rollout], list[int]]]:
        """Return the commitments of the rows of a step that count, their files, and the positions of these rows.

        Raises MismatchError where a row fails a static check: its commitment is to be rejected for that.
        """
        context, node = self.context, work.first.node
        # 1. Of the drawn rows those that count.
        drawn, files, pools = await self._draw(work), dict[int, list[Rollout]](), dict[int, list[int]]()
        works = {index: self.journal.committed(node, index) for index, _ in drawn}
        for index, c in works.items():
            block_hash = await context.chain.block_hash(c.block + SAMPLE_BLOCKS)
            pools[index] = draw_pool(block_hash=block_hash, node=node, index=index, terms=context.rules.terms)
            files[index] = await read_work(c, context)
            _check(check_shape(files[index], c, context.rules.terms) or check_root(files[index], c), c)
        counted: dict[int, list[int]] = {}
        rows = [(index, pools[index][place]) for index, place in drawn]
        for index, position in take_rows(rows, lambda row: len(files[row[0]][row[1]].logprobs)):
            counted.setdefault(index, []).append(position)

        # 2. A replay takes rows that pass the static checks.
        for index, positions in counted.items():
            c, shown = works[index], [files[index][position] for position in sorted(positions)]
            await context.ensure_tasks((row.task for row in shown), c.step)
            _check(await asyncio.to_thread(check_rows, shown, await context.draw(c), context.rules), c)
        return [(works[index], files[index], sorted(positions)) for index, positions in counted.items()]


def _check(finding: Finding | None, c: CommittedWork) -> None:
    if finding is not None:
        raise MismatchError(f"commitment {c.index} of {c.node} fails a static check: {finding.reason}")
