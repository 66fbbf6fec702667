"""The processes that generate, replay and measure outside of a run: started here, and heard when they fail."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster.errors import CheckError, ConfigError
from muster.runtime.module_command import module_command

WORKER, VALIDATOR, TRAINER = "worker.probe", "validator.measure", "trainer.probe"
"""Modules that are started, never imported."""

PROBE_SECONDS: Final = 4 * 3600.0
"""Longest time for one: a large model on a processor is slow."""


async def run_probe(module: str, *arguments: Path | str, environment: Mapping[str, str] | None = None) -> float:
    """Run a probe's process to its end, with these variables besides; return the seconds it took.

    Raises as its exit code says.
    """
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *module_command(module, *arguments),
        env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, errors = await process.communicate()
    except TimeoutError as error:
        raise CheckError(f"{module} did not end within {PROBE_SECONDS / 3600:g} hours") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise failure(module, process.returncode, errors.decode(errors="replace"))
    return time.monotonic() - started


def failure(module: str, code: int, said: str) -> CheckError | ConfigError:
    """Return the error of a probe's process by its exit code and what it printed last."""
    kind = ConfigError if code == ConfigError.exit_code else CheckError
    if found := re.search(r"^error: (.*?)(?:\n  next: (.*))?\Z", said.strip(), re.MULTILINE | re.DOTALL):
        return kind(found[1], hint=found[2] or "")
    last = said.strip().splitlines()[-1:] or ["it printed nothing"]
    return kind(f"{module} ended with {code}: {last[0]}", hint="MUSTER_DEBUG=1 shows more")
