"""Replay the rows that the maps of opened traps name: a node that named true rows made validators look for nothing.

`muster run traps` starts it. It needs no key and sends nothing. Tickets and maps are checked as claimers do; a trap
whose file or weights are gone says nothing of its node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from muster.clients.opened_traps import OpenedTraps
from muster.contracts import masters
from muster.contracts.run_terms import Series
from muster.contracts.runs import WorkCommitted
from muster.errors import CheckError, MismatchError, UnreachableError, UsageError
from muster.protocol.masters import epoch_of
from muster.protocol.messages import OpenedTrap
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.verification.rules import CommittedWork
from validator.context import RunVerificationContext
from validator.inspector import inspect_commitment
from validator.verify import BadWorkError, connected, show_document

FORGIVEN: Final = 4
"""One in so many of a node's rows may be true by chance: of a real model's in bfloat16, 1 % were."""

_log = telemetry.logger("validator")


@dataclass(frozen=True)
class ReplayedTrap:
    """What a replay says of the rows that a trap's map names."""

    node: str
    index: int
    step: int
    named: int
    """Rows that the map names."""
    true: tuple[int, ...] = ()
    """Positions of the rows by which a replay would not accuse: who names one of them is not paid."""
    unknown: str = ""
    """Why the rows cannot be replayed here; empty where they were."""

    @property
    def false(self) -> int:
        """Return in how many rows a validator finds what it is paid for."""
        return 0 if self.unknown else self.named - len(self.true)

    def __str__(self) -> str:
        rows = self.unknown or f"{self.false} of {self.named} rows are false; true: {[*self.true]}"
        return f"{self.node}:{self.index} of step {self.step}: {rows}"


async def check_traps(settings: Settings, epoch: int | None, *, as_json: bool) -> None:
    """Replay the traps of an epoch, else of the last one shown, and print what was found and whom to refuse tickets.

    Raises BadWorkError when a node is to be refused, and else UnreachableError when a trap cannot be replayed here.
    """
    async with connected(settings) as connection:
        if not (await connection.chain.terms(settings.run)).has_traps:
            raise UsageError(f"run {settings.run} has no traps", hint="muster run show --terms")
        shown = (await connection.chain.call(masters.masters(settings.run, Series.TRAPS))).epochs
        if not 0 < (number := epoch or shown) <= shown:
            raise UnreachableError(
                f"the master of trap epoch {number or 1} of run {settings.run} is not shown yet",
                hint="the trainer shows it when the epoch is over, or muster run reveal-master",
            )
        master = await connection.chain.call(masters.master_of(settings.run, Series.TRAPS, number))
        found = await replay_traps(await connection.context(), number, master.master)
    refuse = refused(found)
    lines = [asdict(trap) | {"false": trap.false} if as_json else f"\n  {trap}" for trap in found]
    shown_traps = lines if as_json else "".join(map(str, lines))
    show_document({"run": settings.run, "epoch": number, "traps": shown_traps, "refuse": refuse}, as_json=as_json)
    if refuse:
        raise BadWorkError(
            f"too many rows are true of: {', '.join(refuse)}",
            hint="add them to orchestrator.no_tickets and restart it",
        )
    if gone := sum(bool(trap.unknown) for trap in found):
        raise UnreachableError(f"{gone} of {len(found)} traps cannot be replayed here")


def refused(found: Iterable[ReplayedTrap]) -> list[str]:
    """Return the nodes that get no more tickets: over one in FORGIVEN of their rows is true, and at least two are."""
    named, true = Counter[str](), Counter[str]()
    for trap in found:
        if not trap.unknown:
            named[trap.node] += trap.named
            true[trap.node] += len(trap.true)
    return sorted(node for node in named if true[node] > max(1, named[node] // FORGIVEN))


async def replay_traps(context: RunVerificationContext, epoch: int, master: bytes) -> list[ReplayedTrap]:
    """Replay what the traps of an epoch name, step by step. Raises TRANSIENT errors of chain and orchestrator."""
    run, terms = context.rules.run, context.rules.terms
    opened = OpenedTraps(context.chain, context.client, run, terms)
    listed = await opened.listed(epoch)
    works = [CommittedWork.of(event) for event in await context.chain.all_events(WorkCommitted) if event.run == run]
    found = []
    for work in sorted(works, key=lambda one: one.step):
        if epoch_of(terms.trap_series, work.step) != epoch or (work.node.lower(), work.index) not in listed:
            continue
        entropy = (await context.chain.draw_source(work.node)).entropy
        if (trap := await opened.get(work, entropy, epoch, master)) is not None:
            found.append(await replay_trap(context, work, trap))
    return found


async def replay_trap(context: RunVerificationContext, work: CommittedWork, trap: OpenedTrap) -> ReplayedTrap:
    """Replay the rows that one trap's map names."""
    rows = sorted(trap.rows)
    _log.info("replaying a trap", node=work.node, index=work.index, step=work.step, rows=len(rows))
    try:
        inspection = await inspect_commitment(context, work, (), missing_counts=False)
        if inspection.finding is not None and (inspection.guilty or not inspection.rollouts):
            raise MismatchError(f"the file itself is bad: {inspection.finding.reason}")
        replayed = await context.model.replay(work.step, [inspection.rollouts[row] for row in rows])
    except (CheckError, UnreachableError) as error:
        return ReplayedTrap(work.node, work.index, work.step, len(rows), unknown=str(error))
    true = tuple(row for row, one in zip(rows, replayed, strict=True) if not one.beyond)
    return ReplayedTrap(work.node, work.index, work.step, len(rows), true)
