"""Looks are counted, listed, posted and claimed: the trainer's keeper on a real chain, with a real orchestrator.

Validators' numbers are made up, and so is what checks find: who replays is `tests/unit/trainer/test_look_checks.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from muster.clients.look_check import LookCheck
from muster.clients.looks import LooksReader, read_call, root_of, totals_of
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts import registry, runs, token, wages
from muster.contracts.codec import Transaction
from muster.errors import MismatchError, RefusedError, UnreachableError
from muster.protocol.draws import link_of
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import BARRED_SECONDS, checked_rows, link_due_at, rows_of_look, settles_at, wage
from muster.protocol.messages import LookList, RowCheck, SignedText, StepReport
from muster.settings.schema import Settings
from muster.verification.audit import find_commitment
from muster.verification.look import encode_look, numbers_of
from muster.verification.look_facts import CalledWork
from muster.verification.profiles import CPU_FP32
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import VALIDATORS, Orchestrator, RunFixture
from testbed.runs.story import Story
from testbed.samples.terms import terms_of
from trainer.accepted_work import accepted_files
from trainer.following import FollowProcess, RunFollower, journal_of
from trainer.look_journal import LookJournal
from trainer.looks import LookKeeper

TERMS = {"accepts_required": 2, "wage_bps": 625, "look_rows": 4}
FUNDED = 100 * TOKEN


class Looking(Story):
    """A run whose looks are counted."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator, folder: Path) -> None:
        super().__init__(run_fixture, orchestrator)
        self.folder, self.terms = folder, terms_of(**TERMS)

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[LookKeeper]:
        """Yield the trainer's keeper, as after a restart."""
        with LookJournal(self.folder, "trainer", self.run) as journal:
            async with self.run_fixture.chain("trainer") as chain, self.client("trainer") as client:
                follow = RunFollower(chain, client, self.run, self.terms, journal).follow
                yield LookKeeper(chain, client, self.run, self.terms, CPU_FP32, journal, follow)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[LooksReader]:
        async with self.run_fixture.chain("stranger") as chain, self.client(None) as client:
            yield LooksReader(chain, client, self.run)

    async def at(self, second: int) -> None:
        async with self.run_fixture.local_chain() as dev:
            await dev.advance_to(second)

    async def new_hour(self) -> int:
        async with self.run_fixture.local_chain() as dev:
            hour = await dev.now() // HOUR_SECONDS + 1
            await dev.advance_to(hour * HOUR_SECONDS + 60)
        return hour

    async def called(self, worker: str, index: int) -> CalledWork:
        """Commit work; return who is called to it."""
        await self.work(worker, index)
        async with self.run_fixture.local_chain() as dev:
            await dev.mine()
        async with self.reader() as reader:
            c = await find_commitment(reader.chain, self.run, self.run_fixture.key(worker).address, index)
            return await read_call(reader.chain, reader.client, self.terms, c)

    async def look(self, validator: str, worker: str, known: CalledWork, **changes: object) -> None:
        rows = rows_of_look(self.terms, known.work.index)
        look = encode_look([np.zeros((2, numbers_of(CPU_FP32)))] * rows, CPU_FP32)
        about = {"look": look, "drawn_by": hex_hash(known.drawn_by), **changes}
        await self.judge(validator, worker, known.work.index, **about)

    def name_of(self, address: str) -> str:
        return next(name for name in VALIDATORS if self.run_fixture.key(name).address == address)

    def barred(self, listed: LookList) -> set[str]:
        """Return the names of validators that a list pays nothing: stories before this one may have barred them."""
        until = {self.name_of(one.validator): one.barred_until for one in listed.totals}
        return {name for name, second in until.items() if second > settles_at(listed.hour)}

    async def claim(self, claim: Transaction[int]) -> None:
        """Send a claim, as a stranger."""
        async with self.run_fixture.chain("stranger") as chain:
            await chain.send(claim)

    async def balance(self, validator: str) -> int:
        operator = self.run_fixture.key(f"operator of {validator}").address
        async with self.run_fixture.chain("stranger") as chain:
            return await chain.call(token.balance_of(operator))

    async def seal(self, hour: int, *validators: str) -> None:
        for name in validators:
            async with self.run_fixture.chain(name) as chain:
                await self.run_fixture.seal(chain, name, hour)


