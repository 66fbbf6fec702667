"""A run seen by its orchestrator, from upload to conviction and back from nothing. Real chain, real processes."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.chain.client import charge_of, event_of, vote_hash
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import court, runs
from muster.contracts.court import CaseOpened, Outcome
from muster.errors import MismatchError, RefusedError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.messages import StepReport
from muster.protocol.receipts import check_receipt, check_upload, check_verdict
from testbed.runs.run_fixture import VALIDATORS, Explorer, Orchestrator, RunFixture, some_hash
from testbed.runs.shown import expect_alike
from testbed.runs.story import Story
from testbed.samples.terms import keys_of
from testbed.servers.s3 import Endpoint
from testbed.waiting import until
from trainer.accepted_work import accepted_files
from trainer.batches import FileRef
from trainer.following import RunFollower
from trainer.look_journal import LookJournal

EVIDENCE = b'{"kind": "wrong_reward"}'


@pytest.fixture(scope="module")
def run_fixture(
    deployment: Any, database_kind: str, s3: Endpoint | None, tmp_path_factory: pytest.TempPathFactory
) -> RunFixture:
    folder = tmp_path_factory.mktemp("story")
    run_fixture = asyncio.run(
        RunFixture.build(
            folder,
            deployment.settings,
            seed=f"story {database_kind}",
            workers=("w1", "w2", "w3", "w4"),
            async_level=1,
            max_completion_tokens=1 << 13,
        )
    )
    run_fixture.s3 = s3
    return run_fixture


class CourtStory(Story):
    """What several tests do."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
        super().__init__(run_fixture, orchestrator)
        self.journal = LookJournal(orchestrator.folder / "trainer", "trainer", self.run)

    async def accepted(self, oldest: int = 0, spent: Sequence[str] = ()) -> list[FileRef]:
        """Return what is accepted as the trainer sees it, by log and chain."""
        async with self.run_fixture.chain("trainer") as chain, self.client("trainer") as client:
            terms = await chain.terms(self.run)
            await RunFollower(chain, client, self.run, terms, self.journal).follow()
            return accepted_files(self.journal, oldest, spent, terms)

    async def holds(self, *works: tuple[str, int]) -> bool:
        """Whether exactly these are accepted now, but for what a report named."""
        expected = {(self.run_fixture.key(worker).address, index) for worker, index in works}
        return {(work.node, work.index) for work in await self.accepted(spent=self.spent)} == expected

    spent: Sequence[str] = ()
    """Files that a report used or left out."""

    async def try_case(self, challenger: str, worker: str, index: int, *, guilty: bool) -> None:
        """Open a case, let the three others vote, resolve it."""
        run_fixture = self.run_fixture
        jury = [name for name in ("v1", "v2", "v3", "v4") if name != challenger]
        node, root = run_fixture.key(worker).address, hash_bytes(some_hash(f"{worker} root {index}"))
        evidence = hash_bytes(content_hash(EVIDENCE))
        async with run_fixture.chain(challenger) as chain:
            mined = await chain.send(
                court.open_case(court.Target(node, index, 0, root), kind_of("wrong_reward"), 3, evidence)
            )
            opened = event_of(mined, CaseOpened)
            case_id = opened.case_id
        salts = {name: secrets.token_bytes(32) for name in jury}
        for name in jury:
            async with run_fixture.chain(name) as chain:
                secret = vote_hash(case_id, run_fixture.key(name).address, guilty, salts[name])
                await chain.send(court.commit_vote(case_id, charge_of(opened), secret))
        for name in jury:
            async with run_fixture.chain(name) as chain:
                await chain.send(court.reveal_vote(case_id, guilty, salts[name]))
        async with run_fixture.chain(challenger) as chain:
            await chain.send(court.resolve(case_id))
            assert (await chain.call(court.case_of(case_id))).outcome == (
                Outcome.GUILTY if guilty else Outcome.NOT_GUILTY
            )


def test_the_story(run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path: Path) -> None:
    with (
        Orchestrator(run_fixture, tmp_path / "orchestrator", database_url=new_database_url()) as orchestrator,
        Explorer(run_fixture, tmp_path / "explorer", orchestrator.url) as explorer,
    ):
        asyncio.run(_the_story(run_fixture, orchestrator, explorer, new_database_url()))


