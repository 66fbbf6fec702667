"""A learner in a separate process, to be killed: it says what it does before it does it.

See tests/unit/trainer/test_killed.py:

python -m testbed.runs.learner_process INITIAL FOLDER STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

from testbed.samples.trainer import batch_of, learner_at


def main(initial: Path, folder: Path, steps: int) -> None:
    learner = learner_at(initial, folder)
    for step in range(learner.step, steps):
        batch, files = batch_of(step)
        learner.checkpoints.close_batch(batch)
        say("learning", step)
        learner.train_step(batch, files, {})
        say("writing", step)
    learner.written()
    learner.close()
    say("finished", steps)


def say(what: str, step: int) -> None:
    print(what, step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
