"""Load on an orchestrator for benchmarks/service.py: members that wait and work, and strangers who mean harm.

    python -m benchmarks.service_load KIND

Each kind is one process. It reads a `Load` from stdin, says "connected" when it is in place, and works until it is
killed. `members` then waits for "go", says "begun" when it begins to count, and prints its counts after the load's
seconds.

A member holds a connection and asks for the run's demand every POLL_SECONDS, as a worker without work does. Where the
answer has a tag, it asks the orchestrator to hold the next one until that changes. Once a minute it signs what it asks.
Every COMMIT_SECONDS it uploads a file and commits to it on chain, and JUDGES validators post a verdict each. Every
REPORT_SECONDS it reports its machine. What is refused is sent again after RETRY_SECONDS and takes until it is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from eth_utils.crypto import keccak

from benchmarks.page_cost import Load as Workers
from benchmarks.watched import cpu_of, done
from muster.contracts.runs import WorkCommitted
from muster.protocol.announcements import MachineReport
from muster.protocol.draws import chain_preimages
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import NOTHING_HASH, content_hash
from muster.protocol.messages import Verdict
from muster.protocol.receipts import upload_target
from muster.protocol.requests import sign_request
from testbed.chain.emitter import emission
from testbed.signing import QuickSigner

POLL_SECONDS: Final = 2.0
"""The default of worker.poll_seconds."""
HOLD_SECONDS: Final = 25
BURST_SECONDS: Final = 1.0
INTRODUCE_SECONDS: Final = 60.0
COMMIT_SECONDS: Final = 480.0
REPORT_SECONDS: Final = 120.0
VERDICT_SECONDS: Final = 10.0
"""From an upload to its verdicts: the follower has read the commitment by then."""
RETRY_SECONDS: Final = 1.0
JUDGES: Final = 4
LINKS: Final = 1 << 10
UPLOAD_BYTES: Final = 20_000
AT_ONCE: Final = 50
ADDRESSES: Final = 50
"""Of this machine, among which the parties of a process divide."""
TRICKLE_SECONDS: Final = 1.0
HEADS: Final = 2_000
READERS: Final = 64
WORST: Final = 4
"""Reads that the readers take turns with."""
SIGNATURES: Final = 200
"""A second."""
STRANGERS: Final = 800
"""Connections of those who sign."""
HELD: Final = 64
HELD_BYTES: Final = 500_000
HELD_SHARE: Final = 0.4

_LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_TAG: Final = re.compile(rb"etag: *(\S+)", re.IGNORECASE)


class Load(Workers):
    """What the processes need to know. `keys` are the members'."""

    judges: list[str]
    """Keys of validators."""
    chain_port: int
    runs: str
    """Address of the contract, which has a proxy that emits."""
    sender: str
    step: int
    hour: int
    seconds: float = 0.0

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def domain(self) -> Domain:
        return Domain(self.chain_id, self.registry)


def chain_links(secret: str) -> tuple[list[bytes], str]:
    """Return the hash chain of a validator, front to back, and its tip."""
    links = chain_preimages(hashlib.sha256(secret.encode()).digest(), LINKS)
    return links, "0x" + keccak(links[0]).hex()


# --- Requests


@dataclass(frozen=True)
class Answer:
    status: int
    tag: str
    body: bytes


