"""Which node of this machine a command means."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.console.command import report
from muster.console.session import Options
from testbed.machine import Machine

ADDRESSES = {"first": "ab" * 20, "second": "cd" * 20}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with two nodes, of a run whose chain does not answer."""
    made = Machine(tmp_path, "http://127.0.0.1:9")
    settings = (made.folder / "muster.toml").read_text()
    (made.folder / "muster.toml").unlink()
    for name, address in ADDRESSES.items():
        node = made.home / ".muster" / "nodes" / name
        node.mkdir(parents=True)
        (node / "node.json").write_text(f'{{"address": "{address}"}}')
        (node / "muster.toml").write_text(settings + f"[log]\nfile = '{name}.jsonl'\n")
        (node / f"{name}.jsonl").write_text(f'{{"event": "hello", "level": "info", "node": "{name}"}}\n')
    return made


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_node_is_named_by_its_name_or_its_whole_address(machine: Machine, name: str) -> None:
    for named in (name, f"0x{ADDRESSES[name]}", f"0x{ADDRESSES[name].upper()}"):
        done = machine.type("logs", "--node", named)
        assert (done.returncode, f"node={name}" in done.stdout) == (0, True), done.stderr + done.stdout


def test_several_nodes_are_listed_where_none_is_named(machine: Machine) -> None:
    done = machine.type("logs")
    assert (done.returncode, "several nodes are here: first, second" in done.stderr) == (2, True)
    assert "next: add --node NAME" in done.stderr


@pytest.mark.parametrize("named", ["0x", "0xab", "third", "0x" + "ef" * 20])
def test_part_of_an_address_names_no_node(machine: Machine, named: str) -> None:
    done = machine.type("logs", "--node", named)
    assert (done.returncode, f"no node {named} is here: first, second" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("package", "hint"),
    [
        ("torch", "muster setup validator"),
        ("vllm.entrypoints", "muster setup worker"),
    ],
)
def test_a_package_that_an_install_left_out_is_named_with_what_brings_it(
    package: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    assert report(error, Options()) == 78
    assert capsys.readouterr().err == f"error: this needs the package {package}\n  next: {hint}\n"


def test_a_module_of_ours_that_is_gone_is_a_defect(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ModuleNotFoundError("No module named 'muster.gone'", name="muster.gone"), Options()) == 1
    assert "please report it" in capsys.readouterr().err
