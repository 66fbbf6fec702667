"""Run one swarm, from an empty folder to its report: `muster swarm demo` and `muster swarm up`.

Trainer, validators and workers start right after the chain: they load what they need while contracts and model are
made, and wait for their settings, which are written once the services run. The demo then waits until the trainer has
done its steps and every case has ended. It moves Anvil's clock until looks count, so that the trainer posts wages and
validators claim them, and past the window of the workers' pay, for whose operators it claims. Then it collects the
facts.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.chain.anvil import LocalChain
from muster.chain.client import Chain
from muster.clients.looks import LooksReader
from muster.constants import HOUR_SECONDS, UNSEALED_WINDOW_HOURS, WINDOW_HOURS
from muster.contracts import runs, wages
from muster.contracts.runs import WorkCommitted
from muster.protocol.looks import settles_at
from muster.runtime.process import run_together
from muster.swarm import facts, stage
from muster.swarm.comparison import compare
from muster.swarm.launch import operator_of
from muster.swarm.opening import ensure_deployed, give_gas
from muster.swarm.plan import SwarmRequest, model_process
from muster.swarm.report import write_report
from muster.swarm.running import POLL_SECONDS, RunningSwarm, supervised
from muster.swarm.state import check_free
from muster.swarm.summary import Participant, SwarmFacts, summarise
from muster.swarm.supervisor import ProcessEvent, check_ports
from muster.swarm.watch import SwarmView

CASE_SECONDS: Final = 600.0
"""Longest wait, after the trainer has finished, for every cheater to be convicted."""

SEAL_SECONDS: Final = 300.0
"""Longest wait for validators to seal an hour that has ended, and for each thing that follows."""


@dataclass(kw_only=True)
class Swarm(RunningSwarm):
    """A swarm: it is prepared, started, watched and ended."""

    request: SwarmRequest
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Keep the seconds of a stage."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - begun

    # Making

    async def begin(self) -> None:
        """Prepare chain, model, contracts, run and nodes; start the services, then let the others begin."""
        self.view.stage("starting a chain, making tasks and a model")
        with self.measure("prepare"):
            self.keys = await asyncio.to_thread(stage.make_keys, self.request)
            task_set = await asyncio.to_thread(stage.make_tasks, self.request)
            await run_together(self._deploy(), self.supervisor.run(model_process(self.request)))
            self.view.stage("creating the run, registering its nodes")
            local = self.request.local
            await asyncio.to_thread(stage.fill_run_folder, local.run_folder, local.tasks, local.model)
            await stage.open_run(self, self.request, task_set)
        with self.measure("start"):
            await asyncio.to_thread(stage.write_settings, self.request, self.run, stage.SERVICES)
            await self.start_services("relay")
            await self.name_nodes()
            await asyncio.to_thread(stage.write_settings, self.request, self.run, self._working)
            await self.start_explorer()

    async def _deploy(self) -> None:
        """Start the chain, deploy the contracts, give out gas, make the validators' draw secrets.

        Trainer and nodes start too, and import what they need while the model is made.
        """
        await self.supervisor.start(self.local.chain_process())
        await self.start(*self._working)
        self.view.stage("deploying the contracts, making a model")
        await give_gas(self.local.chain, [key.address for key in self.keys.values()])
        await ensure_deployed(self.local.chain, self.keys["owner"])
        await asyncio.to_thread(self.make_draw_tips)

    @property
    def _working(self) -> tuple[str, ...]:
        """Return the names of the processes that wait for the services."""
        return ("trainer", *(node.name for node in self.local.nodes))

    # Watching

    async def train(self, chain: Chain) -> dict[str, Any]:
        """Wait until the trainer has done its steps, and every cheater is convicted or CASE_SECONDS have passed."""
        self.view.stage(f"training for {self.request.steps} steps")
        with self.measure("train"):
            await self.watch(
                chain, lambda document: bool(document.get("finished")), self.request.scenario.quiet_seconds
            )
        self.view.stage("waiting for cases to end")
        with self.measure("judge"):
            return await self._judged(chain)

    async def _judged(self, chain: Chain) -> dict[str, Any]:
        cheaters = {who.node for who in self.participants if who.role == "worker" and not who.honest}
        deadline = time.monotonic() + CASE_SECONDS

        def done(document: Mapping[str, Any]) -> bool:
            jailed = {line["address"] for line in document["nodes"] if line["status"] == "jailed"}
            is_open = any(case["outcome"] == "open" for case in document["cases"])
            return (cheaters <= jailed and not is_open) or time.monotonic() > deadline

        return await self.watch(chain, done, 2 * CASE_SECONDS)

    # Claiming

    async def claim_all(self, chain: Chain) -> None:
        """Move the clock past the window and claim for every worker's operator."""
        self.view.stage("moving the clock over the 24-hour window, claiming")
        with self.measure("claim"):
            workers = [who.name for who in self.participants if who.role == "worker"]
            for name in workers:
                if self.supervisor.keeps(name):
                    await self.supervisor.stop_one(name)
            head = (await chain.head()).number
            await self.until("verdict", partial(self._is_judged, chain, head))  # before places lapse
            clock = await LocalChain.open(chain.web3)
            last = await self._last_hour(chain)
            await clock.advance_to(max((last + 1) * HOUR_SECONDS, await clock.now() + 1) + 2)
            lookers = await self._lookers(chain, last)
            await self.until("seal", partial(self._is_sealed, chain, last, lookers), hour=last)
            await self._paid_looks(chain, clock, last)
            # Fewer than a quorum seal an hour in which fewer looked.
            is_sealed = await chain.call(runs.sealed_through(self.run)) >= last
            window = WINDOW_HOURS if is_sealed else UNSEALED_WINDOW_HOURS
            await clock.advance_to(max((last + 1 + window) * HOUR_SECONDS, await clock.now() + 1) + 2)
            await asyncio.gather(*(self._claim(who) for who in self.participants if who.role == "worker"))

    async def _last_hour(self, chain: Chain) -> int:
        """Return the hour of the last commitment, or of the chain's clock when there is none."""
        now = (await chain.head()).timestamp // HOUR_SECONDS
        return max((one.hour for one in await chain.all_events(WorkCommitted)), default=now)

    async def _is_judged(self, chain: Chain, block: int) -> bool:
        """Return whether no work up to this block waits for validators any more."""
        document = await self.up_to_date(chain, block)
        return document is not None and not any(line["pending"] for line in document["nodes"])

    async def _lookers(self, chain: Chain, hour: int) -> set[str]:
        """Return the validators that gave a verdict about an hour's work."""
        work = {(one.node, one.index) for one in await chain.all_events(WorkCommitted) if one.hour == hour}
        found, place, more = set[str](), 0, True
        async with self.client(chain) as client:
            while more:
                more, place = await client.verdicts(self.run, place)
                found |= {one.validator for one, _ in more if (one.node, one.index) in work}
        return found

    async def _is_sealed(self, chain: Chain, hour: int, validators: Collection[str]) -> bool:
        """Return whether these validators have shown their links of an hour."""
        sealers = await chain.call_all([runs.sealer_of(one) for one in validators])
        return all(one.last_sealed >= hour for one in sealers)

    async def until(self, what: str, done: Callable[[], Awaitable[object]], **values: int) -> None:
        """Wait until something is there, for at most SEAL_SECONDS; then continue without."""
        deadline = time.monotonic() + SEAL_SECONDS
        while not await done():
            if time.monotonic() > deadline:
                self.view.process_event(ProcessEvent("missing", what, values))
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _paid_looks(self, chain: Chain, clock: LocalChain, hour: int) -> None:
        """Move the clock until the looks at an hour's work count, and wait until validators have claimed their wages.

        The trainer ends once it has posted the wages of all hours.
        """

        async def posted() -> bool:
            return not self.supervisor.keeps("trainer")

        async def claimed() -> bool:
            pot = await chain.call(wages.pot(self.run))
            return pot.claimed == pot.posted

        self.view.stage("moving the clock until looks count, paying them")
        await clock.advance_to(max(settles_at(hour), await clock.now() + 1) + 2)
        await self.until("wages", posted, hour=hour)
        await self.until("claim", claimed, hour=hour)

    async def _claim(self, who: Participant) -> None:
        cold = self.keys[operator_of(who.name)]
        async with await Chain.connect(self.local.chain, cold) as chain:
            through, amount = await chain.call(runs.claimable(who.node))
            if amount:
                await chain.send(runs.claim(who.node, through))

    # Counting

    async def compare(self, step: int) -> Mapping[str, Any] | None:
        """Ask the model before and after training, where the scenario wants that."""
        if not self.request.scenario.answers:
            return None
        self.view.stage("asking the model of step 0 and the last one the held-out tasks")
        with self.measure("compare"):
            return await compare(self.request, step)

    async def collect(
        self, chain: Chain, document: Mapping[str, Any], comparison: Mapping[str, Any] | None, wall_seconds: float
    ) -> SwarmFacts:
        """Collect everything that the summary needs, while chain and services still run."""
        events = await chain.events(facts.KINDS, chain.addresses.from_block, (await chain.head()).number)
        updates = facts.updates(document)
        async with self.client(chain) as client, self.explorer(chain) as explorer:
            charts = {name: await explorer.chart(self.run, name) for name in facts.drawn(updates)}
            reader, hours = LooksReader(chain, client, self.run), sorted({one.hour for one in facts.work(events)})
            lists = [found for hour in hours if (found := await reader.list(hour)) is not None]
        agreed, info = await chain.terms(self.run), await chain.call(runs.run_info(self.run))
        paid, voided = facts.settled(events)
        return SwarmFacts(
            participants=self.participants,
            positions=agreed.positions,
            commitments=Counter(one.node for one in facts.work(events)),
            pay=agreed.pay_of(0),
            paid=paid,
            voided=voided,
            case_results=facts.case_results(events),
            updates=updates,
            lines={line["address"]: line for line in document["nodes"]},
            solvency=await chain.solvency(),
            checkpoints=await facts.checkpoints(events, self.request.local.shards),
            wall_seconds=wall_seconds,
            stage_seconds=self.seconds,
            escrow_kept=info.kept,
            run=self.run,
            seed=self.request.seed,
            restarts=self.supervisor.restarts,
            looking=facts.looking(lists, events, self.participants),
            comparison=comparison,
            charts=charts,
        )


