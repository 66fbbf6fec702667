"""Power cuts: what an orchestrator acknowledged before one is there afterwards, in its database and in storage.

    python benchmarks/power_cuts.py [--cuts 200] [--seed 1] [--json] [--keep FOLDER]

A real orchestrator on SQLite and a folder takes uploads and verdicts while its power is cut at random moments. Its
files are then cut back to what its own fsync calls had covered (`testbed/power_cut.py`). After every tenth cut it is
started again.

- `power_cuts_lost`: uploads and verdicts that were acknowledged and are not in what is left of database and storage
- `power_cuts_rejected`: acknowledged uploads for which an honest validator finds no file after the next start
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import Figure, figure, none, parser, show
from muster.runtime import telemetry
from testbed.chain.anvil import Anvil
from testbed.runs.power_story import PowerStory
from testbed.runs.run_fixture import RunFixture

CUTS = 200
WORKERS = tuple(f"w{number}" for number in range(24))
UPLOADERS = tuple(f"u{number}" for number in range(8))
LONGEST_SECONDS = 1.5
"""Of work before a cut."""
OF_ONE_START = 10
"""Cuts between two starts. The last one kills the process; at the others it is paused, and what would be left is
read."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--cuts", type=int, default=CUTS)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep", type=Path, help="keep the processes' folders here")
    given = options.parse_args(arguments)
    telemetry.configure("power_cuts", level="error")
    with tempfile.TemporaryDirectory() as folder, Anvil() as anvil:
        figures = asyncio.run(measure(anvil, given.keep or Path(folder), given.cuts, given.seed))
    return show(figures, as_json=given.json)


async def measure(anvil: Anvil, folder: Path, cuts: int, seed: int) -> list[Figure]:
    """Cut the power so often, and count what is lost."""
    run_fixture = await RunFixture.build_on(anvil, folder, seed="power cuts", workers=(*WORKERS, *UPLOADERS))
    await run_fixture.publish(0)
    story, moments = PowerStory(run_fixture, folder / "cut", WORKERS, UPLOADERS), random.Random(seed)
    lost, missing, cuts_made = list[object](), list[object](), 0
    while cuts_made < cuts:
        story.orchestrator.start()
        missing += await story.missing()
        async with story.cut_amid_work():
            for _ in range(min(OF_ONE_START, cuts - cuts_made) - 1):
                await asyncio.sleep(moments.uniform(0, LONGEST_SECONDS))
                lost += story.lost_now()
                cuts_made += 1
            await asyncio.sleep(moments.uniform(0, LONGEST_SECONDS))
        lost += story.lost_now()
        cuts_made += 1
        print(f"{cuts_made} cuts: {story.acknowledged.numbers} acknowledged, {len(lost)} lost", file=sys.stderr)
    with story.orchestrator:
        missing += await story.missing()
    uploads, verdicts = story.acknowledged.numbers
    return [
        figure("power_cuts_uploads", uploads, target=cuts, unit="acknowledged"),
        figure("power_cuts_verdicts", verdicts, target=cuts / 2, unit="acknowledged"),
        none("power_cuts_lost", lost, cuts=cuts),
        none("power_cuts_rejected", missing, cuts=cuts),
    ]


if __name__ == "__main__":
    sys.exit(main())