async def _the_story(run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer, empty: str) -> None:
    story, run = CourtStory(run_fixture, orchestrator), run_fixture.run
    async with story.client(None) as reader, story.client("trainer") as trainer:
        # Before the first checkpoint the run wants no work.
        assert (await reader.demand(run)).wanted is False
        await run_fixture.publish(0)
        await until(lambda: _wanted(reader, run))

        name = await _two_accepts_are_required(story, run_fixture, reader)
        await _demand_follows_what_waits(story, run_fixture, reader)

        # The trainer uses one file and leaves one out: both are gone, and there is demand again.
        dropped = content_hash(b"w2 1" * 100)
        report = StepReport(run=run, step=1, metrics={"reward": 0.5, "kl": None}, batch=[name], dropped=[dropped])
        await trainer.post_step(report)
        assert (await reader.demand(run)).waiting_groups == 12
        assert (await reader.demand(run)).wanted is True
        story.spent = name, dropped
        assert await story.holds()

        await _rejections_hold_by_a_place_or_a_case(story)
        await _a_cheater_is_convicted(story, run_fixture)

        # Staleness: with async level 1, work of step 0 is stale at step 2 for every `min_step`.
        await run_fixture.publish(1)
        assert await story.accepted(1) == []
        assert await story.holds(("w2", 0))
        await run_fixture.publish(2)
        await until(lambda: _waits(reader, run, 0))

        # The end.
        assert (await reader.demand(run)).wanted is True
        await trainer.post_step(StepReport(run=run, step=2, metrics={"reward": 0.75}, finished=True))
        assert (await reader.demand(run)).wanted is False
        await _the_summary(run_fixture, explorer)
        await _rebuilt_from_nothing(story, orchestrator, empty, reader)
        await _shown_alike_from_nothing(run_fixture, explorer, orchestrator.url)


async def _two_accepts_are_required(story: CourtStory, run_fixture: RunFixture, reader: OrchestratorClient) -> str:
    """Upload, commit, judge; the file's name."""
    name = await story.work("w1", 0)
    upload = await reader.upload(run_fixture.run, run_fixture.key("w1").address, 0, some_hash("w1 root 0"))
    check_upload(run_fixture.domain, upload)
    check_receipt(run_fixture.domain, upload.receipt, keys_of(run_fixture.key("storage").address))
    with pytest.raises(MismatchError):
        check_receipt(run_fixture.domain, upload.receipt, keys_of(run_fixture.key("owner").address))
    assert await reader.get_file(name) == b"w1 0" * 100
    called = await story.called("w1", 0)
    await story.judge(called[0], "w1", 0)
    await story.judge(called[2], "w1", 0)
    assert await story.accepted() == []
    await story.judge(called[1], "w1", 0)
    (work,) = await story.accepted()
    assert (work.node, work.index, work.step) == (run_fixture.key("w1").address, 0, 0)
    assert (work.file_hash, work.root) == (name, some_hash("w1 root 0"))
    given, _ = await reader.verdicts(run_fixture.run, node=work.node, index=0)
    for verdict, _ in given:
        check_verdict(run_fixture.domain, verdict)
    named = {one.validator for one, _ in given if content_hash(one.to_bytes()) in work.verdicts}
    assert (len(work.verdicts), named) == (2, {run_fixture.key(v).address for v in called[:2]})
    return name


async def _demand_follows_what_waits(story: CourtStory, run_fixture: RunFixture, reader: OrchestratorClient) -> None:
    """8 groups a batch, two batches; a commitment has 4 groups."""
    run = run_fixture.run
    assert (await reader.demand(run)).waiting_groups == 4
    for worker in ("w1", "w2"):
        for index in (1, 2) if worker == "w1" else (0, 1):
            await story.work(worker, index)
    await until(lambda: _waits(reader, run, 20))
    assert (await reader.demand(run)).wanted is False


async def _rejections_hold_by_a_place_or_a_case(story: CourtStory) -> None:
    """Who is not called needs a case, and that holds the work until it ends not guilty."""
    called = await story.accept("w2", 0)
    assert await story.holds(("w2", 0))
    await story.reject(called[2], "w2", 0, EVIDENCE)
    assert await story.holds(("w2", 0))
    await story.try_case(called[2], "w2", 0, guilty=False)
    await until(lambda: story.holds(("w2", 0)))


async def _a_cheater_is_convicted(story: CourtStory, run_fixture: RunFixture) -> None:
    """It is rejected first; what looked good of it is void then, and its uploads are refused."""
    await story.work("w3", 0)
    await story.work("w3", 1)
    await story.accept("w3", 0)
    await until(lambda: story.holds(("w2", 0), ("w3", 0)))
    rejecting, *_ = await story.called("w3", 1)
    await story.reject(rejecting, "w3", 1, EVIDENCE)
    await story.try_case(rejecting, "w3", 1, guilty=True)
    await until(lambda: story.holds(("w2", 0)))
    async with story.client("w3") as cheater:
        with pytest.raises(RefusedError, match="is jailed and cannot commit"):
            await cheater.put_file(b"more", run_fixture.run, 2, some_hash("more"))
        report_of = await cheater.node(run_fixture.key("w3").address)
    assert (report_of.commitments, report_of.rollouts, report_of.accepted) == (2, 16, 0)
    assert report_of.rejected == {"wrong_reward": 1}
    assert report_of.verdicts[0].accepted is False


