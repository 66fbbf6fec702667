"""The settings of `muster explorer`: written once, resumed with what was changed in them, refused for another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.chain.types import AddressBook
from muster.clients.join import CheckedRun
from muster.console.owner.explorer import ExplorerRequest, folder_of, page_address, read_values, settings_of
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA
from muster.errors import ConfigError
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml

BOOK = AddressBook(CHAIN_ANVIL, *(f"0x{number:040d}" for number in range(1, 8)), from_block=0)
FOUND = CheckedRun(7, "http://127.0.0.1:8600", "http://127.0.0.1:8545", BOOK)


def made(folder: Path, found: CheckedRun = FOUND, **typed: Any) -> dict[str, Any]:
    """Write the settings as the command does; return them."""
    config = folder / "muster.toml"
    values = settings_of(found, read_values(config, found), ExplorerRequest(url=found.orchestrator, **typed))
    found.book.save(folder / "addresses.json")
    config.write_text(to_toml(values))
    return values


def test_settings_are_all_that_the_process_needs(tmp_path: Path) -> None:
    assert made(tmp_path) == {
        "run": 7,
        "chain.rpc_url": "http://127.0.0.1:8545",
        "chain.chain_id": CHAIN_ANVIL,
        "chain.addresses": "addresses.json",
        "explorer.host": "127.0.0.1",
        "explorer.port": 8800,
        "explorer.state_dir": "state",
        "log.file": "log.jsonl",
        "orchestrator.url": "http://127.0.0.1:8600",
    }
    settings = load_settings(tmp_path / "muster.toml")
    assert (settings.explorer.state_dir, settings.keys.keystore) == (tmp_path / "state", None)
    public = replace(FOUND, book=replace(BOOK, chain_id=CHAIN_BASE_SEPOLIA))
    assert settings_of(public, {}, ExplorerRequest())["chain.block_explorer_url"] == "https://sepolia.basescan.org"


def test_what_was_set_before_stays_until_it_is_typed(tmp_path: Path) -> None:
    first = made(tmp_path, port=0, rpc_url="http://mine.example")
    assert first["explorer.port"] > 1023
    assert made(tmp_path, port=0) == made(tmp_path) == first
    path = tmp_path / "muster.toml"
    path.write_text(path.read_text().replace("[explorer]\n", '[explorer]\ntrusted_proxies = ["10.0.0.1"]\n'))
    moved = replace(FOUND, orchestrator="http://moved.example")
    assert made(tmp_path, moved, port=9000, host="0.0.0.0") == first | {
        "explorer.trusted_proxies": ["10.0.0.1"],
        "explorer.port": 9000,
        "explorer.host": "0.0.0.0",
        "orchestrator.url": "http://moved.example",
    }


@pytest.mark.parametrize("other", [replace(FOUND, run=8), replace(FOUND, book=replace(BOOK, runs="0x" + "9" * 40))])
def test_a_folder_of_another_run_is_refused(tmp_path: Path, other: CheckedRun) -> None:
    made(tmp_path)
    before = (tmp_path / "muster.toml").read_text()
    with pytest.raises(ConfigError, match=r"muster\.toml is for another run"):
        made(tmp_path, other)
    assert (tmp_path / "muster.toml").read_text() == before
    assert folder_of(other) != folder_of(FOUND)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:9/"),
        ("0.0.0.0", "http://127.0.0.1:9/"),
        ("run.example.org", "http://run.example.org:9/"),
        ("::1", "http://[::1]:9/"),
    ],
)
def test_address_of_the_page_is_one_that_a_browser_takes(host: str, address: str) -> None:
    assert page_address(host, 9) == address