@pytest.fixture(scope="module")
def looking(own_anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looking]:
    folder = tmp_path_factory.mktemp("looks")

    async def build() -> RunFixture:
        built = await RunFixture.build_on(own_anvil, folder, seed="looks", workers=("w1", "w2"), **TERMS)
        await built.publish(0)
        async with built.chain("owner") as chain:
            await chain.send(token.approve(chain.addresses.wages, FUNDED))
            await chain.send(wages.fund(built.run, FUNDED))
        return built

    run_fixture = asyncio.run(build())
    with Orchestrator(run_fixture, folder / "orchestrator") as orchestrator:
        yield Looking(run_fixture, orchestrator, folder / "trainer")


async def conclude(keeper: LookKeeper, outcome: str = "true") -> int:
    """Let all checks come to this; return how many rows these were."""
    count = 0
    while checks := keeper.journal.next_checks():
        for check in checks:
            keeper.journal.conclude(check, outcome, keeper.search(check) if outcome == "false" else ())
            count += 1
    return count


async def test_an_hours_looks_are_checked_listed_posted_and_claimed(looking: Looking) -> None:
    hour = await looking.new_hour()
    known = await looking.called("w1", 0)
    first, second, third, fourth = map(looking.name_of, known.order)
    for validator in (first, second, third):
        await looking.look(validator, "w1", known)
    due = wage(looking.terms, 0, 0)
    assert due == 2 * looking.terms.pay_of(0) * 625 // 10_000, (
        "a node's first commitments are looked at twice as widely"
    )

    # 1. A link that is shown lets rows be chosen; those who show none in time are not paid.
    await looking.at((hour + 1) * HOUR_SECONDS + 60)
    await looking.seal(hour, first, third)
    async with looking.keeper() as keeper:
        await keeper.poll()
        assert await conclude(keeper) == checked_rows(rows_of_look(looking.terms, 0))
        await keeper.poll()
        assert await conclude(keeper) == 0, "rows are chosen once"
        assert keeper.journal.last_hour == 0
        assert not await keeper.is_settled()

    # 2. The list, from the second on in which the hour settles; the same after a restart.
    await looking.at(link_due_at(hour))
    await looking.seal(hour, second)
    await looking.at(settles_at(hour) - 60)
    async with looking.keeper() as keeper, looking.reader() as reader:
        await keeper.poll()
        assert await reader.list() is None
        await looking.at(settles_at(hour))
        await keeper.poll()
        assert await keeper.is_settled()
        listed = await reader.list()
        assert listed is not None
        assert listed == await reader.list(hour)
        assert {looking.name_of(one.validator): (one.counted, one.why) for one in listed.looks} == {
            first: (due, None),
            second: (0, "unlinked"),
            third: (0, "late"),
        }
        assert [one.outcome for one in listed.checks] == ["true"] * len(listed.checks)
        assert totals_of(listed) == {known.order[0]: due}

        # 3. Posted, and claimed by a stranger for who looked.
        pot = await reader.chain.call(wages.pot(looking.run))
        assert (pot.funded, pot.posted, pot.claimed) == (FUNDED, due, 0)
        assert await reader.chain.call(wages.is_posted(looking.run, root_of(looking.run, totals_of(listed))))
        account = await reader.account(known.order[0])
        assert (account.earned, account.posted, account.paid, account.due) == (due, due, 0, due)
        assert account.claim is not None
        before = await looking.balance(first)
        await looking.claim(account.claim)
        assert await looking.balance(first) == before + due
        paid = await reader.account(known.order[0])
        assert (paid.due, paid.claim) == (0, None)
        assert (await reader.account(known.order[1])).claim is None
        cover = await reader.cover()
        assert (cover.left, cover.hourly, cover.hours) == (FUNDED - due, due, (FUNDED - due) / due)
        assert fourth not in {looking.name_of(one.validator) for one in listed.looks}