class Line(asyncio.Protocol):
    """A connection that stays open and carries one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, port: int, number: int, network: int) -> Line:
        """Connect from an address that follows from `number`. network: each kind of party has its own addresses."""
        source = f"127.0.{network}.{1 + number % ADDRESSES}"
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port, local_addr=(source, 0)))[1]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    @property
    def is_free(self) -> bool:
        return self._answer is None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer. Raises ConnectionError when the connection ends before."""
        if not self.is_free:
            raise ConnectionError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and self._answer is not None and (length is None or len(body) >= int(length[1])):
            self._received = b""
            tag = _TAG.search(head)
            if not self._answer.done():
                self._answer.set_result(Answer(int(head[9:12]), tag[1].decode() if tag else "", body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the connection was lost"))


def request_of(
    load: Load, method: str, target: str, body: bytes = b"", signer: QuickSigner | None = None, *, name: str = ""
) -> bytes:
    """Return the bytes of a request, signed where there is a signer. name: the body's hash where it is known."""
    headers = {"Host": f"127.0.0.1:{load.port}", "Accept-Encoding": "identity"}
    if method != "GET":
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    if signer is not None:
        digest = name or (content_hash(body) if body else NOTHING_HASH)
        headers |= sign_request(signer, load.domain, method, load.url + target, digest, now=time.time())
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


# --- Members


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
        self._links = [iter(enumerate(chain_links(key)[0])) for key in load.judges]
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
        asked, key = time.monotonic(), self.counts.asked("waits", held=HOLD_SECONDS if tag else 0.0)
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
        held = f"?wait={HOLD_SECONDS}&seen={quote(tag)}" if tag else ""
        return request_of(self.load, "GET", f"/v1/runs/{self.load.run}/demand{held}", signer=signer)

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
        signer, (draw, link) = self.judges[judge], next(self._links[judge])
        work = {"run": self.load.run, "step": self.load.step, "node": node, "index": index, "root": root}
        own = {"validator": signer.address, "draw_index": draw, "preimage": "0x" + link.hex(), "inspected": 2}
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
        target, body = f"/v1/runs/{self.load.run}/machine", report.model_dump_json().encode()
        await self._worker_writes(number, lambda: request_of(self.load, "POST", target, body, self.workers[number]))

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


# --- Strangers who mean harm


async def hang_on(load: Load) -> None:
    """Send heads that never end, a byte a second."""
    connected = asyncio.Queue[None]()

    async def trickle(number: int) -> None:
        source = f"127.0.5.{1 + number % ADDRESSES}"
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", load.port, local_addr=(source, 0))
                connected.put_nowait(None)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nA: ")
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(TRICKLE_SECONDS)
                writer.close()
            except OSError:
                await asyncio.sleep(TRICKLE_SECONDS)

    await _all(HEADS, trickle, connected)


async def read_worst(load: Load) -> None:
    """Ask for the slowest unsigned reads, again as soon as they are answered, each time with other numbers."""
    line = await Line.open(load.port, 0, 5)
    seconds: dict[str, float] = {}
    for read in reads_of(load):
        begun = time.monotonic()
        answer = await line.ask(request_of(load, "GET", read.format(n=random.randrange(1 << 16))))
        seconds[read] = (time.monotonic() - begun) * (answer.status == 200)
        line = line if line.is_free else await Line.open(load.port, 0, 5)
    worst = sorted(seconds, key=seconds.__getitem__)[-WORST:]
    connected = asyncio.Queue[None]()

    async def read_on(number: int) -> None:
        line = await Line.open(load.port, number, 5)
        connected.put_nowait(None)
        while True:
            try:
                read = random.choice(worst).format(n=random.randrange(1 << 16))
                answer = await line.ask(request_of(load, "GET", read))
                await asyncio.sleep(RETRY_SECONDS if answer.status == 503 else 0)
            except OSError:
                line = await Line.open(load.port, number, 5)

    await _all(READERS, read_on, connected, {read: seconds[read] for read in worst})


def reads_of(load: Load) -> list[str]:
    """Return unsigned reads of which each may be the worst; `{n}` stands for a number that was not asked for before."""
    run, node = f"/v1/runs/{load.run}", QuickSigner(load.keys[0], load.domain).address
    names = "&".join(f"name={name}" for name in ("reward", "kl", "entropy", "loss", "completions/mean_length"))
    own = ("", "summary", "verdicts", "grades", "accepted?min_step=0", "overview", "metrics", "others", "earnings")
    wide = (
        "workers?order=accepted&offset={n}&limit=100",
        "workers?search=0x{n}",
        "validators?search=0x{n}",
        f"series?{names}&points=2000&first={{n}}",
        "feed?before={n}",
        "events?after={n}",
        "cases?before={n}",
        "checkpoints?before={n}",
        "rollouts?step={n}",
        f"nodes/{node}",
        f"nodes/{node}/commitments?before={{n}}",
        f"addresses/{node}",
    )
    pages = ("/", "/leaderboard?search=0x{n}", "/events", "/court", "/steps", "/rollouts", f"/nodes/{node}")
    return [*(f"{run}/{one}".rstrip("/") for one in (*own, *wide)), *pages, f"/v1/nodes/{node}"]


async def sign_in_vain(load: Load) -> None:
    """Send validly signed writes of keys that are no members', so many a second."""
    secrets = (hashlib.sha256(f"stranger {number}".encode()).hexdigest() for number in range(ADDRESSES))
    signers, connected = [QuickSigner(secret, load.domain) for secret in secrets], asyncio.Queue[None]()

    async def send(number: int) -> None:
        line, every = await Line.open(load.port, number, 5), STRANGERS / SIGNATURES
        connected.put_nowait(None)
        await asyncio.sleep(every * number / STRANGERS)
        while True:
            try:
                begun = time.monotonic()
                await line.ask(request_of(load, "POST", "/v1/verdicts", b"{}", signers[number % ADDRESSES]))
                await asyncio.sleep(begun + every - time.monotonic())
            except OSError:
                line = await Line.open(load.port, number, 5)

    await _all(STRANGERS, send, connected)


async def hold_uploads(load: Load) -> None:
    """Be members who send a part of a file, and then a byte now and then; again whenever they are cut off."""
    data, connected = os.urandom(HELD_BYTES), asyncio.Queue[None]()
    name = content_hash(data)

    async def hold(number: int) -> None:
        signer, index = QuickSigner(load.keys[number], load.domain), load.next_indices[number]
        target = "?".join(upload_target(name, load.run, index, content_hash(signer.address.encode())))
        source = f"127.0.5.{1 + number % ADDRESSES}"
        connected.put_nowait(None)
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", load.port, local_addr=(source, 0))
                whole = request_of(load, "PUT", target, data, signer, name=name)
                begun = len(whole) - int(len(data) * (1 - HELD_SHARE))
                writer.write(whole[:begun])
                answer = asyncio.create_task(reader.read(1))
                for place in range(begun, len(whole)):
                    await asyncio.wait([answer], timeout=TRICKLE_SECONDS)
                    if answer.done():
                        break
                    writer.write(whole[place : place + 1])
                    await writer.drain()
                writer.close()
            except OSError:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    await _all(len(load.keys), hold, connected)


async def _all(
    count: int,
    act: Callable[[int], Coroutine[Any, Any, None]],
    connected: asyncio.Queue[None],
    about: object = None,
) -> None:
    """Let so many act until this is ended; say so once as many have connected."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(act(number))
        for _ in range(count):
            await connected.get()
        print("connected", json.dumps(about), flush=True)


KINDS: Final = {
    "members": members,
    "reads": read_worst,
    "heads": hang_on,
    "signatures": sign_in_vain,
    "uploads": hold_uploads,
}


def main() -> None:
    print("ready", flush=True)
    load = Load.model_validate_json(sys.stdin.readline())
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    run(KINDS[sys.argv[1]](load))


if __name__ == "__main__":
    main()
