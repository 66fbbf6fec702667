"""A run whose trainer is a real process: a tiny model, a few tasks, and no workers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.chain.keys import write_secret
from muster.clients.run_data import task_set_path
from muster.settings.schema import ChainSettings
from muster.swarm.plan import PROFILE
from testbed.processes import Service, prefixed
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import naming
from testbed.samples.task_sets import generated

ONE = (sys.executable, "-P")
"""One process, without torchrun."""


async def build_training_run(settings: ChainSettings, model: Path, folder: Path) -> RunFixture:
    """Create a run of this model with a few tasks, and give its trainer a key and the task set in `folder`."""
    tasks = generated(1, levels=(3,), train=4, held_out=2)
    terms = naming(model, tasks, PROFILE)
    run_fixture = await RunFixture.build(folder, settings, seed=str(folder), workers=(), **terms)
    async with run_fixture.chain("trainer") as chain:
        built = await chain.terms(run_fixture.run)
    state = folder / "state"
    state.mkdir()
    shutil.copytree(tasks.folder, task_set_path(built, state))
    write_secret(folder / "trainer.key", run_fixture.secret("trainer"))
    return run_fixture


def train(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path, launcher: Sequence[str], **options: object
) -> Service:
    """Start a trainer's processes; `options` are of the section `trainer` unless they name another."""
    folder = run_fixture.folder
    settings = {
        **run_fixture.settings_file,
        "keys.raw_key_file": folder / "trainer.key",
        "orchestrator.url": orchestrator.url,
        "shardcast.dir": folder / "published",
        "trainer.model": model,
        "trainer.state_dir": folder / "state",
        "trainer.poll_seconds": 0.05,
    }
    environment = {"OMP_NUM_THREADS": "1"}
    settings |= prefixed("trainer", options)
    return Service("trainer", folder / "trainer", settings, launcher=launcher, environment=environment).spawn()
