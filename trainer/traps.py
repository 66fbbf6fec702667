"""Traps at the trainer: it knows them before others do, shows their masters in time, and counts who misses them.

A commitment that is picked trains nothing. The master of an epoch is shown when no work of the epoch can be committed
any more and the seals of its last hour have closed, so that it is of no more use; sooner only where the chain
takes no further step without it. Then each trap says something of who judged it: a validator that misses more of them
than one that inspects by policy would (MISSES_LIKELY) counts no more.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.masters_file import read_masters
from muster.clients.opened_traps import OpenedTraps
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import HOUR_SECONDS
from muster.contracts import masters as masters_contract
from muster.contracts import runs, traps
from muster.contracts.run_terms import Series
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.errors import CheckError, ConfigError, RevertError, UnreachableError
from muster.grading.masters import Masters
from muster.protocol.draws import pool_rows
from muster.protocol.hashes import hash_bytes
from muster.protocol.masters import epoch_of, epochs_begun, epochs_over
from muster.protocol.messages import Verdict
from muster.protocol.receipts import check_verdict
from muster.protocol.seals import closes_at
from muster.protocol.terms import Terms
from muster.protocol.traps import FIRST_COMMITMENTS, is_picked, planted_rows, ticket_call
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next
from muster.settings.schema import ValidatorSettings
from muster.verification.rules import CommittedWork
from muster.verification.sample_policy import detection, sample_size

POLL_SECONDS: Final = 30.0

MISSES_LIKELY: Final = 1e-4
"""Chance of so many misses, for who inspects by policy, below which a validator counts no more."""

ROW_SEEN: Final = 0.99
"""Chance that a replay finds a planted row that is in the sample: the least that was measured."""

MAX_WAITING: Final = 10_000
"""Verdicts about picked work that are kept until its epoch's master is shown."""

log = telemetry.logger("trainer")


def load_trap_masters(path: Path | None, terms: Terms) -> Masters | None:
    """Read the masters of a run's traps. Raises ConfigError when they are another run's."""
    if not terms.has_traps:
        return None
    if path is None:
        log.warning(
            "no masters of traps: none is shown, and planted rows are trained on", hint="set trainer.trap_masters"
        )
        return None
    masters = read_masters(path)
    if masters.tip != terms.trap_tip:
        raise ConfigError(
            f"{path} holds the masters of another run", hint="set trainer.trap_masters to the file of this run's"
        )
    return masters


def miss_chance(terms: Terms) -> float:
    """Return the chance that an inspection by policy misses a trap: the larger of a newcomer's and of others'."""
    settings, rows, pooled = ValidatorSettings(), terms.positions, pool_rows(terms)
    samples = {
        i: min(rows, pooled + sample_size(settings, rows, index=i, suspect=False, pooled=pooled))
        for i in (0, FIRST_COMMITMENTS)
    }
    return max(1 - detection(rows, planted_rows(rows, i), sample, ROW_SEEN) for i, sample in samples.items())


def tail(misses: int, judged: int, chance: float) -> float:
    """Return the probability of `misses` or more among `judged` trials that miss with `chance` each: exact binomial."""
    if not misses:
        return 1.0
    ways = (
        math.lgamma(judged + 1) - math.lgamma(k + 1) - math.lgamma(judged - k + 1) for k in range(misses, judged + 1)
    )
    yes, no = math.log(chance), math.log1p(-chance)
    return math.fsum(math.exp(way + k * yes + (judged - k) * no) for k, way in enumerate(ways, misses))


def epochs_quiet(terms: Terms, steps: int) -> int:
    """Return of how many trap epochs no work can be committed any more after `steps` published steps."""
    return epochs_over(terms.trap_series, max(0, steps - terms.async_level - 2))


def quiet_step(terms: Terms, epoch: int) -> int:
    """Return the step from whose publication on no work of a trap epoch can be committed."""
    return epoch * terms.trap_epoch_steps + terms.async_level + 2


