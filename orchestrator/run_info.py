"""Offer what a newcomer needs besides the orchestrator's URL: terms, addresses, relays, and the run's own files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from muster.chain.types import AddressBook
from muster.clients.storage import ContentStore
from muster.constants import CHAIN_ANVIL, MAX_FILE_BYTES
from muster.contracts.abi import CONTRACTS
from muster.errors import CheckError, ConfigError
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, sign_message
from muster.protocol.messages import JoinDocument, RunDescription
from muster.protocol.terms import Terms
from muster.protocol.terms_file import terms_document
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.tasksets.document import MAX_DOCUMENT_BYTES, TaskSetDocument
from muster.tasksets.masters import FORMAT
from muster.tasksets.taskset import SHARDS_NAME
from muster.verification.profiles import known_profile

MAX_RUN_FILES: Final = 10_000
"""Of a run's folder: a task set of ten million tasks has as many shards."""

MAX_SECRET_BYTES: Final = 1_000
"""A file of masters is shorter."""

log = telemetry.logger("orchestrator")


def run_info(settings: Settings, addresses: AddressBook, terms: Terms, files: dict[str, str]) -> RunDescription:
    """Return the answer to GET /v1/runs/{run}."""
    ours = settings.orchestrator
    return RunDescription(
        run=settings.run,
        chain_id=addresses.chain_id,
        addresses={name: getattr(addresses, name) for name in CONTRACTS},
        from_block=addresses.from_block,
        terms=terms_document(terms),
        relays=settings.shardcast.relays,
        files=files,
        title=ours.title,
        about=ours.about,
        groups_wanted=ours.batch_groups * ours.demand_batches,
        explorer=ours.explorer_url,
    )


def join_document(settings: Settings, addresses: AddressBook, signer: TypedSigner) -> JoinDocument:
    """Return the answer to GET /v1/join, signed with the run's storage key.

    An endpoint is named for a local chain only: that of the settings may have a key in it.
    """
    unsigned = JoinDocument(
        run=settings.run,
        chain_id=addresses.chain_id,
        rpc_url=settings.chain.rpc_url if addresses.chain_id == CHAIN_ANVIL else "",
        **{name: getattr(addresses, name) for name in CONTRACTS},
        from_block=addresses.from_block,
        orchestrator=settings.orchestrator.url,
        signature=UNSIGNED,
    )
    return sign_message(signer, Domain(addresses.chain_id, addresses.registry), unsigned)


async def offer_files(folder: Path | None, files: ContentStore) -> dict[str, str]:
    """Put the run's files into storage; return their hashes by path relative to `folder`, but for shards of tasks.

    Shards are fetched by the hashes that their task set names, and there may be thousands.

    Raises ConfigError when the folder is missing, holds too many files or one that is too large.
    """
    if folder is None:
        return {}
    paths = await asyncio.to_thread(_listed, folder)
    names = {str(path.relative_to(folder)): await files.put(await asyncio.to_thread(path.read_bytes)) for path in paths}
    return {path: name for path, name in names.items() if Path(path).parent.name != SHARDS_NAME}


async def warn_of_lacks(terms: Terms, relays: Sequence[str], files: ContentStore) -> None:
    """Warn of what is missing that nodes need to begin, with what to do."""
    if not await files.exists("0x" + terms.task_root.hex()):
        log.warning(
            "no node can begin: storage does not hold the task set of the run's terms",
            task_root=terms.task_root,
            hint="put its folder into another and set orchestrator.run_folder to that",
        )
    else:
        await _warn_of_task_set(terms, files)
    if known_profile(terms.profile) is None and not await files.exists("0x" + terms.profile.hex()):
        log.warning(
            "no node can begin: storage does not hold the calibration that the run's terms name as their profile",
            profile=terms.profile,
            hint="put what muster run calibrate wrote into orchestrator.run_folder",
        )
    if not relays:
        log.warning(
            "the settings name no relay of the run: nodes get weights only from members who share theirs",
            hint="set shardcast.relays to the URL of muster weights serve",
        )


async def _warn_of_task_set(terms: Terms, files: ContentStore) -> None:
    """Warn where storage holds no readable task set, or not all shards and components that it names."""
    try:
        document = TaskSetDocument.parse(await files.get("0x" + terms.task_root.hex(), MAX_DOCUMENT_BYTES))
    except CheckError as error:
        log.warning("no node can begin: the task set in storage cannot be read", error=str(error))
        return
    parts = (*document.parts, *document.held_out)
    names = [shard.hash for part in parts for shard in part.shards]
    names += [name for part in parts for name in part.environment.components]
    if lacking := [name for name in dict.fromkeys(names) if not await files.exists(name)]:
        log.warning(
            "no node can work: storage lacks files that the run's task set names",
            task_root=terms.task_root,
            lacking=len(lacking),
            first=lacking[0],
            hint="put the whole folder of the task set, and the component that scores, into orchestrator.run_folder",
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
        if path.stat().st_size < MAX_SECRET_BYTES and FORMAT.encode() in path.read_bytes():
            raise ConfigError(f"{path} opens private tests, and all of {folder} is public", hint="keep it elsewhere")
    return paths