async def _wanted(reader: OrchestratorClient, run: int) -> bool:
    return (await reader.demand(run)).wanted


async def _waits(reader: OrchestratorClient, run: int, groups: int) -> bool:
    return (await reader.demand(run)).waiting_groups == groups


async def _the_summary(run_fixture: RunFixture, explorer: Explorer) -> None:
    await until(lambda: explorer.summary()["finished"])
    summary = explorer.summary()
    assert (summary["run"], summary["step"]) == (run_fixture.run, 2)
    assert [(line["step"], line["metrics"], line["files"]) for line in summary["steps"]] == [
        (0, {}, 0),
        (1, {"reward": 0.5, "kl": None}, 1),
        (2, {"reward": 0.75}, 0),
    ]
    assert [line["manifest_root"] for line in summary["steps"]] == ["0x" + f"{i:02x}" * 32 for i in range(3)]
    nodes = {line["address"]: line for line in summary["nodes"]}
    lines = {name: nodes[run_fixture.key(name).address] for name in ("w1", "w2", "w3", "w4")}
    counts = {
        name: (line["commitments"], line["accepted"], line["pending"], line["void"]) for name, line in lines.items()
    }
    assert counts["w1"] == (3, 1, 2, 0)
    assert counts["w2"] == (2, 1, 1, 0)
    assert counts["w3"] == (2, 0, 0, 1)
    assert lines["w3"]["rejected"] == {"wrong_reward": 1}
    assert (lines["w3"]["status"], lines["w3"]["slashed"], lines["w3"]["voided"]) == (
        "jailed",
        str(50 * 10**18),
        str(4 * 10**18),
    )
    assert (lines["w1"]["used"], lines["w1"]["rollouts"], lines["w1"]["status"]) == (1, 24, "active")
    judged = [nodes[run_fixture.key(name).address] for name in VALIDATORS]
    assert [sum(line[kind] for line in judged) for kind in ("accepts", "rejections")] == [7, 2]
    assert [(case["kind"], case["outcome"], case["guilty_votes"]) for case in summary["cases"]] == [
        ("wrong_reward", "not_guilty", 0),
        ("wrong_reward", "guilty", 3),
    ]
    kinds = [event["kind"] for event in summary["events"]]
    assert kinds[-1] == "finished"
    assert kinds.count("convicted") == 1
    assert kinds.count("voted") == 6


async def _rebuilt_from_nothing(
    story: CourtStory, orchestrator: Orchestrator, empty: str, reader: OrchestratorClient
) -> None:
    """Kill it, give it an empty database, start it: everything is back, from chain and storage."""
    run_fixture, run = story.run_fixture, story.run_fixture.run

    async def nodes() -> list[dict[str, Any]]:
        found = [await reader.node(run_fixture.key(name).address) for name in ("w1", "w2", "w3", "w4")]
        return [one.model_dump(exclude={"hourly_gas"}) for one in found]  # by when files came, which a rebuild forgets

    await story.work("w2", 2, step=2)
    await story.accept("w2", 2, step=2)
    before = await nodes()
    accepted, (given, place) = await story.accepted(1), await reader.verdicts(run)
    log = await reader.log(run)
    assert ([work.index for work in accepted], [node["accepted"] for node in before]) == ([2], [1, 2, 0, 0])
    assert await reader.verdicts(run, place) == ([], place)
    orchestrator.kill()
    orchestrator.change({"orchestrator.database_url": empty})
    shutil.rmtree(orchestrator.folder / "state")
    orchestrator.start()

    assert await nodes() == before
    assert await story.accepted(1) == accepted
    assert await reader.log(run) == log, "the same documents at the same places"
    assert await reader.verdicts(run) == (given, place)
    assert (await reader.demand(run)).wanted is False
    upload = await reader.upload(run, run_fixture.key("w1").address, 0, some_hash("w1 root 0"))
    check_upload(run_fixture.domain, upload)


async def _shown_alike_from_nothing(run_fixture: RunFixture, explorer: Explorer, orchestrator: str) -> None:
    """What comes late shows what the one shows that saw all happen."""

    def told(one: Explorer) -> bool:
        return sum(line["accepted"] for line in one.summary()["nodes"]) == 3

    with Explorer(run_fixture, explorer.folder / "late", orchestrator) as late:
        for one in (explorer, late):
            await until(lambda one=one: told(one))
        await expect_alike(late, explorer)


