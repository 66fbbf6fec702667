"""What people who watch leave a trainer beside the orchestrator: completion tokens that it trains on per second.

Updates on one ragged batch (`benchmarks/ragged.py`) take turns with and without watchers of the synthetic run's page,
who do what those of `benchmarks/page_cost.py` do. `benchmarks/page.py` prints it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import ragged
from benchmarks.page_cost import watching
from benchmarks.report import Figure, relative
from benchmarks.watched import ask, module, started
from testbed.big_run.process import BigRun

TARGET: Final = 0.95
WATCHERS: Final = 50
UPDATES: Final = 5


def trainer_figure(big: BigRun, folder: Path, updates: int = UPDATES) -> Figure:
    """Measure a trainer's speed beside an orchestrator with watchers. `folder`: for its model and its batch."""
    model, batch = ragged.make(folder / "trainer")
    watched, without = list[float](), list[float]()
    with started(module("benchmarks.trainer_process", "update", model, batch), {"OMP_NUM_THREADS": "1"}) as process:

        def rate() -> float:
            done = ask(process, "go")
            return done["tokens"] / done["seconds"]

        rate()  # the first compiles and fills caches
        for _ in range(updates):
            without.append(rate())
            with watching(big, WATCHERS):
                watched.append(rate())
    more = {"watchers": WATCHERS}
    return relative("trainer_watched", watched, limit=without, target=TARGET, unit="tokens/s", **more)
