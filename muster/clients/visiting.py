"""Settings for someone who has a run's URL and nothing else: `--url` of the commands that only read.

The run is checked against its chain, and a settings file that leads to it is kept in the user's cache, with what the
commands fetch beside it. Nothing in there is lost that cannot be fetched again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from muster.constants import CHAIN_BASE_SEPOLIA, PUBLIC_RPC_URLS
from muster.runtime.files import cache_folder, write_atomically
from muster.settings.toml import to_toml

if TYPE_CHECKING:
    from muster.clients.join import CheckedRun

PRESETS: dict[str, dict[str, object]] = {
    "local": {},
    "base-sepolia": {
        "chain.rpc_url": PUBLIC_RPC_URLS[CHAIN_BASE_SEPOLIA],
        "chain.chain_id": CHAIN_BASE_SEPOLIA,
        "chain.addresses": "addresses.json",
        "chain.block_explorer_url": "https://sepolia.basescan.org",
        "chain.confirmations": 3,
        "chain.poll_seconds": 2,
        "chain.dearest_transaction": 0.02,
    },
}
"""What differs from the defaults, by network. Another endpoint of the same chain serves as well."""
HEAD = "# Run {run} at {url}, as muster's --url found it. Each command with --url writes it again.\n"


def visit(url: str) -> Path:
    """Check the run at the URL of any of its pages, and return a settings file that leads to it.

    Raises as `fetch_run`.
    """
    from muster.clients.join import fetch_run  # which needs web3

    found = asyncio.run(fetch_run(url))
    folder = folder_of(found)
    folder.mkdir(parents=True, exist_ok=True)
    book = folder / "addresses.json"
    found.book.save(book)
    config = folder / "muster.toml"
    head = HEAD.format(run=found.run, url=found.orchestrator)
    write_atomically(config, head + to_toml(run_settings(found, book.name)))
    return config


def folder_of(found: CheckedRun) -> Path:
    """Return the folder of a run in the cache: one for each chain, Runs contract and run."""
    return cache_folder("runs") / f"{found.book.chain_id}-{found.book.runs.lower()}-{found.run}"


def run_settings(found: CheckedRun, addresses: str) -> dict[str, object]:
    """Return the settings that lead to a run, by dotted key. `addresses`: its address book, beside the settings."""
    preset = next((one for one in PRESETS.values() if one.get("chain.chain_id") == found.book.chain_id), {})
    return {
        **preset,
        "run": found.run,
        "chain.rpc_url": found.rpc_url,
        "chain.chain_id": found.book.chain_id,
        "chain.addresses": addresses,
        "orchestrator.url": found.orchestrator,
    }
