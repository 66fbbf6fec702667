"""How far an explorer is behind what its orchestrator acknowledged, and how fast it reads a run from empty.

`explorer_behind`: a real orchestrator, an explorer and an Anvil with a block every BLOCK_SECONDS. RATE commitments a
second come as in `service_members`, each with a file, the chain's event and a verdict by each of four validators. It is
the time from the answer to a verdict until the explorer's list of validators counts it, as one who asks sees it.

`explorer_catch_up`: events a second, on chain and in the log together. The parts are an explorer's own, and so is all
that decodes, checks and writes; the chain is that of `service_chain`, and the log has a signed verdict on each
commitment. Signing them is no part of the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from eth_utils.address import to_checksum_address

from benchmarks.report import Figure, figure
from benchmarks.service_chain import BLOCK_SECONDS as CHAIN_BLOCK_SECONDS
from benchmarks.service_chain import PER_BLOCK, RUN, STEP_BLOCKS, WORKERS, Followed, filled
from benchmarks.service_load import Line, Load, request_of
from benchmarks.service_members import VERDICT_SECONDS, Crowd
from explorer.documents import Documents
from explorer.log_reader import LogReader, place_in
from muster.chain.keys import Signer
from muster.constants import HOUR_SECONDS
from muster.ledger.documents import KeptCall
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.messages import LogEntry, LogPage
from muster.runtime.loop import AGAIN
from orchestrator.log import MAX_PAGE
from testbed.chain.anvil import Anvil
from testbed.chain.emitter import let_emit
from testbed.runs.run_fixture import VALIDATORS, Explorer, Orchestrator, RunFixture
from testbed.samples.messages import verdict_of
from testbed.signing import QuickSigner
from testbed.waiting import until

RATE: Final = 20.0
"""Commitments a second."""
NAMES: Final = tuple(f"w{number}" for number in range(10))
"""Of the workers."""
BLOCK_SECONDS: Final = 2
LOOK_SECONDS: Final = 0.1
BEHIND_SECONDS: Final = 3.0
EVENTS_PER_SECOND: Final = 3_000
COMMITMENTS: Final = 480_000
"""With which a run has a million events."""
QUICK: Final = 2_000


def figures(seconds: float, commitments: int = COMMITMENTS, *, quick: bool = False) -> list[Figure]:
    """Measure both. seconds: of the first; commitments: of the second."""
    times, rate = asyncio.run(behind(seconds))
    read, events = asyncio.run(catch_up(QUICK if quick else min(commitments, COMMITMENTS)))
    ordered = sorted(times)
    shown = {"p50": ordered[len(ordered) // 2], "documents_per_second": round(rate, 1)}
    p99 = ordered[int(len(ordered) * 0.99)]
    return [
        figure("explorer_behind", times, ratio=p99, target=BEHIND_SECONDS, unit="s, p99", at_most=True, **shown),
        figure("explorer_catch_up", read, target=EVENTS_PER_SECOND, unit="events/s", events=events),
    ]


# --- Behind


class Busy(Crowd):
    """Workers that only commit, RATE times a second all together, and validators that judge all of it."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self.acknowledged: dict[str, list[float]] = defaultdict(list)
        """When each verdict of a validator was, in their order."""

    async def live(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._chain())
        for number in range(len(self.judges)):
            group.create_task(self._judge(number))
        await self._each(len(self.workers) / RATE, lambda number: group.create_task(self._work(number)))

    async def _judge(self, number: int) -> None:
        line, given = None, self.acknowledged[self.judges[number].address]
        while True:
            line = await self._deliver(await self._verdicts[number].get(), line, number, 4)
            given.append(time.monotonic())


async def behind(seconds: float) -> tuple[list[float], float]:
    """Return how long each verdict took until it was shown, and how many there were a second."""
    with tempfile.TemporaryDirectory(prefix="muster-behind-") as name, Anvil() as anvil:
        folder = Path(name)
        run_fixture = await RunFixture.build_on(anvil, folder, seed="behind", workers=NAMES)
        await run_fixture.publish(0)
        run_fixture.mine_every(BLOCK_SECONDS, anvil)
        let_emit(anvil, run_fixture.book.runs)
        orchestrator = Orchestrator(run_fixture, folder / "orchestrator")
        explorer = Explorer(run_fixture, folder / "explorer", orchestrator.url)
        with orchestrator, explorer:
            return await _watch(Busy(_load(run_fixture, orchestrator, anvil)), explorer, seconds)


