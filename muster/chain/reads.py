"""What we ask of the contracts, without a key.

Reads are of the latest block. Immutable things (terms) are asked for once. Where a question needs several answers they
travel in one round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Self

from muster.chain.codec import function, struct
from muster.chain.events import Event, Registered, codec_of, decode_logs
from muster.chain.reverts import decode_revert
from muster.chain.rpc import Rpc, RpcError, connect
from muster.chain.types import (
    AddressBook,
    Ballot,
    BallotState,
    Block,
    Case,
    Checkpoint,
    Commitment,
    Node,
    Role,
    RunInfo,
    RunState,
    Solvency,
    Status,
    Work,
)
from muster.errors import ChainError, ConfigError, MalformedError, WrongChainError
from muster.settings import ChainSettings
from muster.terms import Terms

LOG_SPAN: Final = 10_000
"""Most blocks asked for logs at once; an endpoint that finds this too much is asked for less from then on."""

MIN_LOG_SPAN: Final = 16
REORG_DEPTH: Final = 64
"""Blocks looked at again when a list is brought up to date from events."""

Question = tuple[str, str, tuple[object, ...]]
"""Contract, function, arguments."""


class ChainReader:
    """A deployment, seen through one endpoint. Make it with `connect`, and `close` it."""

    def __init__(self, rpc: Rpc, book: AddressBook, settings: ChainSettings) -> None:
        self.rpc = rpc
        self.addresses = book
        self.chain_id = book.chain_id
        self.settings = settings
        self._log_span = LOG_SPAN
        self._terms: dict[int, Terms] = {}
        self._validators: dict[int, list[str]] = {}
        self._validators_seen: dict[int, int] = {}
        self._validators_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.rpc.close()

    # Asking

    async def ask(self, contract: str, name: str, *arguments: object) -> Any:
        """Call a view function. Raises RevertError with the decoded custom error."""
        return (await self.ask_all([(contract, name, arguments)]))[0]

    async def ask_all(self, questions: Sequence[Question], block: int | None = None) -> list[Any]:
        """Call several view functions in one round trip. Without a `block`, a new one may come in between."""
        functions = [function(contract, name) for contract, name, _ in questions]
        at = "latest" if block is None else hex(block)
        requests = [
            ("eth_call", [{"to": getattr(self.addresses, call.contract), "data": call.encode(*given)}, at])
            for call, (_, _, given) in zip(functions, questions, strict=True)
        ]
        try:
            answers = await self.rpc.batch(requests)
        except RpcError as error:
            labels = ", ".join(dict.fromkeys(call.label for call in functions))
            if error.data or "revert" in error.reason.lower():
                raise decode_revert(error.data, labels) from error
            raise ChainError(f"{labels}: {error.reason}") from error
        return [call.decode(bytes.fromhex(data[2:])) for call, data in zip(functions, answers, strict=True)]

    # Blocks

    async def head(self) -> Block:
        """The latest block."""
        return _block(await self.rpc.request("eth_getBlockByNumber", "latest", False))

    async def block(self, number: int) -> Block:
        """A block by number. Raises ChainError when there is none yet."""
        found = await self.rpc.request("eth_getBlockByNumber", hex(number), False)
        if found is None:
            raise ChainError(f"chain {self.chain_id} has no block {number} yet")
        return _block(found)

    async def block_hash(self, number: int) -> bytes:
        return (await self.block(number)).hash

    async def events(self, kinds: Sequence[type[Event]], first: int, last: int) -> tuple[Event, ...]:
        """Events of these kinds in blocks `first` to `last`, in order, asked for in bounded pieces."""
        found: list[Event] = []
        while first <= last:
            until = min(last, first + self._log_span - 1)
            try:
                found += await self.events_within(kinds, first, until)
            except RpcError as error:
                if until - first < MIN_LOG_SPAN:
                    raise ChainError(f"logs of blocks {first} to {until}: {error.reason}") from error
                self._log_span = (until - first + 1) // 4
                continue
            first = until + 1
        return tuple(found)

    async def events_within(self, kinds: Sequence[type[Event]], first: int, last: int) -> tuple[Event, ...]:
        """The same in one request."""
        known = [codec_of(kind) for kind in kinds]
        question = {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": sorted({getattr(self.addresses, contract) for contract, _ in known}),
            "topics": [sorted({"0x" + codec.topic.hex() for _, codec in known})],
        }
        logs = await self.rpc.request("eth_getLogs", question)
        if not isinstance(logs, list):
            raise MalformedError("eth_getLogs: the answer is not a list")
        return tuple(event for event in decode_logs(logs, self.addresses) if isinstance(event, tuple(kinds)))

    # Runs

    async def run_count(self) -> int:
        return await self.ask("runs", "runCount")

    async def terms(self, run: int) -> Terms:
        """A run's terms; asked for once, since they never change. Raises ChainError when there is no such run."""
        if run not in self._terms:
            values = await self.ask("runs", "terms", run)
            if not values[-1]:
                raise ChainError(f"there is no run {run} on chain {self.chain_id}", hint="muster run list")
            self._terms[run] = Terms.from_chain(values)
        return self._terms[run]

    async def run_state(self, run: int) -> RunState:
        return struct(RunState, await self.ask("runs", "runState", run))

    async def run_info(self, run: int) -> RunInfo:
        return struct(RunInfo, await self.ask("runs", "runInfo", run))

    async def checkpoint(self, run: int, step: int) -> Checkpoint:
        """A published step. Raises ChainError when it is not published."""
        values = await self.ask("runs", "checkpoint", run, step)
        if not any(values[-1]):
            raise ChainError(f"step {step} of run {run} is not published")
        return Checkpoint(step, *values)

    async def latest_checkpoint(self, run: int) -> Checkpoint | None:
        """The newest step, or None before the first."""
        steps = (await self.run_state(run)).steps
        return await self.checkpoint(run, steps - 1) if steps else None

    async def work(self, node: str) -> Work:
        return struct(Work, await self.ask("runs", "work", node))

    async def commitment(self, node: str, index: int) -> Commitment:
        return struct(Commitment, await self.ask("runs", "commitment", node, index))

    async def is_committed(self, node: str, index: int, step: int, root: bytes) -> bool:
        return await self.ask("runs", "isCommitted", node, index, step, root)

    async def matured(self, node: str, index: int) -> bool:
        return await self.ask("runs", "matured", node, index)

    async def matures_at(self, node: str, index: int) -> int:
        """Second at which a commitment matures, if nothing more is sealed."""
        return await self.ask("runs", "maturesAt", node, index)

    async def challengeable_until(self, node: str, index: int) -> int:
        return await self.ask("runs", "challengeableUntil", node, index)

    async def claimable(self, node: str) -> tuple[int, int]:
        """(through, amount): what to pass to `claim` now, and what it pays; amount 0 when there is nothing."""
        return await self.ask("runs", "claimable", node)

    async def sealed_through(self, run: int) -> int:
        """Hour through which a quorum sealed."""
        return await self.ask("runs", "sealedThrough", run)

    async def last_sealed(self, validator: str) -> int:
        return await self.ask("runs", "lastSealed", validator)

    async def vouch_root(self, validator: str, hour: int) -> bytes:
        return await self.ask("runs", "vouchRoot", validator, hour)

    async def withdrawable(self, run: int) -> int:
        """What the owner could take out of the escrow."""
        return await self.ask("runs", "withdrawable", run)

    async def paused_until(self) -> int:
        """Second at which new commitments go on, or went on after the latest pause; 0 before the first."""
        return await self.ask("runs", "pausedUntil")

    async def notice_period(self, run: int) -> int:
        return await self.ask("runs", "noticePeriod", run)

    # Registry

    async def node(self, address: str) -> Node:
        """Status NONE for a key that never registered."""
        return struct(Node, await self.ask("registry", "node", address))

    async def nodes(self, addresses: Sequence[str]) -> list[Node]:
        return [struct(Node, values) for values in await self.ask_all([("registry", "node", (a,)) for a in addresses])]

    async def validators(self, run: int) -> list[str]:
        """Active validators of a run, in order of registration."""
        async with self._validators_lock:
            known = self._validators.setdefault(run, [])
            last = (await self.head()).number
            first = max(self.addresses.from_block, self._validators_seen.get(run, 0) - REORG_DEPTH)
            for event in await self.events([Registered], first, last):
                assert isinstance(event, Registered)
                if event.run == run and event.role == Role.VALIDATOR and event.node not in known:
                    known.append(event.node)
            self._validators_seen[run] = last
            addresses = list(known)
        nodes = await self.nodes(addresses)
        return [a for a, node in zip(addresses, nodes, strict=True) if node.status == Status.ACTIVE and node.run == run]

    async def withdrawable_at(self, node: str) -> int:
        """Second from which a node's lock can be withdrawn; 0 while it is active."""
        return await self.ask("registry", "withdrawableAt", node)

    async def free_balance(self, operator: str) -> int:
        return await self.ask("registry", "freeBalance", operator)

    # SlashCourt

    async def case_count(self) -> int:
        return await self.ask("court", "caseCount")

    async def case(self, case_id: int) -> Case:
        return struct(Case, await self.ask("court", "caseOf", case_id))

    async def ballot(self, case_id: int, judge: str) -> Ballot:
        state, digest = await self.ask("court", "ballot", case_id, judge)
        return Ballot(BallotState(state), digest)

    async def is_judge(self, case_id: int, judge: str) -> bool:
        return await self.ask("court", "isJudge", case_id, judge)

    async def is_resolvable(self, case_id: int) -> bool:
        """Whether `resolve` would end the case now."""
        return await self.ask("court", "isResolvable", case_id)

    async def collectable(self, case_id: int, judge: str) -> int:
        """What `collect` would pay now."""
        return await self.ask("court", "collectable", case_id, judge)

    # Money

    async def token_balance(self, address: str) -> int:
        return await self.ask("token", "balanceOf", address)

    async def allowance(self, owner: str, spender: str) -> int:
        return await self.ask("token", "allowance", owner, spender)

    async def eth_balance(self, address: str) -> int:
        """Wei for gas."""
        return int(await self.rpc.request("eth_getBalance", address, "latest"), 16)

    async def solvency(self) -> Solvency:
        """Tokens the contracts have, beside what their books say they owe, all at one block."""
        runs = range(1, await self.run_count() + 1)
        answers = await self.ask_all(
            [
                ("token", "balanceOf", (self.addresses.registry,)),
                ("token", "balanceOf", (self.addresses.runs,)),
                ("registry", "totalLocked", ()),
                ("registry", "totalFree", ()),
                ("registry", "totalHeld", ()),
                *(("runs", "runState", (run,)) for run in runs),
            ],
            (await self.head()).number,
        )
        escrows = sum(struct(RunState, values).balance for values in answers[5:])
        return Solvency(answers[0], sum(answers[2:5]), answers[1], escrows)


async def open_book(settings: ChainSettings, book: AddressBook | None = None) -> tuple[Rpc, AddressBook]:
    """A connection and the address book, which belong to each other and to the settings."""
    rpc = await connect(settings)
    try:
        book = book or AddressBook.load(settings.addresses)
        if book.chain_id != settings.chain_id:
            raise WrongChainError(
                f"the address book {settings.addresses} is of chain {book.chain_id}, "
                f"and the settings name chain {settings.chain_id}",
                hint="set chain.addresses to the book of this chain",
            )
        places = {name: getattr(book, name) for name in ("token", "registry", "runs", "court")}
        codes = await rpc.batch([("eth_getCode", [address, "latest"]) for address in places.values()])
        for (name, address), code in zip(places.items(), codes, strict=True):
            if code in ("0x", None):
                raise ConfigError(
                    f"there is no {name} contract at {address}: the address book is of another deployment",
                    hint=f"delete {settings.addresses} and deploy again, or get the book of this run",
                )
    except BaseException:
        await rpc.close()
        raise
    return rpc, book


def _block(found: dict[str, Any]) -> Block:
    return Block(int(found["number"], 16), int(found["timestamp"], 16), bytes.fromhex(found["hash"][2:]))
