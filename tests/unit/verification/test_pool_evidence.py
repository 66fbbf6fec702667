"""Evidence of a pool: it convicts by steps and rows that the chain has drawn, and costs a juror little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.protocol.kinds import kind_of
from muster.rollouts.parquet import FileLimits
from muster.rollouts.schema import Rollout
from muster.verification.bundles import (
    PoolUnit,
    make_member,
)
from muster.verification.pools import CONVICT
from testbed.samples.commitments import (
    rules,
)
from testbed.samples.validator import ME
from testbed.samples.verification_context import (
    LEANING,
    STRAIGHT,
    Context,
    pool_case,
    pool_positions,
    shown_wrongly,
    thinking_rows,
    verified,
)
from validator.evidence import CannotVerifyError, verify_evidence
from validator.journal import ValidatorJournal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[ValidatorJournal]:
    made = ValidatorJournal(tmp_path, "me", 1, ME)
    yield made
    made.close()


@pytest.mark.parametrize("each", [1, 5])
async def test_a_pool_that_leans_convicts_by_rows_that_the_chain_has_drawn(
    journal: ValidatorJournal, each: int
) -> None:
    bundle, work, context = await pool_case(journal, each=each)
    inspection = await verified(bundle, work, context)
    assert inspection.guilty, inspection.why
    assert context.replayed == 3 * 10 * each, "no more steps than it takes, each twice more for its honest spread"
    assert inspection.finding is not None
    assert (inspection.finding.threshold, "of 11 steps at least 10" in inspection.why) == (CONVICT, True)


async def test_honest_pool_does_not_convict_and_costs_little(journal: ValidatorJournal) -> None:
    """A conviction needs ten of eleven units, so the second honest unit decides."""
    bundle, work, context = await pool_case(journal, sums=STRAIGHT)
    inspection = await verified(bundle, work, context)
    assert not inspection.guilty
    assert "do not show it together" in inspection.why
    assert context.replayed == 2


async def test_few_leaning_steps_do_not_convict_and_are_not_replayed(journal: ValidatorJournal) -> None:
    bundle, work, context = await pool_case(journal, steps=8)
    inspection = await verified(bundle, work, context)
    assert not inspection.guilty
    assert "8 of 8 steps that lean do not convict" in inspection.why
    assert context.replayed == 0


async def test_block_of_the_case_decides_the_replay_order(journal: ValidatorJournal) -> None:
    """One step of eleven does not lean. The block decides whether it is replayed."""
    bundle, work, context = await pool_case(journal)
    context.sums_of_step = {3: STRAIGHT}
    asked = set()
    for number in range(40):
        context.replayed = 0
        opened_in = number.to_bytes(32, "big")
        found = await verify_evidence(bundle.to_bytes(), kind_of("sampling_mismatch"), work, context, opened_in)
        assert found.guilty
        asked.add(context.replayed)
    assert asked == {30, 31}


async def test_a_step_is_shown_whole_and_as_one(journal: ValidatorJournal) -> None:
    """Or one that leans would count twice, or an honest one hide in another."""
    bundle, work, context = await pool_case(journal, each=2)
    assert bundle.pool is not None
    first, second, *others = bundle.pool.units

    def part(of: PoolUnit, start: int, end: int) -> PoolUnit:
        blocks = {"first_block": context.works[start].block, "last_block": context.works[end].block}
        return of.model_copy(update={"first": start, "last": end, **blocks})

    for units in ([part(first, 0, 0), part(first, 1, 1), second, *others], [part(first, 0, 3), *others]):
        pool = bundle.pool.model_copy(update={"units": units})
        inspection = await verified(bundle.model_copy(update={"pool": pool}), work, context)
        assert not inspection.guilty
        assert "are not the next step's, or not all of it" in inspection.why


async def test_rows_beyond_those_that_count_are_refused(
    journal: ValidatorJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, work, context = await pool_case(journal, each=2)
    monkeypatch.setattr("muster.verification.pools.UNIT_TOKENS", 24)
    inspection = await verified(bundle, work, context)
    assert not inspection.guilty
    assert "2 rows are shown of step 3, and 1 count" in inspection.why


async def test_rows_that_are_equal_count_in_one_step_alone(
    journal: ValidatorJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, work, context = await pool_case(journal)
    monkeypatch.setattr("validator.evidence.row_key", lambda row: b"the same answer")
    inspection = await verified(bundle, work, context)
    assert not inspection.guilty
    assert "do not show it together" in inspection.why


async def test_steps_with_honest_disagreement_do_not_convict(journal: ValidatorJournal) -> None:
    """The trainer's weights are at fault: the unit counts as honest."""
    bundle, work, context = await pool_case(journal)
    context.honest = replace(LEANING, gaps=0.8 * LEANING.gaps)
    inspection = await verified(bundle, work, context)
    assert not inspection.guilty
    assert "do not show it together" in inspection.why


