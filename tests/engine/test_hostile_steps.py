"""Honest rows of the real engine are never accused, on any published weights. Cheats on ordinary weights still are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from muster.models.arithmetic import computing
from muster.models.files import load_tokenizer
from muster.rollouts.schema import Rollout
from muster.settings.schema import Settings, WorkerSettings
from muster.verification import model
from muster.verification.checks import Finding
from muster.verification.judging import judge
from muster.verification.model import blamed_for, honest_sums, replay_rows
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer, RowErrors, spread_share
from muster.verification.statistics import CLIP
from muster.verification.step_checks import StepAnswer
from testbed.adversaries.lab import AdversaryLab
from testbed.hostile_steps import broken, hostile_steps, save_hostile
from testbed.suite.engine_types import Requests, UsingWeights
from validator.step_check import check
from worker.context import WorkerContext
from worker.engine import Engine
from worker.rollouts import bare_rows
from worker.step_check import StepCheck

ROWS = 16
ACCUSED_WITHOUT = (
    "cancelling neurons, 1e+06",
    "cancelling halves, 1e+06",
    "cancelling blocks of 16 neurons, 1e+06",
    "cancelling neurons of the first layer, 1e+06",
    "rare neurons, 1e+06",
    "rare and loud channel, 1e+22",
)
"""Steps on which honest rows would be accused if validators did not measure their spread."""


@pytest.mark.parametrize("name", ACCUSED_WITHOUT)
def test_honest_rows_of_hostile_step_are_not_accused(
    name: str,
    engine: Engine,
    replayer: Replayer,
    requests_for: Requests,
    using_weights: UsingWeights,
    model_dir: Path,
    tmp_path: Path,
) -> None:
    hostile = save_hostile(model_dir, tmp_path / "hostile", hostile_steps(model_dir)[name])
    requests = requests_for(ROWS, seed=6)
    with using_weights(hostile):
        rows = bare_rows(requests, engine.generate(requests))
        replayer.load_weights(hostile)
        for arithmetic in ("", "split sums"):
            with computing(replayer.model, arithmetic):
                alone = [judge(replayer.replay([row]), CPU_FP32) for row in rows]
                judged = [replay_rows(replayer, [row])[0] for row in rows]
            assert any(finding and finding.accuse for finding in alone), "the step is hostile enough to test anything"
            for finding, row in zip(alone, judged, strict=True):
                accused = finding is not None and finding.accuse
                assert (row.finding is None, row.beyond) == (finding is None, accused)
                assert row.finding is None or not row.finding.accuse
                detail = row.finding.detail if row.finding else ""
                assert ("; the step is at fault: honest machines differ by " in detail) == accused


def test_on_a_usual_step_honest_machines_agree_and_cheats_are_accused(
    honest: list[Rollout], replayer: Replayer, model_dir: Path
) -> None:
    replayer.load_weights(model_dir)
    for row in honest[:32]:
        assert max(spread_share(draw, CPU_FP32) for draw in next(replayer.spread(row, 8))) < 0.5
    row = next(row for row in honest if len(row.completion_tokens) > 2)
    tokens = row.completion_tokens.copy()
    tokens[1] = (tokens[1] + 1) % 90 + 8
    lies = [
        replace(row, completion_tokens=tokens),
        replace(row, logprobs=row.logprobs * np.float32(0.9)),
        replace(row, proof=bytes(len(row.proof))),
        replace(row, proof=row.proof[:-8]),
    ]
    for lie in lies:
        [judged] = replay_rows(replayer, [lie])
        assert judged.finding is not None
        assert judged.finding.accuse


def test_the_clearest_row_decides_and_no_other_accuses(
    honest: list[Rollout], replayer: Replayer, model_dir: Path
) -> None:
    replayer.load_weights(model_dir)
    lies = [replace(row, proof=bytes(len(row.proof))) for row in honest[:3]]
    judged = replay_rows(replayer, [honest[3], *lies])
    assert [row.finding is not None for row in judged] == [False, True, True, True]
    assert sum(row.finding.accuse for row in judged if row.finding) == 1
    assert not any("at fault" in row.finding.detail for row in judged if row.finding)
    assert [row.beyond for row in judged] == [False, True, True, True]


def test_no_count_of_unstable_rows_drops_the_blame_of_another(
    honest: list[Rollout], replayer: Replayer, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayer.load_weights(model_dir)
    lies = [replace(row, proof=bytes(len(row.proof))) for row in honest[:12]]
    asked: list[RowErrors] = []

    def all_but_the_last(replayer: Replayer, row: Rollout, errors: RowErrors, finding: Finding) -> Finding:
        asked.append(errors)
        if len(asked) == len(lies):
            return blamed_for(replayer, row, errors, finding)
        return replace(finding, accuse=False, detail="honest machines differ")

    monkeypatch.setattr(model, "blamed_for", all_but_the_last)
    judged = replay_rows(replayer, lies)
    assert [row.finding.accuse for row in judged if row.finding].count(True) == 1
    assert sum(row.finding.detail == "honest machines differ" for row in judged if row.finding) == 11


def test_a_row_with_an_unstable_token_may_not_lie_elsewhere(
    honest: list[Rollout], model_dir: Path, tmp_path: Path
) -> None:
    """On a step whose machines differ in the contexts of one token, which a worker can write."""
    own = Replayer(model_dir, CPU_FP32, 1.0)
    own.load_weights(save_hostile(model_dir, tmp_path / "hostile", hostile_steps(model_dir)["rare neurons, 1e+06"]))
    [token] = load_tokenizer(model_dir)("7", add_special_tokens=False)["input_ids"]
    rows = [row for row in honest if len(row.completion_tokens) >= 8][:8]
    for row in rows:
        tokens = row.completion_tokens.copy()
        tokens[4] = token
        lie = replace(row, completion_tokens=tokens, proof=bytes(len(row.proof)))
        assert max(spread_share(draw, CPU_FP32) for draw in next(own.spread(lie, 8))) > 1, "the row is unstable"
        [judged] = replay_rows(own, [lie])
        assert judged.finding is not None
        assert judged.finding.accuse


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_weights_accuse_no_worker(
    value: float, honest: list[Rollout], model_dir: Path, tmp_path: Path
) -> None:
    own = Replayer(model_dir, CPU_FP32, 1.0)
    own.load_weights(save_hostile(model_dir, tmp_path / "broken", partial(broken, value=value)))
    judged = replay_rows(own, honest[:4])
    assert all(row.finding is not None for row in judged)
    assert not any(row.finding.accuse for row in judged if row.finding)
    for row, most in zip(honest[:4], honest_sums(own, honest[:4]), strict=True):
        tokens = len(row.logprobs)
        assert (most.tokens, most.states, most.gaps) == (tokens, tokens, CLIP * tokens), "so that no pool leans by it"


# --- What a worker asks


def checker(lab: AdversaryLab, folder: Path, *, measure_steps: bool = True) -> StepCheck:
    """A worker's, whose run has a step every eight minutes."""
    folder.mkdir()
    settings = Settings(worker=WorkerSettings(state_dir=folder, measure_steps=measure_steps))
    terms = replace(lab.rules.terms, min_step_interval=480)
    return StepCheck(WorkerContext(settings, None, None, terms, CPU_FP32, None))  # type: ignore[arg-type]