async def test_a_false_row_is_in_the_list_that_is_due_next_and_takes_all_that_waits(looking: Looking) -> None:
    hour = await looking.new_hour()
    works = [await looking.called(worker, index) for worker, index in (("w1", 1), ("w2", 0))]
    for known, worker in zip(works, ("w1", "w2"), strict=True):
        for validator in map(looking.name_of, known.order[:2]):
            await looking.look(validator, worker, known)
    liars = {looking.name_of(one) for known in works for one in known.order[:2]}
    await looking.at((hour + 1) * HOUR_SECONDS + 60)
    await looking.seal(hour, *liars)
    async with looking.keeper() as keeper, looking.reader() as reader:
        before = await reader.list()
        assert before is not None
        await keeper.poll()
        assert await conclude(keeper, "false") > 2, "every row is false, and searched for"
        await looking.at(link_due_at(hour))
        await keeper.poll()
        listed = await reader.list()
        assert listed is not None
        assert listed.hour > before.hour, "it says what was found, hours before their looks are counted"
        assert listed.looks == []
        assert {one.outcome for one in listed.checks} == {"false"}
        await looking.at(settles_at(hour))
        await keeper.poll()
        counted = await reader.list(hour)
        assert counted is not None
        assert {one.why for one in counted.looks} <= {"false", "voided", "barred"}
        assert totals_of(counted).items() >= totals_of(before).items(), "what was counted stays"
        barred = {looking.name_of(one.validator) for one in counted.totals if one.barred_until}
        both = set(map(looking.name_of, works[0].order[:2])) & set(map(looking.name_of, works[1].order[:2]))
        assert barred == both, "w1 and w2 have two operators"
        assert await keeper.is_settled()


async def test_anybody_counts_the_same_and_sees_what_is_changed(looking: Looking) -> None:
    async with looking.reader() as reader:
        latest = await reader.list()
        assert latest is not None
        hours = [hour for hour in range(latest.hour - 12, latest.hour + 1) if await reader.list(hour) is not None]
        for hour in hours:
            report = await LookCheck(reader, looking.terms, CPU_FP32).run(hour)
            assert report.differences == []
        first = hours[0]
        report = await LookCheck(reader, looking.terms, CPU_FP32).run(first)
        assert (report.looks, report.counted, report.wages) == (3, 1, wage(looking.terms, 0, 0))

        # A list in which a look is paid that came late, and the one in time is not.
        honest, read = await reader.list(first), reader.list

        async def lies(hour: int | None = None) -> LookList | None:
            if hour != first or honest is None:
                return await read(hour)
            swapped = {None: ("late", 0), "late": (None, wage(looking.terms, 0, 0))}
            looks = [
                one.model_copy(update={"why": swapped[one.why][0], "counted": swapped[one.why][1]})
                if one.why in swapped
                else one
                for one in honest.looks
            ]
            return honest.model_copy(update={"looks": looks})

        reader.list = lies  # type: ignore[method-assign]
        report = await LookCheck(reader, looking.terms, CPU_FP32).run(first)
        assert len(report.differences) == 2


async def lied_about(looking: Looking, hour: int, **changes: object) -> list[str]:
    """Return what is found where the trainer's list of an hour says something else."""
    async with looking.reader() as reader:
        honest, read = await reader.list(hour), reader.list
        assert honest is not None

        async def lies(asked: int | None = None) -> LookList | None:
            return honest.model_copy(update=changes) if asked == hour else await read(asked)

        reader.list = lies  # type: ignore[method-assign]
        return (await LookCheck(reader, looking.terms, CPU_FP32).run(hour)).differences


async def test_a_trainer_that_bars_an_honest_validator_is_seen(looking: Looking) -> None:
    async with looking.reader() as reader:
        latest = await reader.list()
        assert latest is not None
        hour, *_ = [one for one in range(latest.hour - 12, latest.hour) if await reader.list(one) is not None]
        listed = await reader.list(hour)
    assert listed is not None
    paid = next(one for one in listed.looks if one.counted)
    about = {name: getattr(paid, name) for name in ("validator", "node", "index", "root")}
    until = settles_at(hour) + BARRED_SECONDS

    # 1. Without any reason.
    barred = [one.model_copy(update={"barred_until": until}) for one in listed.totals]
    [why] = await lied_about(looking, hour, totals=barred)
    assert "until when it is barred" in why

    # 2. By rejections that there are not: three times one that accepts.
    refuted = [RowCheck(**about, position=3, outcome="refuted")] * 3
    totals = [one.model_copy(update={"refuted_at": [settles_at(hour)] * 3}) for one in barred]
    found = await lied_about(looking, hour, checks=[*listed.checks, *refuted], totals=totals)
    assert sum("a rejection is listed as refuted, and is not so" in one for one in found) == 3

    # 3. By rows that are of none of its looks.
    rows = [RowCheck(**about, position=looking.terms.positions, outcome="false")]
    found = await lied_about(looking, hour, checks=[*listed.checks, *rows])
    assert any("a row is listed as false, and is of no look" in one for one in found)


