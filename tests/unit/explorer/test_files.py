"""The few files of a run that an explorer keeps: fetched by hash, bounded, never written where a stranger says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from explorer.files import KEPT_FILES, MAX_FOLDERS, RunFiles
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import MismatchError, NotFoundError
from muster.protocol.hashes import content_hash
from muster.protocol.messages import RunDescription
from testbed.http import Reply, serving
from testbed.samples.messages import HERE
from testbed.samples.terms import terms_of

Served = dict[str, bytes]
TERMS = terms_of()


@pytest.fixture
def served() -> Served:
    return {}


@pytest.fixture
def url(served: Served) -> Iterator[str]:
    def answer(request: BaseHTTPRequestHandler) -> Reply:
        data = served.get(request.path.removeprefix("/v1/files/"))
        return Reply(b"{}", 404) if data is None else Reply(data)

    with serving(answer) as url:
        yield url


@pytest.fixture
async def files(url: str, tmp_path: Path) -> AsyncIterator[RunFiles]:
    async with OrchestratorClient(url, chain_id=HERE.chain_id, registry=HERE.registry, attempts=1) as client:
        yield RunFiles(client, tmp_path)


def offered(served: Served, **files: bytes) -> RunDescription:
    """A description of a run that offers these files by their paths."""
    names = {path: content_hash(data) for path, data in files.items()}
    served.update({names[path]: data for path, data in files.items()})
    return RunDescription(run=1, chain_id=31_337, addresses={}, from_block=0, terms={}, relays=[], files=names)


async def test_files_of_a_tokenizer_are_kept_by_folder_whatever_it_is_called(
    files: RunFiles, served: Served, tmp_path: Path
) -> None:
    """A path that leads elsewhere leads nowhere; what is none of a tokenizer's files is not fetched."""
    paths = {
        "../../etc/tokenizer.json": b"one",
        "a/config.json": b"two",
        "a/tokenizer.json": b"three",
        "a/x.py": b"four",
    }
    await files.prepare(offered(served, **paths), TERMS)
    kept = (path for path in tmp_path.rglob("*") if path.is_file())
    found = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in kept}
    assert found == {"run/0/tokenizer.json": b"one", "run/1/config.json": b"two", "run/1/tokenizer.json": b"three"}


async def test_files_that_a_run_offers_no_more_go(files: RunFiles, served: Served) -> None:
    """Files of a tokenizer count together: one that is left over would hide it."""
    await files.prepare(offered(served, **{"a/config.json": b"one", "a/vocab.json": b"two"}), TERMS)
    await files.prepare(offered(served, **{"a/config.json": b"one"}), TERMS)
    assert [path.name for path in files.folder.rglob("*.json")] == ["config.json"]


async def test_no_more_folders_than_a_run_can_need_are_fetched(files: RunFiles, served: Served) -> None:
    paths = {f"{number:03}/config.json": str(number).encode() for number in range(MAX_FOLDERS + 3)}
    await files.prepare(offered(served, **paths), TERMS)
    assert sorted(int(folder.name) for folder in files.folder.iterdir()) == [*range(MAX_FOLDERS)]


async def test_a_file_that_is_not_what_its_hash_says_is_not_kept(files: RunFiles, served: Served) -> None:
    name = content_hash(b"rollouts")
    served[name] = b"others"
    with pytest.raises(MismatchError):
        await files.fetch(name)
    assert not await files.files.exists(name)


async def test_the_files_asked_for_longest_ago_go(files: RunFiles, served: Served) -> None:
    names = [content_hash(bytes([number])) for number in range(KEPT_FILES + 1)]
    served.update({name: bytes([number]) for number, name in enumerate(names)})
    for name in names[:-1]:
        await files.fetch(name)
    await files.fetch(names[0])
    await files.fetch(names[-1])
    kept = {name async for name in files.files.names()}
    assert kept == set(names) - {names[1]}
    with pytest.raises(NotFoundError):
        await files.fetch(content_hash(b"none"))


async def test_what_an_earlier_process_fetched_goes_but_for_the_task_set(files: RunFiles, served: Served) -> None:
    names = [content_hash(data) for data in (b"tasks", b"rollouts")]
    served.update(dict(zip(names, (b"tasks", b"rollouts"), strict=True)))
    for name in names:
        await files.fetch(name)
    await files.forget_all(names[0])
    assert [name async for name in files.files.names()] == names[:1]
