"""A run with a real (small, untrained) model: checkpoints, an origin, an orchestrator, and nodes as real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from eth_utils.crypto import keccak

from muster.authoring.tasks.generated import make_task_set
from muster.chain.draw_secret import FILE_NAME
from muster.chain.keys import write_secret
from muster.constants import DRAW_CHAIN_LENGTH
from muster.contracts import runs
from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.protocol.draws import chain_preimages
from muster.protocol.terms import WorkClass
from muster.settings.schema import ChainSettings, Settings, ShardcastSettings
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.publish import publish
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import profile_hash
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.servers.weight_servers import Server
from testbed.waiting import BOUND

Furnish = Callable[[Path], TaskSet]
"""Writes `model`, and `run` with the tasks that it returns, into a folder."""

PROFILE = "cpu-fp32-projection-v2"
TERMS: dict[str, Any] = {
    "group_size": 4,
    "groups_per_commitment": 4,
    "max_completion_tokens": 24,
    "commit_phase": 60,  # about missing data, judges decide in its last quarter: 15 seconds for a busy machine
    "reveal_phase": 60,
    "accepts_required": 2,
    "classes": (WorkClass(10_000, (8, 12)),),
}


@cache
def _links(secret: bytes) -> list[bytes]:
    return chain_preimages(secret, DRAW_CHAIN_LENGTH)


class NodeFixture(RunFixture):
    """A run_fixture whose validators have draw secrets in their folders, and whose nodes are processes."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: ChainSettings,
        *,
        seed: str,
        workers: tuple[str, ...],
        furnish: Furnish | None = None,
        **terms: Any,
    ) -> NodeFixture:
        """Make model and tasks, and a run that names them. `furnish` makes others, `terms` changes its terms."""
        task_set = (furnish or make_world)(folder)
        model = folder / "model"
        run_fixture = await cls.build(
            folder,
            settings,
            seed=seed,
            workers=workers,
            task_count=task_set.size,
            task_root=task_set.root,
            model_hash=model_hash(model),
            tokenizer_hash=tokenizer_hash(model),
            profile=profile_hash(PROFILE),
            **{**TERMS, **terms},
        )
        assert isinstance(run_fixture, NodeFixture)
        return run_fixture

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def links(self, name: str) -> tuple[list[bytes], bytes]:
        secret = hashlib.sha256(f"{self.secret(name)}/draws".encode()).digest()  # the same links in every world
        if not (path := self.state(name) / FILE_NAME).exists():
            write_secret(path, secret.hex())
        links = _links(secret)
        return links, keccak(links[0])

    async def publish_model(self, step: int, deltas: ShardcastSettings | None = None) -> Manifest:
        """Publish a checkpoint, different at each step, and anchor it. With `deltas` so little that old steps are kept
        as differences.
        """
        folder = self.folder / f"checkpoint-{step}"
        shutil.copytree(self.folder / "model", folder)
        if step:
            nudge(folder, step, tensors=1 if deltas else None)
            async with self.local_chain() as dev:
                await dev.advance(2)
        out = self.folder / "published"
        manifest = await asyncio.to_thread(publish, folder, out, self.run, step, keep=16, deltas=deltas)
        async with self.chain("trainer") as chain:
            await chain.send(runs.publish_checkpoint(self.run, step, manifest.root, bytes(32)))
        return manifest

    def settings_of(self, name: str, orchestrator: Orchestrator, origin: Server, **changes: object) -> Settings:
        """The settings of a node, also written to its folder."""
        key = self.folder / name / "key"
        if not key.exists():
            write_secret(key, self.secret(name))
        section = "validator" if name.startswith("v") else "worker"
        values: dict[str, object] = {
            "run": self.run,
            "name": name,
            "log.file": self.folder / name / "log.jsonl",
            "chain.rpc_url": self.settings.rpc_url,
            "chain.addresses": self.settings.addresses,
            "chain.poll_seconds": 0.2,
            "keys.raw_key_file": key,
            "orchestrator.url": orchestrator.url,
            "shardcast.relays": [origin.url],
            f"{section}.state_dir": self.state(name),
        }
        if section == "validator":
            values |= {"validator.stagger_seconds": 1, "validator.data_grace_seconds": 1}
        else:
            values["worker.poll_seconds"] = 0.5
        config = self.folder / name / "muster.toml"
        config.write_text(to_toml(values | changes))
        return load_settings(config)


def make_world(folder: Path) -> TaskSet:
    """An untrained model and its tokenizer, and the folder that the orchestrator offers, with tasks."""
    tokenizer = make_tokenizer()
    save_model(make_model(tokenizer, ModelShape(hidden=64, heads=2), seed=5), tokenizer, folder / "model")
    (folder / "run").mkdir()
    return make_task_set(1, train=64, held_out=16, folder=folder / "run" / "tasks")


def nudge(folder: Path, step: int, *, tensors: int | None = None) -> None:
    """Move the weights as a large update would; only so many tensors of them, the smallest, where that is said."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(step)
    weights = load_file(folder / "model.safetensors")
    chosen = sorted(weights, key=lambda name: weights[name].numel())[:tensors]
    for name in chosen:
        weights[name] += 0.02 * weights[name].std() * torch.randn_like(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class NodeProcess:
    """`python -m MODULE --config FILE`, restarted as often as a test says."""

    def __init__(self, module: str, folder: Path, failpoints: Sequence[str] = ()) -> None:
        self.module = module
        self.folder = folder
        self.log = folder / "log.jsonl"
        marks = folder / "failpoints"
        marks.mkdir(parents=True, exist_ok=True)
        self.environment = {"OMP_NUM_THREADS": "1", "MUSTER_FAILPOINT_DIR": str(marks)}
        if failpoints:
            self.environment["MUSTER_FAILPOINT"] = ",".join(failpoints)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--config", str(self.folder / "muster.toml")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | self.environment,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event, over all of its lives."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == name]

    async def ends(self) -> int:
        """Wait for it to end; its exit code."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, BOUND)

    def output(self) -> str:
        return (self.folder / "output.log").read_text()[-4000:]

    def stop(self) -> int:
        """SIGTERM, and SIGKILL to its whole session if that does not help; the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        return self.process.returncode
