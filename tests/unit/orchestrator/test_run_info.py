"""Start-up warnings of an orchestrator: files that storage lacks and nodes need to begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from muster.chain.masters_file import write_masters
from muster.clients.storage import ContentStore
from muster.errors import ConfigError
from muster.protocol.hashes import content_hash
from muster.tasksets.masters import Masters
from muster.tasksets.taskset import DOCUMENT_NAME, SHARDS_NAME
from muster.verification.profiles import profile_hash
from orchestrator.run_info import offer_files, warn_of_lacks
from testbed.samples.commitments import rules

RELAYS = ["http://127.0.0.1:9"]


async def said(files: ContentStore) -> list[tuple[str, int]]:
    terms = replace(rules().terms, profile=profile_hash("cpu-fp32-projection-v3"))
    with capture_logs() as lines:
        await warn_of_lacks(terms, RELAYS, files)
    return [(line["event"].partition(":")[0], line.get("lacking", 0)) for line in lines]


async def test_missing_shards_are_warned_about(tmp_path: Path):
    files, folder = ContentStore(f"file:{tmp_path}"), rules().task_set.folder
    assert await said(files) == [("no node can begin", 0)], "no document"
    await files.put((folder / DOCUMENT_NAME).read_bytes())
    assert await said(files) == [("no node can work", 2)], "training and held-out tasks, a shard each"
    shards = sorted((folder / SHARDS_NAME).iterdir())
    await files.put(shards[0].read_bytes())
    assert await said(files) == [("no node can work", 1)]
    await files.put(shards[1].read_bytes())
    assert await said(files) == []


async def test_a_run_folder_offers_all_its_files_and_lists_all_but_the_shards(tmp_path: Path):
    files, folder = ContentStore(f"file:{tmp_path}"), rules().task_set.folder
    listed = await offer_files(folder.parent, files)
    assert listed == {f"{folder.name}/{DOCUMENT_NAME}": "0x" + rules().task_set.root.hex()}
    for shard in (folder / SHARDS_NAME).iterdir():
        assert await files.exists(content_hash(shard.read_bytes()))
    assert await said(files) == []


async def test_secrets_of_private_tests_are_not_offered(tmp_path: Path) -> None:
    write_masters(tmp_path / "run" / "masters.secret", Masters.make(3))
    with pytest.raises(ConfigError, match="opens private tests"):
        await offer_files(tmp_path / "run", ContentStore(f"file:{tmp_path / 'storage'}"))
