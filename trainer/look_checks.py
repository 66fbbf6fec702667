"""Replay rows of looks beside training: in another process, at low priority and on one thread, one look at a time.

What came of a row is in the journal when the next one begins. The process is restarted where it dies, and ends with the
trainer. What cannot be had now is tried again, after everything else.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_rollouts
from muster.errors import (
    TRANSIENT,
    CheckError,
    MalformedError,
    MismatchError,
    MusterError,
    NotFoundError,
    UnreachableError,
)
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.reasons import REASONS
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.settings.schema import MatmulSetting
from muster.verification.checks import check_file
from muster.verification.look import LookSeeds, decode_look
from muster.verification.model import check_row, shares_rejection
from muster.verification.profiles import Profile
from muster.verification.replay import Replayer
from muster.verification.rules import CommittedWork, Rules
from trainer.batches import FileRef, check_rows
from trainer.look_journal import NO_ROW, DueCheck
from trainer.looks import LookKeeper

POLL_SECONDS: Final = 2.0
NICENESS: Final = 19
ATTEMPTS: Final = 2
"""Processes that may die of the same rows, until these cannot be checked."""
REPLAY_SECONDS: Final = 3600.0
"""Longest that the rows of one look are replayed."""

Outcome = Literal["true", "false", "cannot", "refuted", "unnamed", "shared"]
"""Of a check. "unnamed": a rejection names no row. "shared": an arithmetic rejects the row as well."""

log = telemetry.logger("trainer")
CHECKED: Final = telemetry.counter("trainer_rows_checked", "Rows of looks that were replayed", ("outcome",))


@dataclass(frozen=True, eq=False)
class RowToCheck:
    rollout: Rollout
    claimed: np.ndarray | None = None
    """Of a look: its numbers, [2, K]; None to ask whether the row is to be rejected."""
    seeds: LookSeeds | None = None
    accepted: bool = False


def outcome_of(replayer: Replayer, row: RowToCheck) -> Outcome:
    """Return what comes of a row under the loaded weights."""
    if row.claimed is None or row.seeds is None:
        return "shared" if shares_rejection(replayer, row.rollout) else "refuted"
    return check_row(replayer, row.rollout, row.claimed, row.seeds, accepted=row.accepted)


def _serve(pipe: Connection, profile: Profile, temperature: float, matmul: MatmulSetting) -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the trainer ends this process
    with suppress(OSError):
        os.nice(NICENESS)
    replayer: Replayer | None = None
    while True:
        try:
            folder, rows = pipe.recv()
        except EOFError:
            return
        try:
            replayer = replayer or Replayer(folder, profile, temperature, keep=1, threads=1, matmul=matmul)
            replayer.load_weights(folder)
            pipe.send([outcome_of(replayer, row) for row in rows])
        except MusterError as error:
            pipe.send(str(error))


class ReplayProcess:
    """A process that replays rows. Started when it is first asked."""

    def __init__(self, profile: Profile, temperature: float, matmul: MatmulSetting) -> None:
        self._options = profile, temperature, matmul
        self.process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    async def outcomes(self, folder: Path, rows: Sequence[RowToCheck]) -> list[Outcome]:
        """Return what comes of rows under the weights in a folder. Raises UnreachableError for weights of no use."""
        for _ in range(ATTEMPTS):
            try:
                answer = await asyncio.to_thread(self._ask, folder, list(rows))
            except (EOFError, OSError):
                log.warning("the process that checks looks died", rows=len(rows))
                self.close()
                continue
            if isinstance(answer, str):
                raise UnreachableError(f"rows cannot be replayed: {answer}")
            return answer
        return ["cannot"] * len(rows)

    def _ask(self, folder: Path, rows: list[RowToCheck]) -> Any:
        """Blocks until it is answered. Raises EOFError or OSError where the process dies, or does not answer."""
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, *self._options), daemon=True, name="looks")
            self.process.start()
            theirs.close()
        self._pipe.send((folder, rows))
        if not self._pipe.poll(REPLAY_SECONDS):
            raise EOFError
        return self._pipe.recv()

    def close(self) -> None:
        """End the process, at once."""
        process, self.process, self._pipe = self.process, None, None
        if process is not None:
            process.kill()
            process.join()


@dataclass(eq=False)
class LookChecker:
    """Does the checks that a journal names, one look after another."""

    keeper: LookKeeper
    client: OrchestratorClient
    reader: RolloutReader
    checkpoints: CheckpointFetcher
    tasks: RunTasks
    rules: Rules
    replays: ReplayProcess
    report: Callable[[], Awaitable[None]]
    """Reports the rejections that are refuted."""

    async def poll(self) -> Next:
        """Do the next checks. Raises TRANSIENT errors."""
        checks = self.keeper.journal.next_checks()
        if not checks:
            return IDLE
        try:
            outcomes = await self.outcomes(checks)
        except TRANSIENT:
            self.keeper.journal.put_off(checks)
            raise
        for check, outcome in zip(checks, outcomes, strict=True):
            more = self.keeper.search(check) if outcome == "false" else ()
            self.keeper.journal.conclude(check, outcome, more)
            CHECKED.labels(outcome=outcome).inc()
        if "refuted" in outcomes or "unnamed" in outcomes:
            await self.report()
        return AGAIN

    async def outcomes(self, checks: Sequence[DueCheck]) -> list[Outcome]:
        """Return what comes of checks of one kind, about one verdict."""
        first, terms = checks[0], self.rules.terms
        c = self.keeper.journal.commitment(first.node, first.index)
        if c is None or c.root != hash_bytes(first.root):
            return ["cannot"] * len(checks)
        if first.kind == "rejection":
            return await self._refute(checks, c)
        look = self.keeper.look_of(first)
        if look is None or look.link is None:
            return ["cannot"] * len(checks)
        claimed = decode_look(look.verdict.look, len(look.rows(terms)), self.keeper.profile)
        assert claimed is not None, "it has numbers for each drawn row"
        places = {position: place for place, position in enumerate(look.rows(terms))}
        if any(check.position not in places for check in checks):  # another block draws others since a reorg
            return ["cannot"] * len(checks)
        try:
            rollouts = await self._rollouts(c)
        except (MalformedError, MismatchError):  # rows that cannot be replayed
            return ["false" if look.verdict.accepted else "cannot"] * len(checks)
        except NotFoundError:
            return ["cannot"] * len(checks)
        rows = [
            RowToCheck(rollouts[p], claimed[places[p]], look.seeds, look.verdict.accepted)
            for p in (check.position for check in checks)
        ]
        return await self._replay(c, rows)

    async def _refute(self, checks: Sequence[DueCheck], c: CommittedWork) -> list[Outcome]:
        """Return whether a rejection is shared: by the static checks, or by a replay of the row that it names."""
        if checks[0].position == NO_ROW:
            return ["unnamed"] * len(checks)
        rejected = next(one for one, _ in self.keeper.journal.came(c) if one.validator == checks[0].validator)
        if rejected.accepted:  # since a reorg
            return ["shared"] * len(checks)
        try:
            rollouts = await self._rollouts(c)
        except CheckError:  # as it says, or perhaps so
            return ["shared"] * len(checks)
        if rejected.reason is None or REASONS[rejected.reason].shown_by != "replay":
            draw = self.rules.draw(await self.keeper.chain.draw_source(c.node), c.index)
            await self.tasks.ensure_slots((group.task for group in draw.groups), self.rules.at(c.step).task_set.epoch)
            finding = await asyncio.to_thread(check_file, rollouts, c, draw, self.rules)
            return ["refuted" if finding is None else "shared"] * len(checks)
        return await self._replay(c, [RowToCheck(rollouts[check.position]) for check in checks])

    async def _rollouts(self, c: CommittedWork) -> list[Rollout]:
        """Return the rows of a commitment. Raises CheckError where the model cannot score them, and as the client."""
        upload = await self.client.upload(c.run, c.node, c.index, c.root)
        name, terms = upload.receipt.file_hash, self.rules.terms
        rollouts = await fetch_rollouts(self.client, self.reader, name, c.root, terms)
        ref = FileRef(c.step, c.node, c.index, name, hex_hash(c.root))
        check_rows(rollouts, c.run, ref, terms, self.rules.model.vocabulary)
        return rollouts

    async def _replay(self, c: CommittedWork, rows: Sequence[RowToCheck]) -> list[Outcome]:
        log.debug("checking a look", node=c.node, index=c.index, rows=len(rows))
        async with self.checkpoints.used(c.step) as folder:
            return await self.replays.outcomes(folder, rows)