async def test_a_new_journal_goes_on_from_the_run_s_latest_list(looking: Looking) -> None:
    async with looking.reader() as reader:
        latest = await reader.list()
    looking.folder = looking.folder.with_name("lost and new")
    async with looking.keeper() as keeper:
        await keeper.poll()
        assert latest is not None
        assert keeper.journal.last_hour == latest.hour
        tally = keeper.journal.tally()
        assert {who: (one.total, one.barred_until) for who, one in tally.records.items()} == {
            one.validator: (one.total, one.barred_until) for one in latest.totals
        }
        assert await keeper.is_settled()


async def test_rejections_without_a_case_are_replayed_and_give_their_place_away(looking: Looking) -> None:
    await looking.new_hour()
    known = await looking.called("w1", 2)
    first, second = map(looking.name_of, known.order[:2])
    rejects = {"accepted": False, "reason": "sampling_mismatch", "position": 3}
    await looking.look(first, "w1", known, **rejects)
    await looking.look(second, "w1", known)
    unnamed = await looking.called("w2", 1)
    await looking.look(looking.name_of(unnamed.order[0]), "w2", unnamed, **{**rejects, "position": None})
    uncalled = looking.name_of(known.order[3])
    await looking.look(uncalled, "w1", known, **rejects)  # it decides nothing, so it costs the trainer no replay
    async with looking.run_fixture.local_chain() as dev:
        await dev.mine()
    async with looking.keeper() as keeper:
        await keeper.poll()
        [check] = keeper.journal.next_checks()
        assert (check.kind, check.position, looking.name_of(check.validator)) == ("rejection", 3, first)
        keeper.journal.conclude(check, "refuted")
        [refuted] = keeper.journal.fresh_refuted(0)
        assert (refuted.validator, refuted.outcome) == (known.order[0], "refuted")
        assert keeper.journal.fresh_refuted(1) == []
        assert keeper.journal.refuted(known.work) == {known.order[0]}
        [check] = keeper.journal.next_checks()
        keeper.journal.conclude(check, "unnamed")
        unlisted = [(one.outcome, one.position) for one in keeper.journal.unlisted(0)]
        assert unlisted == [("refuted", 3), ("cannot", None)]
        assert keeper.journal.refuted(unnamed.work) == {unnamed.order[0]}
        held = keeper.journal.fresh_refuted(0)
    async with looking.client("trainer") as trainer, looking.reader() as reader:
        node = await reader.client.node(known.work.node)
        assert node.rejected == {"sampling_mismatch": 1}
        await trainer.post_step(StepReport(run=looking.run, step=0, metrics={}, refuted=held))
        assert (await reader.client.node(known.work.node)).rejected == {}
        third = known.order[2]
        async with looking.client(looking.name_of(third)) as client:
            asked = await client.ask_call(looking.run, known.work.node, known.work.index, known.work.root)
        assert asked.turn_at is not None, "the place comes free"

    # What was refuted is in a list, and anybody finds the same.
    async with looking.keeper() as keeper, looking.reader() as reader:
        await looking.at(settles_at(known.work.hour))
        await keeper.poll()
        report = await LookCheck(reader, looking.terms, CPU_FP32).run(known.work.hour)
        assert report.differences == []
        listed = await reader.list(known.work.hour)
        assert listed is not None
        assert [one.refuted_at for one in listed.totals if one.validator == known.order[0]] == [
            [settles_at(known.work.hour)]
        ]


async def test_a_link_of_another_chain_or_hour_shows_no_looks(looking: Looking) -> None:
    hour = await looking.new_hour()
    known = await looking.called("w2", 2)
    liar, honest = map(looking.name_of, known.order[:2])
    for validator in (liar, honest):
        await looking.look(validator, "w2", known)
    await looking.at((hour + 1) * HOUR_SECONDS + 60)
    await looking.seal(hour, honest)
    async with looking.run_fixture.chain(liar) as chain:
        joined = (await chain.call(registry.node(chain.signer.address))).registered_at // HOUR_SECONDS
        earlier = link_of(looking.run_fixture.links(liar)[0], joined, hour - 1)
        await chain.send(runs.seal(looking.run, hour, bytes(32), earlier))
    async with looking.keeper() as keeper, looking.reader() as reader:
        await keeper.poll()
        assert set(keeper.journal.links(hour)) == {known.order[1]}
        await conclude(keeper)
        await looking.at(settles_at(hour))
        await keeper.poll()
        listed = await reader.list(hour)
        assert listed is not None
        wanted = {liar: "unlinked", honest: "barred" if honest in looking.barred(listed) else None}
        assert {looking.name_of(one.validator): one.why for one in listed.looks} == wanted
        assert (await LookCheck(reader, looking.terms, CPU_FP32).run(hour)).differences == []