async def test_a_worker_sits_out_steps_whose_honest_work_would_be_rejected(
    lab: AdversaryLab, honest: list[Rollout], model_dir: Path, tmp_path: Path
) -> None:
    asked, off = checker(lab, tmp_path / "worker"), checker(lab, tmp_path / "off", measure_steps=False)
    hostile = save_hostile(model_dir, tmp_path / "hostile", hostile_steps(model_dir)["cancelling neurons, 1e+08"])
    try:
        assert await asked.fault(3, model_dir, honest) == ""
        reason = await asked.fault(4, hostile, honest)
        assert reason.startswith("step 4 is sat out, validators would reject honest work of it: rows of this machine")
        assert (asked.known(3), asked.known(4), asked.known(5)) == ("", reason, "")
        assert await asked.fault(4, model_dir, honest) == reason, "it is asked once for each step"
        assert await asked.fault(5, model_dir, honest) == "", "the next step is tried"
        assert await off.fault(4, hostile, honest) == ""
        # A process that ends leaves a step unmeasured, and another measures the next one.
        assert await asked.fault(6, tmp_path / "nowhere", honest) == ""
        assert await asked.fault(7, hostile, honest) != ""
    finally:
        await asked.close()


def test_one_odd_row_is_tolerated_and_two_are_not(replayer: Replayer, honest: list[Rollout]) -> None:
    odd = [replace(row, logprobs=row.logprobs - np.float32(1)) for row in honest]
    assert check(replayer, CPU_FP32, [*odd[:1], *honest[1:4]], 60.0) == StepAnswer(rows=4, fault="")
    answer = check(replayer, CPU_FP32, [*odd[:2], *honest[2:4]], 60.0)
    assert answer.fault.startswith("rows of this machine are off by ")
    alone = check(replayer, CPU_FP32, odd[:1], 60.0)
    assert (alone.rows, alone.fault != "") == (1, True), "there is no second row to ask"
    hurried = check(replayer, CPU_FP32, odd, 1e-9)
    assert (hurried.rows, hurried.fault != "") == (2, True), "a second row is asked in any case"
    assert check(replayer, CPU_FP32, honest, 1e-9).rows == 1
