"""The trainer's counting of looks: it follows verdicts and shown links, lists what each hour pays, and posts the sum.

Wages are the owner's own money, and the owner needs the looks: so its trainer counts them, in lists that others count
again (`muster look verify`). What decides is in `muster.protocol`; what is replayed, in `trainer.look_checks`. Time is
the chain's. Whatever others send, training goes on.
"""

from __future__ import annotations

import hmac
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.chain.client import Chain
from muster.clients.looks import check_list, root_of
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import HOUR_SECONDS
from muster.contracts import wages
from muster.errors import NotFoundError, RefusedError, UnreachableError
from muster.protocol.counting import LookKey, Tally, count_hour, key_of
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import LINK_HOURS, SEARCHED, SETTLE_HOURS, Record, checked_rows, settles_at
from muster.protocol.messages import (
    MAX_LISTED,
    ListedLook,
    LookList,
    SignedText,
    ValidatorTotal,
    Verdict,
)
from muster.protocol.reasons import Why
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.files import write_durably
from muster.runtime.loop import IDLE, Next
from muster.verification.look_facts import ArrivedLook, CalledWork, judge_arrived, named_row, takers_of
from muster.verification.profiles import Profile
from muster.verification.rules import CommittedWork
from trainer.look_journal import NO_ROW, DueCheck, LookJournal

POLL_SECONDS: Final = 5.0

CHECKING_SECONDS: Final = 1800
"""Longest that a list waits for checks that are still to be made, of the chain's seconds."""

CONFLICT: Final = 409
"""Status of an answer: there is a list of this hour or of a later one, as of a journal that is lost, or a stolen key's.
"""

REJECTION, SEARCH, PICK = 0, 1, 2
"""Ranks of checks: what holds work back is replayed first."""

log = telemetry.logger("trainer")
LISTED = telemetry.counter("trainer_looks_listed", "Verdicts that were listed as looks, by what came of them", ("why",))


def read_secret(folder: Path) -> bytes:
    """Return the secret by which rows are chosen, made at first use."""
    path = folder / "secret"
    if not path.exists():
        write_durably(path, secrets.token_bytes(32))
        path.chmod(0o600)
    return path.read_bytes()


