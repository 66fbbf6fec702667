"""Work from draw to payment desk, and a cheater from its first commitment to conviction.

Real chain, orchestrator, origin, engines and replays: what one swarm did, recorded (testbed/runs/recorded_swarm.py),
and the worker's awkward moments: it dies with a file that is not uploaded, with an upload that is not committed, and
with a commitment that it has not noted.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from examples.audit_commitment import audit
from muster.clients import OrchestratorClient, fetch_run
from muster.contracts import runs
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.refutations import Refuted
from muster.contracts.registry import Convicted, Status
from muster.contracts.runs import WorkCommitted
from muster.errors import MismatchError
from muster.ledger import tables
from muster.protocol.kinds import kind_of, reason_of_flaw
from muster.protocol.messages import Upload
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.spans import one_span
from muster.verification.bundles import parse_bundle
from testbed.paths import ROOT
from testbed.processes import Service, ended, run_to_end
from testbed.runs.recorded_swarm import CHEATER, COMMITMENTS, HONEST, Played, Recording, playing
from testbed.runs.world import World, commit_bytes, rows_of
from testbed.waiting import until, wait_until

EXAMPLES = ROOT / "examples"
WORKERS = ("w1", "w2", "w3", "w4", "w5")
WORKER_FAILPOINTS = ("worker.generated", "worker.uploaded", "worker.committed")


@pytest.fixture(scope="module")
def played(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The recorded swarm, whose cheater is convicted."""
    with playing(recording, tmp_path_factory.mktemp("played")) as made:
        made.convict()
        cheater = made.run_fixture.key(CHEATER).address

        def is_seen() -> bool:
            return dict(asyncio.run(made.orchestrator.rows(tables.nodes, "address", "status")))[cheater] == "jailed"

        wait_until(is_seen, "the orchestrator has seen it")
        yield made


def _node(played: Played, name: str) -> dict[str, Any]:
    """Return what the orchestrator knows of a worker."""
    return played.orchestrator.json(f"/v1/nodes/{played.run_fixture.key(name).address}")


async def test_two_validators_accept_honest_work(played: Played) -> None:
    found = await played.verdicts(HONEST)
    assert all(verdict.accepted for verdict in found), found
    assert len({verdict.validator for verdict in found if verdict.index == 0}) >= 2
    assert {verdict.inspected for verdict in found} == {8}, "twice the rows of a look, of a newcomer"
    known, node = _node(played, HONEST), played.run_fixture.key(HONEST).address
    assert (known["rejected"], known["accepted"] >= COMMITMENTS) == ({}, True)
    async with played.run_fixture.chain("stranger") as chain, played.client(None) as client:
        (found_on_chain,) = await chain.nodes([node])
        reports = (await client.log(played.run_fixture.run, kind="report")).entries
    assert found_on_chain.status == Status.ACTIVE
    trained = {name for one in reports for name in json.loads(json.loads(one.text)["text"])["batch"]}
    assert len(trained & {verdict.file_hash for verdict in found}) == 1
    assert not [event for event in await played.events(CaseOpened) if event.node == node]


async def test_a_jury_convicts_the_cheater(played: Played) -> None:
    """By evidence that was uploaded. The process died that had committed a vote and not revealed it (`record`)."""
    node = played.run_fixture.key(CHEATER).address
    opened = [event for event in await played.events(CaseOpened) if event.node == node]
    resolved = {event.case_id: event.outcome for event in await played.events(CaseResolved)}
    guilty = [event for event in opened if resolved.get(event.case_id) == Outcome.GUILTY]
    assert len(guilty) == 1
    assert {event.node for event in await played.events(Convicted)} == {node}
    case = guilty[0].case_id
    votes = [event for event in await played.events(VoteCommitted) if event.case_id == case]
    reveals = [event for event in await played.events(VoteRevealed) if event.case_id == case]
    assert len({vote.judge for vote in votes}) == len(votes) >= 2
    assert {reveal.judge: reveal.guilty for reveal in reveals} == {vote.judge: True for vote in votes}
    async with played.client(None) as client:
        bundle = parse_bundle(await client.get_evidence(guilty[0].evidence_hash))
    assert bundle.reason in ("sampling_mismatch", "activation_mismatch")
    found = await played.verdicts(CHEATER)
    assert found
    assert not any(verdict.accepted for verdict in found)
    assert _node(played, CHEATER)["accepted"] == 0


