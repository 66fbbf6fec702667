"""muster serve: a checkpoint behind vLLM's OpenAI server, so that other tools evaluate it unchanged."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from muster.authoring.tasks.counting import conversations_of
from muster.console.command import command
from muster.console.session import Session, require
from muster.errors import UsageError
from muster.settings.schema import is_loopback

app = typer.Typer()

RUN_FOLDER: Final = Path(".muster/serve")
"""Where the weights of a run are kept."""


@command(app, "serve", reads=True)
async def serve(
    session: Session,
    model: Annotated[str | None, typer.Argument(help="Checkpoint folder; with --run a step, else the newest.")] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Serve a step of this run.")] = None,
    host: Annotated[str, typer.Option(help="Address to bind; others than this machine's need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind; 0 for any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File (mode 0600) with the key that clients must send.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt and answer together, in tokens; else the model's context.")
    ] = None,
) -> None:
    """Serve a checkpoint by the OpenAI API until interrupted, for evaluation tools that know nothing of Muster.

    A step of a run is fetched and checked against the chain first. The server is vLLM's own, and is bound to this
    machine. The base URL is printed once the model can be asked. Where the run's tasks have tools, clients that send
    tools get calls as tool_calls, and run the tools themselves.
    """
    from muster.authoring.evaluation.openai_server import ServerSpec, free_port, serving
    from muster.chain.keys import read_secret
    from muster.console.evaluate.weights import fetch_run_step
    from muster.console.sampling import model_hashes
    from muster.swarm.supervisor import interruptible

    # 1. Check engine and options before anything is fetched.
    require("worker")
    if not is_loopback(host) and api_key_file is None:
        raise UsageError(
            f"at {host} any machine of the network can use the model",
            hint="add --api-key-file FILE, or leave --host at 127.0.0.1",
        )
    key = None if api_key_file is None else read_secret(api_key_file)
    step = _step(model, run)
    spec = ServerSpec(Path(), "", host, free_port(host, port), "auto", max_length, key)

    # 2. Find the checkpoint.
    if run is None:
        assert model is not None
        path, about = await asyncio.to_thread(Path(model).absolute), {}
        spec = replace(spec, model=path, name=path.name)
    else:
        found = await fetch_run_step(session, run, step, RUN_FOLDER / f"run-{run}", whole=False)
        path, about = found.path, {"run": run, "step": found.number}
        parts = found.task_set.document.parts if found.task_set is not None else ()
        asking = await asyncio.to_thread(conversations_of, path)
        rules = next((asking.rules(one.environment) for one in parts if one.environment.turns), None)
        style = None if rules is None else rules.template.rules.style
        name, computed = f"muster-step-{found.number}", found.profile.dtype
        spec = replace(spec, model=path, name=name, dtype=computed, calls=style)
    hashes = await asyncio.to_thread(model_hashes, path)
    document = {"base_url": spec.url, "model": spec.name, "checkpoint": str(path), **about, **hashes}

    # 3. Serve. Once the model can be asked, an interrupt is the way to end.
    ready = False

    async def served() -> None:
        nonlocal ready
        session.note("starting vLLM …")
        async with serving(spec) as server:
            session.result(document)
            sys.stdout.flush()
            session.note("serving until interrupted (Ctrl-C)")
            ready = True
            await server.ended()

    try:
        await interruptible(served())
    except KeyboardInterrupt:
        if not ready:
            raise
        session.note("ended")


def _step(model: str | None, run: int | None) -> int | None:
    """Return the step that was asked for, if any. Raises UsageError for what is neither a step nor a folder."""
    if run is None:
        if model is None:
            raise UsageError("there is nothing to serve", hint="muster serve MODEL, or muster serve STEP --run NUMBER")
        if model.isdecimal() and not Path(model).is_dir():
            raise UsageError(f"{model} is no folder, and a step is one of a run", hint="add --run")
        return None
    if model is not None and not model.isdecimal():
        raise UsageError(
            f"--run serves a step of the run, and {model} is no step", hint="name a step, or leave out --run"
        )
    return None if model is None else int(model)