@dataclass(eq=False)
class LookKeeper:
    """Counts the looks of one run."""

    chain: Chain
    client: OrchestratorClient
    run: int
    terms: Terms
    profile: Profile
    journal: LookJournal
    follow: Callable[[], Awaitable[None]]
    """Brings the journal up to now (`trainer.following`)."""
    _adopted: bool = field(default=False, init=False)
    _warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._secret = read_secret(self.journal.path.parent)

    # Polling

    async def poll(self) -> Next:
        """Take in what is new, choose what to check, list the hours that are due, post what they sum to."""
        if not self._adopted:
            if not self.journal.last_hour:
                await self._adopt()
            self._adopted = True
        await self.follow()
        await self._replay_rejections()
        for validator, hour in self.journal.unpicked():
            self._pick(validator, hour)
        await self._list_due()
        for hour, shown in self.journal.unsent():
            await self._publish(hour, shown)
        await self._post()
        return IDLE

    async def _publish(self, hour: int, shown: SignedText) -> None:
        try:
            await self.client.add_signed(shown)
        except RefusedError as error:
            if error.status != CONFLICT:
                raise
            log.warning("another list of this hour, or one of a later hour, is published", hour=hour)
        self.journal.sent(hour)

    async def is_settled(self) -> bool:
        """Return whether all work that was committed is in lists, and what they count is posted, or cannot be."""
        if not self.terms.wage_bps:
            return True
        await self.follow()
        return self.journal.first_open is None and not self.journal.unsent() and not await self._to_post()

    async def _adopt(self) -> None:
        """Go on from the run's latest list where this journal has none: it may be a new one."""
        try:
            shown = await self.client.looks(self.run)
        except NotFoundError:
            return
        self.journal.adopt(shown, check_list(self.client.domain, shown, self.run, await self.chain.keys(self.run)))

    # Choosing what is checked

    async def _replay_rejections(self) -> None:
        """Have rejections replayed that no court decides: who accuses sends its case before its rejection."""
        seen = self.journal.seen
        for one, c in self.journal.rejections((await self.chain.block(seen)).timestamp if seen else 0):
            if not self._takes_place(one, c):
                continue  # what decides nothing is not worth a replay: others' rejections could keep all checks waiting
            row = NO_ROW if (named := named_row(one, self.terms)) is None else named
            about = one.validator, c.node, c.index, one.root, row, c.hour, c.step
            self.journal.add([DueCheck(*about, "rejection", REJECTION)])

    def _takes_place(self, verdict: Verdict, c: CommittedWork) -> bool:
        if (known := self.journal.known_of(c.node, c.index)) is None:
            return False
        return verdict.validator in takers_of(known, self.journal.came(c), self.journal.refuted(c), self.terms)

    def _pick(self, validator: str, hour: int) -> None:
        """Choose which rows of a validator's hour are checked, once its link is shown."""
        self._expect_calls(hour, hour)
        rows = self._rows(validator, hour, hour, PICK)
        self.journal.pick(validator, hour, self._sample(rows, checked_rows(len(rows)), f"{hour} {validator}"))

    def search(self, check: DueCheck) -> list[DueCheck]:
        """Return the rows that are replayed because one is false: of the validator's looks that are not counted yet."""
        void, hours = self.journal.tally().void, (self.journal.last_hour + 1, check.hour + SETTLE_HOURS)
        rows = [
            one
            for one in self._rows(check.validator, *hours, SEARCH)
            if (one.validator, one.node, one.index) not in void and not self.journal.is_chosen(one)
        ]
        return self._sample(rows, SEARCHED, f"{check.validator} {check.node} {check.index} {check.position}")

    def _rows(self, validator: str, first: int, last: int, rank: int) -> list[DueCheck]:
        """Return the rows of a validator's looks at the work of these hours, so far as these count."""
        looks = [one for one in self._looks(first, last) if one.placed.validator == validator and not one.why]
        return [
            DueCheck(validator, c.node, c.index, look.verdict.root, position, c.hour, c.step, kind="numbers", rank=rank)
            for look, c in ((one, one.known.work) for one in looks)
            for position in look.rows(self.terms)
        ]

    def _sample(self, rows: list[DueCheck], count: int, about: str) -> list[DueCheck]:
        """Return so many of the rows, which nobody foresees who does not know the secret."""
        seed = hmac.digest(self._secret, f"{self.run} {about}".encode(), "sha256")
        return random.Random(seed).sample(rows, min(len(rows), count))

    def _expect_calls(self, first: int, last: int) -> None:
        """Raise UnreachableError while it is not known who is called to some work of these hours."""
        if unknown := self.journal.unknown(first, last):
            raise UnreachableError(f"who is called to {len(unknown)} commitments is not known yet")

    def look_of(self, check: DueCheck) -> ArrivedLook | None:
        """Return the look that a check is about; None where a reorg took it, or it is counted."""
        known = self.journal.known_of(check.node, check.index)
        looks = self._judged([known]) if known and hex_hash(known.work.root) == check.root else ()
        return next((one for one in looks if one.placed.validator == check.validator and one.why is None), None)

    def _looks(self, first: int, last: int) -> list[ArrivedLook]:
        """Return all verdicts about the work of these hours, judged by arrival, place, link and numbers."""
        return self._judged(self.journal.known(first, last))

    def _judged(self, works: Sequence[CalledWork]) -> list[ArrivedLook]:
        found = []
        for known in works:
            c = known.work
            about = self.journal.came(c), self.journal.links(c.hour), self.journal.refuted(c)
            found += judge_arrived(known, *about, self.profile, self.terms)
        return found

    # Lists

    async def _list_due(self) -> None:
        """List the hours whose looks count by now, and what was found since the list before."""
        now = (await self.chain.head()).timestamp
        due = now // HOUR_SECONDS - 1 - LINK_HOURS - SETTLE_HOURS
        while (hour := self._next_hour(due)) is not None:
            waits = now < settles_at(hour) + CHECKING_SECONDS
            if waits and self.journal.is_checking(hour + SETTLE_HOURS):
                return
            await self._list(hour)

    def _next_hour(self, due: int) -> int | None:
        """Return the next hour to list: with work, or the one that is due, to say what is wrong; None for none yet."""
        first = self.journal.first_open
        if first is not None and first <= due:
            return first
        found = (
            {one.outcome for one in self.journal.unlisted(due + SETTLE_HOURS)} if due > self.journal.last_hour else ()
        )
        return due if "false" in found or "refuted" in found else None

    async def _list(self, hour: int) -> None:
        """Count an hour's looks, and keep the list of it."""
        # 1. What came, and what was found.
        self._expect_calls(hour, hour + SETTLE_HOURS)
        looks = self._looks(hour, hour + SETTLE_HOURS)
        checks, tally = self.journal.unlisted(hour + SETTLE_HOURS)[:MAX_LISTED], self.journal.tally()
        pot = await self.chain.call(wages.pot(self.run))

        # 2. What counts of it: more than a list can name is not listed, and not paid; what is unpaid anyway goes first.
        of_hour = sorted((look for look in looks if look.placed.hour == hour), key=lambda one: one.why is not None)
        looks = of_hour[:MAX_LISTED] + [look for look in looks if look.placed.hour != hour]
        placed = [look.placed for look in looks if look.why is None]
        counted = count_hour(tally, hour, placed, checks, max(0, pot.funded - tally.total))
        listed = [_listed(look, counted) for look in looks if look.placed.hour == hour]
        found = LookList(run=self.run, hour=hour, looks=listed, checks=checks, totals=_totals(tally))

        # 3. Signed and kept.
        shown = self.client.signed("looks", found)
        self.journal.keep_list(hour, shown, tally, checks)
        self._tell(found)

    def _tell(self, found: LookList) -> None:
        """Say what a list comes to."""
        for one in found.looks:
            LISTED.labels(why=one.why or "counted").inc()
        paid = sum(one.counted for one in found.looks)
        log.info(
            "listed an hour's looks", hour=found.hour, looks=len(found.looks), wages=paid, checks=len(found.checks)
        )
        for one in found.checks:
            if one.outcome == "false":
                log.warning(
                    "a look is false", validator=one.validator, node=one.node, index=one.index, row=one.position
                )
        if any(one.why == "unfunded" for one in found.looks):
            hint = "muster run wages fund"
            log.warning("looks are not paid: the money for wages is used up", hour=found.hour, hint=hint)

    # Posting

    async def _to_post(self) -> Tally | None:
        """Return what the lists say, if they count more than was posted, and it is funded."""
        tally, pot = self.journal.tally(), await self.chain.call(wages.pot(self.run))
        if tally.total > pot.funded and not self._warned:  # it was taken back after it was counted: its notice is a day
            log.warning("wages cannot be posted: less is funded than is counted", funded=pot.funded)
        self._warned = tally.total > pot.funded
        return tally if pot.posted < tally.total <= pot.funded else None

    async def _post(self) -> None:
        """Post what the lists sum to, if it is more than was posted."""
        if (tally := await self._to_post()) is not None:
            totals = {one.validator: one.total for one in _totals(tally)}
            mined = await self.chain.send(wages.post(self.run, root_of(self.run, totals), tally.total))
            log.info("posted wages", sum=tally.total, tx=mined.hash)


def _listed(look: ArrivedLook, counted: dict[LookKey, Why | None]) -> ListedLook:
    why = look.why or counted[key_of(look.placed)]
    paid = 0 if why else look.placed.wage
    return ListedLook.of(look.verdict, came=look.placed.came, counted=paid, why=why)


def _totals(tally: Tally) -> list[ValidatorTotal]:
    return [
        ValidatorTotal(validator=who, total=one.total, barred_until=one.barred_until, refuted_at=one.refuted_at)
        for who, one in sorted(tally.records.items())
        if one != Record()
    ]
