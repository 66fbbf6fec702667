"""What a newcomer needs besides the orchestrator's URL: terms, addresses, relays, and the run's own files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from muster import telemetry
from muster.chain.types import AddressBook
from muster.constants import MAX_FILE_BYTES
from muster.errors import ConfigError
from muster.messages import RunInfo
from muster.storage import ContentStore
from muster.terms import Terms
from muster.terms_file import terms_document

MAX_RUN_FILES: Final = 100

log = telemetry.logger("orchestrator")


def run_info(run: int, book: AddressBook, terms: Terms, relays: list[str], files: dict[str, str]) -> RunInfo:
    """The answer to GET /v1/runs/{run}."""
    addresses = {name: getattr(book, name) for name in ("token", "registry", "runs", "court")}
    return RunInfo(
        run=run,
        chain_id=book.chain_id,
        addresses=addresses,
        from_block=book.from_block,
        terms=terms_document(terms),
        relays=relays,
        files=files,
    )


async def offer_files(folder: Path | None, files: ContentStore) -> dict[str, str]:
    """Put the run's files into storage; their hashes by path relative to `folder`.

    Raises ConfigError when the folder is missing, holds too many files or one that is too large.
    """
    if folder is None:
        return {}
    paths = await asyncio.to_thread(_listed, folder)
    return {str(path.relative_to(folder)): await files.put(await asyncio.to_thread(path.read_bytes)) for path in paths}


async def warn_of_lacks(terms: Terms, relays: Sequence[str], files: ContentStore) -> None:
    """Log what no node could begin without, with what to do."""
    if not await files.exists("0x" + terms.task_root.hex()):
        log.warning(
            "no node can begin: storage does not hold the task set of the run's terms",
            task_root=terms.task_root,
            hint="put it into a folder and set orchestrator.run_folder to that",
        )
    if not relays:
        log.warning(
            "no relay of the run's own is named: nodes get weights only from members who share theirs",
            hint="set shardcast.relays to the URL of muster weights serve",
        )


def _listed(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}", hint="set orchestrator.run_folder")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if len(paths) > MAX_RUN_FILES:
        raise ConfigError(f"{folder} holds {len(paths)} files; at most {MAX_RUN_FILES} are offered")
    for path in paths:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="weights travel by muster.shardcast"
            )
    return paths
