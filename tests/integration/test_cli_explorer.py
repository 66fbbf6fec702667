"""`muster explorer` on a machine with an empty home: what it needs, makes and serves, and that it resumes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.chain.anvil import Anvil
from testbed.http import get, get_json
from testbed.processes import Muster
from testbed.runs.newcomer import Newcomer
from testbed.runs.run_fixture import Orchestrator, RunFixture


@pytest.fixture(scope="module")
def orchestrator(own_anvil: Anvil, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("run")
    run_fixture = asyncio.run(RunFixture.build_on(own_anvil, folder, seed="explorer", workers=()))
    with Orchestrator(run_fixture, folder / "orchestrator") as running:
        yield running.url


def showing(machine: Newcomer, *words: object) -> Muster:
    """Return the command in a process of its own, which becomes the explorer."""
    home, out = {"HOME": str(machine.home)}, machine.folder / "out"
    typed = ("explorer", *words, "--json")
    return Muster(typed, machine.folder / "said", output=out, folder=machine.folder, environment=home)


def page_of(process: Muster) -> str:
    """Wait until its page is ready; return the page's address."""
    process.wait_until(lambda: (process.output or Path()).read_text().endswith("}\n"), "it names its page")
    page = process.document["page"]
    process.wait_until(lambda: get_json(f"{page}readyz").get("ready"), "the page is ready")
    return page


def test_explorer_of_a_run_needs_its_address_alone_and_resumes(orchestrator: str, tmp_path: Path) -> None:
    machine = Newcomer(tmp_path)
    # 1. A dry run says what it would do.
    would = machine.json("explorer", f"{orchestrator}/leaderboard", "--dry-run")
    assert (would["run"], would["orchestrator"], would["page"]) == (1, orchestrator, "http://127.0.0.1:8800/")
    assert machine.files() == {}

    # 2. It becomes the explorer, whose page leads to the run as well.
    with showing(machine, f"{orchestrator}/leaderboard", "--port", "0") as first:
        page = page_of(first)
        assert get(page)[0] == 200
        assert get_json(f"{page}v1/runs/1/summary")["run"] == 1
        again = machine.json("explorer", f"{page}steps", "--dry-run")
        assert (again["page"], again["config"]) == (page, would["config"])
        assert first.stop(signal.SIGTERM)[0] == 0
    config = Path(would["config"])
    assert config.is_relative_to(machine.home / ".muster" / "explorers")
    assert {path.name for path in config.parent.iterdir()} == {"addresses.json", "log.jsonl", "muster.toml", "state"}

    # 3. The same command resumes, and so does its settings file without an address.
    for words in ([orchestrator], ["--config", config]):
        with showing(machine, *words) as later:
            later.wait_until(lambda: get_json(f"{page}readyz").get("ready"), "the page is ready")
            assert later.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ([], 2, "which run is meant is not known"),
        (["--port", "9000"], 2, "--port goes with the address of a run"),
        (["run.example:8600"], 2, "'run.example:8600' is no URL of an orchestrator"),
        (["http://127.0.0.1:9"], 5, "GET http://127.0.0.1:9/v1/join: "),
        (["URL", "--config", "muster.toml"], 2, "an address stands for a settings file"),
        (["URL", "--rpc-url", "http://127.0.0.1:9"], 5, "the chain at http://127.0.0.1:9 does not answer"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    orchestrator: str, tmp_path: Path, words: list[str], status: int, error: str
) -> None:
    machine = Newcomer(tmp_path)
    refused = machine.json("explorer", *(orchestrator if word == "URL" else word for word in words), status=status)
    assert refused["error"].startswith(error)
    assert machine.files() == {}, "nothing is made"