def _load(run_fixture: RunFixture, orchestrator: Orchestrator, anvil: Anvil) -> Load:
    return Load(
        url=orchestrator.url,
        chain_id=run_fixture.book.chain_id,
        registry=run_fixture.book.registry,
        run=run_fixture.run,
        keys=[run_fixture.secret(name) for name in NAMES],
        next_indices=[0 for _ in NAMES],
        judges=[run_fixture.secret(name) for name in VALIDATORS],
        chain_port=anvil.port,
        runs=run_fixture.book.runs,
        sender=anvil.request("eth_accounts")[0],
        step=0,
        hour=int(anvil.request("eth_getBlockByNumber", "latest", False)["timestamp"], 16) // HOUR_SECONDS,
    )


async def _watch(crowd: Busy, explorer: Explorer, seconds: float) -> tuple[list[float], float]:
    shown: dict[str, list[float]] = defaultdict(list)
    looking = asyncio.create_task(_look(crowd.load, explorer, shown))
    living = asyncio.create_task(_live(crowd))
    await asyncio.sleep(VERDICT_SECONDS + seconds)
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    given = crowd.acknowledged
    await until(lambda: all(len(shown[one]) >= len(given[one]) for one in given), "all verdicts are shown")
    looking.cancel()
    times = [max(0.0, seen - said) for one in given for said, seen in zip(given[one], shown[one], strict=False)]
    return times, len(times) / seconds


async def _live(crowd: Busy) -> None:
    async with asyncio.TaskGroup() as group:
        await crowd.live(group)


async def _look(load: Load, explorer: Explorer, shown: dict[str, list[float]]) -> None:
    """Note when each of a validator's verdicts was counted first."""
    line, there = None, load.model_copy(update={"url": explorer.url})
    while True:
        line = line if line and line.is_free else await Line.open(explorer.port, 0, 6)
        answer = await line.ask(request_of(there, "GET", f"/v1/runs/{load.run}/validators"))
        now = time.monotonic()
        for one in json.loads(answer.body)["validators"]:
            seen = shown[one["address"]]
            seen += [now] * (one["inspections"] - len(seen))
        await asyncio.sleep(LOOK_SECONDS)


# --- Catching up


class SyntheticLog:
    """In place of an orchestrator's client: a log with a verdict on each commitment of a synthetic chain."""

    def __init__(self, followed: Followed, judges: Sequence[QuickSigner], domain: Domain, commitments: int) -> None:
        self._endpoint, self._judges, self._domain, self._count = followed.endpoint, judges, domain, commitments
        order = json.dumps([one.address for one in judges])
        self._call = KeptCall(block=0, hash=UNSIGNED[:66], order=order, opens=0).model_dump_json()
        self.seconds = 0.0
        """That signing took."""

    async def log(self, _run: int, after: int, **_: object) -> LogPage:
        begun, following = time.perf_counter(), min(after + MAX_PAGE, self._count)
        entries = [self._entry(place) for place in range(after, following)]
        page = LogPage(entries=entries, cursor=following).model_dump_json()
        self.seconds += time.perf_counter() - begun
        return LogPage.model_validate_json(page)

    def _entry(self, number: int) -> LogEntry:
        judge, block = self._judges[number % len(self._judges)], number // PER_BLOCK
        verdict = verdict_of(
            run=RUN,
            step=block // STEP_BLOCKS,
            node=to_checksum_address("0x" + self._endpoint.workers[number % WORKERS]),
            index=number // WORKERS,
            root=f"0x{number:064x}",
            file_hash=f"0x{number:064x}",
            validator=judge.address,
            inspected=2,
        )
        text, came = sign_message(judge, self._domain, verdict).to_bytes().decode(), block * CHAIN_BLOCK_SECONDS
        return LogEntry(place=number, kind="verdict", came=came, received=came, text=text, beside=self._call)


async def catch_up(commitments: int) -> tuple[float, int]:
    """Return the events a second of reading a run from empty, and how many there were."""
    secrets = [hashlib.sha256(name.encode()).hexdigest() for name in VALIDATORS]
    addresses = [str(Signer.from_key(secret).address) for secret in secrets]
    with tempfile.TemporaryDirectory(prefix="muster-explorer-") as folder:
        async with filled(f"sqlite:///{folder}/explorer.db", commitments, validators=addresses, tells=True) as followed:
            follower = followed.follower
            domain = Domain(follower.chain.chain_id, follower.chain.addresses.registry)
            client: Any = SyntheticLog(followed, [QuickSigner(one, domain) for one in secrets], domain, commitments)
            documents = Documents(domain, follower.queries, addresses[0])
            reader = LogReader(domain, client, follower.database, follower, documents, unbonding=1 << 40)
            async with follower.following():
                await until(lambda: not follower.unready(), "the chain is read")
                begun = time.perf_counter()
                while await reader.poll() is AGAIN:
                    pass
                seconds = followed.seconds + time.perf_counter() - begun - client.seconds
            assert await follower.database.read(place_in) == commitments
    events = followed.endpoint.events + commitments
    return events / seconds, events
