"""Work from draw to payment desk, and a cheater from its first commitment to conviction.

Real chain, orchestrator, origin, engines and replays. On the way the awkward moments: the worker dies with a file that
is not uploaded, with an upload that is not committed, and with a commitment that it has not noted; a validator dies
between committing its vote and revealing it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import numpy as np
import pytest
import torch

from examples.audit_commitment import audit
from muster.chain.anvil import LocalChain
from muster.chain.connection import connected
from muster.clients import OrchestratorClient, fetch_run
from muster.constants import HOUR_SECONDS
from muster.contracts import registry, runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Refuted
from muster.contracts.registry import Convicted, Status
from muster.contracts.runs import WorkCommitted
from muster.errors import MismatchError
from muster.protocol.kinds import Kind, kind_of_flaw
from muster.protocol.messages import Upload
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.spans import one_span
from muster.verification.bundles import parse_bundle
from testbed.paths import ROOT
from testbed.processes import Service, ended, run_to_end
from testbed.runs.world import ModelRun, World, commit_bytes, rows_of
from testbed.waiting import until
from validator.ruling import turn_of

EXAMPLES = ROOT / "examples"
WORKERS = ("w1", "w2", "w3", "w4", "w5")
WORKER_FAILPOINTS = ("worker.generated", "worker.uploaded", "worker.committed")


@pytest.mark.slow
async def test_honest_work_is_accepted_and_a_cheater_convicted(world: World) -> None:
    run_fixture = world.run_fixture
    torch.set_num_threads(1)  # two validators live in this process, beside others on few cores
    worker, cheater = world.node("worker", "w1", *WORKER_FAILPOINTS), world.node("adversary", "w2")
    one, two, last = in_turn(run_fixture, "w2", "v1", "v2", "v3")
    late = {"validator.stagger_seconds": 60}  # so that it judges a case instead of opening it
    juror = world.node("validator", last, "validator.voted", **late)
    world.settings("v4")
    with ended(worker, cheater, juror):
        async with world.validators(one, two):
            juror.start()
            await the_worker_dies_three_times_and_loses_nothing(world, worker)
            await two_validators_accept(world)
            cheater.start()
            await the_cheater_is_convicted(world, cheater, juror)
            await a_stranger_can_check(world)
            await outsiders_can_watch_and_audit(world)
            await the_hour_is_sealed(world)


def in_turn(run_fixture: ModelRun, worker: str, *names: str) -> list[str]:
    """Return validators in the order in which they may accuse a worker."""
    matter = f"accuse {run_fixture.key(worker).address}"
    everybody = [run_fixture.key(name).address for name in ("v1", "v2", "v3", "v4")]
    return sorted(names, key=lambda name: turn_of(run_fixture.key(name).address, everybody, matter))


async def the_worker_dies_three_times_and_loses_nothing(world: World, worker: Service) -> None:
    for point in WORKER_FAILPOINTS:
        worker.start()
        assert (await asyncio.to_thread(worker.end))[0] == -signal.SIGKILL, worker.said
        assert (worker.folder / "failpoints" / point).exists()
    generated = worker.logged("generated")
    assert [line["index"] for line in generated] == [0], "one file, made once"
    (uploaded,) = worker.logged("uploaded")
    worker.start()

    async def noted() -> bool:
        return bool(worker.logged("committed"))

    await until(noted, "the commitment is noted")
    assert (await asyncio.to_thread(worker.stop))[0] == 0, worker.said
    assert worker.logged("committed")[0]["found"] == "on chain after a restart"
    mined = [event for event in await world.events(WorkCommitted) if event.index == 0]
    assert len(mined) == 1, "committed once"
    async with world.run_fixture.client(world.orchestrator.url, None) as client:
        upload = await client.upload(world.run_fixture.run, mined[0].node, 0, mined[0].root)
    assert upload.receipt.file_hash == uploaded["file"]


async def two_validators_accept(world: World) -> None:
    async def accepted() -> bool:
        found = await world.verdicts("w1")
        assert all(verdict.accepted for verdict in found), found
        return len({verdict.validator for verdict in found if verdict.index == 0}) >= 2

    await until(accepted, "two validators accept")
    async with world.run_fixture.client(world.orchestrator.url, None) as client:
        work = await client.accepted(world.run_fixture.run)
    assert [(one.node, one.index) for one in work if one.index == 0] == [(world.run_fixture.key("w1").address, 0)]
    assert all(verdict.inspected == 16 for verdict in work[0].verdicts)


async def the_cheater_is_convicted(world: World, cheater: Service, juror: Service) -> None:
    node = world.run_fixture.key("w2").address

    async def jailed() -> bool:
        if not juror.is_running:
            assert juror.process.returncode == -signal.SIGKILL, juror.said
            juror.start()  # as a supervisor would
        async with world.run_fixture.chain("stranger") as chain:
            return (await chain.call(registry.node(node))).status == Status.JAILED

    await until(jailed, "the cheater is jailed")
    assert (juror.folder / "failpoints" / "validator.voted").exists(), "it died between vote and reveal"
    opened = [event for event in await world.events(CaseOpened) if event.node == node]
    resolved = {event.case_id: event.outcome for event in await world.events(CaseResolved)}
    guilty = [event for event in opened if resolved.get(event.case_id) == Outcome.GUILTY]
    assert len(guilty) == 1
    assert all(event.node == node for event in await world.events(Convicted))
    case = guilty[0].case_id
    votes = [event for event in await world.events(VoteCommitted) if event.case_id == case]
    reveals = [event for event in await world.events(VoteRevealed) if event.case_id == case]
    assert len({vote.judge for vote in votes}) == len(votes) >= 2
    assert {reveal.judge: reveal.guilty for reveal in reveals} == {vote.judge: True for vote in votes}
    async with world.run_fixture.client(world.orchestrator.url, None) as client:
        bundle = parse_bundle(await client.get_evidence(guilty[0].evidence_hash))
        work = await client.accepted(world.run_fixture.run)
    assert bundle.reason in ("sampling_mismatch", "activation_mismatch")
    assert node not in {one.node for one in work}
    assert not any(verdict.accepted for verdict in await world.verdicts("w2"))
    status, said = await asyncio.to_thread(cheater.end)
    assert status == 3, said
    assert "it was convicted, and takes no more work" in said
    honest = world.run_fixture.key("w1").address
    assert not [event for event in await world.events(CaseOpened) if event.node == honest]


async def a_stranger_can_check(world: World) -> None:
    """`muster slash verify` and `muster validator verify`, from nothing but the URL."""

    async def look(*arguments: object) -> tuple[int, dict[str, Any], str]:
        home = world.run_fixture.folder / "visitor"
        (home / "cache" / "muster").mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-P", "-m", "muster", *arguments, "--url", world.orchestrator.url, "--json")
        places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": str(ROOT)}
        status, output, said = await run_to_end(*command, folder=home, **places)
        assert output, said
        return status, json.loads(output), said

    guilty = next(event for event in await world.events(CaseResolved) if event.outcome == Outcome.GUILTY)
    node = world.run_fixture.key("w2").address
    code, document, said = await look("slash", "verify", guilty.case_id)
    assert (code, document["guilty"], document["node"]) == (0, True, node)
    assert "muster ended" not in said
    code, document, said = await look("validator", "verify", f"{node}:0")
    assert (code, document["good"], document["beyond_accusing"]) == (3, False, True)
    assert document["measured"] > document["threshold"]
    assert said.count(f"commitment 0 of {node} is bad") == 1
    honest = world.run_fixture.key("w1").address
    code, document, _ = await look("validator", "verify", f"{honest}:0")
    assert (code, document["good"], document["rows_replayed"]) == (0, True, 16)
    code, document, _ = await look("worker", "why", 0, "--node", honest)
    assert code == 0


async def outsiders_can_watch_and_audit(world: World) -> None:
    """`examples/` on a live run, from a URL and without a key."""
    url, honest = world.orchestrator.url, world.run_fixture.key("w1").address
    code, output, _ = await run_to_end(sys.executable, EXAMPLES / "watch_run.py", url)
    assert (code, output.splitlines()[0]) == (0, f"run {world.run_fixture.run} on chain 31337, at {url}")
    assert "commitments are accepted, of 1 nodes" in output
    folder = world.run_fixture.folder / "audited"
    command = (
        sys.executable,
        EXAMPLES / "audit_commitment.py",
        url,
        honest,
        0,
        "--relay",
        world.origin.url,
        "--folder",
        folder,
    )
    code, output, _ = await run_to_end(*command)
    assert code == 0
    assert output.endswith("\nnothing is wrong: format, root, draws, prompts, bounds and rewards\n")


async def the_hour_is_sealed(world: World) -> None:
    async with world.run_fixture.chain("stranger") as chain:
        hour = (await chain.call(runs.work(world.run_fixture.key("w1").address))).last_hour
    async with connected(world.run_fixture.settings) as web3:
        dev = await LocalChain.open(web3)
        if await dev.now() < (hour + 1) * HOUR_SECONDS:  # else the story went on into the next hour
            await dev.advance_to((hour + 1) * HOUR_SECONDS)

    async def sealed() -> bool:
        async with world.run_fixture.chain("stranger") as chain:
            return await chain.call(runs.sealed_through(world.run_fixture.run)) >= hour

    await until(sealed, "a quorum seals the hour")


@pytest.mark.slow
async def test_bad_files_are_convicted_for_what_they_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convict each by its own way, without a jury where the contract can see it.

    A file that is no Parquet, rows that were not drawn, no file at all, rows of no tokens and of tokens that do not
    exist.
    """
    torch.set_num_threads(1)
    workers = dict(
        zip(WORKERS, ("malformed", "wrong_draw", "data_missing", "out_of_bounds", "out_of_bounds"), strict=True)
    )
    nodes = {world.run_fixture.key(name).address: reason for name, reason in workers.items()}
    async with world.validators("v1", "v2", "v3"):
        await commit_bytes(world, "w1", b"PAR1 this is no Parquet file PAR1")
        for name, spoil in {
            "w2": lambda row: {"task": row.task + 1},
            "w4": lambda _: completion(0),
            "w5": lambda _: completion(7, token=1 << 30),
        }.items():
            await commit_bytes(world, name, write_rollouts(await rows_of(world, name, spoil)))
        await world.run_fixture.commit("w3", 0, "0x" + "77" * 32)

        async def all_jailed() -> bool:
            async with world.run_fixture.chain("stranger") as chain:
                return all(node.status == Status.JAILED for node in await chain.nodes(list(nodes)))

        await until(all_jailed, "all five are jailed")
    refuted = await world.events(Refuted)
    assert {(event.node, kind_of_flaw(event.flaw)) for event in refuted} == {
        (world.run_fixture.key("w2").address, Kind.WRONG_DRAW),
        (world.run_fixture.key("w4").address, Kind.OUT_OF_BOUNDS),
    }
    opened = {event.case_id: event for event in await world.events(CaseOpened)}
    guilty = [opened[event.case_id] for event in await world.events(CaseResolved) if event.outcome == Outcome.GUILTY]
    assert {(event.node, event.kind) for event in guilty} == {
        (world.run_fixture.key("w1").address, Kind.MALFORMED),
        (world.run_fixture.key("w3").address, Kind.DATA_MISSING),
        (world.run_fixture.key("w5").address, Kind.OUT_OF_BOUNDS),
    }
    cheater = world.run_fixture.key("w2").address
    run = await fetch_run(world.orchestrator.url)
    finding = await audit(run, cheater, 0, world.run_fixture.folder / "audited", [world.origin.url])
    assert finding is not None
    assert finding.reason == "wrong_draw", "an outsider's audit finds it too"
    of_another = world.run_fixture.key("w4").address
    upload = OrchestratorClient.upload
    roots = {event.node: event.root for event in await world.events(WorkCommitted)}

    async def exchanged(client: OrchestratorClient, number: int, node: str, index: int, root: bytes) -> Upload:
        return await upload(client, number, of_another, index, roots[of_another])

    monkeypatch.setattr(OrchestratorClient, "upload", exchanged)
    with pytest.raises(MismatchError, match="the upload is of another commitment"):
        await audit(run, cheater, 0, world.run_fixture.folder / "audited", [world.origin.url])
    for name, reason in workers.items():
        found = await world.verdicts(name)
        assert {verdict.reason for verdict in found} == {reason}


def completion(length: int, token: int = 0) -> dict[str, object]:
    """Return the columns that give a row a completion of `length` tokens."""
    tokens, logprobs = np.full(length, token, np.int32), np.zeros(length, np.float32)
    return {"completion_tokens": tokens, "logprobs": logprobs, "spans": one_span(length)}
