"""Reads of the contracts, without a key.

Reads are of the latest block. What never changes (terms) is read once. Calls that belong together travel in one round
trip.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from muster.chain.blocks import NEAR, RecentBlocks, Which, behind, block_in, events_in, read_blocks
from muster.chain.connection import Web3
from muster.chain.error_messages import decode_revert
from muster.chain.gas import GasBalance
from muster.chain.provider import OversizedError, RpcError, quantity, results
from muster.chain.types import AddressBook, Block, PolicyStep, Solvency
from muster.contracts import registry, run_terms, runs, token, wages
from muster.contracts.abi import CONTRACTS
from muster.contracts.codec import Call, Event
from muster.contracts.court import CaseOpened
from muster.contracts.registry import Node, Registered, Role, Status
from muster.contracts.runs import Checkpoint
from muster.errors import ChainError, ConfigError, MismatchError, WrongChainError
from muster.protocol.draws import Draw, DrawSource, draw_of
from muster.protocol.keys import Keys, RunKeys
from muster.protocol.looks import Seat
from muster.protocol.terms import Terms, run_hash
from muster.settings.schema import ChainSettings

LOG_SPAN: Final = 10_000
"""Most blocks asked for logs at once."""

LOG_QUERIES: Final = 16
"""Log queries after which a reader of a long history keeps what it has read."""

LARGER_SPAN_AFTER: Final = 128
"""Answered log queries after which a span is tried again that the endpoint refused before."""

REORG_DEPTH: Final = 64
"""Blocks read again when a list is brought up to date from events."""

BEHIND_SECONDS: Final = 120.0
"""How long an endpoint may not know a block that it knew, because some of the servers behind it lag. After that the
chain has lost the block: a public chain is soon longer than it was before a reorg, a local one may be set back."""

T = TypeVar("T")
E = TypeVar("E", bound=Event)


class OutageTimer:
    """For how long the endpoint has not known a block that it knew."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._since = 0.0

    def end(self) -> None:
        """Record that the block is known, or that another one is in its place."""
        self._number = None

    def endure(self, number: int) -> None:
        """Record that the block is not known. Raises UnreachableError until that has lasted BEHIND_SECONDS."""
        if number != self._number:
            self._number, self._since = number, time.monotonic()
        if time.monotonic() - self._since < BEHIND_SECONDS:
            raise behind(f"it does not know block {number} any more")


