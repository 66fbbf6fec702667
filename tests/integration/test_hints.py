"""The first errors that a newcomer meets: the test types each hint, and the hint works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.chain.contracts import Deployment
from testbed.machine import Done, Machine
from testbed.runs.world import published

pytestmark = pytest.mark.slow
NODE = "0x" + "11" * 20
ADD = "add --url URL"
UP = "muster up URL makes one"
KEYSTORE = r"muster wallet new \S+operator.json"

VISITOR: tuple[tuple[str, str, str, int], ...] = (
    ("run show", ADD, "run show --url {url}", 0),
    ("run show 1", ADD, "run show {run} --url {url}", 0),
    ("run list", ADD, "run list --url {url}", 0),
    ("slash list", ADD, "slash list --url {url}", 0),
    ("slash show 1", ADD, "slash show 1 --url {url}", 3),
    ("slash verify 1", ADD, "slash verify 1 --url {url}", 3),
    ("worker status", ADD, f"worker status --node {NODE} --url {{url}}", 78),
    ("worker why 0", ADD, f"worker why 0 --node {NODE} --url {{url}}", 78),
    ("validator status", ADD, f"validator status --node {NODE} --url {{url}}", 78),
    (f"validator verify {NODE}:0", ADD, f"validator verify {NODE}:0 --url {{url}}", 3),
    ("weights verify weights", ADD, "run show --url {url}", 0),
    ("up nonsense", "copy it from the join box", "up {url} --dry-run", 0),
    ("up", "muster up URL", "up {url} --dry-run", 0),
    ("slash verify 1 --url nonsense", "it begins with http", "slash list --url {url}", 0),
)
NEWCOMER: tuple[tuple[str, str, str, int], ...] = (
    ("logs", UP, "up {url} --dry-run", 0),
    ("doctor --engine", UP, "up {url} --dry-run", 0),
    ("worker claim", UP, "up {url} --dry-run", 0),
    ("worker retire --operator operator", UP, "up {url} --dry-run", 0),
    ("worker run", UP, "up {url} --dry-run", 0),
    ("validator run", UP, "up {url} --dry-run --role validator", 0),
    ("node list", UP, "up {url} --dry-run", 0),
    ("service install", UP, "up {url} --dry-run", 0),
    ("service status", UP, "up {url} --dry-run", 0),
    ("wallet new operator", "add --password-file", "wallet new operator --password-file {password}", 0),
    ("wallet import second", "64 hex digits", "wallet show operator", 0),
    ("wallet show missing", "muster wallet new", "wallet new missing --password-file {password}", 0),
    ("wallet new operator --password-file {password}", "choose another path", "wallet show", 0),
    ("wallet backup /proc/1/no", "", "wallet backup kept --password-file {password}", 0),
    ("worker join --run 1 --operator nothing", "muster wallet new", "wallet new nothing --password-file {password}", 0),
    ("faucet --wallet absent", "muster wallet new", "wallet new absent --password-file {password}", 0),
    ("model init model", "", "tasks make tasks --train 64 --held-out 16", 0),
    ("run create run.toml --model model --operator operator", "muster run template", "run template --help", 0),
    ("run calibrate model", "muster model init", "model init --help", 0),
    ("tasks check nothing", "muster tasks make", "tasks check tasks", 0),
)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("newcomer"), "http://127.0.0.1:9")
    (machine.folder / "muster.toml").unlink()
    return machine


def type_it(machine: Machine, line: str) -> Done:
    """Type a line, in a separate process if the command replaces itself by another program."""
    words = line.split()
    if words[1:2] != ["verify"] or "--url" not in words:
        return machine.type(*words)
    process = machine.process(*words).spawn()
    status, said = process.end()
    return Done(status, "", said)


def test_the_thirty_hints_that_a_newcomer_meets_first_lead_on(
    deployment: Deployment, tmp_path: Path, newcomer: Machine
) -> None:
    assert len(VISITOR) + len(NEWCOMER) >= 30
    wrong = []
    with published(deployment, tmp_path, "hints") as world:
        places = {"url": world.orchestrator.url, "run": world.run_fixture.run, "password": newcomer.password}
        for typed, hint, followed, status in VISITOR + NEWCOMER:
            refused = type_it(newcomer, typed.format(**places))
            said = re.findall(r"^(?:  next|Error): (.*)$", refused.stderr, re.MULTILINE)
            if refused.returncode == 0 or "unexpected" in refused.stderr or not any(hint in line for line in said):
                wrong.append((typed, refused.returncode, refused.stderr[-600:]))
            done = type_it(newcomer, followed.format(**places))
            if done.returncode != status or "unexpected" in done.stderr:
                wrong.append((followed, done.returncode, done.stderr[-600:]))
    assert not wrong, "\n".join(map(str, wrong))
