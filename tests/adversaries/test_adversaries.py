"""Every known cheat is caught at production constants, in all its rows and in a tenth of them; honest work never."""

from __future__ import annotations

from random import Random

import pytest

from muster.profiles import CPU_FP32
from muster.sample_policy import lying_rows
from tests.adversaries.kinds import ADVERSARIES, Adversary
from tests.adversaries.pipeline import TENTH, LocalBench, inspect, lie_in_part, make, outcome, submit
from tests.adversaries.workshop import Workshop

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = 50
"""Samples drawn of each adversary's commitment in each form: each as another block would have drawn it."""
INDEX = 5

HONEST = Adversary("an honest worker", lambda shop, job: shop.honest(job), ())
HONEST_LATE = Adversary("an honest worker of the first step", lambda shop, job: shop.honest(job), (), step=1)


@pytest.mark.parametrize("worker", [HONEST, HONEST_LATE], ids=lambda one: one.name)
async def test_honest_work_is_accepted_with_room_to_spare(
    worker: Adversary, workshop: Workshop, bench: LocalBench
) -> None:
    job = workshop.job(INDEX, step=worker.step)
    rows = workshop.honest(job)
    inspection = await inspect(bench, workshop, job, submit(worker, job, rows, rows))
    assert (inspection.finding, inspection.inspected) == (None, 16)
    for measurement in workshop.measure(job, rows):
        for statistic in ("mean_gap", "worst_gap", "activation", "logprobs"):
            assert getattr(measurement, statistic) < getattr(CPU_FP32, statistic).accuse / 2


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda one: one.name)
async def test_who_lies_is_caught(adversary: Adversary, workshop: Workshop, bench: LocalBench) -> None:
    job = workshop.job(INDEX, step=adversary.step)
    made, honest = await make(bench, workshop, adversary, job), workshop.honest(job)
    found = outcome(workshop, adversary, [made], samples=SAMPLES)

    # By itself, every row that is not what honest work would be, but for rare near-ties.
    assert set(found.reasons) <= set(adversary.reasons)
    assert found.whole_file or found.rejected >= 0.98 * found.false

    # By the policy, whatever sample is drawn.
    if not adversary.subtle:
        assert found.caught == SAMPLES
    assert found.caught_tenth / SAMPLES == pytest.approx(found.predicted_tenth, abs=0.2)

    # And by the validator's own entry, with a real file: all rows lie, then a tenth.
    if not adversary.subtle:
        assert made.finding is not None
        assert made.finding.accuse
        assert made.finding.reason in adversary.reasons
    if adversary.in_part:
        positions = Random(INDEX).sample(range(len(made.rows)), lying_rows(len(made.rows), TENTH))
        mixed = lie_in_part(made.rows, honest, positions)
        inspection = await inspect(bench, workshop, job, submit(adversary, job, mixed, honest))
        if inspection.finding is not None:
            assert inspection.finding.reason in adversary.reasons
            assert inspection.finding.position is None or inspection.finding.position in positions
