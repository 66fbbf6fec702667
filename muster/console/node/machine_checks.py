"""What of `muster doctor` a node needs, looked at before anything is staked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from muster.console.node import doctor
from muster.console.node.doctor import Check, guarded
from muster.console.session import Session
from muster.errors import CheckError
from muster.runtime.printable import printable

ATTEMPTS: Final = 4
PAUSE_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 2.0
"""That a check may take without a word."""
WAITS_FOR: Final = {
    "scorer": "the sandbox, which is compiled at its first start: half a minute on one core",
    "tasks": "the run's tasks and the components that score them",
}


async def check_machine(session: Session, state: Path) -> list[Check]:
    """Check machine, engine, orchestrator and run for the node of the session's settings.

    What the run needs is fetched into `state`, where the node's process finds it.
    """
    checks = [doctor.packages(), doctor.disk(state.parent), doctor.memory()]
    probes: dict[str, Callable[[Session], Awaitable[Check]]] = {
        "contracts": doctor.contracts,
        "scorer": doctor.scorer,
        "orchestrator": _orchestrator,
        "device": lambda session: _device(session, state),
        "tasks": lambda session: _tasks(session, state),
    }
    return [*checks, *await asyncio.gather(*(_run_check(name, probe, session) for name, probe in probes.items()))]


async def _run_check(name: str, probe: Callable[[Session], Awaitable[Check]], session: Session) -> Check:
    """Return what a check found; one that takes a while says what it waits for."""
    check = asyncio.create_task(guarded(name, probe, session))
    try:
        await asyncio.wait({check}, timeout=QUIET_SECONDS)
        if not check.done():
            session.note(f"waits for {WAITS_FOR.get(name, f'the check of the {name}')} …")
        return await check
    finally:
        check.cancel()


async def _orchestrator(session: Session) -> Check:
    """Check orchestrator and clock; a busy one may take several attempts, and has answered before."""
    found = await doctor.orchestrator(session)
    for _ in range(ATTEMPTS - 1):
        if found.state != "fail":
            break
        await asyncio.sleep(PAUSE_SECONDS)
        found = await doctor.orchestrator(session)
    return found


async def _device(session: Session, state: Path) -> Check:
    """Check the device; one that the run's profile does not allow is a failure here: a stake would earn nothing."""
    found = await doctor.device(session, state)
    return replace(found, state="fail") if found.state == "warn" else found


async def _tasks(session: Session, state: Path) -> Check:
    """Check that the run's task set can be fetched, and that this machine has the sandbox which it needs."""
    from muster.clients.run_data import RunTasks

    async with session.chain() as chain, session.orchestrator(chain) as client:
        terms = await chain.terms(session.settings.run)
        tasks = await RunTasks.fetch(client, terms, state)
    return Check("tasks", "ok", f"{tasks.task_set.size} training tasks")


def report(session: Session, checks: Sequence[Check]) -> None:
    """Say what is missing and how to fix it. Raises CheckError where a check failed."""
    for check in checks:
        if check.state in ("warn", "fail"):
            session.note(f"{check.state:<5} {check.name}: {printable(check.found)}")
            if check.fix:
                session.note(f"      next: {printable(check.fix)}")
    failed = [check for check in checks if check.state == "fail"]
    if failed:
        names = ", ".join(check.name for check in failed)
        raise CheckError(f"this machine cannot work for the run yet: {names}", hint=failed[0].fix or "muster doctor")
    session.note(f"doctor: {len(checks)} checks, nothing is missing")