class LogSpan:
    """How many blocks an endpoint takes in a log query: between what it answered and what it refused last."""

    def __init__(self) -> None:
        self._answered, self._refused, self._answers = 0, 2 * LOG_SPAN, 0

    @property
    def blocks(self) -> int:
        doubled = 2 * self._answered or LOG_SPAN
        return max(1, min(LOG_SPAN, doubled, (self._answered + self._refused) // 2))

    def answer(self, blocks: int) -> None:
        """Record that the endpoint answered for so many blocks; fewer than it was allowed show nothing."""
        if blocks < self.blocks:
            return
        self._answered, self._answers = blocks, self._answers + 1
        if self._answers % LARGER_SPAN_AFTER == 0:
            self._refused = 2 * LOG_SPAN

    def refuse(self, blocks: int) -> None:
        """Record that so many were too many, here: other blocks have fewer events."""
        self._refused = blocks
        if blocks <= self._answered:
            self._answered = 0


class ChainReader:
    """A deployment, read through one endpoint."""

    def __init__(self, web3: Web3, book: AddressBook, settings: ChainSettings) -> None:
        self.web3 = web3
        self.addresses = book
        self.chain_id = book.chain_id
        self.settings = settings
        self.log_span = LogSpan()
        self._recent = RecentBlocks(web3.provider, book)
        self._terms: dict[int, Terms] = {}
        self._validators: dict[int, list[str]] = {}
        self._validators_seen: dict[int, int] = {}
        self._validators_lock = asyncio.Lock()

    # Calls

    async def call(self, call: Call[T]) -> T:
        """Call a view function of `muster.contracts`. Raises RevertError with the decoded custom error."""
        return (await self.call_all([call]))[0]

    async def call_all(self, calls: Sequence[Call[T]], block: int | None = None) -> list[T]:
        """Make several calls in one round trip. Without a `block`, a new one may come in between.

        Asked without web3's formatters, which cost more than the rest of a call.
        """
        at = "latest" if block is None else hex(block)
        asked = [({"to": getattr(self.addresses, call.contract), "data": call.encode()}, at) for call in calls]
        try:
            answers = await self.web3.data(*(("eth_call", question) for question in asked))
        except RpcError as error:
            labels = ", ".join(dict.fromkeys(call.label for call in calls))
            if error.kind == "reverted":
                raise decode_revert(error.data, labels) from error
            raise ChainError(f"{labels}: {error.reason}") from error
        return [call.decode(answer) for call, answer in zip(calls, answers, strict=True)]

    # Blocks

    async def head(self) -> Block:
        """Return the latest block."""
        return await self.block("latest")

    async def block_hash(self, number: int) -> bytes:
        return (await self.block(number)).hash

    async def block(self, which: Which) -> Block:
        """Return a block. Raises ChainError when there is none yet."""
        (found,) = await self.blocks([which])
        if found is None:
            raise ChainError(f"chain {self.chain_id} has no block {which} yet")
        return found

    async def blocks(self, which: Sequence[Which]) -> list[Block | None]:
        """Return blocks in as few round trips as the endpoint allows; None for one that it does not know."""
        return await read_blocks(self.web3.provider, which)

    async def settled_head(self, after: int) -> Block:
        """Return the newest block such that the events of all between `after` and it are certain.

        That is the latest block, or one that is some seconds older. Blocks that are not confirmed may be uncertain.
        """
        head = await self.head()
        after = max(after, head.number - NEAR, 0)
        line = await self._recent.line(head, after)
        confirmed = head.number - self.settings.confirmations
        asked = [block for block in line if after < block.number <= confirmed]
        certain = await self._recent.settle(asked)
        return line[len(certain) - len(asked) - 1]

    async def hash_under(self, head: Block, number: int) -> bytes:
        """Return the hash of the block with this number, `head` or before it, in the chain that `head` ends."""
        if number <= head.number - NEAR:
            return await self.block_hash(number)
        return (await self._recent.line(head, number))[0].hash

    async def block_times(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the chain's seconds of these blocks. Raises UnreachableError when the endpoint does not know one."""
        wanted = sorted(set(numbers))
        found: dict[int, int] = {}
        for number, block in zip(wanted, await self.blocks(wanted), strict=True):
            if block is None:
                raise behind(f"it does not know block {number}")
            found[number] = block.timestamp
        return found

    async def events_under(self, head: Block, kinds: Sequence[type[Event]], first: int, last: int) -> tuple[Event, ...]:
        """Return the events of these kinds in blocks `first` to `last` of the chain that `head` ends, in order.

        Raises UnreachableError where it is not certain yet what they are.
        """
        near = max(first, head.number - NEAR + 1)
        found = list(await self.events(kinds, first, min(last, near - 1)))
        if near <= last:
            blocks = (await self._recent.line(head, near))[: last - near + 1]
            settled = await self._recent.settle(blocks)
            if len(settled) < len(blocks):
                raise behind(f"it gives no receipts of block {blocks[len(settled)].number}, and no logs so far")
            found += [event for events in settled for event in events if isinstance(event, tuple(kinds))]
        return tuple(found)

    async def events(self, kinds: Sequence[type[Event]], first: int, last: int) -> tuple[Event, ...]:
        """Events of these kinds in blocks `first` to `last`, in order, asked for in pieces that the endpoint takes.

        Providers word their limits in many ways: whatever they refuse is asked for in fewer blocks, down to one. Of
        blocks less than NEAR deep the answer may lack some: who remembers it asks `events_under`.
        Raises UnreachableError when the endpoint does not know all of these blocks.
        """
        found: list[Event] = []
        if last >= first + self.log_span.blocks and (await self.blocks([last]))[0] is None:
            raise behind(f"it does not know block {last}")  # before all the pieces in front of it
        while first <= last:
            until = min(last, first + self.log_span.blocks - 1)
            try:
                found += await self.events_within(kinds, first, until)
            except (RpcError, OversizedError) as error:
                if until == first:
                    raise ChainError(f"logs of block {first}: {error}") from error
                self.log_span.refuse(until - first + 1)
                continue
            self.log_span.answer(until - first + 1)
            first = until + 1
        return tuple(found)

    async def events_within(self, kinds: Sequence[type[Event]], first: int, last: int) -> tuple[Event, ...]:
        """Return the same from one request.

        A server that lacks the last block answers with the events it has: it is asked in the same round trip whether
        it has that block, and before the events, so that it cannot get it in between.
        """
        question = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": sorted({getattr(self.addresses, kind.ABI.contract) for kind in kinds}),
            "topics": [sorted({"0x" + kind.ABI.topic.hex() for kind in kinds})],
        }
        answers = await self.web3.provider.answers(
            [("eth_getBlockByNumber", [hex(last), False]), ("eth_getLogs", [question])]
        )
        lacks = answers[0] is None or any(isinstance(one, RpcError) and one.kind == "behind" for one in answers)
        answer, logs = (None, []) if lacks else results(answers)
        if (end := block_in(answer, last)) is None:
            raise behind(f"it does not know block {last}")
        found = events_in(logs, self.addresses, first, end)
        return tuple(event for event in found if isinstance(event, tuple(kinds)))

    async def all_events(self, kind: type[E]) -> list[E]:
        """Return the events of a kind so far, in order. Raises as `events`."""
        found = await self.events([kind], self.addresses.from_block, (await self.head()).number)
        return [event for event in found if isinstance(event, kind)]

    async def opened(self, case_id: int) -> CaseOpened:
        """Return the event that opened a case. Raises MismatchError where there is none."""
        for event in await self.all_events(CaseOpened):
            if event.case_id == case_id:
                return event
        raise MismatchError(f"there is no case {case_id}", hint="muster slash list")

    # What takes more than one question, or is worth remembering

    async def terms(self, run: int) -> Terms:
        """Return a run's terms; read once, since they never change. Raises ChainError when there is no such run."""
        if run not in self._terms:
            terms = await self.call(run_terms.terms(run))
            if not terms.classes:
                raise ChainError(f"there is no run {run} on chain {self.chain_id}", hint="muster run list")
            self._terms[run] = Terms.from_chain(terms)
        return self._terms[run]

    async def run_hash(self, run: int) -> bytes:
        """Return the hash of a run, computed from what is read here. Raises as `terms`.

        Money and nodes that name it go to the run of these terms only: a reorg may give its number to another.
        """
        terms, info = await self.terms(run), await self.call(runs.run_info(run))
        return run_hash(info.owner, terms, (await self.keys(run)).tenures[0].keys)

    async def keys(self, run: int) -> RunKeys:
        """Return the keys of a run, past and announced ones too; none where there is no such run."""
        return RunKeys(tuple(await self.call(run_terms.tenures(run))))

    async def keys_now(self, run: int) -> Keys:
        """Return the keys of a run that are in force at the latest block."""
        keys, head = await self.keys(run), await self.head()
        return keys.at(head.timestamp)

    async def checkpoint(self, run: int, step: int) -> PolicyStep:
        """Return a published step. Raises ChainError when it is not published."""
        found = await self.call(runs.checkpoint(run, step))
        if not any(found.anchor):
            raise ChainError(f"step {step} of run {run} is not published")
        return _policy_step(step, found)

    async def draw_source(self, node: str) -> DrawSource:
        """Return what a worker's draws follow from. Raises ChainError before the step that it joined for is published.

        After a reorg that may be something else.
        """
        calls: list[Call[Any]] = [runs.work(node), run_terms.draw_terms(node)]
        work, terms = await self.call_all(calls)
        if not any(terms.entropy):
            raise ChainError(f"step {work.joined_step}, by which {node} draws, is not published")
        return DrawSource(node, terms.entropy, work.work_class)

    async def draw(self, run: int, node: str, index: int) -> Draw:
        """Return what the rows of a commitment must be. Raises as `draw_source`."""
        terms, source = await self.terms(run), await self.draw_source(node)
        return draw_of(source, index, terms, chain_id=self.chain_id, runs=self.addresses.runs, run=run)

    async def latest_checkpoint(self, run: int, known: int = 0) -> PolicyStep | None:
        """Return the newest step, or None before the first; in one round trip where it is the step `known`."""
        calls: list[Call[Any]] = [runs.run_state(run), runs.checkpoint(run, known)]
        state, found = await self.call_all(calls)
        if not state.steps:
            return None
        if state.steps - 1 == known and any(found.anchor):
            return _policy_step(known, found)
        return await self.checkpoint(run, state.steps - 1)

    async def nodes(self, addresses: Sequence[str]) -> list[Node]:
        return await self.call_all([registry.node(address) for address in addresses])

    async def validators(self, run: int) -> list[str]:
        """Return the active validators of a run, in order of registration."""
        nodes = await self._registered(run)
        return [address for address, node in nodes.items() if node.status == Status.ACTIVE and node.run == run]

    async def seats(self, run: int, second: int) -> list[Seat]:
        """Return who was a validator of a run in a second, in order of registration."""
        return [
            Seat(address, node.registered_at)
            for address, node in (await self._registered(run)).items()
            if node.run == run and node.registered_at <= second and not 0 < node.retired_at <= second
        ]

    async def _registered(self, run: int) -> dict[str, Node]:
        """Return all that were ever registered as validators of a run."""
        async with self._validators_lock:
            known = self._validators.setdefault(run, [])
            seen = self._validators_seen.get(run, 0)
            head = await self.settled_head(seen)
            last = head.number - self.settings.confirmations
            first = max(self.addresses.from_block, seen - REORG_DEPTH)
            for event in await self.events_under(head, [Registered], first, last):
                assert isinstance(event, Registered)
                if event.run == run and event.role == Role.VALIDATOR and event.node not in known:
                    known.append(event.node)
            self._validators_seen[run] = last
            addresses = list(known)
        return dict(zip(addresses, await self.nodes(addresses), strict=True))

    async def eth_balance(self, address: str) -> int:
        """Return the wei for gas that an address holds."""
        return quantity(await self.web3.provider.request("eth_getBalance", address, "latest"))

    async def gas_balance(self, address: str, hourly: float | None = None) -> GasBalance:
        """Return what an address holds for gas, with the price of gas now. `hourly`: as `GasBalance` has it."""
        balance, price = await asyncio.gather(self.eth_balance(address), self.web3.gas_price())
        return GasBalance(address, self.chain_id, balance, price, hourly)

    async def solvency(self) -> Solvency:
        """Return the tokens that the contracts have, and what their books say they owe, all at one block."""
        block = (await self.head()).number
        (count,) = await self.call_all([run_terms.run_count()], block)
        places = (self.addresses.registry, self.addresses.runs, self.addresses.wages)
        in_registry, in_runs, in_wages = await self.call_all([token.balance_of(place) for place in places], block)
        books = await self.call_all([registry.total_locked(), registry.total_free(), registry.total_held()], block)
        states = await self.call_all([runs.run_state(run) for run in range(1, count + 1)], block)
        pots = await self.call_all([wages.pot(run) for run in range(1, count + 1)], block)
        escrows, unclaimed = sum(state.balance for state in states), sum(pot.funded - pot.claimed for pot in pots)
        return Solvency(in_registry, sum(books), in_runs, escrows, in_wages, unclaimed)


async def find_deployment(web3: Web3, settings: ChainSettings, book: AddressBook | None = None) -> AddressBook:
    """Return the address book, or the one of the settings, when it belongs to the settings' chain and to `web3`."""
    book = book or AddressBook.load(settings.addresses)
    if book.chain_id != settings.chain_id:
        raise WrongChainError(
            f"the address book {settings.addresses} is of chain {book.chain_id}, "
            f"and the settings name chain {settings.chain_id}",
            hint="set chain.addresses to the book of this chain",
        )
    places = {name: getattr(book, name) for name in CONTRACTS}
    codes = await web3.data(*(("eth_getCode", [address, "latest"]) for address in places.values()))
    for (name, address), code in zip(places.items(), codes, strict=True):
        if not code:
            raise ConfigError(
                f"there is no {name} contract at {address}: the address book is of another deployment",
                hint=f"delete {settings.addresses} and deploy again, or get the book of this run",
            )
    return book


def _policy_step(step: int, found: Checkpoint) -> PolicyStep:
    return PolicyStep(step, found.manifest_root, found.batch_root, found.entropy, found.anchor)
