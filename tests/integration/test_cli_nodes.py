"""What an operator of several nodes types: muster node list, muster notify test, against a real chain and servers."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from muster.chain.keys import Signer
from testbed.http import Reply, serving
from testbed.machine import Machine, set_ether

GAS = 2 * 10**16


def orchestrator(
    reports: dict[str, dict[str, Any]], problem: dict[str, Any] | None = None
) -> AbstractContextManager[str]:
    """Serves the reports of some nodes, and knows no other, which `problem` says; its URL."""

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        found = reports.get(request.path.split("?")[0].rpartition("/")[2])
        kind = {"Content-Type": "application/problem+json"} if problem else {}
        return Reply(json.dumps(found or problem or {}).encode(), 200 if found else 404, kind)

    return serving(answer)


def join(machine: Machine, run: int, name: str, role: str = "worker") -> str:
    """A node of the machine's operator; its address."""
    machine.secret(f"{name}.key", os.urandom(32).hex())
    words = (
        role,
        "join",
        "--no-check",
        "--operator",
        "./operator.key",
        "--node",
        f"./{name}.key",
        "--run",
        run,
        "--yes",
    )
    return machine.json(*words)["node"]


def settings(machine: Machine, run: int, folder: Path, name: str, url: str, key: str | None = None) -> Path:
    """The settings file of a node, in its own folder."""
    path = folder / name / "muster.toml"
    path.parent.mkdir(parents=True)
    chain = (machine.folder / "muster.toml").read_text().split("[keys]")[0]
    keyed = f"[keys]\nraw_key_file = '{machine.folder / (key or name)}.key'\n"
    path.write_text(f"run = {run}\n{chain}{keyed}[orchestrator]\nurl = '{url}'\n")
    return path


@pytest.fixture(scope="module")
def addresses(machine: Machine, run: int) -> dict[str, str]:
    made = {"w1": join(machine, run, "w1"), "w2": join(machine, run, "w2"), "v1": join(machine, run, "v1", "validator")}
    for address in made.values():
        set_ether(machine, address, GAS)
    return made


def row(address: str, run: int | None, **known: object) -> dict[str, object]:
    unknown = ("accepted", "pending", "rejected", "in_window", "claimable", "gas")
    return {"address": address, "name": "", "run": run, "role": "", "status": "", **dict.fromkeys(unknown)} | {
        "remark": "",
        **known,
    }


def test_all_nodes_of_an_operator(machine: Machine, run: int, addresses: dict[str, str]) -> None:
    report = {"address": addresses["w1"], "commitments": 9, "rollouts": 90, "accepted": 5, "verdicts": []}
    report["rejected"] = {"wrong_draw": 1, "malformed": 1}
    operator = Signer.from_key((machine.folder / "operator.key").read_text().strip()).address
    with orchestrator({addresses["w1"]: report}) as url:
        text = (machine.folder / "muster.toml").read_text()
        (machine.folder / "operator.toml").write_text(f"run = {run}\n{text}[orchestrator]\nurl = '{url}'\n")
        words = ("node", "list", "--operator", operator, "--config", "operator.toml")
        listed = machine.json(*words)
        shown = machine.type(*words)
    worker = {"role": "worker", "status": "active", "in_window": 0, "claimable": 0, "gas": GAS}
    assert listed == [
        row(addresses["w1"], run, **worker, accepted=5, pending=2, rejected=2),
        row(addresses["w2"], run, **worker, remark="no report: 404 Not Found"),
        row(addresses["v1"], run, role="validator", status="active", gas=GAS),
    ]
    assert (shown.returncode, len(shown.stdout.splitlines())) == (0, 4)
    cells = shown.stdout.splitlines()[1].split()
    assert cells[0] == f"{addresses['w1'][:8]}…{addresses['w1'][-4:]}"
    assert cells[1:] == [str(run), "worker", "active", "5", "2", "2", "0", "MUST", "0", "MUST", "0.02", "ETH"]
    stranger = Signer.random().address
    assert machine.json("node", "list", "--operator", stranger, "--config", "operator.toml") == []