@pytest.fixture(scope="module")
def story(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CourtStory]:
    """An orchestrator that comes late to the same run."""
    with Orchestrator(run_fixture, tmp_path_factory.mktemp("late"), database_url=new_database_url()) as orchestrator:
        yield CourtStory(run_fixture, orchestrator)


async def test_verdicts_that_do_not_count(run_fixture: RunFixture, story: CourtStory):
    step, node = await _latest_step(run_fixture), run_fixture.key("w4").address
    data, root = b"w4 0" * 100, some_hash("w4 root 0")
    name = content_hash(data)
    good = run_fixture.verdict("v1", "w4", 0, root, name, step=step)
    async with story.client("v1") as v1, story.client("w4") as w4:

        async def refused(verdict: Any, status: int, detail: str) -> None:
            with pytest.raises(RefusedError, match=detail) as caught:
                await v1.post_verdict(verdict)
            assert caught.value.status == status

        def changed(**changes: Any) -> Any:
            return run_fixture.signed("v1", good.model_copy(update=changes))

        await refused(good, 404, "there is no commitment 0 of")
        await w4.put_file(data, run_fixture.run, 0, root)
        await run_fixture.commit("w4", 0, root, step)
        await refused(changed(step=step + 1), 409, f"at step {step}")
        await refused(changed(root=some_hash("other")), 409, "is to root")
        await refused(changed(file_hash=some_hash("other")), 409, "is not the file uploaded")
        await refused(changed(run=run_fixture.run + 1), 404, "serves run")
        await refused(changed(reason="malformed"), 422, "an acceptance none")
        await refused(changed(accepted=False), 422, "a rejection has a reason")
        rejection = {"accepted": False, "reason": "malformed", "evidence": some_hash("no evidence")}
        await refused(changed(**rejection), 404, "no evidence")
        await refused(good.model_copy(update={"inspected": 9}), 403, "the verdict is signed by")
        await refused(run_fixture.signed("v2", good), 403, "the verdict is signed by")

        await v1.post_verdict(good)
        await v1.post_verdict(good)
        assert len((await v1.verdicts(run_fixture.run))[0]) == 1
        await refused(changed(inspected=1), 409, "has given another verdict on commitment 0")
        await refused(changed(**{**rejection, "evidence": None}), 409, "has given another verdict on commitment 0")

        await w4.put_file(b"w4 1" * 100, run_fixture.run, 1, some_hash("w4 root 1"))
        await run_fixture.commit("w4", 1, some_hash("w4 root 1"), step)
        second = {"index": 1, "root": some_hash("w4 root 1"), "file_hash": content_hash(b"w4 1" * 100)}
        await v1.post_verdict(changed(**second))
        assert (await v1.node(node)).commitments == 2


async def _latest_step(run_fixture: RunFixture) -> int:
    async with run_fixture.chain("owner") as chain:
        latest = await chain.latest_checkpoint(run_fixture.run)
    if latest is None:
        await run_fixture.publish(0)
        return 0
    return latest.step


async def test_missing_data_is_cured_after_the_commitment(run_fixture: RunFixture, story: CourtStory):
    """A worker commits without an upload. No validator can accept the commitment until the worker uploads that root."""
    step, node = await _latest_step(run_fixture), run_fixture.key("w4").address
    async with run_fixture.chain("w4") as chain:
        index = (await chain.call(runs.work(node))).next
    data, root = b"late", some_hash("late root")
    await run_fixture.commit("w4", index, root, step)
    async with story.client("v2") as v2, story.client("w4") as w4:
        await until(lambda: _has_commitments(v2, run_fixture, index + 1))
        with pytest.raises(RefusedError) as caught:
            await v2.upload(run_fixture.run, node, index, root)
        assert caught.value.status == 404
        missing = {"accepted": False, "reason": "data_missing", "step": step}
        await v2.post_verdict(run_fixture.verdict("v2", "w4", index, root, "0x" + "00" * 32, **missing))
        with pytest.raises(RefusedError, match="is committed to root"):
            await w4.put_file(data, run_fixture.run, index, some_hash("another root"))
        receipt = await w4.put_file(data, run_fixture.run, index, root)
        check_receipt(run_fixture.domain, receipt, keys_of(run_fixture.key("storage").address))
        check_upload(run_fixture.domain, await v2.upload(run_fixture.run, node, index, root))


async def _has_commitments(reader: OrchestratorClient, run_fixture: RunFixture, count: int) -> bool:
    return (await reader.node(run_fixture.key("w4").address)).commitments >= count
