"""Names, machines and scores, as a real orchestrator takes them: refused, restarted, and rebuilt from storage."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from muster.clients.storage import SegmentStore
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.tables import entries
from muster.protocol.announcements import BenchmarkScore, MachineReport, NodeName
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import content_hash
from muster.protocol.messages import LogEntry, SignedText
from muster.protocol.receipts import open_text
from muster.protocol.requests import sign_request
from orchestrator.announcement_routes import MAX_SIGNED_BYTES
from orchestrator.app import MAX_CURRENT_BYTES
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.servers.s3 import Endpoint
from testbed.waiting import BOUND, until

OWNERS_RELAY = "http://127.0.0.1:9"
"""Which every orchestrator of the fixture lists."""


@pytest.fixture(scope="module")
def run_fixture(
    deployment: Any, database_kind: str, s3: Endpoint | None, tmp_path_factory: pytest.TempPathFactory
) -> RunFixture:
    folder = tmp_path_factory.mktemp("announcements")
    built = RunFixture.build(
        folder, deployment.settings, seed=f"announcements {database_kind}", workers=("w1", "w2", "w3")
    )
    made = asyncio.run(built)
    made.s3 = s3
    asyncio.run(made.publish(0))
    asyncio.run(made.publish(1))
    return made


class Place:
    """A run, an orchestrator, an explorer, and what they say in the tests' words."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer) -> None:
        self.run_fixture, self.orchestrator, self.explorer = run_fixture, orchestrator, explorer
        self.run = run_fixture.run

    def node(self, name: str) -> str:
        return self.run_fixture.key(name).address

    def name(self, node: str, text: str, named: float = 0, by: str = "") -> NodeName:
        """A name by the node's operator, or by another."""
        signer = self.run_fixture.key(by or f"operator of {node}")
        second = int(named or time.time())
        unsigned = NodeName(run=self.run, node=self.node(node), name=text, named=second, signature=UNSIGNED)
        return sign_message(signer, self.run_fixture.domain, unsigned)

    def score(self, by: str = "trainer", **changes: Any) -> BenchmarkScore:
        fields = {"run": self.run, "step": 1, "benchmark": "gsm8k", "score": 0.5, "low": 0.25, "high": 0.75}
        fields |= {"tasks": 1319, "samples": 1, "measured": int(time.time()), "signature": UNSIGNED} | changes
        return sign_message(self.run_fixture.key(by), self.run_fixture.domain, BenchmarkScore(**fields))

    async def say(self, sender: str, said: NodeName | BenchmarkScore | MachineReport) -> None:
        async with self.run_fixture.client(self.orchestrator.url, sender) as client:
            if isinstance(said, NodeName):
                await client.name_node(said)
            elif isinstance(said, BenchmarkScore):
                await client.post_score(said)
            else:
                await client.say("machine", said)

    async def refused(self, sender: str, said: Any, status: int, title: str, reason: str) -> str:
        """Assert that this is refused so; return the hint."""
        with pytest.raises(RefusedError) as caught:
            await self.say(sender, said)
        assert (caught.value.status, caught.value.title) == (status, title), caught.value
        assert str(caught.value) == f"{title}: {reason}"
        return caught.value.hint

    async def machines(self) -> list[tuple[str, str, int, float]]:
        """What nodes say of their machines, as they signed it."""
        async with self.run_fixture.client(self.orchestrator.url, "w1") as client:
            listed = (await client.current(self.run)).said
        signed = [one.signed for one in listed if one.signed.kind == "machine"]
        opened = [open_text(self.run_fixture.domain, one, "machine", MachineReport) for one in signed]
        return sorted((node, said.device, said.devices, said.tokens_per_second) for said, node in opened)

    async def names(self, node: str) -> list[str]:
        """Return the names of a node that the log has, oldest first."""
        async with self.run_fixture.client(self.orchestrator.url, None) as client:
            page = await client.log(self.run, kind="name", node=self.node(node), index=0)
        return [NodeName.model_validate_json(one.text).name for one in page.entries]

    async def scores(self) -> list[tuple]:
        """Return the scores that the log has, oldest first."""
        async with self.run_fixture.client(self.orchestrator.url, None) as client:
            page = await client.log(self.run, kind="score")
        found = [BenchmarkScore.model_validate_json(one.text) for one in page.entries]
        return [(one.step, one.benchmark, one.score, one.measured) for one in found]

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = self.explorer.json(f"/v1/runs/{self.run}/events")["events"]
        return [event["data"] for event in events if event["kind"] == kind]

    def post(self, sender: str, path: str, body: bytes) -> httpx2.Response:
        url = f"{self.orchestrator.url}/v1/runs/{self.run}{path}"
        signer, domain = self.run_fixture.key(sender), self.run_fixture.domain
        headers = sign_request(signer, domain, "POST", url, content_hash(body), now=time.time())
        with httpx2.Client(trust_env=False, timeout=BOUND) as client:
            return client.post(url, content=body, headers=headers)