def test_nodes_of_settings_files_and_folders(machine: Machine, run: int, addresses: dict[str, str]) -> None:
    folder = machine.home / ".muster" / "nodes"
    machine.secret("stranger.key", os.urandom(32).hex())
    stranger = Signer.from_key((machine.folder / "stranger.key").read_text().strip()).address
    with orchestrator({}) as url:
        first = settings(machine, run, folder, "w1", url)
        settings(machine, run, folder, "new", url, key="stranger")
        broken = folder / "broken.toml"
        broken.write_text("no TOML")
        keyless = folder / "keyless" / "muster.toml"
        keyless.parent.mkdir()
        keyless.write_text("name = 'without-key'\n")
        listed = machine.json("node", "list")
        in_folder = machine.json("node", "list", "--folder", folder)
        chosen = machine.json("node", "list", "-c", first)
        before = machine.json("--config", first, "node", "list")
        named = machine.json("node", "list", "--node", "new")
    w1 = row(addresses["w1"], run, role="worker", status="active", in_window=0, claimable=0, gas=GAS) | {
        "name": "w1",
        "remark": "no report: 404 Not Found",
    }
    new = row(stranger, run, status="not joined", gas=0) | {"name": "new"}
    assert chosen == before == [w1]
    assert named == [new]
    assert in_folder == listed
    assert [one["name"] for one in listed] == ["broken", "without-key", "new", "w1"]
    assert listed[0]["remark"].startswith(f"{broken} is not TOML")
    assert listed[1]["remark"] == "no key is set"
    assert listed[2:] == [new, w1]


def test_orchestrator_answers_are_printed_as_plain_text(
    machine: Machine, run: int, addresses: dict[str, str], tmp_path: Path
) -> None:
    problem = {"title": "[/red]\x1b[2J\u202e", "status": 404, "type": "about:blank", "detail": "[bold]x"}
    with orchestrator({}, problem) as url:
        path = settings(machine, run, tmp_path, "w1", url)
        done = machine.type("node", "list", "--config", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].endswith("no report: [/red]\\x1b[2J\\u202e: [bold]x")


def test_node_list_refuses_folder_without_settings_file(machine: Machine, tmp_path: Path) -> None:
    refused = machine.json("node", "list", "--folder", tmp_path, status=2)
    assert refused["error"] == f"there is no settings file in {tmp_path}"


def test_a_notification_by_hand(machine: Machine) -> None:
    posts: list[dict[str, Any]] = []
    answers = iter((200, 500))

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        posts.append(json.loads(request.rfile.read(int(request.headers["Content-Length"]))))
        return Reply(status=next(answers))

    with serving(answer) as url:
        environment = {"MUSTER_NOTIFY__WEBHOOK": f"{url}/a-secret-path", "MUSTER_NAME": "worker-7"}
        sent = machine.type("notify", "test", "--json", **environment)
        refused = machine.type("notify", "test", **environment)
    assert (sent.returncode, json.loads(sent.stdout)["host"]) == (0, "127.0.0.1")
    assert {key: posts[0][key] for key in ("kind", "name", "run", "text", "details")} == {
        "kind": "test",
        "name": "worker-7",
        "run": 1,
        "text": "worker-7: this is a test of muster notify test",
        "details": {},
    }
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr.startswith("error: the webhook at 127.0.0.1 did not take it: status 500\n")
    gone = machine.type("notify", "test", **environment)
    assert (gone.returncode, "secret" in gone.stderr) == (5, False)
    shown = machine.type("config", "show", **environment)
    assert "secret" not in shown.stdout
    assert "http://127.0.0.1/…" in shown.stdout
    unset = machine.json("notify", "test", status=78)
    assert unset["error"] == "no webhook is set: no notifications are sent"


def test_a_stranger_has_no_status(machine: Machine) -> None:
    stranger = machine.type("worker", "status", "--node", Signer.random().address)
    assert (stranger.returncode, stranger.stdout) == (78, "")


def test_status_is_that_of_the_node_and_not_of_the_noun(machine: Machine, addresses: dict[str, str]) -> None:
    shown = [machine.json(role, "status", "--node", addresses["v1"]) for role in ("worker", "validator")]
    assert shown[0] == shown[1]
    assert shown[0]["role"] == "validator"
    assert machine.json("validator", "status", "--node", addresses["w1"])["role"] == "worker"
