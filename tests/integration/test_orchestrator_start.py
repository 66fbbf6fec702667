"""Starting and ending: what cannot work is said at once, in words; SIGTERM ends with 0; silence of the chain shows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from muster.chain.keys import create_keystore, write_secret
from muster.constants import REQUEST_LIFETIME_SECONDS, SAMPLE_BLOCKS
from muster.contracts import runs
from muster.errors import RefusedError, UnreachableError
from muster.ledger.database import Database
from muster.protocol.hashes import content_hash
from muster.protocol.requests import sign_request
from testbed.chain.anvil import Anvil
from testbed.http import open_url
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.waiting import BOUND, wait_until


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("start")
    return asyncio.run(RunFixture.build(folder, deployment.settings, seed="start", workers=("w1",)))


def test_an_occupied_port(run_fixture, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = Orchestrator(run_fixture, tmp_path, port=port).spawn().end()
    assert code == 78
    assert f"error: port 127.0.0.1:{port} is occupied" in errors
    assert f"sport = :{port}" in errors
    assert "Traceback" not in errors


def wrong_key(run_fixture: RunFixture, broken: Orchestrator) -> None:
    (broken.folder / "storage.key").write_text(run_fixture.secret("owner") + "\n")


def other_database(_: RunFixture, broken: Orchestrator) -> None:
    asyncio.run((asyncio.run(Database.open(broken.database_url, "run 7"))).close())


def no_database(_: RunFixture, broken: Orchestrator) -> None:
    folder, _, _ = broken.database_url.rpartition("/")
    if broken.database_url.startswith("sqlite"):
        file = Path(folder.removeprefix("sqlite:///")) / "orchestrator.db"
        file.parent.mkdir()
        file.write_bytes(b"this is no database, and long enough to tell" * 100)
    broken.change({"orchestrator.database_url": f"{folder}/orchestrator.db"})


def other_driver(_: RunFixture, broken: Orchestrator) -> None:
    scheme, _, rest = broken.database_url.partition(":")
    driver = "aiosqlite" if scheme == "sqlite" else "asyncpg"
    broken.change({"orchestrator.database_url": f"{scheme}+{driver}:{rest}"})


def no_run(_: RunFixture, broken: Orchestrator) -> None:
    broken.change({"run": 999})


def wrong_chain(_: RunFixture, broken: Orchestrator) -> None:
    keys = {
        "keystore": broken.folder / "storage.key",
        "password_file": broken.folder / "password",
        "raw_key_file": None,
    }
    broken.change({"chain.chain_id": 84_532, **{f"keys.{name}": value for name, value in keys.items()}})
    write_secret(broken.folder / "password", "a long password")
    (broken.folder / "storage.key").unlink()
    create_keystore(broken.folder / "storage.key", "a long password", iterations=2)


def no_chain(_: RunFixture, broken: Orchestrator) -> None:
    broken.change({"chain.rpc_url": "http://127.0.0.1:1", "chain.timeout_seconds": 0.5})


def unknown_setting(_: RunFixture, broken: Orchestrator) -> None:
    broken.change({"orchestrator.colour": 1})


def no_storage(_: RunFixture, broken: Orchestrator) -> None:
    (broken.folder / "storage").write_text("a file where the folder should be")


def unknown_storage(_: RunFixture, broken: Orchestrator) -> None:
    broken.change({"orchestrator.storage_url": f"ftp:{broken.folder / 'storage'}"})


BREAKS: dict[Callable[[RunFixture, Orchestrator], None], tuple[int, str]] = {
    wrong_key: (78, "trusts receipts of"),
    other_database: (78, "the database belongs to run 7"),
    no_database: (5, r"file is not a database|database \"orchestrator.db\" does not exist"),
    other_driver: (78, "(aiosqlite|asyncpg) is not supported"),
    no_run: (4, "999"),
    wrong_chain: (4, "84532"),
    no_chain: (5, "does not answer"),
    unknown_setting: (78, "orchestrator.colour"),
    no_storage: (5, "storage folder"),
    unknown_storage: (78, "neither file:FOLDER nor s3://"),
}

_TRY_ALL = """
import contextlib, io, json, sys
from orchestrator.__main__ import main
outcomes = {}
for config in sys.argv[1:]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["--config", config])
    outcomes[config] = [code, said.getvalue()]
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list]:
    """Exit code and stderr of every broken start, by its fault. One process runs them all to save startup time."""
    configs = {}
    for breaks in BREAKS:
        broken = Orchestrator(run_fixture, tmp_path_factory.mktemp(breaks.__name__), database_url=new_database_url())
        breaks(run_fixture, broken)
        configs[str(broken.config)] = breaks.__name__
    done = subprocess.run(
        [sys.executable, "-c", _TRY_ALL, *configs], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == 0, done.stderr
    return {configs[config]: outcome for config, outcome in json.loads(done.stdout).items()}


@pytest.mark.parametrize("breaks", BREAKS)
def test_orchestrator_reports_bad_setup_at_start(outcomes, breaks):
    code, said = outcomes[breaks.__name__]
    expected_code, expected = BREAKS[breaks]
    assert re.search(expected, said)
    assert code == expected_code, said
    assert "\nerror: " in "\n" + said
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def serving(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchestrator]:
    """An orchestrator that offers files to newcomers."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "tasks" / "shards").mkdir(parents=True)
    (folder / "tasks" / "taskset.json").write_bytes(b"tasks")
    (folder / "tasks" / "shards" / content_hash(b"shard")).write_bytes(b"shard")
    (folder / "tokenizer" / "vocab.json").write_bytes(b"{}")
    options = {"database_url": new_database_url(), "run_folder": folder}
    with Orchestrator(run_fixture, tmp_path_factory.mktemp("up"), **options) as orchestrator:
        yield orchestrator


def test_run_document_serves_addresses_relays_files_and_terms(run_fixture, serving):
    info = json.loads(serving.get(f"/v1/runs/{run_fixture.run}")[1])
    assert info["addresses"]["runs"] == run_fixture.book.runs
    assert info["from_block"] == run_fixture.book.from_block
    assert info["relays"] == ["http://127.0.0.1:9"]
    assert sorted(info["files"]) == ["tasks/taskset.json", "tokenizer/vocab.json"]
    assert serving.get(f"/v1/files/{info['files']['tasks/taskset.json']}") == (200, b"tasks")
    assert serving.get(f"/v1/files/{content_hash(b'shard')}") == (200, b"shard"), "by the hash in the task set"
    assert info["terms"]["pay"] == 2 * 10**18
    assert info["terms"]["classes"] == [{"weight_bps": 10_000, "budgets": [8, 16]}]
    assert info["terms"]["task_root"] == "0x" + "01" * 32


def test_start_warns_when_nodes_cannot_begin(run_fixture, database_url, tmp_path):
    orchestrator = Orchestrator(run_fixture, tmp_path, database_url=database_url, **{"shardcast.relays": []})
    orchestrator.start().stop()
    assert warnings_of(orchestrator) == [
        "no node can begin: storage does not hold the task set of the run's terms",
        "no node can begin: storage does not hold the calibration that the run's terms name as their profile",
        "the settings name no relay of the run: nodes get weights only from members who share theirs",
    ]
    orchestrator.json_log.unlink()
    orchestrator.change({"shardcast.relays": ["http://127.0.0.1:9"]})
    for byte in ("01", "04"):
        path = tmp_path / "storage" / "files" / byte / (byte * 32)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"the task set and the calibration, as far as their names go")
    orchestrator.start().stop()
    assert warnings_of(orchestrator) == ["no node can begin: the task set in storage cannot be read"]


def warnings_of(orchestrator: Orchestrator) -> list[str]:
    return [line["event"] for line in orchestrator.logged() if line["level"] == "warning"]


def test_the_service_about_itself(run_fixture, serving):
    assert json.loads(serving.get("/healthz")[1]) == {"status": "alive"}
    version = json.loads(serving.get("/version")[1])
    assert (version["run"], version["chain_id"], version["registry"]) == (
        run_fixture.run,
        31_337,
        run_fixture.book.registry,
    )


def test_answers_are_dated_so_that_a_newcomer_can_compare_clocks(serving):
    earliest = time.time() - REQUEST_LIFETIME_SECONDS / 2  # uvicorn renews it once a second, or later
    with open_url(serving.url + "/readyz", timeout=BOUND) as reply:
        said = parsedate_to_datetime(reply.headers["date"]).timestamp()
    assert earliest < said <= time.time()


def test_metrics_carry_no_address(run_fixture, serving):
    serving.get(f"/v1/nodes/{run_fixture.key('v1').address}")
    status, metrics = serving.get("/metrics")
    text = metrics.decode()
    assert status == 200
    assert 'muster_http_requests_total{method="GET",route="/v1/nodes/{address}",status="200"} 1.0' in text
    assert re.search(r"^muster_chain_block [1-9]", text, re.MULTILINE)
    assert not re.search(r"0x[0-9a-fA-F]{40}", text)
    assert all(line.startswith(("#", "muster_")) for line in text.splitlines() if line)


def test_a_silent_chain_shows_and_a_reorg_is_followed(
    start_anvil: Callable[..., Anvil], database_url: str, tmp_path: Path
):
    """Rewrite the last blocks of a separate Anvil, then stop it."""
    anvil = start_anvil()
    run_fixture = asyncio.run(RunFixture.build_on(anvil, tmp_path, seed="reorg", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    node = run_fixture.key("w1").address

    def commitments() -> int:
        return json.loads(orchestrator.get(f"/v1/nodes/{node}")[1])["commitments"]

    async def forget_last_commitment() -> None:
        async with run_fixture.local_chain() as dev:
            await dev.reorg(1 + SAMPLE_BLOCKS, drop=True)

    with Orchestrator(run_fixture, tmp_path / "orchestrator", database_url=database_url) as orchestrator:
        asyncio.run(run_fixture.commit("w1", 0, some_hash("kept")))
        asyncio.run(run_fixture.commit("w1", 1, some_hash("lost")))
        wait_until(lambda: commitments() == 2)
        asyncio.run(forget_last_commitment())
        wait_until(lambda: commitments() == 1)
        asyncio.run(run_fixture.commit("w1", 1, some_hash("instead")))
        wait_until(lambda: commitments() == 2)

        anvil.stop()
        wait_until(lambda: orchestrator.get("/readyz")[0] == 503)
        reasons = json.loads(orchestrator.get("/readyz")[1])["reasons"]
        assert reasons[0].startswith("following the chain: the chain at")
        assert commitments() == 2
        assert orchestrator.get("/healthz")[0] == 200


@pytest.fixture
def fated(run_fixture: RunFixture, database_url: str, tmp_path: Path) -> Iterator[Orchestrator]:
    """An orchestrator that a SIGKILL meets, once, with half a body read."""
    (tmp_path / "markers").mkdir()
    environment = {"MUSTER_FAILPOINT": "orchestrator.uploading", "MUSTER_FAILPOINT_DIR": str(tmp_path / "markers")}
    folder = tmp_path / "orchestrator"
    with Orchestrator(run_fixture, folder, database_url=database_url, environment=environment) as orchestrator:
        yield orchestrator


async def test_killed_in_the_middle_of_an_upload(run_fixture: RunFixture, fated: Orchestrator, tmp_path: Path):
    """No partial file remains. The same upload works after a restart, and replays are refused."""
    url, once = f"{fated.url}/v1/evidence", b"once"
    headers = sign_request(run_fixture.key("v1"), run_fixture.domain, "POST", url, content_hash(once), now=time.time())

    def send() -> int:
        with httpx2.Client(trust_env=False) as client:
            return client.post(url, content=once, headers=headers).status_code

    assert await asyncio.to_thread(send) == 201
    data, root = bytes(range(256)) * 300, some_hash("killed")
    async with run_fixture.chain("w1") as chain:
        index = (await chain.call(runs.work(run_fixture.key("w1").address))).next
    async with run_fixture.client(fated.url, "w1", attempts=1) as client:
        with pytest.raises(UnreachableError):
            await client.put_file(data, run_fixture.run, index, root)
        assert fated.process.wait(BOUND) == -9
        assert (tmp_path / "markers" / "orchestrator.uploading").exists()
        await asyncio.to_thread(fated.start)
        assert await asyncio.to_thread(send) == 401
        assert list((fated.folder / "state" / "uploads").rglob("upload-*")) == []
        with pytest.raises(RefusedError):
            await client.get_file(content_hash(data))
        receipt = await client.put_file(data, run_fixture.run, index, root)
        assert await client.get_file(receipt.file_hash) == data
