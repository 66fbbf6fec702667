"""What worker and validator tell their operators, on a real chain; and a real process that ends by its settings."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.chain.client import Chain, vote_hash
from muster.constants import TOKEN
from muster.contracts import court, runs
from muster.protocol.hashes import hex_hash
from muster.protocol.kinds import kind_of
from muster.protocol.messages import NodeReport
from muster.runtime.loop import IDLE
from muster.runtime.notify import NotificationHistory, Notifier
from muster.settings.schema import NotifySettings, Settings, WorkerSettings
from muster.verification.profiles import CPU_FP32
from testbed.chain.contracts import Deployment
from testbed.http import NO_CONTENT, answer, scripted
from testbed.processes import run_to_end
from testbed.runs.run_fixture import RunFixture, some_hash
from testbed.runs.world import World
from testbed.waiting import until
from validator.watch import FILE_NAME, ValidatorWatch
from worker.claimer import Claimer
from worker.context import WorkerContext
from worker.defender import Defender
from worker.journal import WorkJournal
from worker.watch import WorkerWatch


class Orchestrator:
    """Answers with the report that a test writes."""

    def __init__(self) -> None:
        self.verdicts: list[Any] = []
        self.hourly_gas = 0.0

    async def node(self, address: str) -> NodeReport:
        counts = {"commitments": 9, "rollouts": 9, "accepted": 0, "rejected": {}}
        return NodeReport(address=address, **counts, verdicts=self.verdicts, hourly_gas=self.hourly_gas)


ORCHESTRATOR: Any = Orchestrator()


def notifier(history: NotificationHistory | None = None) -> Notifier:
    """Return a notifier that accepts every kind and never empties its queue."""
    return Notifier("https://chat.example.org/secret", NotifySettings(), name="node-1", run=1, history=history)


def said(made: Notifier) -> list[tuple[str, str]]:
    """Return the kinds and texts queued since the last call."""
    found = [(one.kind, one.text) for one in made.queue]
    made.queue.clear()
    return found


@asynccontextmanager
async def worker_context(
    run_fixture: RunFixture, name: str, folder: Path, history: NotificationHistory | None = None, **settings: Any
) -> AsyncIterator[WorkerContext]:
    journal = WorkJournal(folder / name, name)
    chosen = Settings(run=run_fixture.run, chain=run_fixture.settings, worker=WorkerSettings(**settings))
    try:
        async with run_fixture.chain(name) as chain:
            terms, client = await chain.terms(run_fixture.run), Orchestrator()
            yield WorkerContext(chosen, chain, client, terms, CPU_FP32, journal, notifier(history))  # type: ignore[arg-type]
    finally:
        journal.close()


async def test_a_worker_tells_of_pay_to_claim_and_of_what_it_claimed(deployment: Deployment, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="notices", workers=("w",), pay=2 * TOKEN)
    await run_fixture.publish(0)
    async with worker_context(run_fixture, "w", tmp_path, auto_claim_hours=0) as context:
        made, watch = context.notifier, WorkerWatch(context)
        await run_fixture.commit("w", 0, some_hash("work"))
        await watch.poll()
        assert said(made) == [], "it has not matured"
        async with run_fixture.local_chain() as clock:
            await clock.advance(100 * 3600)
        for _ in range(2):
            await watch.poll()
        assert said(made) == [("claimable", "node-1 has 2 MUST to claim. Next: muster worker claim")]
        assert await Claimer(context).claim()
        assert said(made) == [("claimed", "node-1 claimed 2 MUST for 1 commitment for its operator")]
        await run_fixture.commit("w", 1, some_hash("more"))
        async with run_fixture.local_chain() as clock:
            await clock.advance(100 * 3600)
        await watch.poll()
        assert said(made) == [("claimable", "node-1 has 2 MUST to claim. Next: muster worker claim")]
    async with worker_context(run_fixture, "w", tmp_path / "other", auto_claim_hours=6) as context:
        await WorkerWatch(context).poll()
        assert said(context.notifier) == [], "it claims by itself"


async def test_low_gas_warns_once_until_refill(deployment: Deployment, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="thirst", workers=("w",))
    async with worker_context(run_fixture, "w", tmp_path) as context, run_fixture.local_chain() as local:
        made, watch = context.notifier, WorkerWatch(context)
        await watch.poll()
        assert said(made) == []
        for _ in range(2):
            await local.fund([context.node], wei=0)
            await watch.poll()
            await watch.poll()
            [(kind, text)] = said(made)
            assert kind == "low_gas"
            assert text == (
                f"node-1 is low on gas: {context.node} holds 0 ETH for gas, enough for about 0 transactions."
                f" Next: muster faucet --ether --to {context.node}"
            )
            await local.fund([context.node])
            await watch.poll()
            assert said(made) == []


async def test_low_gas_warns_a_day_ahead_at_node_pace(deployment: Deployment, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="pace", workers=("w",))
    async with worker_context(run_fixture, "w", tmp_path) as context, run_fixture.local_chain() as local:
        made, watch, orchestrator = context.notifier, WorkerWatch(context), cast(Orchestrator, context.client)
        await local.fund([context.node], wei=TOKEN)
        for hours, warns in ((25, False), (23, True), (30, False), (23, False), (40, False), (23, True)):
            price = (await context.chain.gas_balance(context.node)).price
            orchestrator.hourly_gas = TOKEN / price / hours
            await watch.poll()
            texts = [text for kind, text in said(made) if kind == "low_gas"]
            assert len(texts) == warns, f"{hours} hours are left"
            if warns:
                assert "about 23 hours at its pace. Next: muster faucet --ether --to" in texts[0]


def verdict(context: WorkerContext, index: int, reason: str | None = "wrong_draw", **changes: Any) -> Any:
    values = {"node": context.node, "run": context.run, "index": index, "accepted": reason is None, "reason": reason}
    return SimpleNamespace(**{**values, **changes})


async def test_rejections_are_batched_and_sent_once(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="verdicts", workers=("w",))
    now = [1_700_000_000.0]
    async with worker_context(run_fixture, "w", tmp_path, NotificationHistory(tmp_path / "sent.json")) as context:
        made = context.notifier
        monkeypatch.setattr(made, "_clock", lambda: now[0])
        reports: list[Any] = []

        async def node(address: str) -> Any:
            return SimpleNamespace(verdicts=list(reports), inspections=[], hourly_gas=0.0)

        monkeypatch.setattr(context.client, "node", node)
        reports += [verdict(context, 0)]
        watch = WorkerWatch(context)
        await watch.poll()
        assert said(made) == [], "the rejection is older than the watch"
        reports += [verdict(context, 2), verdict(context, 1), verdict(context, 2), verdict(context, 3, "malformed")]
        reports += [verdict(context, 4, None), verdict(context, 5, node="0x" + "2" * 40), verdict(context, 6, run=99)]
        await watch.poll()
        assert said(made) == [
            ("rejected", "node-1: commitment 3 was rejected for malformed. Next: muster worker why 3"),
            ("rejected", "node-1: commitments 1, 2 were rejected for wrong_draw. Next: muster worker why 2"),
        ]
        reports += [verdict(context, index) for index in range(10, 20)]
        await watch.poll()
        assert said(made) == [], "the same reason within an hour"
        now[0] += 3600
        await watch.poll()
        assert said(made) == [
            (
                "rejected",
                "node-1: commitments 10, 11, 12, 13, 14, 15, 16, 17 and 2 more were rejected for wrong_draw."
                " Next: muster worker why 19",
            )
        ]
        now[0] += 3600
        made.history.save()
        again = notifier(NotificationHistory.load(tmp_path / "sent.json"))
        context.notifier = again
        await WorkerWatch(context).poll()
        assert said(again) == [], "a restarted worker repeats no message"
        reports += [verdict(context, 30)]
        await WorkerWatch(context).poll()
        assert [kind for kind, _ in said(again)] == ["rejected"], "it reports a rejection that came after the restart"
        reports.clear()
        context.notifier = notifier(NotificationHistory(tmp_path / "other.json"))
        await WorkerWatch(context).poll()
        context.notifier.history.save()
        reports += [verdict(context, 40)]
        context.notifier = notifier(NotificationHistory.load(tmp_path / "other.json"))
        await WorkerWatch(context).poll()
        assert [kind for kind, _ in said(context.notifier)] == ["rejected"], (
            "it reports a rejection that came while it was down"
        )


async def test_case_notifies_accused_and_losing_challenger(deployment: Deployment, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="cases", workers=("w",))
    await run_fixture.publish(0)
    root = hashlib.sha256(b"work").digest()
    await run_fixture.commit("w", 0, hex_hash(root))
    state = tmp_path / "v1-state"
    async with run_fixture.chain("v1") as challenger, run_fixture.chain("v2") as absent:
        made, silent = notifier(), notifier()
        watch = ValidatorWatch(challenger, ORCHESTRATOR, made, state, run_fixture.run)
        watch_absent = ValidatorWatch(absent, ORCHESTRATOR, silent, tmp_path / "v2-state", run_fixture.run)
        for one in (watch, watch_absent):
            assert await one.poll() is IDLE
        await challenger.send(
            court.open_case(
                court.Target(run_fixture.key("w").address, 0, 0, root), kind_of("wrong_reward"), 0, b"e" * 32
            )
        )
        case_id = await challenger.call(court.case_count())
        # 1. The accused learns of it, once.
        async with worker_context(run_fixture, "w", tmp_path) as context:
            for _ in range(2):
                await Defender(context).dismiss_open()
            assert said(context.notifier) == [
                (
                    "accused",
                    f"node-1 is accused of wrong_reward in commitment 0: case {case_id} is open against it."
                    f" muster slash verify {case_id} runs the evidence again",
                )
            ]
        # 2. The jury finds it not guilty; one judge stays away.
        await decide(run_fixture, challenger, case_id, ("v3", "v4"))
        async with run_fixture.chain("v3") as reporter:
            await reporter.send(court.report_absence(case_id, run_fixture.key("v2").address))
        # 3. Who opened it, and who stayed away, learn what that cost.
        await watch.poll()
        await watch_absent.poll()
        fee = (await challenger.call(court.case_of(case_id))).fee // TOKEN
        [(kind, text)] = said(made)
        assert kind == "fined"
        assert text == (
            f"node-1 lost case {case_id}, which it opened: 0 of 2 jurors found {run_fixture.key('w').address} guilty,"
            f" and its fee of {fee} MUST is theirs"
        )
        [(kind, text)] = said(silent)
        assert kind == "fined"
        assert text.startswith(f"node-1 was reported absent in case {case_id}: it did not reveal a vote in time.")
        # 4. A restarted watch repeats nothing, with or without its cursor.
        await ValidatorWatch(challenger, ORCHESTRATOR, made, state, run_fixture.run).poll()
        (state / FILE_NAME).unlink()
        fresh = notifier()
        await ValidatorWatch(challenger, ORCHESTRATOR, fresh, state, run_fixture.run).poll()
        assert (said(made), said(fresh)) == ([], [])


async def decide(run_fixture: RunFixture, chain: Chain, case_id: int, judges: tuple[str, ...]) -> None:
    """Vote not guilty, reveal, and resolve."""
    case = await chain.call(court.case_of(case_id))
    salt = bytes(32)
    for name in judges:
        async with run_fixture.chain(name) as judge:
            secret = vote_hash(case_id, judge.signer.address, False, salt)
            await judge.send(court.commit_vote(case_id, case.charge, secret))
    terms = await chain.terms(run_fixture.run)
    async with run_fixture.local_chain() as clock:
        await clock.advance(terms.commit_phase + 1)
        for name in judges:
            async with run_fixture.chain(name) as judge:
                await judge.send(court.reveal_vote(case_id, False, salt))
        await clock.advance(terms.reveal_phase + 1)
    await chain.send(court.resolve(case_id))
    assert (await chain.call(runs.work(case.node))).open_cases == 0


@pytest.mark.parametrize("role", ["worker", "validator"])
async def test_a_process_tells_why_it_ends(role: str, tmp_path: Path) -> None:
    async with scripted() as server:
        secret = tmp_path / "webhook"
        secret.write_text(server.url + "\n")
        secret.chmod(0o600)
        config = tmp_path / "muster.toml"
        config.write_text(
            f"name = '{role}-1'\nrun = 7\n[log]\nfile = 'log.jsonl'\n[notify]\nwebhook_file = 'webhook'\n"
        )
        command = (sys.executable, "-m", role, "--config", config)
        status, output, errors = await run_to_end(*command, MUSTER_DEBUG="")
    assert status == 78, output + errors
    [post] = server.posts
    post.pop("time")
    reason, hint = post["details"].pop("reason"), post["details"].pop("next")
    assert post == {
        "kind": "stopped",
        "node": "",
        "name": f"{role}-1",
        "run": 7,
        "text": f"{role}-1 stopped: {reason}. Next: {hint}",
        "details": {"exit_code": 78},
    }
    assert reason.startswith("no key is set" if role == "worker" else "no draw secret at ")
    assert "secret-path" not in output + errors + (tmp_path / "log.jsonl").read_text()
    [key] = json.loads((tmp_path / ".muster" / role / "notifications.json").read_text())
    assert key.startswith("stopped:ConfigError")


async def test_nodes_at_work_notify_of_little_gas(world: World) -> None:
    """Real processes; the webhook fails at first, and is asked again."""
    async with (
        scripted(answer("503 Service Unavailable"), NO_CONTENT) as server,
        world.run_fixture.local_chain() as local,
    ):
        notify = {"notify.webhook": server.url, "notify.events": ["low_gas"]}
        await local.fund([world.run_fixture.key(name).address for name in ("v1", "w1")], wei=0)
        with world.node("validator", "v1", **notify), world.node("worker", "w1", **notify):
            await until(lambda: len({post["name"] for post in server.posts}) == 2)
    for name in ("v1", "w1"):
        address = world.run_fixture.key(name).address
        posts = [post for post in server.posts if post["name"] == name]
        assert {(post["kind"], post["node"], post["run"]) for post in posts} == {
            ("low_gas", address, world.run_fixture.run)
        }
        assert posts[0]["details"]["transactions"] == 0
