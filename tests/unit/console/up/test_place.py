"""Which node a command means, and the settings that are written for it, to the letter."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muster.chain.types import AddressBook
from muster.clients.join import CheckedRun
from muster.console.up.place import (
    Identity,
    MadeNode,
    NodePlace,
    check_addresses,
    choose_place,
    folder_name,
    read_node,
    read_nodes,
    settings_text,
    the_only_node,
    write_node,
)
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA
from muster.errors import ConfigError, UsageError
from muster.settings.sources import load_settings


def address(number: int) -> str:
    return f"0x{number:040d}"


BOOK = AddressBook(CHAIN_ANVIL, *(address(number) for number in range(1, 8)), from_block=0)
FOUND = CheckedRun(1, "http://127.0.0.1:8600", "http://127.0.0.1:8545", BOOK)
WORKER = Identity(CHAIN_ANVIL, BOOK.runs, 1, "worker")
NODES = Path("/home/ada/.muster/nodes")

SETTINGS = """\
# A worker of run 1, made by muster up, which continues with it: nothing has to be edited.
# muster config show lists every setting. Relative paths begin at the folder of this file.
run = 1
name = "run-1-worker"

[chain]
rpc_url = "http://127.0.0.1:8545"
chain_id = 31337
addresses = "addresses.json"

[orchestrator]
url = "http://127.0.0.1:8600"

[keys]
keystore = "node.json"
password_file = "node.password"

[worker]
state_dir = "state"

[log]
file = "log.jsonl"
"""


def made(name: str, identity: Identity = WORKER) -> MadeNode:
    return MadeNode(NodePlace(NODES / name), identity)


def test_settings_to_the_letter_and_what_they_come_to(tmp_path: Path) -> None:
    place = NodePlace(tmp_path / "run-1-worker")
    assert settings_text(place, FOUND, "worker") == SETTINGS
    write_node(place, FOUND, "worker")
    settings = load_settings(place.config)
    assert (settings.keys.keystore, settings.keys.password_file) == (place.keystore, place.password_file)
    assert (settings.worker.state_dir, settings.log.file) == (place.state, place.log)
    assert AddressBook.load(settings.chain.addresses) == BOOK
    assert read_node(place) == MadeNode(place, WORKER)


def test_a_public_chain_has_its_preset() -> None:
    found = replace(FOUND, book=replace(BOOK, chain_id=CHAIN_BASE_SEPOLIA), rpc_url="https://mine.example")
    written = tomllib.loads(settings_text(NodePlace(NODES / "v"), found, "validator"))
    assert written["chain"] == {
        "rpc_url": "https://mine.example",
        "chain_id": CHAIN_BASE_SEPOLIA,
        "addresses": "addresses.json",
        "block_explorer_url": "https://sepolia.basescan.org",
        "confirmations": 3,
        "poll_seconds": 2,
        "dearest_transaction": 0.02,
    }
    assert written["validator"] == {"state_dir": "state"}


@pytest.mark.parametrize(
    ("there", "name", "chosen"),
    [
        ([], None, "run-1-worker"),
        ([], "mine", "mine"),
        ([made("mine")], None, "mine"),
        ([made("run-1-worker"), made("run-1-validator", replace(WORKER, role="validator"))], None, "run-1-worker"),
        ([made("run-1-worker", replace(WORKER, runs=address(9)))], None, "run-1-worker-2"),
        (
            [made("run-1-worker", replace(WORKER, run=7)), made("run-1-worker-2", replace(WORKER, chain_id=5))],
            None,
            "run-1-worker-3",
        ),
        ([made("by-hand", replace(WORKER, role=None))], None, "by-hand"),
        ([made("one"), made("two")], "two", "two"),
        ([made("one")], "two", "two"),
    ],
)
def test_a_node_is_found_by_what_it_is_and_else_gets_a_free_name(
    there: Sequence[MadeNode], name: str | None, chosen: str
) -> None:
    assert choose_place(NODES, there, {}, WORKER, name).folder == NODES / chosen


def test_unreadable_or_ambiguous_node_blocks_a_second_one() -> None:
    broken = {"run-1-worker": ConfigError("run-1-worker/muster.toml is not TOML")}
    for name in (None, "run-1-worker"):
        with pytest.raises(ConfigError, match="is not TOML"):
            choose_place(NODES, [], broken, WORKER, name)
    assert choose_place(NODES, [], broken, WORKER, "other").name == "other"
    with pytest.raises(UsageError, match="several nodes of this run are here: one, two") as caught:
        choose_place(NODES, [made("one"), made("two")], {}, WORKER, None)
    assert caught.value.hint == "add --name NAME"
    with pytest.raises(ConfigError, match="holds a worker of run 7 on chain 31337, not a worker of run 1"):
        choose_place(NODES, [made("mine", replace(WORKER, run=7))], {}, WORKER, "mine")


def test_without_a_url_the_one_node_is_meant() -> None:
    worker, validator = made("w"), made("v", replace(WORKER, role="validator"))
    assert the_only_node([], None, None) is None
    assert the_only_node([worker], None, None) == worker
    assert the_only_node([worker, validator], None, "validator") == validator
    assert the_only_node([worker, validator], "w", None) == worker
    assert the_only_node([worker], None, "validator") is None
    with pytest.raises(UsageError, match="several nodes are here: w, v"):
        the_only_node([worker, validator], None, None)


def test_a_folder_without_settings_is_no_node_yet(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "node.password").write_text("x")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "muster.toml").write_text("run = [")
    write_node(NodePlace(tmp_path / "good"), FOUND, "validator")
    nodes, broken = read_nodes(tmp_path)
    assert [node.place.name for node in nodes] == ["good"]
    assert nodes[0].identity == replace(WORKER, role="validator")
    assert list(broken) == ["bad"]
    assert read_node(NodePlace(tmp_path / "half")) is None


@pytest.mark.parametrize("name", ["", " ", ".", "..", ".hidden", "a/b", "../x", "0xab", "x" * 41, "a\nb", "a\x1b[2J"])
def test_names_that_no_folder_gets(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        folder_name(name)
    assert caught.value.hint.startswith("choose up to 40 letters")


@pytest.mark.parametrize(
    ("typed", "name"), [("worker-1", "worker-1"), (" Ada's GPU #2 ", "Ada's GPU #2"), ("λ", "λ"), ("ﬁ", "fi")]
)
def test_names_that_a_folder_gets(typed: str, name: str) -> None:
    assert folder_name(typed) == name


def test_settings_that_lead_elsewhere_are_named(tmp_path: Path) -> None:
    place = NodePlace(tmp_path / "w")
    write_node(place, FOUND, "worker")
    check_addresses(place, FOUND, None)
    check_addresses(place, FOUND, "http://127.0.0.1:8545/")
    with pytest.raises(
        ConfigError, match=r"orchestrator\.url in .* is http://127\.0\.0\.1:8600, not https://new\.example"
    ):
        check_addresses(place, replace(FOUND, orchestrator="https://new.example"), None)
    with pytest.raises(ConfigError, match=r"chain\.rpc_url in .* is http://127\.0\.0\.1:8545, not http://other"):
        check_addresses(place, FOUND, "http://other")
