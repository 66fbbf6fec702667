"""A run whose trainer is a real process: a tiny model, a few tasks, and nobody who works."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from muster.chain.keys import write_secret
from muster.clients.run_data import task_set_path
from muster.models.files import model_hash, tokenizer_hash
from muster.settings.schema import ChainSettings
from muster.swarm.plan import PROFILE
from muster.verification.profiles import profile_hash
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.samples.task_sets import generated
from testbed.servers.weight_servers import toml
from testbed.waiting import BOUND

ONE = (sys.executable, "-P")
"""One process, without torchrun."""


async def build_training_run(settings: ChainSettings, model: Path, folder: Path) -> RunFixture:
    """Create a run of this model with a few tasks, and give its trainer a key and the task set in `folder`."""
    tasks = generated(1, levels=(3,), train=4, held_out=2)
    terms = {
        "model_hash": model_hash(model),
        "tokenizer_hash": tokenizer_hash(model),
        "profile": profile_hash(PROFILE),
        "task_count": tasks.size,
        "task_root": tasks.root,
    }
    run_fixture = await RunFixture.build(folder, settings, seed=str(folder), workers=(), **terms)
    async with run_fixture.chain("trainer") as chain:
        built = await chain.terms(run_fixture.run)
    state = folder / "state"
    state.mkdir()
    shutil.copytree(tasks.folder, task_set_path(built, state))
    write_secret(folder / "trainer.key", run_fixture.secret("trainer"))
    return run_fixture


def train(
    run_fixture: RunFixture, orchestrator: Orchestrator, model: Path, start: tuple[str, ...], **options: object
) -> subprocess.Popen[str]:
    """Start a trainer's processes, in a session of their own."""
    config = run_fixture.folder / "trainer.toml"
    settings = {
        "run": run_fixture.run,
        "log.file": run_fixture.folder / "trainer.jsonl",
        "chain.rpc_url": run_fixture.settings.rpc_url,
        "chain.addresses": run_fixture.settings.addresses,
        "chain.poll_seconds": 0.05,
        "keys.raw_key_file": run_fixture.folder / "trainer.key",
        "orchestrator.url": orchestrator.url,
        "shardcast.dir": run_fixture.folder / "published",
        "trainer.model": model,
        "trainer.state_dir": run_fixture.folder / "state",
        "trainer.poll_seconds": 0.05,
    }
    named = {name if "." in name else f"trainer.{name}": value for name, value in options.items()}
    config.write_text(toml(settings | named))
    return subprocess.Popen(
        [*start, "-m", "trainer", "--config", str(config)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Wait for its end; what it said."""
    try:
        _, said = process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return said
