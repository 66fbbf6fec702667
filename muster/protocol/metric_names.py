"""Names of the trainer's metrics that other processes read by name, in TRL's words where it has them.

The trainer reports them with each step (`messages.StepReport`); the run's page, charts and a swarm's report show them.
docs/use/training.md says what each is. Changing a name breaks the curves of runs that go on.
"""

from __future__ import annotations

from typing import Final

REWARD: Final = "reward"
LENGTH: Final = "completions/mean_length"
LENGTH_ERROR: Final = "completions/length_error"
"""Of a batch."""

HELD_OUT: Final = "held_out/reward"
HELD_OUT_TASKS: Final = "held_out/tasks"
HELD_OUT_LENGTH: Final = "held_out/mean_length"
HELD_OUT_LENGTH_ERROR: Final = "held_out/length_error"
"""Of tasks that are never trained on; only steps that were evaluated have them."""

WHOLE_BYTES: Final = "weights/bytes"
DELTA_BYTES: Final = "weights/delta_bytes"
"""Of every published step: how large it is, and its difference, where one is published."""
