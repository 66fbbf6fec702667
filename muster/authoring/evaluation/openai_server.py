"""Put a checkpoint behind vLLM's OpenAI server: a process of vLLM's own module, ended with the block.

    async with serving(spec) as server:
        await server.ended()

The model is computed by the engine that workers run, without what Muster adds to it: no proofs, no draws. The process
leads a separate session, so Ctrl-C reaches only the caller. The caller then ends the process and its children.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2

from muster.clients.answering import end_process, ending_of
from muster.environments.tools.base import CallStyle
from muster.errors import ConfigError, MusterError, UnreachableError
from muster.protocol.turns.calls import STYLES

MODULE: Final = "vllm.entrypoints.openai.api_server"
"""The one way to start vLLM's server that its CPU build has too: its `vllm` command looks for a package named vllm."""

START_SECONDS: Final = 1800.0
"""Longest time from the start to an answer: a large model is read from a slow disk."""

POLL_SECONDS: Final = 0.25

DEFAULTS: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB, where there is no GPU to fill
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the machine is shared with others
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
}
"""Variables of the process; what the environment says already wins."""


@dataclass(frozen=True)
class ServerSpec:
    """What to serve, and where."""

    model: Path
    name: str
    """What clients call the model."""
    host: str
    port: int
    dtype: str = "auto"
    """What to compute in, by vLLM's names."""
    max_length: int | None = None
    """Longest prompt and answer together, in tokens; the model's context without it."""
    api_key: str | None = None
    """What clients must send as a bearer token."""
    calls: CallStyle | None = None
    """How the model writes calls: clients that send `tools` get them as OpenAI's `tool_calls`. None: as text.

    Where vLLM's parser differs from a run's, docs/understand/turns.md says."""

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/v1"

    def command(self) -> list[str]:
        """Return the command to type. It holds no secret: everybody on a machine may read commands."""
        options = {
            "--model": self.model,
            "--served-model-name": self.name,
            "--host": self.host,
            "--port": self.port,
            "--dtype": self.dtype,
            "--generation-config": "vllm",  # clients say how to sample, not the checkpoint
            "--uvicorn-log-level": "warning",
        }
        if self.max_length is not None:
            options["--max-model-len"] = self.max_length
        words = [str(word) for option in options.items() for word in option]
        if self.calls is not None:
            words += ["--enable-auto-tool-choice", "--tool-call-parser", STYLES[self.calls].parser]
        # -P: no module of the folder somebody happens to stand in. Eager: what workers run, and there in seconds.
        return [sys.executable, "-P", "-W", "ignore", "-m", MODULE, *words, "--enforce-eager"]

    def environment(self) -> dict[str, str]:
        key = {"VLLM_API_KEY": self.api_key} if self.api_key is not None else {}
        return {**DEFAULTS, **os.environ, **key}


def free_port(host: str, port: int) -> int:
    """Return `port`, or any that is free for 0. Raises ConfigError when nothing can be bound there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as bound:
            return bound.getsockname()[1]
    except OSError as error:
        raise ConfigError(f"nothing can be served at {host}:{port}: {error.strerror}", hint="add --port 0") from error


class ServedModel:
    """A running server."""

    def __init__(self, spec: ServerSpec, process: asyncio.subprocess.Process) -> None:
        self._spec = spec
        self._process = process

    async def ended(self) -> None:
        """Wait until the server ends unasked, and raise MusterError."""
        await self._process.wait()
        raise await self._failure()

    async def ready(self) -> None:
        """Wait until the model can be asked.

        Raises MusterError when the process ends instead, and UnreachableError after START_SECONDS.
        """
        key = self._spec.environment().get("VLLM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        health = self._spec.url.removesuffix("/v1") + "/health"
        deadline = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(timeout=5, trust_env=False, headers=headers) as client:
            while True:
                if self._process.returncode is not None:
                    raise await self._failure()
                if time.monotonic() > deadline:
                    raise UnreachableError(f"vLLM did not answer within {START_SECONDS:.0f} seconds")
                with suppress(httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError):
                    if (await client.get(health)).status_code == httpx2.codes.OK:
                        break
                await asyncio.sleep(POLL_SECONDS)
            # Another server could have taken the port: this one must know the name, and the key.
            answer = await client.get(f"{self._spec.url}/models")
            if answer.status_code != httpx2.codes.OK or self._spec.name not in answer.text:
                raise MusterError(
                    f"{self._spec.url} answers, and does not serve {self._spec.name}: {answer.text[:200]}"
                )

    async def _failure(self) -> MusterError:
        return MusterError(
            f"vLLM's server {await ending_of(self._process)}",
            hint="the end of its output is above; without any, the machine may be out of memory",
        )


@asynccontextmanager
async def serving(spec: ServerSpec) -> AsyncIterator[ServedModel]:
    """Start the server and yield it once it answers; end it with the block. Raises as `ServedModel.ready`."""
    process = await asyncio.create_subprocess_exec(
        *spec.command(),
        env=spec.environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,  # a command's stdout carries its result and nothing else
        start_new_session=True,
    )
    try:
        server = ServedModel(spec, process)
        await server.ready()
        yield server
    finally:
        await end_process(process)