@pytest.fixture(scope="module")
def place(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    with (
        Orchestrator(run_fixture, folder / "orchestrator", database_url=new_database_url()) as orchestrator,
        Explorer(run_fixture, folder / "explorer", orchestrator.url) as explorer,
    ):
        yield Place(run_fixture, orchestrator, explorer)


async def test_an_operator_names_its_node(place: Place) -> None:
    """Any sender may deliver a name, because the operator signs the name itself."""
    first = place.name("w1", "first", time.time() - 100)
    await place.say("stranger", first)
    await place.say("w2", first)  # the same again
    assert await place.names("w1") == ["first"]
    why = f"{place.node('w1')} was named less than a minute ago"
    hint = await place.refused("stranger", place.name("w1", "second"), 409, "Conflict", why)
    assert hint.startswith("try again in ")


async def test_names_that_are_refused(place: Place) -> None:
    refused, operator = place.refused, place.node("operator of w2")
    for other in ("operator of w1", "w2", "owner", "stranger"):
        why = f"the name is signed by {place.node(other)}, not by {operator}"
        hint = await refused("operator of w2", place.name("w2", "mine", by=other), 403, "Not allowed", why)
        assert hint == "use the operator's key: --operator WALLET"
    stranger = place.name("stranger", "mine", by="operator of w2")
    why = f"{place.node('stranger')} is no node of run {place.run}"
    hint = await refused("stranger", stranger, 404, "Not found", why)
    assert hint == "see /leaderboard; a node that has just joined is known in a few seconds"
    why = "the name 'a\\u202eb' may have letters, digits, spaces and . _ - + # ' only"
    await refused("w2", place.name("w2", "a\u202eb"), 422, "Malformed", why)
    await refused("w2", place.name("w2", "0xabc"), 422, "Malformed", "the name '0xabc' looks like an address")
    future = place.name("w2", "mine", time.time() + 90)
    assert await refused("w2", future, 422, "Malformed", "the name is of the future") == "set this machine's clock"
    assert await place.names("w2") == []
    elsewhere = place.name("w2", "mine").model_copy(update={"run": place.run + 1})
    body = elsewhere.model_dump_json().encode()
    reply = place.post("w2", "/names", body)
    assert (reply.status_code, reply.json()["title"]) == (404, "Another run")


def test_malformed_announcements_are_refused(place: Place) -> None:
    long = place.name("w2", "mine").model_dump() | {"name": "x" * 41}
    reply = place.post("stranger", "/names", json.dumps(long).encode())
    assert (reply.status_code, reply.json()["detail"]) == (422, "name: String should have at most 40 characters")
    lone = place.name("w2", "mine").model_dump_json().replace("mine", "\\ud800").encode()
    assert place.post("stranger", "/names", lone).status_code == 422
    for path, sender, limit in (("/names", "w1", MAX_SIGNED_BYTES), ("/scores", "trainer", MAX_SIGNED_BYTES)):
        reply = place.post(sender, path, b" " * (limit + 1))
        assert (reply.status_code, reply.json()["title"]) == (413, "Too large")
    assert place.post("w1", "/current", b"[" * (MAX_CURRENT_BYTES + 1)).status_code == 413


@pytest.mark.parametrize(
    "spoilt",
    [
        *(f'"device": {device}' for device in ("null", "1", f'"{"x" * 61}"', '"\\ud800"')),
        *(f'"tokens_per_second": {number}' for number in ("NaN", "Infinity", "1e300", "-1", '"x"')),
        *(f'"devices": {number}' for number in ("0", "65537", "1.5")),
        '"more": 1',
    ],
)
def test_malformed_machine_reports_are_refused(place: Place, spoilt: str) -> None:
    good = {"run": place.run, "device": "x", "devices": 1, "tokens_per_second": 1}
    name = spoilt.split('"')[1]
    members = [f'"{key}": {json.dumps(value)}' for key, value in good.items() if key != name]
    text = f"{{{', '.join([*members, spoilt])}}}"
    unsigned = SignedText(run=place.run, kind="machine", text=text, signature=UNSIGNED)
    signed = sign_message(place.run_fixture.key("w1"), place.run_fixture.domain, unsigned)
    reply = place.post("w1", "/current", signed.to_bytes())
    assert (reply.status_code, reply.json()["title"]) == (403, "Not allowed"), reply.text
    assert reply.json()["detail"].startswith("the signed text does not parse: ")


async def test_machines_of_active_nodes(place: Place) -> None:
    hostile = MachineReport(
        run=place.run,
        device="\x1b]0;x\x07\u202e<img src=x onerror=alert(1)> H100",
        devices=2,
        tokens_per_second=12.5,
    )
    await place.say("w1", hostile)
    await place.say("v1", hostile.model_copy(update={"device": "a GPU"}))
    said = [(place.node("w1"), hostile.device, 2, 12.5), (place.node("v1"), "a GPU", 2, 12.5)]

    async def listed() -> bool:
        return await place.machines() == sorted(said)

    await until(listed, "the list is made anew")
    why = f"{place.node('trainer')} is no active node of run {place.run}"
    await place.refused("trainer", hostile, 403, "Not allowed", why)
    for sender in ("stranger", "owner", "operator of w1"):
        with pytest.raises(RefusedError, match="is no node of run") as caught:
            await place.say(sender, hostile)
        assert (caught.value.status, caught.value.title) == (403, "Not a member")


async def test_names_and_machines_are_shown_on_the_page(place: Place) -> None:
    node = place.node("w1")

    def shown() -> dict[str, Any]:
        [line] = place.explorer.json(f"/v1/runs/{place.run}/workers?search={node}")["workers"]
        return line if line["devices"] == 2 else {}

    line = await until(shown, "the node's line")
    assert (line["name"], line["device"], line["tokens_per_second"]) == (
        "first",
        "]0;x <img src=x onerror=alert(1)> H100",
        12.5,
    )
    assert place.events("named").count({"node": node, "name": "first"}) == 1


async def test_scores_of_steps_on_chain(place: Place) -> None:
    score, trainer, owner = place.score, place.node("trainer"), place.node("owner")
    measured = int(time.time()) - 50
    await place.say("trainer", score(measured=measured))
    await place.say("owner", score(measured=measured))  # the same again
    await place.say("owner", score("owner", measured=measured + 1, score=0.625))
    await place.say("trainer", score(step=0, benchmark="aime24", measured=measured))
    assert await place.scores() == [
        (1, "gsm8k", 0.5, measured),
        (1, "gsm8k", 0.625, measured + 1),
        (0, "aime24", 0.5, measured),
    ]
    told = [
        {"step": step, "benchmark": benchmark, "score": score, "low": 0.25, "high": 0.75}
        for step, benchmark, score, _ in await place.scores()
    ]
    await until(lambda: place.events("scored") == told, "the page tells of each")
    names = "name=benchmark/gsm8k&name=benchmark/aime24"
    series = place.explorer.json(f"/v1/runs/{place.run}/series?{names}&last=1")["series"]
    assert [(one["steps"], one["mean"]) for one in series] == [([1], [0.625]), ([0], [0.5])]

    refused = place.refused
    why = "another score about the same is known, as late or later"
    await refused("trainer", score(measured=measured), 409, "Conflict", why)
    roles = f"is neither the trainer of run {place.run}, {trainer}, nor its owner, {owner}"
    for other in ("stranger", "w1", "storage", "operator of w1"):
        await refused(other, score(), 403, "Not allowed", f"{place.node(other)} {roles}")
        signed = f"the score is signed by {place.node(other)}, not by {' or '.join(sorted((trainer, owner)))}"
        await refused("trainer", score(other), 403, "Not allowed", signed)
    why = f"run {place.run} has not published step 2"
    hint = await refused("trainer", score(step=2), 404, "Not found", why)
    assert hint == "one that has just been published is known in a few seconds: try again"
    why = "a score of 0.2 is not within 0.25 to 0.75"
    await refused("trainer", score(score=0.2), 422, "Malformed", why)
    await refused("trainer", score(tasks=0), 422, "Malformed", "a score of no answers")
    future = score(measured=int(time.time()) + 90)
    await refused("trainer", future, 422, "Malformed", "the score is of the future")
    for body in (b'"score": 1.5', b'"score": "NaN"', b'"benchmark": "<b>"', b'"step": -1'):
        field = body.split(b":")[0].decode().strip('"')
        spoilt = json.loads(score().model_dump_json()) | json.loads(b"{" + body + b"}")
        assert field in place.post("trainer", "/scores", json.dumps(spoilt).encode()).json()["detail"]


async def forget_when(orchestrator: Orchestrator, about: str) -> None:
    """Let a minute pass for the pause between two names."""
    database = await Database.open(orchestrator.database_url, about)
    await database.write(lambda connection: connection.execute(update(entries).values(received=0)))
    await database.close()


async def test_names_and_scores_outlive_a_restart_and_the_database(place: Place, new_database_url: Any) -> None:
    orchestrator, now = place.orchestrator, int(time.time())
    old, new = place.name("w3", "old", now - 10), place.name("w3", "new", now)
    await place.say("w3", old)

    # 1. A restart forgets nothing, nor when a node was last named.
    await asyncio.to_thread(orchestrator.stop)
    await asyncio.to_thread(orchestrator.start)
    early = f"{place.node('w3')} was named less than a minute ago"
    await place.refused("stranger", new, 409, "Conflict", early)
    await forget_when(orchestrator, place.run_fixture.about)
    await place.say("stranger", new)
    assert await place.names("w3") == ["old", "new"]

    # 2. No sender can replay an old name.
    await asyncio.to_thread(orchestrator.stop)
    await asyncio.to_thread(orchestrator.start)
    why = "another name about the same is known, as late or later"
    for sender in ("w3", "operator of w3", "stranger"):
        await place.refused(sender, old, 409, "Conflict", why)

    # 3. Storage has what it should not: a score by a stranger, something else, a line of another place.
    await place.say("trainer", place.score(step=0, measured=now - 5))
    before = await place.scores()
    assert (0, "gsm8k", 0.5, now - 5) in before
    if place.run_fixture.s3 is None:
        store = SegmentStore(f"file:{orchestrator.folder / 'storage'}", "log")
        last = (await store.firsts())[-1]
        first = last + len(await store.read(last))
        stolen = place.score("stranger", measured=now + 1).to_bytes().decode()
        at = LogEntry(place=first, kind="score", came=0, received=0.0, text=stolen)
        elsewhere = at.model_copy(update={"place": first + 7})
        assert await store.create(first, [at.to_bytes(), b"{}", b"", elsewhere.to_bytes()])

    # 4. A new database is filled from storage; what machines said is gone.
    await asyncio.to_thread(orchestrator.kill)
    orchestrator.change({"orchestrator.database_url": new_database_url()})
    shutil.rmtree(orchestrator.folder / "state")
    await asyncio.to_thread(orchestrator.start)
    assert await place.names("w3") == ["old", "new"]
    assert await place.scores() == before
    assert await place.machines() == []
    await place.say("trainer", place.score(step=0, measured=now))
    await until(lambda: len(place.events("scored")) == len(before) + 1, "the page has read on")
    assert [one["name"] for one in place.events("named")] == ["first", "old", "new"], "each once"
    await place.refused("w3", old, 409, "Conflict", why)


async def test_a_reader_at_the_end_of_the_log_waits_until_it_grows(place: Place) -> None:
    async with place.run_fixture.client(place.orchestrator.url, "stranger") as reader:
        end = 0
        while (page := await reader.log(place.run, end)).entries:
            end = page.cursor
        waiting = asyncio.create_task(reader.log(place.run, end, wait=30))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        await place.say("w2", place.name("w2", "grown"))
        [entry] = (await asyncio.wait_for(waiting, BOUND)).entries
        assert (entry.place, NodeName.model_validate_json(entry.text).name) == (end, "grown")
