"""Members of a run as load on an orchestrator, for benchmarks/service.py.

    python -m benchmarks.service_members

It reads a `Load` from stdin, says "connected" when all are in place, waits for "go", says "begun" when it begins to
count, and prints its counts after the load's seconds.

A member holds a connection and asks for the run's demand every POLL_SECONDS, as a worker without work does. Where the
answer has a tag, it asks the orchestrator to hold the next one until that changes. Once a minute it signs what it asks.
Every COMMIT_SECONDS it uploads a file and commits to it on chain, and JUDGES validators post a verdict each. Every
REPORT_SECONDS it reports its machine. What is refused is sent again after RETRY_SECONDS and takes until it is accepted.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from benchmarks.service_load import RETRY_SECONDS, Line, Load, begin, request_of
from benchmarks.watched import cpu_of, done
from muster.clients.orchestrator import HELD_SECONDS
from muster.contracts.runs import WorkCommitted
from muster.protocol.announcements import MachineReport
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Verdict
from muster.protocol.receipts import sign_text, upload_target
from testbed.chain.emitter import emission
from testbed.signing import QuickSigner

POLL_SECONDS: Final = 2.0
"""The chain.poll_seconds of nodes that join by `muster up`."""
BURST_SECONDS: Final = 1.0
INTRODUCE_SECONDS: Final = 60.0
COMMIT_SECONDS: Final = 480.0
REPORT_SECONDS: Final = 120.0
VERDICT_SECONDS: Final = 10.0
"""From an upload to its verdicts: the follower has read the commitment by then."""
JUDGES: Final = 4
UPLOAD_BYTES: Final = 20_000
AT_ONCE: Final = 50


def demand_target(run: int, tag: str) -> str:
    """Return what a member asks for: the demand, to be held while it has this tag."""
    held = f"?wait={HELD_SECONDS}&seen={quote(tag)}" if tag else ""
    return f"/v1/runs/{run}/demand{held}"


class Counts:
    """How long answers took that came since `begin`, by their kind, and which statuses they had."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"waits": [], "writes": []}
        self.statuses: Counter[int] = Counter()
        self._since = float("inf")
        self._open: dict[object, tuple[str, float]] = {}

    def begin(self) -> None:
        self._since = time.monotonic()

    def asked(self, kind: str, held: float = 0.0) -> object:
        """Note that an answer is awaited from now on; return what names it. held: seconds that it may be held."""
        key = object()
        self._open[key] = kind, time.monotonic() + held
        return key

    def answered(self, key: object, late: float | None = None) -> None:
        """Note that an answer is there. late: seconds that count instead of those that it took beyond what it may."""
        kind, due = self._open.pop(key)
        now = time.monotonic()
        if now >= self._since:
            self.seconds[kind].append(max(0.0, now - due) if late is None else late)

    def lost(self, key: object) -> None:
        """Note that the connection ended before the answer."""
        del self._open[key]
        self.saw(0)

    def saw(self, status: int) -> None:
        """Count a status; 0 for a lost connection."""
        self.statuses[status] += time.monotonic() >= self._since

    def finish(self) -> None:
        """Count answers that are still awaited, and not just held, as ones that took until now."""
        now = time.monotonic()
        for kind, due in self._open.values():
            if now > due:
                self.seconds[kind].append(now - due)


class Wakes:
    """When members that are held are woken: how long after the first of them each one is."""

    def __init__(self) -> None:
        self._bursts: dict[str, tuple[float, float]] = {}
        """By tag, the seconds of the first and of the newest answer of the last burst."""

    def late(self, tag: str, now: float) -> float:
        """Return the seconds since the first answer with this tag. After BURST_SECONDS without any it is a new one."""
        first, newest = self._bursts.get(tag, (now, now))
        self._bursts[tag] = first, now = (first if now - newest <= BURST_SECONDS else now), now
        return now - first


