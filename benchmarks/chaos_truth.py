"""What chain, orchestrator, explorer and storage say after a chaos run, and whether the swarm recovers until then."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from benchmarks.chaos_checker import Book, Commitment, Truth, unkept
from benchmarks.chaos_history import Event
from benchmarks.chaos_swarm import CLAIM_HOURS, ESCROW, TRAINER, Swarm
from muster.chain.client import Chain
from muster.constants import HOUR_SECONDS
from muster.contracts import codec, runs
from muster.contracts.runs import Claimed, HourSealed, WorkCommitted
from muster.errors import CheckError, MusterError
from muster.ledger.tables import commitments, verdicts
from muster.protocol.hashes import hex_hash
from testbed.waiting import until

HEAL_SECONDS: Final = 300.0
MATURE_HOURS: Final = 27
"""After which what was committed is payable and due, once its hours are sealed."""
UNSEALED_HOURS: Final = 80
"""The same of hours that are not sealed."""

E = TypeVar("E", bound=codec.Event)


@asynccontextmanager
async def reading(swarm: Swarm) -> AsyncIterator[TruthReader]:
    """Yield what reads a swarm, past all lines that can fail."""
    async with swarm.run.chain("stranger") as chain:
        yield TruthReader(swarm, chain)


class TruthReader:
    """Reads a swarm. Make it with `reading`."""

    def __init__(self, swarm: Swarm, chain: Chain) -> None:
        self._swarm, self._run, self._chain = swarm, swarm.run, chain
        self._deadline = 0.0
        self._unhealed = list[str]()
        self._steps = 0

    # Healing

    async def heal(self) -> None:
        """Let the swarm recover from its last fault, and remember what does not within HEAL_SECONDS."""
        self._deadline = time.monotonic() + HEAL_SECONDS
        terms = await self._chain.terms(self._run.run)
        begun, before = await self._progress(), set(await self._commitments())
        self._steps = begun[TRAINER]

        async def moves() -> bool:
            now = await self._progress()
            return all(now[name] > count for name, count in begun.items())

        async def judged() -> bool:
            given = Counter(one[1:] for one in await self._verdicts())
            fresh = set(await self._commitments()) - before
            return {one[0] for one in fresh if given[one] >= terms.accepts_required} >= set(self._swarm.nodes.values())

        async def kept() -> bool:
            return not unkept(self._swarm.recorded(), set(await self._commitments()))

        await self._arrive(MATURE_HOURS)
        await self._wait("the orchestrator is ready", lambda: asyncio.to_thread(self._swarm.orchestrator.is_ready))
        await self._wait("the explorer is ready", lambda: asyncio.to_thread(self._swarm.explorer.is_ready))
        await self._wait("every worker commits and the trainer publishes", moves)
        await self._wait("every acknowledged commitment is made again or reported gone", kept)
        await self._wait("new work of every worker gets the verdicts that it needs", judged)
        await self._wait("every acknowledged seal is made again", self._sealed)
        await self._wait("sealed work is claimed", self._claimed)
        await self._arrive(UNSEALED_HOURS)
        await self._wait("work of hours without a seal is claimed", self._claimed)

    async def _wait(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        async def is_so() -> bool:
            with suppress(MusterError):  # not yet
                return await condition()
            return False

        try:
            await until(is_so, what, seconds=max(1.0, self._deadline - time.monotonic()))
        except AssertionError:
            self._unhealed.append(what)

    async def _arrive(self, hours: int) -> None:
        """Move the chain's clock on, and wait for the block that is there."""
        there = (await self._chain.head()).timestamp + hours * HOUR_SECONDS
        await self._swarm.pass_hours(hours)

        async def is_there() -> bool:
            return (await self._chain.head()).timestamp >= there

        await until(is_there, "the chain's clock is there")

    async def _progress(self) -> dict[str, int]:
        """Return what each worker has committed and how many steps there are."""
        count = {name: (await self._chain.call(runs.work(node))).next for name, node in self._swarm.nodes.items()}
        return {**count, TRAINER: await self._published()}

    async def _sealed(self) -> bool:
        made, hours = await self._seals(), await self._hours()
        asked = [one.what for one in self._swarm.recorded() if one.operation == "seal" and one.state == "ok"]
        return all((one["node"], one["hour"]) in made for one in asked if one["hour"] in hours)

    async def _claimed(self) -> bool:
        return not any((await self._due()).values())

    # The truth

    async def truth(self, history: Sequence[Event]) -> Truth:
        """Read what is so, once the members have stopped."""
        made = await self._commitments()

        async def follow() -> bool:
            return await self._served() == await self._shown() == set(made)

        with suppress(AssertionError):  # what is missing is a violation
            await until(follow, "orchestrator and explorer follow", seconds=HEAL_SECONDS)
        await self._wait("the explorer shows every verdict", self._shows_verdicts)
        count, run = await self._published(), self._run.run
        published = {step: await self._chain.checkpoint(run, step) for step in range(count)}
        nodes = self._swarm.nodes.values()
        return Truth(
            files=await self._files({event.what["file"] for event in history if event.operation == "upload"}),
            verdicts=frozenset(await self._verdicts()),
            commitments=made,
            served=frozenset(await self._served()),
            shown=frozenset(await self._shown()),
            settled={node: (await self._chain.call(runs.work(node))).settled for node in nodes},
            due=await self._due(),
            roots={step: hex_hash(found.manifest_root) for step, found in published.items()},
            steps=(self._steps, count),
            seals=frozenset(await self._seals()),
            hours=frozenset(await self._hours()),
            books=await self._books(),
            unhealed=tuple(self._unhealed),
        )

    # On chain

    async def _events(self, kind: type[E]) -> list[E]:
        head = (await self._chain.head()).number
        found = await self._chain.events((kind,), self._chain.addresses.from_block, head)
        return [event for event in found if isinstance(event, kind)]

    async def _commitments(self) -> list[Commitment]:
        return [(event.node, event.index, hex_hash(event.root)) for event in await self._events(WorkCommitted)]

    async def _hours(self) -> set[int]:
        """Return the hours with commitments."""
        return {event.hour for event in await self._events(WorkCommitted)}

    async def _seals(self) -> set[tuple[str, int]]:
        """Return validator and hour of every seal."""
        return {(event.validator, event.hour) for event in await self._events(HourSealed)}

    async def _published(self) -> int:
        return (await self._chain.call(runs.run_state(self._run.run))).steps

    async def _due(self) -> dict[str, int]:
        """Return, by node, how many commitments should have been claimed by now, as `worker.claimer` has it."""
        found = {}
        for node in self._swarm.nodes.values():
            work, now = await self._chain.call(runs.work(node)), (await self._chain.head()).timestamp
            found[node] = 0
            if work.settled < work.next:
                payable = await self._chain.call(runs.payable_at(node, work.settled))
                if now >= payable + CLAIM_HOURS * HOUR_SECONDS:
                    found[node] = (await self._chain.call(runs.claimable(node))).through + 1 - work.settled
        return found

    async def _books(self) -> list[Book]:
        held, nodes = await self._chain.solvency(), self._swarm.nodes
        claims = await self._events(Claimed)
        paid = {name: sum(one.paid for one in claims if one.node == node) for name, node in nodes.items()}
        escrow = (await self._chain.call(runs.run_state(self._run.run))).balance
        before, now = self._swarm.wallets, await self._swarm.held_by_operators(self._chain)
        return [
            Book("Registry", held.registry_tokens, held.registry_books),
            Book("Runs", held.runs_tokens, held.runs_books),
            Book("escrow", escrow, ESCROW - sum(paid.values())),
            *(Book(f"wallet of {name}'s operator", now[name], before[name] + paid[name]) for name in nodes),
        ]

    # At the explorer

    async def _shown(self) -> set[Commitment]:
        """Return the commitments in its database."""
        rows = await self._swarm.explorer.rows(commitments, "node", "index", "root")
        return {(node, index, root) for node, index, root in rows}

    async def _shows_verdicts(self) -> bool:
        rows = await self._swarm.explorer.rows(verdicts, "validator", "node", "index", "root")
        return set(rows) == await self._verdicts()

    # At the orchestrator

    async def _served(self) -> set[Commitment]:
        """Return the commitments in its database."""
        rows = await self._swarm.orchestrator.rows(commitments, "node", "index", "root")
        return {(node, index, root) for node, index, root in rows}

    async def _verdicts(self) -> set[tuple[str, str, int, str]]:
        """Return all verdicts that it serves: validator, node, index, root."""
        found, place, more = set[tuple[str, str, int, str]](), 0, True
        async with self._run.client(self._swarm.orchestrator.url, None) as client:
            while more:
                more, place = await client.verdicts(self._run.run, place)
                found |= {(one.validator, one.node, one.index, one.root) for one, _ in more}
        return found

    async def _files(self, names: set[str]) -> frozenset[str]:
        """Return those of these files that are readable by their hash."""
        found = set[str]()
        async with self._run.client(self._swarm.orchestrator.url, None) as client:
            for name in names:
                with suppress(CheckError):
                    await client.get_file(name)
                    found.add(name)
        return frozenset(found)
