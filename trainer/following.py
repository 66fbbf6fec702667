"""Follow a run's log and chain into the trainer's journal, beside training: python -m trainer.following.

The process belongs to one trainer (`FollowProcess`), writes the journal while it is asked to, and ends with it. The key
stays with the trainer, which signs the requests by which this process reads as a member: no others. What is trained on
(`trainer.accepted_work`) and what is paid for looking (`trainer.looks`) is read from the journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.cursor import EventCursor
from muster.chain.reads import ChainReader
from muster.clients.looks import read_call, shown_links
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.court import CaseOpened, CaseResolved
from muster.contracts.registry import Convicted
from muster.contracts.runs import HourSealed, WorkCommitted
from muster.errors import TRANSIENT, ChainError, CheckError, MusterError, UnreachableError
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, sign_message
from muster.protocol.messages import SignedRequest, Verdict
from muster.protocol.receipts import check_verdict
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.module_command import module_command
from muster.runtime.retries import Repeats
from muster.settings.schema import Settings
from muster.verification.rules import CommittedWork
from trainer.look_journal import LookJournal

KINDS: Final = (WorkCommitted, HourSealed, CaseOpened, CaseResolved, Convicted)
CALLS: Final = 4
"""Commitments of which it is read at the same time who is called to them."""
NICENESS: Final = 5
FOLLOW_SECONDS: Final = 600.0
"""Longest wait until log and chain are followed up to now. What was taken in until then is in the journal."""

log = telemetry.logger("trainer")


def journal_of(settings: Settings, chain: ChainReader) -> LookJournal:
    """Open the trainer's journal."""
    identity = f"run {settings.run} on chain {chain.chain_id} at {chain.addresses.runs}"
    return LookJournal(settings.trainer.state_dir / "looks", identity, settings.run)


class FollowProcess:
    """The trainer's end. The process is started when it is first asked, and again where it died."""

    def __init__(self, settings: Settings, signer: TypedSigner, where: Domain) -> None:
        self._settings, self._signer, self._where = settings, signer, where
        self._turn = asyncio.Lock()
        self.process: Process | None = None

    async def follow(self) -> None:
        """Bring the journal up to now. Raises UnreachableError with what hinders it."""
        async with self._turn:
            try:
                async with asyncio.timeout(FOLLOW_SECONDS):
                    hindrance = await self._ask()
            except (OSError, TimeoutError, ValueError) as error:
                await self.close()
                raise UnreachableError(f"the process that follows log and chain fails: {error!r}") from error
            except asyncio.CancelledError:  # its answer would be taken for that to the next question
                await self.close()
                raise
        if hindrance:
            raise UnreachableError(hindrance)

    async def _ask(self) -> str:
        """Return why the journal is not up to now, or "". Raises OSError or ValueError where the process fails."""
        if self.process is None:
            command = module_command("trainer.following")
            self.process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            self._send(self._settings.model_dump_json())
        self._send("")
        assert self.process.stdout is not None
        while "failed" not in (said := json.loads(await self.process.stdout.readline())):
            request = SignedRequest(**said, signature=UNSIGNED)
            if request.method != "GET":
                raise ValueError(f"it asks for the signature of a {request.method}")
            self._send(sign_message(self._signer, self._where, request).signature)
        return said["failed"]

    def _send(self, line: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def close(self) -> None:
        """End the process, at once."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


# In the process


@dataclass(eq=False)
class RunFollower:
    """Follows one run. One task calls it."""

    chain: ChainReader
    client: OrchestratorClient
    run: int
    terms: Terms
    journal: LookJournal

    def __post_init__(self) -> None:
        self._cursor = EventCursor(self.chain, self.journal.path.parent / "cursor.json", KINDS, run=self.run)
        self._repeats = Repeats()

    async def follow(self) -> None:
        """Take in new verdicts, then what the chain has: a link that is shown comes after the verdicts of its hour.

        Raises TRANSIENT errors.
        """
        while True:
            given, place = await self.client.verdicts(self.run, self.journal.place)
            came = await asyncio.to_thread(self._checked, given)
            if not given:
                break
            self.journal.keep_verdicts(came, place)
        more = True
        while more:
            batch = await self._cursor.poll()
            seals = [event for event in batch if isinstance(event, HourSealed)]
            seals = [event for event in seals if event.hour > self.journal.last_hour]
            self.journal.record(batch, await shown_links(self.chain, seals))
            await self._cursor.ack()
            more = batch.more
        await self._read_calls(self.journal.uncalled())

    def _checked(self, came: Sequence[tuple[Verdict, int]]) -> list[tuple[Verdict, int]]:
        """Return those that their validators signed, with addresses as the chain writes them."""
        kept = []
        for verdict, second in came:
            try:
                check_verdict(self.client.domain, verdict)
            except CheckError as error:
                log.warning("ignoring a verdict", validator=verdict.validator, reason=str(error))
                continue
            of = {name: to_checksum_address(getattr(verdict, name)) for name in ("validator", "node")}
            kept.append((verdict.model_copy(update=of), second))
        return [(verdict, second) for verdict, second in kept if verdict.run == self.run]

    async def _read_calls(self, works: Sequence[CommittedWork]) -> None:
        """Read who is called to commitments. One of which that cannot be had now is read again the next time."""
        gate = asyncio.Semaphore(CALLS)

        async def read(c: CommittedWork) -> None:
            try:
                async with gate:
                    self.journal.know(await read_call(self.chain, self.client, self.terms, c))
            except (CheckError, ChainError) as error:
                if self._repeats.count(("call", str(error)), time.monotonic()) is not None:
                    log.warning("who is called to a commitment is not known", node=c.node, index=c.index, reason=error)

        await asyncio.gather(*map(read, works))


class AskedSigner:
    """The trainer's key: it is asked for each signature."""

    def __init__(self, address: str) -> None:
        self.address = address

    def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
        """Return the trainer's signature of a request. Blocks."""
        values = {name: "0x" + one.hex() if isinstance(one, bytes) else one for name, one in message.items()}
        values["body_hash"] = values.pop("bodyHash")
        print(json.dumps(values), flush=True)
        return bytes.fromhex(sys.stdin.readline().strip().removeprefix("0x"))


async def serve() -> None:
    """Follow log and chain whenever a line comes, until stdin is closed."""
    settings = Settings.model_validate_json(sys.stdin.readline())
    telemetry.configure(settings.name or "trainer", log_file=settings.log.file, level=settings.log.level)
    with suppress(OSError):
        os.nice(NICENESS)
    run, url = settings.run, settings.orchestrator.url
    async with await Chain.connect(settings.chain) as chain:
        terms, signer = await chain.terms(run), AskedSigner((await chain.keys_now(run)).trainer)
        with journal_of(settings, chain) as journal:
            async with OrchestratorClient.on_chain(url, chain, signer) as client:
                follower = RunFollower(chain, client, run, terms, journal)
                while await asyncio.to_thread(sys.stdin.readline):
                    print(json.dumps({"failed": await _follow(follower)}), flush=True)


async def _follow(follower: RunFollower) -> str:
    try:
        await follower.follow()
    except TRANSIENT as error:
        return str(error)
    return ""


def main() -> None:
    """Serve one trainer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the trainer ends this process
    try:
        asyncio.run(serve())
    except MusterError as error:
        print(json.dumps({"failed": str(error)}), flush=True)


if __name__ == "__main__":
    main()
