"""Accepted work, from the orchestrator's list to rollouts in memory, without trusting the list.

The orchestrator says which work was accepted and holds the files. Three things are checked here: the validators'
signatures show that enough of those called accepted it; the chain shows that it was committed; and the recomputed root
shows that the file is the one they mean. A file that fails is refused for good and reported; it never stops a step. In
a run with private tests a file is of use once it is graded (`trainer.grading`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import fetch_rollouts
from muster.contracts import runs
from muster.contracts.registry import Role, Status
from muster.errors import (
    ChainError,
    CheckError,
    MalformedError,
    MismatchError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.messages import AcceptedCommitment
from muster.protocol.receipts import check_verdict
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from trainer.batches import FileRef, WorkFile, check_rows
from trainer.grading import Grader, with_grades

FETCHES: Final = 4
"""Files fetched, and claims asked the chain about, at the same time."""
GONE_SECONDS: Final = 300.0
"""A file that no poll finds for so long is refused: what was accepted had been uploaded. A chain that does not show yet
what the orchestrator has seen there is waited for as long."""
BONDED: Final = (Status.ACTIVE, Status.RETIRED)
"""States in which a validator's acceptance counts: its stake is still locked, also while it leaves."""

Takers = Callable[[AcceptedCommitment], Awaitable[set[str]]]

log = telemetry.logger("trainer")
REFUSED = telemetry.counter("trainer_refused_files", "Accepted files that the trainer would not use")


@dataclass(frozen=True)
class PollResult:
    """What one poll of the orchestrator's list brought."""

    fresh: int
    """Files that are new and good."""
    refused: tuple[str, ...]
    """Hashes of files that will never be used."""


class _UnseenError(CheckError):
    """The chain does not show what is claimed: perhaps not yet, since an RPC node can lag behind."""


_NOT_OF_THE_FILE: Final = (UnreachableError, ChainError, RefusedError, _UnseenError)
"""Errors that say nothing about the file itself."""


