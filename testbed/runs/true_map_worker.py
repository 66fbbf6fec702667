"""python -m testbed.runs.true_map_worker --config FILE: work as an honest worker does, but plant nothing.

Asked for a trap, it delivers true work, and names as many of its rows in the map.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

from muster.runtime.process import STOP_SECONDS, run_process
from muster.verification.planting import Plant
from worker import producer
from worker.engine import Generation, import_vllm
from worker.service import serve


async def plant_nothing(*given: object) -> tuple[Sequence[Generation], list[Plant]]:
    *_, generations, count = given
    assert isinstance(generations, list)
    assert isinstance(count, int)
    return generations, [Plant(row, 0) for row in range(count)]


if __name__ == "__main__":
    with mock.patch.object(producer, "plant", plant_nothing):
        what = "generate rollouts, and plant nothing in traps"
        sys.exit(run_process("worker", what, serve, stop_seconds=STOP_SECONDS, prepare=import_vllm))
