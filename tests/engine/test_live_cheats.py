"""Cheats of a running engine: only what they change is left to see, and the engine is honest again after each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from muster.protocol.prompts import end_token
from muster.rollouts.schema import Rollout
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from testbed.adversaries.live import CHEATS, EngineLab, edited_place
from testbed.suite.engine_types import Requests
from worker.engine import Engine

SAMPLED = (
    *("temperature 0.9", "top-p 0.95", "top-k 20", "a repetition penalty of 1.02", "a stop token favoured by 1.0"),
    *("drafts accepted within half a logit", "another seed", "best of two", "an edited last token"),
)


@pytest.fixture
def running(
    engine: Engine,
    model_dir: Path,
    requests_for: Requests,
    tokenizer: PreTrainedTokenizerBase,
    honest: list[Rollout],
    tmp_path: Path,
) -> EngineLab:
    return EngineLab(engine, model_dir, requests_for(256)[:64], end_token(tokenizer), tmp_path, honest[:64])


def tokens(rows: list[Rollout]) -> list[list[int]]:
    return [row.completion_tokens.tolist() for row in rows]


@pytest.mark.parametrize("name", SAMPLED)
def test_other_sampling_shows_by_gaps_alone(running: EngineLab, replayer: Replayer, name: str) -> None:
    """Log-probabilities and proofs are the true ones of the claimed tokens."""
    rows = CHEATS[name](running)
    assert tokens(rows) != tokens(list(running.honest))
    replayer.load_weights(running.model)
    found = replayer.replay(rows)
    assert max(one.gap_worst for one in found) > CPU_FP32.gap_worst.accuse
    assert max(one.logprob_worst for one in found) < 1
    assert max(one.activation for one in found) < CPU_FP32.activation.reject / 100
    if name == "an edited last token":
        for row, true in zip(rows, running.honest, strict=True):
            place = edited_place(true, running.stop_token)
            length = len(row.completion_tokens)  # shorter where the other token ends it
            changed = np.flatnonzero(row.completion_tokens != true.completion_tokens[:length])
            assert changed.tolist() == [place]


def test_the_engine_is_honest_after_other_weights_and_another_cache(running: EngineLab) -> None:
    for name in ("int4 weights", "int8 key-value cache"):
        assert [row.proof for row in CHEATS[name](running)] != [row.proof for row in running.honest], name
        assert tokens(running.generate()) == tokens(list(running.honest)), name
    assert not list(running.folder.iterdir())