async def test_an_accuser_cannot_choose_what_is_in_a_pool(journal: ValidatorJournal) -> None:
    """Each of these omits, adds or exchanges entries against the chain."""
    bundle, work, context = await pool_case(journal, each=2)
    pool = bundle.pool
    assert pool is not None
    units, last = pool.units, pool.units[-1]
    member, second = last.members
    committed = context.works[member.index]
    rows, [shown] = thinking_rows(member.index, 13), pool_positions(committed)

    def without(place: int) -> dict[str, object]:
        return {"units": [*units[:place], *units[place + 1 :]]}

    def with_last(**changes: object) -> dict[str, object]:
        return {"units": [*units[:-1], last.model_copy(update=changes)]}

    def of(member_rows: list[Rollout], *positions: int) -> dict[str, object]:
        return with_last(members=[make_member(rules(), committed, member_rows, positions), second])

    for changes, why in (
        (without(4), "does not hold commitment 8"),
        (without(10), "does not hold commitment 20"),
        ({"units": [*units[:10], units[9]]}, "does not hold commitment"),
        ({"next_block": last.last_block}, "does not hold commitment 22"),
        ({"before_block": 100, "units": units[1:]}, "block 100 does not hold commitment 1"),
        (with_last(last=last.first, last_block=last.first_block), "does not hold commitment 21"),
        (of(rows, (shown + 1) % 12), "are not in its pool"),
        (of(rows, shown, (shown + 1) % 12), "are not in its pool"),
        (of(thinking_rows(99, 13), shown), "is not under the committed root"),
        (with_last(members=[second]), "a row that counts in step 13 is not shown"),
        (with_last(members=[member.model_copy(update={"block": 7}), second]), "block 7 does not hold commitment"),
        (with_last(members=[*last.members, *units[0].members]), "rows of another step"),
    ):
        inspection = await verified(bundle.model_copy(update={"pool": pool.model_copy(update=changes)}), work, context)
        assert not inspection.guilty
        assert why in inspection.why, inspection.why
        assert context.replayed == 0


async def test_a_juror_holds_the_rows_of_one_step_at_a_time(journal: ValidatorJournal) -> None:
    """Each file is read within the size of the rows that it says it has."""
    bundle, work, context = await pool_case(journal, each=5)
    limits: list[FileLimits] = []

    class Watched(Context):
        async def read(self, data: bytes, limits_: FileLimits) -> list[Rollout]:
            limits.append(limits_)
            return await super().read(data, limits_)

    watched = Watched(**vars(context))
    assert (await verified(bundle, work, watched)).guilty
    assert set(limits) == {FileLimits.from_terms(rules().terms, 1)}
    assert len(limits) == 5 * (11 + 10), "all are checked, and those that are replayed are read once more"


async def test_a_pool_convicts_for_what_it_shows_and_for_nothing_else(journal: ValidatorJournal) -> None:
    bundle, work, context = await pool_case(journal)
    named = bundle.model_copy(update={"reason": "wrong_logprobs"})
    assert not (await verified(named, work, context)).guilty
    beside = bundle.model_copy(update={"reason": "wrong_draw"})
    assert (await verified(beside, work, context)).why.startswith("the rows shown do not count")
    context.down = True
    with pytest.raises(CannotVerifyError):
        await verified(bundle, work, context)


async def test_a_pool_needs_the_task_of_every_row(journal: ValidatorJournal) -> None:
    bundle, work, context = await pool_case(journal)
    assert (await verified(bundle, work, context)).guilty
    assert bundle.pool is not None
    *others, last = bundle.pool.units
    [member] = last.members
    for tasks, why in shown_wrongly(member.tasks):
        changed = last.model_copy(update={"members": [member.model_copy(update={"tasks": tasks})]})
        pool = bundle.pool.model_copy(update={"units": [*others, changed]})
        inspection = await verified(bundle.model_copy(update={"pool": pool}), work, context)
        assert not inspection.guilty
        assert why.replace("bundle: ", "bundle: pool.units.10.members.0.") in inspection.why
