"""Every known cheat is caught at production constants, in all its rows and in a tenth of them; honest work never."""

from __future__ import annotations

from random import Random

import pytest

from muster.verification.profiles import CPU_FP32, STATISTICS
from muster.verification.sample_policy import false_rows
from testbed.adversaries.kinds import ADVERSARIES, Adversary
from testbed.adversaries.lab import AdversaryLab
from testbed.adversaries.pipeline import TENTH, LocalContext, inspect, lie_in_part, make, outcome, submit

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = 50
"""Samples drawn of each adversary's commitment in each form: each as another block would have drawn it."""
INDEX = 5

HONEST = Adversary("an honest worker", lambda shop, job: shop.honest(job), ())
HONEST_LATE = Adversary("an honest worker of the first step", lambda shop, job: shop.honest(job), (), step=1)


@pytest.mark.parametrize("worker", [HONEST, HONEST_LATE], ids=lambda one: one.name)
async def test_honest_work_is_accepted_with_room_to_spare(
    worker: Adversary, lab: AdversaryLab, context: LocalContext
) -> None:
    job = lab.job(INDEX, step=worker.step)
    rows = lab.honest(job)
    inspection = await inspect(context, lab, job, submit(worker, job, rows, rows))
    assert (inspection.finding, inspection.replayed) == (None, lab.rules.terms.look_rows)
    for measurement in lab.measure(job, rows):
        for statistic in STATISTICS:
            assert getattr(measurement, statistic) < getattr(CPU_FP32, statistic).accuse / 2


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda one: one.name)
async def test_adversary_is_caught(adversary: Adversary, lab: AdversaryLab, context: LocalContext) -> None:
    job = lab.job(INDEX, step=adversary.step)
    made, honest = await make(context, lab, adversary, job), lab.honest(job)
    found = outcome(lab, adversary, [made], samples=SAMPLES)

    # By itself, every row that is not what honest work would be, but for rare near-ties.
    assert set(found.reasons) <= set(adversary.reasons)
    assert adversary.whole_file or found.rejected >= 0.98 * found.false

    # By the rows of a look. A sampler of another temperature may pass in one of them: most of its rows are true.
    if not adversary.subtle:
        assert sum(map(bool, found.in_all)) >= SAMPLES - 1
    assert sum(map(bool, found.in_a_tenth)) / SAMPLES == pytest.approx(found.predicted_tenth, abs=0.2)

    # And by the validator's own entry, with a real file: all rows lie, then a tenth.
    if not adversary.subtle:
        assert made.finding is not None
        assert made.finding.accuse
        assert made.finding.reason in adversary.reasons
    if adversary.in_part:
        positions = Random(INDEX).sample(range(len(made.rows)), false_rows(len(made.rows), TENTH))
        mixed = lie_in_part(made.rows, honest, positions)
        inspection = await inspect(context, lab, job, submit(adversary, job, mixed, honest))
        if inspection.finding is not None:
            assert inspection.finding.reason in adversary.reasons
            assert inspection.finding.position is None or inspection.finding.position in positions