@dataclass
class AcceptedWork:
    """The files that could go into a batch. Bounded by what the run can commit within its async level."""

    chain: ChainReader
    client: OrchestratorClient
    reader: RolloutReader
    run: int
    terms: Terms
    vocabulary: int
    """Number of token ids that the model knows."""
    grader: Grader | None = None
    """In a run with private tests. Set before the first poll."""
    takers: Takers | None = None
    """Returns whose verdicts about accepted work took places (`trainer.looks`). Set before the first poll."""
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES), init=False)
    _claims: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES), init=False)
    by_hash: dict[str, WorkFile] = field(default_factory=dict, init=False)
    _refused: dict[str, int] = field(default_factory=dict, init=False)
    _gone: dict[str, float] = field(default_factory=dict, init=False)
    """Files not found, or not seen on chain, since this time."""

    @property
    def files(self) -> list[WorkFile]:
        """Return the files in memory, in order of arrival."""
        return list(self.by_hash.values())

    @property
    def waits(self) -> bool:
        """Return whether there is work, graded or not."""
        return bool(self.files or (self.grader and self.grader.names))

    @property
    def refused(self) -> list[str]:
        """Hashes of files that will never be used, of steps that can still come again."""
        return list(self._refused)

    def forget(self, hashes: Iterable[str], oldest_step: int) -> None:
        """Drop files that were used, and refusals of steps that cannot come again."""
        for name in hashes:
            self.by_hash.pop(name, None)
        self._refused = {name: step for name, step in self._refused.items() if step >= oldest_step}

    def refuse_all(self) -> list[WorkFile]:
        """Refuse all files in memory, since none has a signal; return them."""
        files = self.files
        self._refused |= {name: file.ref.step for name, file in self.by_hash.items()}
        self.by_hash.clear()
        return files

    async def poll(self, min_step: int, used: Iterable[str]) -> PollResult:
        """Fetch whatever was accepted since the last poll, and drop what is accepted no more.

        Raises UnreachableError, ChainError or CheckError when the list cannot be had now.
        """
        accepted = await self.client.accepted(self.run, min_step)
        names = {work.file_hash for work in accepted}
        self.by_hash = {name: file for name, file in self.by_hash.items() if name in names}
        known = set(used) | self.by_hash.keys() | self._refused.keys()
        if self.grader:
            known |= self.grader.names
        listed = [work for work in accepted if work.file_hash not in known][: self.grader.room if self.grader else None]
        self._gone = {name: since for name, since in self._gone.items() if name in names}
        results = [*zip(listed, await asyncio.gather(*(self._take(work) for work in listed)), strict=True)]
        graded = self.grader.collect(names) if self.grader else ()
        fresh, refused = 0, []
        for work, found in [*results, *((file.ref, why or file) for file, why in graded)]:
            if isinstance(found, WorkFile) and self.grader and not found.ref.grades:
                self.grader.offer(found)
            elif isinstance(found, WorkFile):
                self.by_hash[work.file_hash] = found
                fresh += 1
            elif isinstance(found, str):
                self._refused[work.file_hash] = work.step
                refused.append(work.file_hash)
                REFUSED.inc()
                about = {"file": work.file_hash, "node": work.node, "index": work.index}
                log.warning("refused a file", **about, reason=found)
        return PollResult(fresh, tuple(refused))

    async def fetch(self, ref: FileRef) -> WorkFile:
        """Fetch a file of a closed batch. Raises CheckError when it is not the one that the batch names."""
        async with self._gate:
            name, root = ref.file_hash, hash_bytes(ref.root)
            rollouts = await fetch_rollouts(self.client, self.reader, name, root, self.terms)
        if ref.grades:
            rollouts = with_grades(rollouts, ref.grades)
        check_rows(rollouts, self.run, ref, self.terms, self.vocabulary)
        return WorkFile(ref, tuple(rollouts))

    async def _take(self, work: AcceptedCommitment) -> WorkFile | str | None:
        """Return the file, or why it will never be used, or None when that cannot be decided now."""
        known = work.file_hash in self._gone
        since = self._gone.pop(work.file_hash, time.monotonic())
        try:
            async with self._claims:
                await self.check_claim(work)
            given = tuple(content_hash(verdict.to_bytes()) for verdict in work.verdicts if verdict.accepted)
            ref = FileRef(work.step, work.node, work.index, work.file_hash, work.root, verdicts=given)
            return await self.fetch(ref)
        except _NOT_OF_THE_FILE as error:
            if isinstance(error, _UnseenError | NotFoundError):
                if time.monotonic() - since > GONE_SECONDS:
                    return f"for {GONE_SECONDS:g} s now: {error}"
                self._gone[work.file_hash] = since
            if not known:
                log.warning("cannot check a file now", file=work.file_hash, error=str(error))
            return None
        except CheckError as error:
            return str(error)

    async def check_claim(self, work: AcceptedCommitment) -> None:
        """Check that enough validators of the run signed that they accept just this, and that the chain has it.

        Raises CheckError, _UnseenError where the chain may show it later, and as the chain's reads.
        """
        for verdict in work.verdicts:
            about = (verdict.run, verdict.step, verdict.node, verdict.index, verdict.root, verdict.file_hash)
            if about != (self.run, work.step, work.node, work.index, work.root, work.file_hash):
                raise MismatchError(f"a verdict by {verdict.validator} is about another commitment")
            check_verdict(self.client.domain, verdict)
        accepting = {to_checksum_address(verdict.validator) for verdict in work.verdicts if verdict.accepted}
        required = self.terms.accepts_required
        if len(accepting) < required:
            raise MismatchError(f"{len(accepting)} signed that they accept it, {required} must")
        assert self.takers is not None, "it is set before the first poll"
        try:
            accepting &= await self.takers(work)
        except (MalformedError, MismatchError) as error:
            raise _UnseenError(f"who is called to it: {error}") from error
        if len(accepting) < required:
            raise _UnseenError(f"{len(accepting)} that accept it are seen to hold places of it, {required} must")
        nodes = await self.chain.nodes([work.node, *sorted(accepting)])
        if nodes[0].status == Status.JAILED:
            raise MismatchError("its node was convicted")
        able = sum(n.role == Role.VALIDATOR and n.run == self.run and n.status in BONDED for n in nodes[1:])
        if able < required:
            raise _UnseenError(f"{able} of the signers are bonded validators of the run, {required} must be")
        if not await self.chain.call(runs.is_committed(work.node, work.index, work.step, hash_bytes(work.root))):
            raise _UnseenError("the chain has no such commitment")