class Crowd:
    """All members of one process."""

    def __init__(self, load: Load) -> None:
        self.load, self.counts = load, Counts()
        self.workers = [QuickSigner(key, load.domain) for key in load.keys]
        self.judges = [QuickSigner(key, load.domain) for key in load.judges]
        self.lines: list[Line | None] = [None] * len(self.workers)
        self._next = list(load.next_indices)
        self._verdicts: list[asyncio.Queue[Callable[[], bytes]]] = [asyncio.Queue() for _ in self.judges]
        self._turn = itertools.cycle(range(len(self.judges)))
        self._mined: asyncio.Queue[str] = asyncio.Queue()
        self._wakes = Wakes()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._connected = 0
        self.ready = asyncio.Event()

    async def live(self, group: asyncio.TaskGroup) -> None:
        """Begin everything that members do."""
        for number in range(len(self.workers)):
            group.create_task(self._wait(number))
        await self.ready.wait()
        group.create_task(self._chain())
        for number in range(len(self.judges)):
            group.create_task(self._judge(number))
        group.create_task(self._each(COMMIT_SECONDS, lambda number: group.create_task(self._work(number))))
        group.create_task(self._each(REPORT_SECONDS, lambda number: group.create_task(self._report(number))))

    async def _each(self, every: float, act: Callable[[int], object]) -> None:
        """Let each member act once in so many seconds, one after the other."""
        begun, count = time.monotonic(), len(self.workers)
        for turn in itertools.count():
            await asyncio.sleep(begun + turn * every / count - time.monotonic())
            act(turn % count)

    async def _wait(self, number: int) -> None:
        """Hold a connection and ask for the demand, for ever."""
        tag, signed = "", float("-inf")
        while True:
            line = self.lines[number]
            try:
                if line is None:
                    async with self._slots:
                        line = await Line.open(self.load.port, number, 3)
                        signed = time.monotonic() - random.uniform(0, INTRODUCE_SECONDS)
                        await line.ask(self._demand("", self.workers[number]))
                    self.lines[number] = line
                    self._connected += 1
                    if self._connected >= len(self.workers):
                        self.ready.set()
                    await asyncio.sleep(random.uniform(0, POLL_SECONDS))
                if not line.is_free:  # a write is under way
                    await asyncio.sleep(POLL_SECONDS / 10)
                    continue
                due = time.monotonic() - signed >= INTRODUCE_SECONDS
                signed = time.monotonic() if due else signed
                tag = await self._ask_demand(line, tag, self.workers[number] if due else None)
            except OSError:
                self.lines[number] = None
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask_demand(self, line: Line, tag: str, signer: QuickSigner | None) -> str:
        """Ask once; return the tag of the answer, "" where the orchestrator does not hold answers."""
        asked, key = time.monotonic(), self.counts.asked("waits", held=HELD_SECONDS if tag else 0.0)
        try:
            answer = await line.ask(self._demand(tag, signer))
        except OSError:
            self.counts.lost(key)
            raise
        now, changed = time.monotonic(), answer.tag != tag
        self.counts.saw(answer.status)
        self.counts.answered(key, self._wakes.late(answer.tag, now) if tag and changed else None)
        if not answer.tag or (not changed and now - asked < POLL_SECONDS):
            await asyncio.sleep(POLL_SECONDS)
        return answer.tag

    def _demand(self, tag: str, signer: QuickSigner | None) -> bytes:
        return request_of(self.load, "GET", demand_target(self.load.run, tag), signer=signer)

    async def _deliver(self, make: Callable[[], bytes], line: Line | None, number: int, network: int) -> Line:
        """Send a write until it is accepted, on a separate connection where this one is busy; return its connection."""
        key, own = self.counts.asked("writes"), line
        while True:
            try:
                if own is None or not own.is_free:
                    own = await Line.open(self.load.port, number, network)
                answer = await own.ask(make())
                self.counts.saw(answer.status)
                if answer.status in (200, 201):
                    self.counts.answered(key)
                    return own
            except OSError:
                own = None
                self.counts.saw(0)
            await asyncio.sleep(RETRY_SECONDS)

    async def _worker_writes(self, number: int, make: Callable[[], bytes]) -> None:
        line = self.lines[number]
        used = await self._deliver(make, line, number, 3)
        if used is not self.lines[number]:
            used.close()

    async def _work(self, number: int) -> None:
        """Upload a file, commit to it, and let validators judge it."""
        load, worker, data = self.load, self.workers[number], os.urandom(UPLOAD_BYTES)
        index, root, name = self._next[number], os.urandom(32), content_hash(data)
        self._next[number] += 1
        target = "?".join(upload_target(name, load.run, index, f"0x{root.hex()}"))
        await self._worker_writes(number, lambda: request_of(load, "PUT", target, data, worker, name=name))
        event = {"run": load.run, "node": worker.address, "step": load.step, "index": index, "hour": load.hour}
        self._mined.put_nowait(emission(WorkCommitted.ABI, **event, root=root))
        await asyncio.sleep(VERDICT_SECONDS)
        for _ in range(JUDGES):
            judge = next(self._turn)
            verdict = self._verdict(judge, worker.address, index, f"0x{root.hex()}", name)
            self._verdicts[judge].put_nowait(verdict)

    def _verdict(self, judge: int, node: str, index: int, root: str, name: str) -> Callable[[], bytes]:
        signer = self.judges[judge]
        work = {"run": self.load.run, "step": self.load.step, "node": node, "index": index, "root": root}
        own = {"validator": signer.address, "inspected": 2}
        verdict = Verdict(**work, **own, file_hash=name, accepted=True, signature=UNSIGNED)  # type: ignore[arg-type]
        body = sign_message(signer, self.load.domain, verdict).model_dump_json().encode()
        return lambda: request_of(self.load, "POST", "/v1/verdicts", body, signer)

    async def _judge(self, number: int) -> None:
        """Post a validator's verdicts, one after the other."""
        line = None
        while True:
            line = await self._deliver(await self._verdicts[number].get(), line, number, 4)

    async def _report(self, number: int) -> None:
        """Report a worker's machine."""
        speed = 1_000.0 + random.random()
        report = MachineReport(run=self.load.run, device="NVIDIA L40S", devices=1, tokens_per_second=speed)
        target, signer = f"/v1/runs/{self.load.run}/current", self.workers[number]
        body = sign_text(signer, self.load.domain, "machine", report).to_bytes()
        await self._worker_writes(number, lambda: request_of(self.load, "POST", target, body, signer))

    async def _chain(self) -> None:
        """Emit commitments, all that wait in one request."""
        line, load = await Line.open(self.load.chain_port, 0, 0), self.load
        while True:
            waiting = [await self._mined.get()]
            while not self._mined.empty():
                waiting.append(self._mined.get_nowait())
            fields = {"from": load.sender, "to": load.runs, "gas": "0x30d40"}
            body = json.dumps(
                [
                    {
                        "jsonrpc": "2.0",
                        "id": number,
                        "method": "eth_sendTransaction",
                        "params": [{**fields, "data": data}],
                    }
                    for number, data in enumerate(waiting)
                ]
            ).encode()
            answer = await line.ask(request_of(load, "POST", "/", body))
            if b'"error"' in answer.body:
                raise SystemExit(f"the chain refused: {answer.body[:300]!r}")


async def members(load: Load) -> None:
    """Be the load's members; after a line on stdin, count for its seconds."""
    crowd = Crowd(load)
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.live(group))
        await crowd.ready.wait()
        connected = time.monotonic()
        print("connected null", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(max(0.0, connected + VERDICT_SECONDS + POLL_SECONDS - time.monotonic()))
        crowd.counts.begin()
        print("begun", flush=True)
        spent = cpu_of(os.getpid())
        await asyncio.sleep(load.seconds)
        crowd.counts.finish()
        spent = (cpu_of(os.getpid()) - spent) / load.seconds
        each = {kind: _quantiles(seconds) for kind, seconds in crowd.counts.seconds.items()}
        both = [seconds for kind in crowd.counts.seconds.values() for seconds in kind]
        done(both, (50, 99), kinds=each, statuses=crowd.counts.statuses, load_cpu=spent)
        await asyncio.Event().wait()


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    return {"answers": len(seconds), "p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)]}


if __name__ == "__main__":
    begin(members)
