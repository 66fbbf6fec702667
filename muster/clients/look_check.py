"""Count an hour's looks again, from verdicts, chain and the lists before it, and replay what its trainer checked.

What a list says beyond that is the trainer's word: which rows it chose to check, that the owner's money was used up,
and what it found of rows, unless these are replayed here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from muster.clients.looks import LooksReader, read_call, shown_links
from muster.clients.run_data import CheckpointFetcher, fetch_rollouts
from muster.constants import HOUR_SECONDS
from muster.contracts.court import CaseOpened
from muster.contracts.runs import HourSealed, WorkCommitted
from muster.errors import CheckError, MalformedError, UnreachableError
from muster.protocol.counting import LookKey, Tally, count_hour, key_of, records_of
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import SETTLE_HOURS, Record
from muster.protocol.messages import MAX_LISTED, ListedLook, LookList, RowCheck, Verdict
from muster.protocol.reasons import REASONS
from muster.protocol.receipts import check_verdict
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.verification.look import decode_look
from muster.verification.look_facts import ArrivedLook, judge_arrived, named_row
from muster.verification.model import check_row, shares_rejection
from muster.verification.profiles import Profile
from muster.verification.replay import Replayer
from muster.verification.rules import CommittedWork

BEFORE: Final = 3 * SETTLE_HOURS
"""Hours whose lists are read before the one in question: what they found may void looks of later ones."""

MAX_PAGES: Final = 10_000
"""Pages of verdicts that are read."""


@dataclass
class LookReport:
    """What counting an hour's looks again came to."""

    hour: int
    looks: int = 0
    """Verdicts that the list names."""
    counted: int = 0
    """Of these, the ones that are paid."""
    wages: int = 0
    """Token wei."""
    unfunded: int = 0
    """Looks that are not paid since, by the trainer's word, the money was used up."""
    checks: int = 0
    replayed: int = 0
    """Rows that were replayed here, and came to what the list says."""
    differences: list[str] = field(default_factory=list)
    """What the list says and is not so."""


