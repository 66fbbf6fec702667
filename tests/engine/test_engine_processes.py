"""An engine that is split over several processes, and multiplies in float32, proves its work like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.rollouts.parquet import read_rollouts
from muster.shardcast.format.store import version_path
from muster.shardcast.publish import publish
from muster.verification.judging import judge
from muster.verification.profiles import BF16
from muster.verification.replay import Replayer
from testbed.waiting import BOUND
from tests.engine.split_engine import REQUESTS


def test_two_ranks_prove_one_work_and_both_take_new_weights(tmp_path: Path) -> None:
    tokenizer, model = make_tokenizer(), make_model(make_tokenizer(), ModelShape(), seed=1)
    for step in (0, 1):
        save_model(model, tokenizer, tmp_path / "checkpoint")
        manifest = publish(tmp_path / "checkpoint", tmp_path / "published", 1, step, shard_bytes=4096)
        (tmp_path / str(step + 1)).symlink_to(version_path(tmp_path / "published", manifest.root))
        with torch.no_grad():
            model.get_submodule("model.layers.1").mlp.down_proj.weight *= 2  # of all layers, one is read again
            model.get_input_embeddings().weight *= -1  # and with the embedding the head that is tied to it
    command = [sys.executable, "-m", "tests.engine.split_engine", str(tmp_path)]
    # Of an engine without compilation vLLM compiles one function still, where a vocabulary is split: 20 s of CPU time.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, other in (("1", "2"), ("2", "1")):
        rows = read_rollouts((tmp_path / f"{name}.parquet").read_bytes())
        assert len(rows) == REQUESTS
        assert judge(Replayer(tmp_path / name, BF16, 1.0).replay(rows), BF16) is None
        assert judge(Replayer(tmp_path / other, BF16, 1.0).replay(rows), BF16) is not None
