"""A trainer that is killed again and again ends with the bits of one that was not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.models.files import model_hash
from testbed.paths import ROOT
from testbed.samples.models import write_model

STEPS = 4
KILLS = ["learning 0", "writing 0", "learning 1", "writing 1", "writing 2", "learning 3", "writing 3"]
"""What the process says last of all. While it learns, the step before may still be on its way to the disk."""


@contextmanager
def learning(initial: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "testbed.runs.learner_process", str(initial), str(folder), str(STEPS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], until: str) -> list[str]:
    """Return what it says, up to a line."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == until:
            break
    return lines


def test_killed_at_every_point_of_a_step_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    initial = write_model(tmp_path / "initial")
    with learning(initial, tmp_path / "straight") as process:
        assert said(process, f"finished {STEPS}")[-1] == f"finished {STEPS}"
    begun = []
    for point in KILLS:
        with learning(initial, tmp_path / "killed") as process:
            lines = said(process, point)
        assert lines[-1] == point
        begun.append(lines[0])
    with learning(initial, tmp_path / "killed") as process:
        assert said(process, f"finished {STEPS}")[-1] == f"finished {STEPS}"
    assert begun[0] == begun[1] == "learning 0"  # nothing of the first step was on disk when it was killed
    assert begun[-1] != "learning 0"
    final = f"{STEPS:06d}/model"
    assert model_hash(tmp_path / "killed" / final) == model_hash(tmp_path / "straight" / final)
