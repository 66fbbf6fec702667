"""muster eval --run: a step's weights and the run's tasks come by themselves, checked against the chain."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.testbed.run_fixture import Orchestrator, RunFixture
from muster.contracts import runs
from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.shardcast.publish import publish
from muster.tasksets.generated import make_task_set
from muster.verification.profiles import profile_hash
from tests.support.chain import Deployment
from tests.support.weight_servers import odd_source

SMALL = ModelShape(hidden=64, layers=1, heads=2, intermediate=64)
SECONDS = 240


async def typed(folder: Path, *words: object, status: int = 0) -> Any:
    """What a command printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "muster", *map(str, words), "--json"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == status, (out + err).decode()
    return json.loads(out)


async def test_a_step_of_a_run_is_measured_as_its_workers_are_asked(deployment: Deployment, tmp_path: Path) -> None:
    tokenizer, models = make_tokenizer(), [tmp_path / f"model-{step}" for step in (0, 1)]
    for step, folder in enumerate(models):
        save_model(make_model(tokenizer, SMALL, seed=step), tokenizer, folder)
    (tmp_path / "run").mkdir()
    task_set = make_task_set(4, train=30, held_out=12, folder=tmp_path / "run" / "tasks")
    run_fixture = await RunFixture.build(
        tmp_path,
        deployment.settings,
        seed="measured",
        workers=(),
        tokenizer_hash=tokenizer_hash(models[0]),
        task_root=task_set.root,
        task_count=task_set.size,
        profile=profile_hash("cpu-fp32-projection-v2"),
        temperature_micro=900_000,
    )
    served = tmp_path / "published"
    async with (
        run_fixture.chain("trainer") as trainer,
        run_fixture.local_chain() as dev,
        odd_source(served) as (url, _, _),
    ):
        for step, folder in enumerate(models):
            manifest = publish(folder, served, run_fixture.run, step, shard_bytes=1 << 20, keep=4)
            await dev.advance(2)
            await trainer.send(runs.publish_checkpoint(run_fixture.run, step, manifest.root, bytes(32)))
        orchestrator = Orchestrator(run_fixture, tmp_path / "orchestrator", extra=f'run_folder = "{tmp_path / "run"}"')
        await asyncio.to_thread(orchestrator.start)
        try:
            (tmp_path / "muster.toml").write_text(
                f'[chain]\nrpc_url = "{run_fixture.settings.rpc_url}"\naddresses = "{run_fixture.settings.addresses}"\n'
                f'[orchestrator]\nurl = "{orchestrator.url}"\n[shardcast]\nrelays = ["{url}"]\n'
            )
            measure = ("eval", "--run", run_fixture.run, "--samples", "2", "--limit", "6")
            first = await typed(tmp_path, *measure, "--step", "0")
            newest = await typed(tmp_path, *measure)
            missing = await typed(tmp_path, *measure, "--step", "2", status=3)
        finally:
            await asyncio.to_thread(orchestrator.stop)
    for step, told in enumerate((first, newest)):
        assert (told["run"], told["step"], told["tasks"]) == (run_fixture.run, step, 6)
        assert told["model_hash"] == "0x" + model_hash(models[step]).hex()
        assert told["task_root"] == "0x" + task_set.root.hex()
        assert (told["budgets"], told["max_tokens"], told["temperature"]) == ([8, 16], 32, 0.9)
        assert told["profile"] == "cpu-fp32-projection-v2"
        assert [row["k"] for row in told["pass_at_k"]] == [1]
    assert missing["error"] == f"run {run_fixture.run} has not published step 2"