def epochs_needed(terms: Terms, steps: int) -> int:
    """Return how many masters the chain asks for before it takes step number `steps`: as Epochs.neededFor."""
    return max(min(steps // terms.trap_epoch_steps, terms.trap_epochs) - 1, 0)


@dataclass
class TrapKeeper:
    """Keeps the traps of one run."""

    chain: Chain
    client: OrchestratorClient
    run: int
    terms: Terms
    masters: Masters
    opened: OpenedTraps
    missed: dict[tuple[str, str, int], bool] = field(default_factory=dict, init=False)
    """Whether a validator (address) missed a trap (node, index), of all that are open."""
    distrusted: set[str] = field(default_factory=set, init=False)
    """Validators whose acceptances count no more."""
    _entropies: dict[str, bytes] = field(default_factory=dict, init=False)
    _quiet: dict[int, int] = field(default_factory=dict, init=False)
    """By epoch, the second since which none of its work can be committed."""
    _waiting: list[Verdict] = field(default_factory=list, init=False)
    _cursor: str | None = field(default=None, init=False)
    _ticketed: int = field(default=0, init=False)
    """Epochs whose tickets are on chain."""

    async def is_picked(self, node: str, index: int, step: int) -> bool:
        """Return whether the lottery picks a commitment. Raises as the chain's reads."""
        master = self.masters.of(epoch_of(self.terms.trap_series, step))
        entropy, every = await self._entropy(node), self.terms.trap_every
        return is_picked(master=master, entropy=entropy, node=node, index=index, every=every)

    async def _entropy(self, node: str) -> bytes:
        if node not in self._entropies:
            self._entropies[node] = (await self.chain.draw_source(node)).entropy
        return self._entropies[node]

    async def poll(self) -> Next:
        """Show what is due, then count what validators said of opened traps. Raises TRANSIENT errors."""
        await self.show()
        await self.show_tickets()
        return AGAIN if await self.count() else IDLE

    async def all_shown(self) -> bool:
        """Return whether the masters of all epochs that have begun are shown: the last one by the owner."""
        steps = (await self.chain.call(runs.run_state(self.run))).steps
        shown = (await self.chain.call(masters_contract.masters(self.run, Series.TRAPS))).epochs
        return shown >= epochs_begun(self.terms.trap_series, steps)

    async def show(self) -> None:
        """Show the masters that are due, in order."""
        state, head = await self.chain.call(runs.run_state(self.run)), await self.chain.head()
        shown = (await self.chain.call(masters_contract.masters(self.run, Series.TRAPS))).epochs
        for epoch in range(shown + 1, epochs_over(self.terms.trap_series, state.steps) + 1):
            quiet = epoch <= epochs_quiet(self.terms, state.steps)
            since = await self._quiet_since(epoch) if quiet else head.timestamp
            due = head.timestamp >= closes_at(since // HOUR_SECONDS)
            if not due and epoch <= epochs_needed(self.terms, state.steps):
                log.warning(
                    "showing a master before its seals close: the next step needs it",
                    epoch=epoch,
                    hint="a longer trap_epoch_steps keeps traps secret until they are judged",
                )
            elif not due:
                return
            try:
                mined = await self.chain.send(
                    masters_contract.reveal_master(self.run, Series.TRAPS, self.masters.of(epoch))
                )
            except RevertError as error:
                if error.name != "WrongMaster":  # the owner has shown it meanwhile
                    raise
                return
            log.info("showed the master of traps", epoch=epoch, tx=mined.hash)

    async def _quiet_since(self, epoch: int) -> int:
        """Return the second of the step after which no work of an epoch can be committed, from the chain.

        Raises UnreachableError where a reorganisation took that step.
        """
        if epoch not in self._quiet:
            step = quiet_step(self.terms, epoch)
            found = await self.chain.all_events(CheckpointPublished)
            event = next((one for one in found if (one.run, one.step) == (self.run, step)), None)
            if event is None:
                raise UnreachableError(f"the chain lost step {step} of run {self.run} in a reorganisation")
            self._quiet[epoch] = (await self.chain.block(event.at.block)).timestamp
        return self._quiet[epoch]

    async def show_tickets(self) -> None:
        """Put the tickets of opened traps on chain, once: a pick without one pays who was called, whatever it did."""
        shown = (await self.chain.call(masters_contract.masters(self.run, Series.TRAPS))).epochs
        listed = {epoch: await self.opened.listed(epoch) for epoch in range(self._ticketed + 1, shown + 1)}
        for event in await self.chain.all_events(WorkCommitted) if any(listed.values()) else ():
            epoch = epoch_of(self.terms.trap_series, event.step)
            if event.run == self.run and (event.node.lower(), event.index) in listed.get(epoch, ()):
                await self._show_ticket(CommittedWork.of(event), epoch)
        self._ticketed = shown

    async def _show_ticket(self, c: CommittedWork, epoch: int) -> None:
        if await self.chain.call(traps.map_root(c.node, c.index)) != bytes(32):
            return
        trap = await self.opened.get(c, await self._entropy(c.node), epoch, self.masters.of(epoch))
        try:
            if trap is not None:
                await self.chain.send(ticket_call(c.step, trap.ticket, trap.consent))
        except RevertError as error:
            if error.name != "TicketKnown":
                raise

    async def count(self) -> bool:
        """Read verdicts and count those about opened traps; return whether there may be more."""
        verdicts, self._cursor = await self.client.verdicts(self.run, self._cursor)
        for verdict in verdicts:
            if verdict.run == self.run and await self.is_picked(verdict.node, verdict.index, verdict.step):
                self._waiting = [*self._waiting, verdict][-MAX_WAITING:]
        shown = (await self.chain.call(masters_contract.masters(self.run, Series.TRAPS))).epochs
        waiting, self._waiting = self._waiting, []
        for place, verdict in enumerate(waiting):
            if epoch_of(self.terms.trap_series, verdict.step) > shown:
                self._waiting.append(verdict)
                continue
            try:
                await self._count(verdict)
            except BaseException:
                self._waiting += waiting[place:]
                raise
        return bool(verdicts)

    async def _count(self, verdict: Verdict) -> None:
        """Count one verdict about picked work of an epoch whose master is shown."""
        try:
            check_verdict(self.client.domain, verdict)
        except CheckError as error:
            log.warning("ignoring a verdict", validator=verdict.validator, reason=str(error))
            return
        root, node = hash_bytes(verdict.root), to_checksum_address(verdict.node)
        c = CommittedWork(self.run, verdict.step, node, verdict.index, root, hour=0, block=0)
        if not await self.chain.call(runs.is_committed(c.node, c.index, c.step, c.root)):
            return
        epoch = epoch_of(self.terms.trap_series, c.step)
        if await self.opened.get(c, await self._entropy(c.node), epoch, self.masters.of(epoch)) is None:
            return  # without a ticket it is true work
        validator = to_checksum_address(verdict.validator)
        self.missed[validator, c.node, c.index] = verdict.accepted
        self._judge(validator)

    def _judge(self, validator: str) -> None:
        """Distrust a validator that misses too many."""
        found = Counter(missed for (who, _, _), missed in self.missed.items() if who == validator)
        likely = tail(found[True], found.total(), miss_chance(self.terms))
        if likely < MISSES_LIKELY and validator not in self.distrusted:
            self.distrusted.add(validator)
            log.warning("a validator counts no more", validator=validator, missed=found[True], traps=found.total())
        elif likely >= MISSES_LIKELY and validator in self.distrusted:
            self.distrusted.remove(validator)
            log.info("a validator counts again", validator=validator, missed=found[True], traps=found.total())
