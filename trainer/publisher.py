"""Publish and anchor a step's weights, report its numbers and its batch: each once, also after a restart."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.chain.client import Chain
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import runs
from muster.errors import (
    ChainError,
    CheckError,
    FinishedError,
    MismatchError,
    MusterError,
    RefusedError,
    RevertError,
    UnfundedError,
    UnreachableError,
    WrongChainError,
)
from muster.models.weights import check_scale
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.protocol.messages import LeftOut, RowCheck, StepDocument, StepFile, StepReport
from muster.protocol.metric_names import DELTA_BYTES, WHOLE_BYTES
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.publish import difference_to, publish
from muster.shardcast.retention import StepRetention
from muster.tasksets.grades import grades_hash
from trainer.batches import FileRef
from trainer.checkpoint import CheckpointMetadata
from trainer.metrics import Metrics

ATTEMPTS: Final = 20
"""Tries of a call that is refused for the moment, before the trainer ends with the error."""
PUBLISH_SECONDS: Final = 60.0
"""Longest that the chain may refuse a step for any reason but that it is too early, or out of reach."""
OUTAGE_SECONDS: Final = 1800.0
"""Longest that the chain may be out of reach while a step is to be published."""
NOTHING: Final = "0x" + "00" * 32
"""Hash of a document where there is none."""
TOO_SOON: Final = ("StepTooSoon", "StepOutOfOrder")
"""Errors of the contract about a step that it will take later."""

UNJUDGED: Final = ("TooFewValidators", "ValidatorsTooNew")
"""Errors of the contract about the first step: the run waits for its validators, however long they take."""

log = telemetry.logger("trainer")


class Publisher:
    """Publishes one run's steps to the chain, the relays and the orchestrator."""

    def __init__(self, settings: Settings, chain: Chain, client: OrchestratorClient, terms: Terms) -> None:
        self.settings = settings
        self.options = settings.trainer
        self.chain = chain
        self.client = client
        self.terms = terms
        self.metrics = Metrics(settings.trainer.state_dir)
        self.refuted: list[RowCheck] = []
        """Rejections of fresh work that hold nothing back (`trainer.looks`)."""
        self.left_out: Callable[[], list[LeftOut]] = list
        """Returns the files that will never be used (`trainer.accepted_work`)."""
        self._last_report: StepReport | None = None
        self._read, self._read_hash = 0, NOTHING
        """Documents of the log that were read, and the content hash of the last."""
        self._anchored: tuple[CheckpointMetadata, bytes] | None = None
        """The newest step that was put on chain, with its manifest root."""

    async def publish(self, metadata: CheckpointMetadata, model: Path, adapter: Path | None) -> dict[str, float]:
        """Put a step's weights into the served folder, what it was trained on into the log, and its roots on chain.

        The grades of the batch, whose hashes its document names, are published before.

        Return what they weigh, as metrics. Raises FinishedError when the run is closed; MismatchError when other roots
        are there, or when the run is not at this step yet; ChainError or UnreachableError when the chain refuses for
        good, or for long.
        """
        manifest, sizes = await asyncio.to_thread(self._serve, metadata.step, model, adapter)
        for ref in metadata.files:
            if ref.grades:
                await self.retry(partial(self.client.put_grades, self.settings.run, ref.grades))
        await self._anchor(metadata, manifest.root)
        self._anchored = metadata, manifest.root
        return sizes

    async def _document(self, metadata: CheckpointMetadata) -> bytes:
        """Publish, signed, what a step was trained on; return its hash, which is the batch root."""
        run = self.settings.run
        # 1. The log, on from where the step before had read it, and a block that is deep enough.
        if not self._read and metadata.step:
            with suppress(ChainError, CheckError, UnreachableError):
                before = await self.chain.checkpoint(run, metadata.step - 1)
                earlier = await self.client.step_document(run, before.batch_root)
                self._read, self._read_hash = earlier.read, earlier.read_hash
        while (page := await self.retry(lambda: self.client.log(run, self._read))).entries:
            self._read, self._read_hash = page.cursor, content_hash(page.entries[-1].text.encode())
        head = await self.retry(self.chain.head)
        block = await self.retry(lambda: self.chain.block(max(0, head.number - self.settings.chain.confirmations)))

        # 2. The document.
        report = self._last_report
        said = StepDocument(
            run=run,
            step=metadata.step,
            files=[_file_of(ref) for ref in metadata.files],
            left_out=self.left_out(),
            block=block.number,
            block_hash=hex_hash(block.hash),
            read=self._read,
            read_hash=self._read_hash,
            report=NOTHING if report is None else content_hash(report.to_bytes()),
        )
        await self.retry(lambda: self.client.add_document("step", said))
        return hash_bytes(content_hash(said.to_bytes()))

    async def anchor_again(self) -> None:
        """Put the newest step on chain once more where a reorg dropped it: no worker could make work for it."""
        if self._anchored is None:
            return
        step = self._anchored[0].step
        try:
            published = (await self.chain.call(runs.run_state(self.settings.run))).steps
        except (ChainError, UnreachableError) as error:
            log.warning("cannot see whether the step is on chain", step=step, reason=str(error))
            return
        if published <= step:
            log.warning("the step is no longer on chain", step=step)
            await self._anchor(*self._anchored)

    def _serve(self, step: int, model: Path, adapter: Path | None) -> tuple[Manifest, dict[str, float]]:
        """Publish a step into the folder that relays fetch from; return its manifest and sizes. Blocks.

        Raises MalformedError for weights that every node would refuse.
        """
        check_scale(model, self.terms.temperature)
        chosen = self.settings.shardcast
        manifest = publish(
            model,
            chosen.dir,
            self.settings.run,
            step,
            deltas=StepRetention(chosen.whole_every, chosen.kept_hours) if chosen.whole_every else None,
            adapter=adapter,
            link=True,  # a step's folder is replaced as a whole, never written into (trainer.checkpoint)
        )
        sizes = {WHOLE_BYTES: float(manifest.total_bytes)}
        difference = difference_to(chosen.dir, manifest)
        return manifest, sizes if difference is None else {**sizes, DELTA_BYTES: float(difference.total_bytes)}

    async def _anchor(self, metadata: CheckpointMetadata, root: bytes) -> None:
        """Put a step's roots on chain: tried until it takes them, or for as long as its kind of refusal may last.

        What it was trained on is signed once for all tries, and not at all for a step that is there already.
        """
        run, step, batch_root = self.settings.run, metadata.step, b""
        began = time.monotonic()
        since, last = began, None
        while True:
            try:
                await self.chain.await_pending()
                published = (await self.chain.call(runs.run_state(run))).steps
                if published > step:
                    return await self._check_published(step, root)
                if published == step:
                    batch_root = batch_root or await self._document(metadata)
                    mined = await self.chain.send(runs.publish_checkpoint(run, step, root, batch_root))
                    log.info("published", step=step, root="0x" + root.hex(), tx=mined.hash)
                    return None
                failure: MusterError = MismatchError(
                    f"step {step} is here to be published, but the run is at step {published - 1}",
                    hint="this state folder lacks a step: restore it, or train on from another",
                )  # or the RPC node lags behind
            except (ChainError, UnreachableError) as error:
                failure = error
            if isinstance(failure, RevertError) and failure.name == "RunIsClosed":
                raise FinishedError(
                    f"run {run} is closed: step {step} is not published, and the newest on chain is {step - 1}",
                    hint=f"muster weights fetch --step {step - 1} gets the run's last weights",
                ) from failure
            allowed, now = self._allowed(failure), time.monotonic()
            if allowed != last or allowed != math.inf:
                log.info("publishing later", step=step, reason=str(failure))
            if allowed == math.inf:
                began = now
            if allowed != last:
                last, since = allowed, now
            longest = self.terms.min_step_interval + PUBLISH_SECONDS + OUTAGE_SECONDS
            if not allowed or now - since > allowed or now - began > longest:
                raise failure
            await asyncio.sleep(self.options.poll_seconds)

    async def report(
        self,
        metadata: CheckpointMetadata,
        metrics: Mapping[str, float],
        stages: Mapping[str, float],
        *,
        finished: bool,
    ) -> None:
        """Report a step to the orchestrator, which needs to know what files are used up: a refusal is an error."""
        report = StepReport(
            run=self.settings.run,
            step=metadata.step,
            metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
            batch=list(metadata.batch),
            dropped=self._dropped,
            refuted=self.refuted,
            stages={name: round(seconds, 3) for name, seconds in stages.items()},
            finished=finished,
        )
        self._last_report = report
        await asyncio.to_thread(self.metrics.record, report)
        await self.retry(lambda: self.client.post_step(report))

    async def report_again(self) -> None:
        """Report the step once more, with the files left out and the rejections refuted since.

        Demand counts what waits for the trainer. A file that will never be used must not keep new work away: without
        new work no step would come after which it is too stale to count.
        """
        if self._last_report is not None:
            report = self._last_report = self._last_report.model_copy(
                update={"dropped": self._dropped, "refuted": self.refuted}
            )
            await self.retry(lambda: self.client.post_step(report))

    @property
    def _dropped(self) -> list[str]:
        return [one.file_hash for one in self.left_out()]

    async def retry(self, call: Callable[[], Any]) -> Any:
        """Repeat a call, up to ATTEMPTS times, while the other side is out of reach or says that it is not ready."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return await call()
            except (UnreachableError, RefusedError) as error:
                final = isinstance(error, RefusedError) and error.status < 500 and error.status != 404
                if final or not left:
                    raise
                log.warning("trying again", error=str(error))
                await asyncio.sleep(max(1.0, self.options.poll_seconds))
        raise AssertionError("unreachable")

    def _allowed(self, failure: MusterError) -> float:
        """Return for how many seconds the chain may refuse a step so; 0: it never takes it."""
        if isinstance(failure, RevertError) and failure.name in TOO_SOON:
            return self.terms.min_step_interval + PUBLISH_SECONDS
        if isinstance(failure, RevertError) and failure.name in UNJUDGED:
            return math.inf
        if isinstance(failure, RevertError | UnfundedError | WrongChainError):
            return 0.0
        return OUTAGE_SECONDS if isinstance(failure, UnreachableError) else PUBLISH_SECONDS

    async def _check_published(self, step: int, root: bytes) -> None:
        anchored = (await self.chain.checkpoint(self.settings.run, step)).manifest_root
        if anchored != root:
            raise MismatchError(
                f"step {step} on chain has manifest root 0x{anchored.hex()}, this folder's is 0x{root.hex()}",
                hint="this state folder is not the one the run was trained from so far",
            )


def _file_of(ref: FileRef) -> StepFile:
    grades = grades_hash(ref.grades) if ref.grades else None
    return StepFile.of(ref, grades=grades, verdicts=list(ref.verdicts))
