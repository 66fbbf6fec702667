"""Follow the chain: deliver every event at least once, in order, across restarts and reorgs.

A cursor remembers on disk up to which block its owner has dealt with everything, and the hashes of recent such blocks.
`poll` delivers what comes next, `ack` says that it has been dealt with; what was not acknowledged is delivered again.
When a remembered block is no longer part of the chain, the cursor goes back to the last one that is, and says so. A
block that the endpoint merely does not know is waited for: it may lag behind its earlier answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Final

from muster.chain.events import Event
from muster.chain.reads import LOG_QUERIES, LOG_SPAN, ChainReader, OutageTimer
from muster.chain.types import Block
from muster.runtime.files import write_atomically
from muster.runtime.telemetry import logger

REMEMBERED_BLOCKS: Final = 64
"""Hashes kept. A reorg deeper than that begins again at the first block, which is slow and loses nothing."""

IDLE_BLOCKS: Final = 32
"""Blocks without events after which the position is written down all the same."""

Mark = tuple[int, str]
"""A block's number and hash."""


@dataclass(frozen=True)
class EventBatch:
    """What happened in blocks `first` to `last`. Iterates over its events."""

    events: tuple[Event, ...]
    first: int
    last: int
    rewound_to: int | None = None
    """After a reorg: the last block that stayed. Whatever was delivered from later blocks may not have happened."""
    more: bool = False
    """Whether the chain already has later blocks."""

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True)
class _Position:
    next: int
    marks: tuple[Mark, ...] = ()
    """Blocks dealt with, oldest first."""
    rewound_to: int | None = None
    """A rewind that its owner has not acknowledged yet."""


@dataclass(eq=False)
class EventCursor:
    """One consumer's place in the chain. Not to be shared between tasks or processes."""

    chain: ChainReader
    path: Path
    """The file it remembers in."""
    kinds: Sequence[type[Event]]
    name: str = ""
    _: KW_ONLY
    run: int | None = None
    """Other runs' events are left out; None leaves out none."""
    span: int = LOG_SPAN
    """Bounds a batch, in blocks."""

    def __post_init__(self) -> None:
        self.kinds = tuple(self.kinds)
        self.name = self.name or self.path.stem
        self.head: Block | None = None
        """The latest block that was seen, all events up to it being certain."""
        self._position: _Position | None = None
        self._written = -1
        self._offered: tuple[EventBatch, Mark | None] | None = None
        self._outage = OutageTimer()
        self._log = logger("cursor")

    async def poll(self) -> EventBatch:
        """Return what comes next, possibly nothing. Delivers the same again until `ack`.

        Raises UnreachableError while the endpoint is silent, or does not know a block that was dealt with.
        """
        if self._position is None:
            self._position = await asyncio.to_thread(self._load)
        self.head = await self._rewind(self._position)
        return await self._next_batch(self._position, self.head)

    async def ack(self) -> None:
        """Record that everything delivered by the latest `poll` has been dealt with; harmless without a delivery."""
        if self._offered is None or self._position is None:
            return
        batch, mark = self._offered
        self._offered = None
        marks = self._position.marks if mark is None else (*self._position.marks, mark)
        self._position = _Position(batch.last + 1, marks[-REMEMBERED_BLOCKS:])
        if len(batch) or batch.rewound_to is not None or batch.last >= self._written + IDLE_BLOCKS:
            await asyncio.to_thread(self._save, self._position)
            self._written = batch.last

    # Reading

    async def _next_batch(self, position: _Position, head: Block) -> EventBatch:
        """Return the next batch.

        The last block's hash is read before the events: where a reorg comes in between, the next poll goes back.
        """
        limit = head.number - self.chain.settings.confirmations
        first, span = position.next, min(self.span, LOG_QUERIES * self.chain.log_span.blocks)
        last = min(limit, first + span - 1)
        if last < first:
            nothing = EventBatch((), first, first - 1, position.rewound_to)
            self._offered = nothing, None
            return nothing
        mark = last, "0x" + (await self.chain.hash_under(head, last)).hex()
        found = await self.chain.events_under(head, self.kinds, first, last)
        events = tuple(event for event in found if self.run is None or getattr(event, "run", self.run) == self.run)
        batch = EventBatch(events, first, last, position.rewound_to, more=last < limit)
        self._offered = batch, mark
        return batch

    async def _rewind(self, position: _Position) -> Block:
        """Go back to the last remembered block that is still part of the chain; return the latest block.

        Raises UnreachableError while nothing but blocks that the endpoint does not know speaks for a reorg.
        """
        head = await self.chain.settled_head(position.next - 1)
        if not position.marks:
            return head
        newest, digest = position.marks[-1]
        if newest <= head.number and "0x" + (await self.chain.hash_under(head, newest)).hex() == digest:
            hashes: list[str | None] = [digest]
        else:
            blocks = await self.chain.blocks([number for number, _ in position.marks])
            hashes = [None if block is None else "0x" + block.hash.hex() for block in blocks]
        if hashes[-1] == digest:
            self._outage.end()
            return head
        if all(found in (None, known) for (_, known), found in zip(position.marks, hashes, strict=True)):
            self._outage.endure(newest)
        kept = tuple(mark for mark, found in zip(position.marks, hashes, strict=True) if mark[1] == found)
        stayed = kept[-1][0] if kept else self.chain.addresses.from_block - 1
        self._log.warning("the chain reorganised", cursor=self.name, was_at=newest, back_to=stayed)
        earlier = stayed if position.rewound_to is None else min(stayed, position.rewound_to)
        self._position = replace(position, next=stayed + 1, marks=kept, rewound_to=earlier)
        self._offered = None
        await asyncio.to_thread(self._save, self._position)
        return head

    # On disk

    def _identity(self) -> dict[str, object]:
        """Return what the position belongs to; a file of anything else begins at the first block."""
        book = self.chain.addresses
        kinds = sorted(kind.__name__ for kind in self.kinds)
        return {"chain_id": book.chain_id, "registry": book.registry, "kinds": kinds, "run": self.run}

    def _load(self) -> _Position:
        start = _Position(self.chain.addresses.from_block)
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return start
        try:
            state = json.loads(text)
            if state["of"] != self._identity():
                self._log.warning("starting over: the position is one of something else", cursor=self.name)
                return start
            marks = tuple((int(number), str(digest)) for number, digest in state["marks"])
            self._written = int(state["next"]) - 1
            return _Position(int(state["next"]), marks, state["rewound_to"])
        except (ValueError, KeyError, TypeError) as error:
            self._log.warning("starting over: the position does not parse", cursor=self.name, error=str(error))
            return start

    def _save(self, position: _Position) -> None:
        state = {
            "of": self._identity(),
            "next": position.next,
            "rewound_to": position.rewound_to,
            "marks": [list(mark) for mark in position.marks],
        }
        write_atomically(self.path, json.dumps(state) + "\n")