@dataclass
class LookCheck:
    """Counts one hour of a run again."""

    reader: LooksReader
    terms: Terms
    profile: Profile
    report: LookReport = field(default_factory=lambda: LookReport(0), init=False)
    _looks: dict[int, list[ArrivedLook]] = field(default_factory=dict, init=False)
    """By hour of the commitment."""
    _works: dict[tuple[str, int], CommittedWork] = field(default_factory=dict, init=False)
    """By node and index."""
    _came: dict[tuple[str, int, str], list[tuple[Verdict, int]]] = field(default_factory=dict, init=False)
    """Verdicts by node, index and root."""

    async def run(self, hour: int | None = None) -> LookReport:
        """Count an hour again, else that of the latest list. Raises UnreachableError where there is no list."""
        found = await self.reader.list(hour)
        if found is None:
            raise UnreachableError(
                "the trainer has published no list of this hour's looks", hint="is its trainer running?"
            )
        works = [one for one in await self.reader.chain.all_events(WorkCommitted) if one.run == self.reader.run]
        self._works = {(one.node, one.index): CommittedWork.of(one) for one in works}
        lists = await self._lists_before(found) | {found.hour: found}
        await self._read(found.hour, lists)
        await self._check_refuted(found, lists)
        self._compare(found, lists)
        return self.report

    async def _lists_before(self, found: LookList) -> dict[int, LookList]:
        """Return the lists of the hours before, as many as say what its count follows from: one at least, or all."""
        lists: dict[int, LookList] = {}
        began = min((c.hour for c in self._works.values()), default=found.hour)
        for hour in range(found.hour - 1, began - 1, -1):
            if lists and hour < found.hour - 2 * BEFORE:
                break
            if (one := await self.reader.readable(hour)) is not None:
                lists[hour] = one
        return lists

    async def _read(self, hour: int, lists: dict[int, LookList]) -> None:
        """Read who was called, what came and which links were shown, of all hours that a list here may be about."""
        chain, run = self.reader.chain, self.reader.run
        hours = range(hour - BEFORE, hour + SETTLE_HOURS + 1)
        seals = [one for one in await chain.all_events(HourSealed) if one.run == run and one.hour in hours]
        links = await shown_links(chain, seals)
        refuted = {key_of(one) for found in lists.values() for one in found.checks if _holds_nothing(one)}
        self._came = await self._verdicts(hours.start)
        for c in self._works.values():
            about = self._came.get((c.node, c.index, hex_hash(c.root)))
            if c.hour not in hours or not about:
                continue
            shown = {who: link for (who, one), link in links.items() if one == c.hour}
            called = await read_call(chain, self.reader.client, self.terms, c)
            by = {who for who, node, index in refuted if (node, index) == (c.node, c.index)}
            self._looks.setdefault(c.hour, []).extend(judge_arrived(called, about, shown, by, self.profile, self.terms))

    async def _check_refuted(self, found: LookList, lists: dict[int, LookList]) -> None:
        """Say which rejections hold nothing back by the list, and are none, or are before a court."""
        cases = [one for one in await self.reader.chain.all_events(CaseOpened) if one.run == self.reader.run]
        seconds = await self.reader.chain.block_times({one.at.block for one in cases})
        earlier = [one for hour, listed in lists.items() if hour < found.hour for one in listed.checks]
        before = {(key_of(one), one.root) for one in filter(_holds_nothing, earlier)}
        for check in filter(_holds_nothing, found.checks):
            said = self._came.get((check.node, check.index, check.root), [])
            verdict, came = next((one for one in said if one[0].validator == check.validator), (None, 0))
            if check.outcome != "refuted" and (verdict is None or verdict.accepted):
                continue  # another verdict has come since: this one holds nothing back, and takes nothing
            opened = [seconds[one.at.block] for one in cases if (one.node, one.index) == (check.node, check.index)]
            is_so = verdict and not verdict.accepted and check.position == named_row(verdict, self.terms)
            if not is_so or any(second <= came for second in opened) or (key_of(check), check.root) in before:
                self.report.differences.append(f"a rejection is listed as {check.outcome}, and is not so: {_of(check)}")
            before.add((key_of(check), check.root))

    async def _verdicts(self, first: int) -> dict[tuple[str, int, str], list[tuple[Verdict, int]]]:
        """Return the verdicts that came since an hour, by node, index and root; those that their validators signed."""
        found: dict[tuple[str, int, str], dict[str, tuple[Verdict, int]]] = {}
        place = 0
        for _ in range(MAX_PAGES):
            given, place = await self.reader.client.verdicts(self.reader.run, place)
            for verdict, second in given:
                if second >= first * HOUR_SECONDS and _is_signed(self.reader, verdict):
                    about = found.setdefault((verdict.node, verdict.index, verdict.root), {})
                    about[verdict.validator] = verdict, second
            if not given:
                return {about: list(said.values()) for about, said in found.items()}
        raise MalformedError(f"the orchestrator lists more than {MAX_PAGES} pages of verdicts")

    def _compare(self, found: LookList, lists: dict[int, LookList]) -> None:
        """Play the lists up to this one, and say where it differs."""
        # 1. Those before: what they say, and what they void of later hours.
        tally, report = Tally(), self.report
        for hour in sorted(hour for hour in lists if hour < found.hour):
            self._count(tally, lists[hour])
            tally.records |= records_of(lists[hour])

        # 2. This one's looks.
        counted = self._count(tally, found)
        expected = {key_of(one.placed): (one.placed.wage, one.why) for one in self._looks.get(found.hour, [])}
        report.hour, report.looks, report.checks = found.hour, len(found.looks), len(found.checks)
        said = {key_of(one): one for one in found.looks}
        for key in sorted(expected.keys() | said.keys()):
            listed = said.get(key)
            if listed is None and len(found.looks) == MAX_LISTED:
                continue  # it names no more
            wage, why = expected.get(key, (0, None))
            why = why or counted.get(key)
            report.differences += _difference(key, listed, key in expected, 0 if why else wage, why)
            if listed is not None:
                report.counted += listed.counted > 0
                report.unfunded += listed.why == "unfunded"
        report.wages = sum(one.counted for one in found.looks)

        # 3. What follows for validators.
        arrived = [one for looks in self._looks.values() for one in looks if one.why is None]
        drawn = {key_of(one.placed): one.rows(self.terms) for one in arrived}
        for check in found.checks:
            if check.outcome == "false" and check.position not in drawn.get(key_of(check), ()):
                report.differences.append(f"a row is listed as false, and is of no look: {_of(check)}")
        listed = records_of(found)
        for who in sorted(tally.records.keys() | listed.keys()):
            if tally.records.get(who, Record()) != listed.get(who, Record()):
                report.differences.append(f"{who}'s total, or until when it is barred, does not follow from the lists")

    def _count(self, tally: Tally, found: LookList) -> dict[LookKey, str | None]:
        """Count a list's hour into a tally; what it says is unfunded counts nothing."""
        unfunded = {key_of(one) for one in found.looks if one.why == "unfunded"}
        hours = range(found.hour, found.hour + SETTLE_HOURS + 1)
        looks = [one.placed for hour in hours for one in self._looks.get(hour, ()) if one.why is None]
        money = sum(look.wage for look in looks)
        return {
            **dict.fromkeys(unfunded, "unfunded"),
            **count_hour(tally, found.hour, [one for one in looks if key_of(one) not in unfunded], found.checks, money),
        }

    async def replay(self, report: LookReport, checkpoints: CheckpointFetcher, rollouts: RolloutReader) -> None:
        """Replay the rows of the list's checks that are of looks, and add to the report what comes to something else.

        Raises UnreachableError where weights or files are not to be had.
        """
        found = await self.reader.list(report.hour)
        assert found is not None, "it was counted"
        looks = {key_of(one.placed): one for hour in self._looks.values() for one in hour}
        replayer: Replayer | None = None
        for check in found.checks:
            look, c = looks.get(key_of(check)), self._works.get((check.node, check.index))
            if check.position is None or c is None or check.outcome == "cannot":
                continue
            claimed, rows = None, list[int]()
            if check.outcome != "refuted":
                if look is None or look.link is None:
                    continue
                rows = look.rows(self.terms)
                claimed = decode_look(look.verdict.look, len(rows), self.profile)
                if claimed is None or check.position not in rows:
                    report.differences.append(
                        f"{check.validator} has no numbers of a row that is checked: {_of(check)}"
                    )
                    continue
            elif not self._is_of_replay(check):
                continue
            client = self.reader.client
            name = (await client.upload(c.run, c.node, c.index, c.root)).receipt.file_hash
            row = (await fetch_rollouts(client, rollouts, name, c.root, self.terms))[check.position]
            async with checkpoints.used(c.step) as folder:
                if replayer is None:
                    replayer = await asyncio.to_thread(Replayer, folder, self.profile, self.terms.temperature)
                await asyncio.to_thread(replayer.load_weights, folder)
                if claimed is None or look is None:
                    outcome = "shared" if await asyncio.to_thread(shares_rejection, replayer, row) else "refuted"
                else:
                    given = replayer, row, claimed[rows.index(check.position)], look.seeds
                    outcome = await asyncio.to_thread(
                        lambda given=given, by=look.verdict: check_row(*given, accepted=by.accepted)
                    )
            if outcome not in (check.outcome, "cannot"):
                report.differences.append(f"a row is {outcome}, and the list says {check.outcome}: {_of(check)}")
            report.replayed += check.outcome == outcome

    def _is_of_replay(self, check: RowCheck) -> bool:
        """Return whether a rejection is by what a replay shows."""
        said = self._came.get((check.node, check.index, check.root), [])
        own = [one for one, _ in said if one.validator == check.validator]
        return any(one.reason is not None and REASONS[one.reason].shown_by == "replay" for one in own)


def _is_signed(reader: LooksReader, verdict: Verdict) -> bool:
    try:
        check_verdict(reader.client.domain, verdict)
    except CheckError:
        return False
    return True


def _holds_nothing(one: RowCheck) -> bool:
    return one.outcome == "refuted" or one.position is None


def _of(one: object) -> str:
    return ", ".join(f"{name} {getattr(one, name)}" for name in ("validator", "node", "index", "position"))


def _difference(key: LookKey, listed: ListedLook | None, came: bool, wage: int, why: str | None) -> list[str]:
    about = f"the look of {key[0]} at commitment {key[2]} of {key[1]}"
    if listed is None:
        return [f"{about} is not listed"]
    if not came:
        return [f"{about} is listed, and no such verdict is to be had"]
    if (listed.counted, listed.why) != (wage, why):
        return [f"{about} is listed as {listed.why or listed.counted}, and is {why or wage}"]
    return []