async def test_a_list_names_no_more_than_its_text_holds(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("trainer.looks", "muster.clients.look_check"):
        monkeypatch.setattr(f"{module}.MAX_LISTED", 2)
    hour = await looking.new_hour()
    known = await looking.called("w2", 3)
    names = [looking.name_of(one) for one in known.order]
    for validator in (names[3], names[2], names[0], names[1]):
        await looking.look(validator, "w2", known)
    await looking.at((hour + 1) * HOUR_SECONDS + 60)
    await looking.seal(hour, *names[:2])
    async with looking.keeper() as keeper, looking.reader() as reader:
        await keeper.poll()
        await conclude(keeper)
        await looking.at(settles_at(hour))
        await keeper.poll()
        listed = await reader.list(hour)
        assert listed is not None
        barred = looking.barred(listed)
        wanted = [(one, "barred" if one in barred else None) for one in names[:2]]
        assert [(looking.name_of(one.validator), one.why) for one in listed.looks] == wanted
        assert (await LookCheck(reader, looking.terms, CPU_FP32).run(hour)).differences == []


async def test_a_list_that_another_journal_published_keeps_no_later_one_waiting(looking: Looking) -> None:
    async with looking.keeper() as keeper:
        hour = keeper.journal.last_hour
        keeper.journal.execute("UPDATE lists SET sent = 0")
        assert keeper.journal.unsent()[-1][0] == hour

        async def refuse(shown: SignedText) -> None:
            raise RefusedError("there is another list", status=409, title="Conflict")

        keeper.client.add_signed = refuse  # type: ignore[method-assign]
        await keeper.poll()
        assert keeper.journal.unsent() == []


async def test_a_list_that_the_trainer_did_not_sign_is_refused(looking: Looking) -> None:
    async with looking.client(None) as client, looking.client("trainer") as trainer, looking.reader() as reader:
        shown = await client.looks(looking.run)
        other = shown.model_copy(update={"text": shown.text.replace('"looks"', '"lookz"')})
        with pytest.raises(RefusedError):
            await trainer.add_signed(other)

        async def lies(run: int, hour: int | None = None) -> object:
            return other

        reader.client.looks = lies  # type: ignore[method-assign, assignment]
        with pytest.raises(MismatchError):
            await reader.list()


async def test_a_process_beside_follows_log_and_chain_and_outlives_its_own_death(looking: Looking) -> None:
    """It reads as a member: the trainer signs for it."""
    async with looking.reader() as reader:
        first = (await reader.chain.call(runs.work(looking.run_fixture.key("w2").address))).next
    known = await looking.called("w2", first)
    for validator in map(looking.name_of, known.order[:2]):
        await looking.look(validator, "w2", known)
    key, chain = looking.run_fixture.key("trainer"), looking.run_fixture.settings
    beside_it = {"trainer": {"state_dir": looking.folder / "beside"}, "orchestrator": {"url": looking.orchestrator.url}}
    settings = Settings.model_validate({"run": looking.run, "chain": chain.model_dump(), **beside_it})
    signed: list[str] = []

    class Counted:
        address = key.address

        def sign_typed(self, domain: dict, types: dict, message: dict) -> bytes:
            signed.append(message["method"])
            return key.sign_typed(domain, types, message)

    beside = FollowProcess(settings, Counted(), looking.run_fixture.domain)
    async with looking.run_fixture.chain("trainer") as reads:
        journal = journal_of(settings, reads)
    with journal:
        await beside.follow()
        [ref] = [ref for ref in accepted_files(journal, 0, (), looking.terms) if ref.index == known.work.index]
        assert (ref.node, len(ref.verdicts), set(signed)) == (known.work.node, 2, {"GET"})
        assert beside.process is not None
        beside.process.kill()
        await beside.process.wait()
        with pytest.raises(UnreachableError, match="the process that follows log and chain fails"):
            await beside.follow()
        later = await looking.called("w2", first + 1)
        for validator in map(looking.name_of, later.order[:2]):
            await looking.look(validator, "w2", later)
        await beside.follow()
        assert {first, first + 1} <= {one.index for one in accepted_files(journal, 0, (), looking.terms)}
        last = beside.process
    await beside.close()
    assert last.returncode is not None
