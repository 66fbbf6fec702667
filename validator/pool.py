"""A node's pool as a validator knows it: its units are put together, judged, and shown where they accuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.constants import SAMPLE_BLOCKS
from muster.errors import CheckError, UnreachableError
from muster.protocol.draws import draw_pool, draw_unit
from muster.protocol.reasons import UNIT_STATISTICS
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.bundles import PoolMember, PoolUnit, ShownPool, check_size, make_member
from muster.verification.pools import (
    PooledRow,
    PoolFinding,
    Unit,
    blamed,
    judge_pool,
    leans,
    row_key,
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

        rows: those of the commitment that all validators re-run, which the journal does not have yet.
        """
        runs: list[list[Unit]] = [[]]
        for work in self.journal.steps_around(c):
            unit = await self._unit(work, {c.index: tuple(rows)})
            if unit is None or (runs[-1] and unit.first != runs[-1][-1].last + 1):
                runs.append([])
            if unit is not None:
                runs[-1].append(unit)
        for units in filter(None, runs):
            if units[0].first <= c.index <= units[-1].last + 1:
                return judge_pool(units, self.context.model.profile, about=c.index)
        return None

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

    async def _unit(self, work: StepWork, fresh: dict[int, tuple[PooledRow, ...]]) -> Unit | None:
        """Return the unit of a step; None where a row that counts is not known here, or not drawn yet."""
        if (kept := self.journal.unit(work)) is not None:
            return kept
        first, last = work.first, work.last
        if work.closing.block + SAMPLE_BLOCKS > (await self.context.chain.head()).number:
            return None
        drawn = await self._draw(work)
        known = {index: fresh.get(index) or self.journal.rows_of(first.node, index) or () for index, _ in drawn}
        try:
            rows = tuple(take_rows((known[i][place] for i, place in drawn), lambda row: row.sums.tokens))
        except IndexError:  # of a commitment that is not inspected yet
            return None
        limits = self.context.model.profile.pool
        if any(leans(rows, name, limits) for name in UNIT_STATISTICS):
            try:
                files = await self._files(work, len(rows))
                rollouts = {row_key(file[position]): file[position] for _, file, some in files for position in some}
                honest = await self.context.model.honest_sums(first.step, [rollouts[row.key] for row in rows])
            except (CheckError, UnreachableError) as error:  # of older work: what is inspected now must not wait for it
                log.warning("a step of a pool cannot be measured", node=first.node, step=first.step, error=str(error))
                return None
            if not blamed(rows, honest, limits):  # the step's fault: it counts as one that does not lean
                rows = ()
        unit = Unit(first.step, first.index, last.index, rows)
        self.journal.keep_unit(work, unit)
        return unit

    async def _draw(self, work: StepWork) -> list[tuple[int, int]]:
        block_hash = await self.context.chain.block_hash(work.closing.block + SAMPLE_BLOCKS)
        first, last, terms = work.first, work.last, self.context.rules.terms
        return draw_unit(block_hash=block_hash, node=first.node, first=first.index, last=last.index, terms=terms)

    async def _members(self, work: StepWork) -> list[PoolMember]:
        """Return the rows of a step that count, by commitment."""
        unit = await self._unit(work, {})
        assert unit is not None, "a step that leans is known"
        files = await self._files(work, len(unit.rows))
        return [make_member(self.context.rules, c, file, positions) for c, file, positions in files]

    async def _files(self, work: StepWork, count: int) -> list[tuple[CommittedWork, list[Rollout], list[int]]]:
        """Return the commitments of the first `count` drawn rows, their files, and the positions of these rows."""
        context, node, found = self.context, work.first.node, []
        drawn = (await self._draw(work))[:count]
        for index in dict.fromkeys(index for index, _ in drawn):
            committed = self.journal.committed(node, index)
            file = await read_work(committed, context)
            block_hash = await context.chain.block_hash(committed.block + SAMPLE_BLOCKS)
            shared = draw_pool(block_hash=block_hash, node=node, index=index, terms=context.rules.terms)
            positions = sorted(shared[place] for other, place in drawn if other == index)
            await context.ensure_tasks((file[position].task for position in positions), committed.step)
            found.append((committed, file, positions))
        return found