async def run_demo(
    request: SwarmRequest,
    view: SwarmView,
    *,
    report: Path,
    picture: Path | None = None,
    keep: bool = False,
    stay: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run the whole demo and return its summary.

    stay: called with the summary; chain and services then run on until the task is cancelled. Leaves the swarm's folder
    behind when it fails or `keep` is set; only logs and settings when it is interrupted.
    """
    begun = time.monotonic()
    async with _open_swarm(request, view, keep) as swarm:
        collected = await swarm.supervisor.guard(_run_to_end(swarm, begun))
        summary = summarise(collected)
        await asyncio.to_thread(write_report, summary, collected, report, picture)
        if stay is not None:
            stay(summary)
            await _until_cancelled(swarm)
    if not keep:
        await asyncio.to_thread(shutil.rmtree, request.folder)
    return summary


async def _until_cancelled(swarm: Swarm) -> None:
    """Keep the processes running; return when the task is cancelled, which ends nothing else. Raises SwarmError."""
    try:
        await swarm.supervisor.guard(asyncio.get_running_loop().create_future())
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


async def _run_to_end(swarm: Swarm, begun: float) -> SwarmFacts:
    await swarm.begin()
    async with await Chain.connect(swarm.local.chain) as chain:
        await swarm.train(chain)
        await swarm.claim_all(chain)
        # Once more: the last summary has what was claimed and sealed, and all that the log says.
        head = (await chain.head()).number
        await swarm.until("page", partial(swarm.up_to_date, chain, head), block=head)
        document = await swarm.watch(chain, lambda _: True, 60)
        comparison = await swarm.compare(document["step"])
        return await swarm.collect(chain, document, comparison, time.monotonic() - begun)


async def run_up(request: SwarmRequest, view: SwarmView, *, keep: bool = False) -> None:
    """Keep a swarm running until the task is cancelled, also when its trainer has done its steps.

    Then only logs and settings stay in its folder; with `keep`, or after a failure, everything does.
    """
    async with _open_swarm(request, view, keep) as swarm:
        await swarm.supervisor.guard(_run_until_cancelled(swarm))


async def _run_until_cancelled(swarm: Swarm) -> None:
    await swarm.begin()
    swarm.view.stage(f"running; settings of every process are in {swarm.local.folder}; Ctrl-C ends it")
    async with await Chain.connect(swarm.local.chain) as chain:
        await swarm.watch(chain, lambda _: False, float("inf"))


@asynccontextmanager
async def _open_swarm(request: SwarmRequest, view: SwarmView, keep: bool) -> AsyncIterator[Swarm]:
    """Yield a swarm in a fresh folder; at the end, end everything that was started.

    Where it is interrupted, all but logs and settings is deleted in the folder, unless `keep` is set.
    """
    check_ports(astuple(request.ports))
    check_free(request.folder)
    await asyncio.to_thread(stage.fresh_folder, request.folder)
    try:
        async with supervised(request.folder, view) as supervisor:
            yield Swarm(request.local, supervisor, view, request=request)
    except asyncio.CancelledError:
        if not keep:
            stage.keep_logs(request.folder)
        raise