async def test_a_quorum_sealed_the_hour(played: Played) -> None:
    async with played.run_fixture.chain("stranger") as chain:
        hour = (await chain.call(runs.work(played.run_fixture.key(HONEST).address))).last_hour
        assert await chain.call(runs.sealed_through(played.run_fixture.run)) >= hour


@pytest.mark.slow
async def test_a_stranger_can_check(played: Played) -> None:
    """`muster slash verify` and `muster validator verify`, from nothing but the URL."""

    async def look(*arguments: object) -> tuple[int, dict[str, Any], str]:
        home = played.run_fixture.folder / "visitor"
        (home / "cache" / "muster").mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-P", "-m", "muster", *arguments, "--url", played.orchestrator.url, "--json")
        places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": str(ROOT)}
        status, output, said = await run_to_end(*command, folder=home, **places)
        assert output, said
        return status, json.loads(output), said

    guilty = next(event for event in await played.events(CaseResolved) if event.outcome == Outcome.GUILTY)
    node = played.run_fixture.key(CHEATER).address
    code, document, said = await look("slash", "verify", guilty.case_id)
    assert (code, document["guilty"], document["node"]) == (0, True, node)
    assert "muster ended" not in said
    code, document, said = await look("validator", "verify", f"{node}:0")
    assert (code, document["good"], document["beyond_accusing"]) == (3, False, True)
    assert document["measured"] > document["threshold"]
    assert said.count(f"commitment 0 of {node} is bad") == 1
    honest = played.run_fixture.key(HONEST).address
    code, document, _ = await look("validator", "verify", f"{honest}:0")
    assert (code, document["good"], document["rows_replayed"]) == (0, True, 16)
    code, document, _ = await look("worker", "why", 0, "--node", honest)
    assert code == 0


@pytest.mark.slow
async def test_outsiders_can_watch_and_audit(played: Played) -> None:
    """`examples/` on a run, from a URL and without a key."""
    url, honest = played.orchestrator.url, played.run_fixture.key(HONEST).address
    code, output, _ = await run_to_end(sys.executable, EXAMPLES / "watch_run.py", url)
    assert (code, output.splitlines()[0]) == (0, f"run {played.run_fixture.run} on chain 31337, at {url}")
    assert "verdicts, of which " in output
    folder = played.run_fixture.folder / "audited"
    command = (
        sys.executable,
        EXAMPLES / "audit_commitment.py",
        url,
        honest,
        0,
        "--relay",
        played.origin.url,
        "--folder",
        folder,
    )
    code, output, _ = await run_to_end(*command)
    assert code == 0
    assert output.endswith("\nnothing is wrong: format, root, draws, prompts, bounds and rewards\n")


@pytest.mark.slow
async def test_a_worker_dies_three_times_and_loses_nothing(world: World) -> None:
    worker = world.node("worker", "w1", *WORKER_FAILPOINTS)
    with ended(worker):
        await _dies_and_goes_on(world, worker)


async def _dies_and_goes_on(world: World, worker: Service) -> None:
    """Start it until it dies nowhere any more; what it made, sent and committed then is one file."""
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
    async with world.validators("v1", "v2", "v3", "v4"):
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
    assert {(event.node, reason_of_flaw(event.flaw)) for event in refuted} == {
        (world.run_fixture.key("w2").address, "wrong_draw"),
        (world.run_fixture.key("w4").address, "out_of_bounds"),
    }
    opened = {event.case_id: event for event in await world.events(CaseOpened)}
    guilty = [opened[event.case_id] for event in await world.events(CaseResolved) if event.outcome == Outcome.GUILTY]
    assert {(event.node, event.kind) for event in guilty} == {
        (world.run_fixture.key("w1").address, kind_of("malformed")),
        (world.run_fixture.key("w3").address, kind_of("data_missing")),
        (world.run_fixture.key("w5").address, kind_of("out_of_bounds")),
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
