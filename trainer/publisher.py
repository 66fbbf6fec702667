"""What follows a step: its weights published and anchored, its numbers and its batch reported. Does nothing twice."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.contracts import runs
from muster.errors import (
    ChainError,
    MismatchError,
    MusterError,
    RefusedError,
    RevertError,
    UnfundedError,
    UnreachableError,
    WrongChainError,
)
from muster.hashes import hash_bytes
from muster.http import OrchestratorClient
from muster.messages import StepReport
from muster.settings import Settings
from muster.shardcast.publish import deltas_of, publish
from muster.terms import Terms
from trainer.checkpoint import Note
from trainer.metrics import Metrics

ATTEMPTS: Final = 20
"""Times that something refused for the moment is tried again before the trainer gives up."""
PUBLISH_SECONDS: Final = 60.0
"""Longest that the chain may not take a step for another reason than that it is too early, or cannot be reached."""
OUTAGE_SECONDS: Final = 1800.0
"""Longest that the chain may not be reached while a step is to be published."""
TOO_SOON: Final = ("StepTooSoon", "StepOutOfOrder")
"""What the contract says of a step that it will take later."""

Kind = Literal["early", "away", "final", "other"]
"""Of trouble with the chain: what it will take later, does not answer, or never takes."""

log = telemetry.logger("trainer")


class Publisher:
    """A run's steps, as the chain, the relays and the orchestrator come to know of them."""

    def __init__(self, settings: Settings, chain: Chain, client: OrchestratorClient, terms: Terms) -> None:
        self.settings = settings
        self.options = settings.trainer
        self.chain = chain
        self.client = client
        self.terms = terms
        self.metrics = Metrics(settings.trainer, settings.run)
        self._told: StepReport | None = None
        """The last report."""

    async def publish(self, note: Note, model: Path, adapter: Path | None) -> None:
        """Put a step's weights into the served folder and its roots on chain, unless they are there.

        Raises MismatchError when others are, or when the run is not there yet; ChainError or UnreachableError when the
        chain refuses for good, or for long.
        """
        run, step = self.settings.run, note.step
        chosen = self.settings.shardcast
        manifest = await asyncio.to_thread(
            publish,
            model,
            chosen.dir,
            run,
            step,
            shard_bytes=chosen.shard_bytes,
            keep=chosen.published_versions,
            deltas=deltas_of(chosen),
            adapter=adapter,
        )
        batch_root = hash_bytes(note.batch_root)
        began = time.monotonic()
        since, last = began, None
        while True:
            try:
                await self.chain.settle()
                published = (await self.chain.ask(runs.run_state(run))).steps
                if published > step:
                    return await self._check_published(step, manifest.root)
                if published == step:
                    mined = await self.chain.act(runs.publish_checkpoint(run, step, manifest.root, batch_root))
                    log.info("published", step=step, root="0x" + manifest.root.hex(), tx=mined.hash)
                    return None
                trouble: MusterError = MismatchError(
                    f"step {step} is here to be published, but the run is at step {published - 1}",
                    hint="this state folder lacks a step: restore it, or train on from another",
                )  # or of a node that lags behind
            except (ChainError, UnreachableError) as error:
                trouble = error
            kind, now = _kind(trouble), time.monotonic()
            if kind != last:
                last, since = kind, now
            late = now - since > self._patience(kind) or now - began > self._patience("early") + OUTAGE_SECONDS
            if kind == "final" or late:
                raise trouble
            log.info("publishing later", step=step, reason=str(trouble))
            await asyncio.sleep(self.options.poll_seconds)

    async def report(
        self,
        note: Note,
        metrics: Mapping[str, float],
        stages: Mapping[str, float],
        refused: list[str],
        *,
        finished: bool,
    ) -> None:
        """Tell the orchestrator; it needs to know which files are used up, so a refusal is not ignored."""
        report = StepReport(
            run=self.settings.run,
            step=note.step,
            metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
            batch=list(note.batch),
            dropped=refused,
            stages={name: round(seconds, 3) for name, seconds in stages.items()},
            finished=finished,
        )
        self._told = report
        await asyncio.to_thread(self.metrics.record, report)
        await self.patiently(lambda: self.client.post_step(report))

    async def tell_refused(self, refused: list[str]) -> None:
        """Report the step once more, with what was refused since.

        Demand counts what waits for us: a file that will never be used must not keep new work away, or no step would
        ever come after which it is too stale to count.
        """
        if self._told is not None:
            report = self._told = self._told.model_copy(update={"dropped": refused})
            await self.patiently(lambda: self.client.post_step(report))

    async def patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat a call while the other side cannot be reached, or says that it is not ready, and say so."""
        for attempt in range(ATTEMPTS):
            try:
                return await call()
            except (UnreachableError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status < 500 and error.status != 404:
                    raise
                if attempt == ATTEMPTS - 1:
                    raise
                log.warning("trying again", error=str(error))
                await asyncio.sleep(self._pause)
        raise AssertionError("unreachable")

    def _patience(self, kind: Kind) -> float:
        """Seconds that trouble of a kind may last."""
        if kind == "early":
            return self.terms.min_step_interval + PUBLISH_SECONDS
        return OUTAGE_SECONDS if kind == "away" else PUBLISH_SECONDS

    @property
    def _pause(self) -> float:
        return max(1.0, self.options.poll_seconds)

    async def _check_published(self, step: int, root: bytes) -> None:
        anchored = (await self.chain.checkpoint(self.settings.run, step)).manifest_root
        if anchored != root:
            raise MismatchError(
                f"step {step} on chain has manifest root 0x{anchored.hex()}, this folder's is 0x{root.hex()}",
                hint="this state folder is not the one the run was trained from so far; or shardcast.shard_bytes was "
                "another: set it back",
            )


def _kind(trouble: MusterError) -> Kind:
    if isinstance(trouble, RevertError) and trouble.name in TOO_SOON:
        return "early"
    if isinstance(trouble, RevertError | UnfundedError | WrongChainError):
        return "final"
    return "away" if isinstance(trouble, UnreachableError) else "other"
