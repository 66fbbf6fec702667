"""Two processes that share a model's weights take the same update as one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from testbed.paths import ROOT
from testbed.samples.models import write_model
from testbed.samples.trainer import ragged
from testbed.waiting import BOUND
from trainer.distributed import samples_from_tensors, samples_to_tensors

SCRIPT = ("-m", "testbed.runs.ranks_process")


@dataclass(frozen=True)
class Taken:
    """Two updates: their reports, the weights after them, and where those before them are."""

    reports: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    initial: Path
    poisoned: dict[str, Any]
    """What became of a third, with an advantage that is not a number."""


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Taken]:
    """Train two steps in several ways, by name.

    `whole-N`: by N processes; `whole-resumed-N`: the second by N, from what others wrote after the first; `adapted-N`:
    an adapter, with a reference, activation checkpointing, old log-probabilities and whole rollouts' ratios.
    """
    folder = tmp_path_factory.mktemp("ranks")
    write_model(folder / "model", layers=2)
    save_file(samples_to_tensors(ragged(13)), folder / "samples.safetensors")
    one = [sys.executable]
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for command, *arguments in (
        (one, "whole"),
        (two, "whole"),
        (one, "whole", "whole-state-2"),
        (two, "whole", "whole-state-1"),
        (one, "adapted"),
        (two, "adapted"),
        (one, "adapted", "adapted-state-2"),
    ):
        done = subprocess.run(
            [*command, *SCRIPT, str(folder), *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=BOUND,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    whole = ("whole-1", "whole-2", "whole-resumed-1", "whole-resumed-2")
    names = (*whole, "adapted-1", "adapted-2", "adapted-resumed-1")
    initial = folder / "model" / "model.safetensors"
    return {
        name: Taken(
            json.loads((folder / f"{name}.json").read_text()),
            load_file(folder / f"{name}.safetensors"),
            initial,
            json.loads((folder / f"{name}-poisoned.json").read_text()),
        )
        for name in names
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """As equal as sums in another order are after Adam divided by them."""
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)


@pytest.mark.parametrize("kind", ["whole", "adapted"])
def test_two_ranks_give_the_same_update_as_one(taken: dict[str, Taken], kind: str) -> None:
    assert same(taken[f"{kind}-1"].weights, taken[f"{kind}-2"].weights)
    for alone, together in zip(taken[f"{kind}-1"].reports, taken[f"{kind}-2"].reports, strict=True):
        assert together == {name: pytest.approx(value, rel=1e-4, abs=1e-7) for name, value in alone.items()}


def test_an_adapter_moves_the_matrices_of_the_layers_and_nothing_else(taken: dict[str, Taken]) -> None:
    adapted = taken["adapted-1"].weights
    initial = load_file(taken["adapted-1"].initial)
    moved = {name for name in initial if not torch.equal(initial[name], adapted[name])}
    assert moved == {name for name in initial if ".layers." in name and initial[name].ndim == 2}
    assert adapted.keys() == taken["whole-1"].weights.keys()


def test_the_reference_is_the_model_before_training(taken: dict[str, Taken]) -> None:
    first, second = taken["adapted-1"].reports
    assert 0 <= first["reference_kl"] < 1e-3, "half of it is before any step"
    assert first["reference_kl"] < second["reference_kl"]


def test_no_token_of_ragged_groups_is_doubled_or_dropped(taken: dict[str, Taken]) -> None:
    tokens = sum(sample.completion_length for sample in ragged(13))
    assert {report["tokens"] for one in taken.values() for report in one.reports} == {tokens}


@pytest.mark.parametrize(("kind", "world"), [("whole", 1), ("whole", 2), ("adapted", 1)])
def test_a_run_goes_on_with_another_number_of_ranks(taken: dict[str, Taken], kind: str, world: int) -> None:
    assert same(taken[f"{kind}-resumed-{world}"].weights, taken[f"{kind}-1"].weights)


@pytest.mark.parametrize("kind", ["whole", "adapted"])
def test_all_ranks_leave_out_an_update_that_one_of_them_cannot_take(taken: dict[str, Taken], kind: str) -> None:
    alone, together = taken[f"{kind}-1"].poisoned, taken[f"{kind}-2"].poisoned
    assert (alone["skipped"], alone["moved"]) == (True, False)
    assert together == alone
    assert 3 in alone["suspects"]
    assert len(alone["suspects"]) < 13


def test_samples_travel_between_ranks_unchanged() -> None:
    for sent, came in zip(ragged(13), samples_from_tensors(samples_to_tensors(ragged(13))), strict=True):
        assert sent.prompt.tolist() == came.prompt.tolist()
        assert sent.completion.tolist() == came.completion.tolist()
        assert sent.logprobs.tolist() == came.logprobs.tolist()
        assert sent.advantage == came.advantage
    assert samples_from_tensors(samples_to_tensors([])) == []
