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

UNENDED: Final = "completions/unended_thinking"
"""Share of completions that never end their thinking, of those that were to think. Their answers are not looked at."""
UNENDED_ALARM: Final = 0.5
"""From this share on the trainer's log, the page and `muster tasks filter` name it."""
UNENDED_HINT: Final = "begin with a model that writes </think>, give it more tokens, or make tasks with thinking=none"

CALLS: Final = "tools/call_frequency"
HELD_OUT: Final = "held_out/reward"
HELD_OUT_TASKS: Final = "held_out/tasks"
HELD_OUT_LENGTH: Final = "held_out/mean_length"
HELD_OUT_LENGTH_ERROR: Final = "held_out/length_error"
"""Of tasks that are never trained on; only steps that were evaluated have them."""

WHOLE_BYTES: Final = "weights/bytes"
DELTA_BYTES: Final = "weights/delta_bytes"
"""Of every published step: how large it is, and its difference, where one is published."""
