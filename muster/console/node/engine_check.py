"""muster doctor --engine: measure whether this node's engine passes inspection, before it has a stake to lose.

Generates rows with the real engine on this machine's hardware, as a worker of the run would, and replays them as a
validator would, in two separate processes. Writes nothing on chain and needs no key.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.authoring.probe_process import VALIDATOR, WORKER, run_probe
from muster.errors import UnreachableError

if TYPE_CHECKING:
    from muster.console.session import Session
    from muster.verification.judging import Measurement
    from muster.verification.probes import ProbeSpec
    from muster.verification.profiles import Profile

ADVICE: Final = (
    "do not join with this engine: make setup installs the versions that were calibrated (constraints.txt); unset what "
    "changes vLLM's arithmetic (VLLM_…); if it stays, this hardware cannot work for a run with this profile"
)

NARROW: Final = "do not join this run: its calibration may accuse honest machines; its owner should measure again"


async def check_engine(session: Session, rows: int) -> dict[str, Any]:
    """Generate and replay so many rows of the settings' run; return as `assess`.

    Raises UnreachableError when the run cannot be read, ConfigError when the engine cannot serve its model or profile,
    CheckError when a process ends otherwise.
    """
    from muster.models.arithmetic import HONEST
    from muster.models.matmul import choose_matmul
    from muster.models.numerics import device_kind
    from muster.runtime.processor import used_features
    from muster.verification.calibration import has_own_limits
    from muster.verification.judging import measurements, unit_of
    from muster.verification.measured import read_cell
    from muster.verification.probes import write_document

    # 1. What to generate.
    source, spec, judged = await run_spec(session, rows)

    # 2. Generate and replay.
    with tempfile.TemporaryDirectory(prefix="muster-doctor-") as name:
        paths = [Path(name) / file for file in ("spec.json", "rows.parquet", "cell.npz")]

        async def replay(arithmetic: str = "") -> tuple[float, list[Measurement]]:
            """Return the seconds it took, and what it came to."""
            await asyncio.to_thread(write_document, spec.model_copy(update={"arithmetic": arithmetic}), paths[0])
            return await run_probe(VALIDATOR, *paths), measurements(
                await asyncio.to_thread(read_cell, paths[2]), judged
            )

        await asyncio.to_thread(write_document, spec, paths[0])
        session.note(f"generating {rows} rows with this machine's engine ({source}, {spec.profile})")
        generating = await run_probe(WORKER, *paths[:2])
        session.note("replaying them as a validator does")
        replaying, measured = await replay()
        cells: dict[str, dict[str, float]] = {}
        if has_own_limits(judged, sum(row.sums.tokens for row in measured)):
            session.note("replaying them as other honest machines do, against the limits of the run's owner")
            others = {arithmetic: (await replay(arithmetic))[1] for arithmetic in HONEST[judged.dtype]}
            cells = {name: unit_of(rows) for name, rows in ({"this machine": measured} | others).items()}

    # 3. What came of it.
    device = await asyncio.to_thread(device_kind)
    about = {"probed": source, "device": device, "processor": list(used_features())}
    if judged.dtype == "bfloat16":
        about["matmul"] = choose_matmul(spec.matmul, device)
    seconds = {"generate_seconds": round(generating, 1), "replay_seconds": round(replaying, 1)}
    return assess(measured, judged, about, seconds, cells)


def assess(
    rows: Sequence[Measurement],
    profile: Profile,
    about: dict[str, Any],
    seconds: dict[str, float],
    cells: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return what measured rows mean for the node that generated them, under the profile of its run. Pure.

    With an `error` and a `hint` where this node must not join. `cells`: what honest machines measure of the rows as one
    unit of a pool, by name, where limits are of the run's owner.
    """
    from muster.verification.bundles import finite
    from muster.verification.calibration import narrow_limit
    from muster.verification.judging import judge, unit_of, worst_statistic

    worst, value = worst_statistic(rows, profile)
    findings = [finding for row in rows if (finding := judge([row], profile)) is not None]
    accused, unit = sum(finding.accuse for finding in findings), unit_of(rows)
    document: dict[str, Any] = about | {
        "profile": profile.name,
        "rows": len(rows),
        "tokens": sum(row.sums.tokens for row in rows),
        "rejected": len(findings),
        "accused": accused,
        "worst_statistic": worst,
        "worst_value": finite(value),
        "rejected_above": getattr(profile, worst).reject,
        "accused_above": getattr(profile, worst).accuse,
        **seconds,
    }
    limits = profile.pool.model_dump()
    document["pool"] = {name: {"measured": unit[name], "limit": limit} for name, limit in limits.items()}
    leaning = [name for name, limit in limits.items() if unit[name] > limit]
    hint = ADVICE
    if findings:
        first = findings[0]
        error = (
            f"validators would reject {len(findings)} of {len(rows)} rows of this engine and accuse it for {accused}; "
            f"first row {first.position}: {first.reason}, measured {first.measured:.4g} above {first.threshold:g}"
        )
    elif leaning:
        name = leaning[0]
        error = (
            f"no row of this engine is rejected, but together they are above the run's pool limit of {name}: measured "
            f"{unit[name]:.4g} above {limits[name]:g}; after some commitments validators would accuse it"
        )
    else:
        error, hint = narrow_limit(profile, cells), NARROW
    return document | ({"error": error, "hint": hint} if error else {})


async def run_spec(session: Session, rows: int) -> tuple[str, ProbeSpec, Profile]:
    """Return the newest step of the settings' run, fetched as a worker gets it, a spec of its tasks, its profile."""
    from muster.clients.relays import Relays
    from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_profile, make_rules
    from muster.verification.probes import EngineOptions, ProbeSpec, run_requests

    settings = session.settings
    folder = settings.worker.state_dir / "doctor"
    try:
        async with session.chain() as chain, session.orchestrator(chain) as client:
            terms = await chain.terms(settings.run)
            profile = await fetch_profile(client, terms, folder)
            latest = await chain.latest_checkpoint(settings.run)
            if latest is None:
                raise UnreachableError(f"run {settings.run} has no checkpoint yet")
            session.note(f"fetching step {latest.step} of run {settings.run}")
            relays = Relays(settings.shardcast, client, settings.run)
            fetcher = CheckpointFetcher(chain, terms, relays, folder / "weights")
            tasks = await RunTasks.fetch(client, terms, folder)
            await tasks.ensure_all()
            path = await fetcher.get(latest.step)
            rules = await asyncio.to_thread(make_rules, chain, settings.run, terms, tasks, path)
    except UnreachableError as error:
        hint = "check the settings: muster doctor; muster model check MODEL measures a model without a run"
        raise UnreachableError(f"run {settings.run} cannot be read: {error}", hint=hint) from error
    requests = await asyncio.to_thread(run_requests, rules, entropy=latest.entropy, count=rows)
    engine = EngineOptions(
        max_prompt_tokens=terms.max_prompt_tokens,
        max_completion_tokens=terms.max_completion_tokens,
        cache_bytes=settings.worker.cache_bytes,
        ranks=settings.worker.tensor_parallel,
    )
    spec = ProbeSpec(
        model=path.resolve(),
        profile=profile.name,
        temperature=terms.temperature,
        calls=[requests],
        engine=engine,
        threads=settings.validator.threads,
        matmul=settings.bfloat16_matmul,
    )
    return f"run {settings.run}, step {latest.step}", spec, profile
