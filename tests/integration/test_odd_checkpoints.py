"""A folder out of which two programs could read other weights is refused by each of the four that take checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from blake3 import blake3

from muster.errors import MalformedError, MusterError, UsageError
from muster.models.weights import read_weights, weights_in
from muster.shardcast.fetch.sources import WEIGHTS_PATH
from muster.shardcast.format.manifest import MANIFEST_NAME, File, Manifest, Shard, name_problem, parse_manifest
from muster.shardcast.format.store import versions
from muster.shardcast.publish import publish
from muster.verification.profiles import CPU_FP32
from testbed import http
from testbed.http import Reply, serving
from testbed.weights.checkpoints import RUN
from testbed.weights.fetching import get
from testbed.weights.odd_checkpoints import (
    EMBEDDING,
    HEAD,
    NORM,
    ODD_HEADS,
    ODD_NAMES,
    Odd,
    in_parts,
    store_head,
    whole,
)
from testbed.weights.servers import relaying
from worker.engine import Engine, EngineLimits


@contextmanager
def served(folder: Path) -> Iterator[tuple[Manifest, str]]:
    """Serve a folder as step 3, whatever it holds, as a trainer with another program would: manifest and URL."""
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    manifest = Manifest.model_construct(
        run=RUN,
        step=3,
        files=tuple(File(name=name, size=len(data)) for name, data in files),
        shards=tuple(
            Shard(index=i, file=i, offset=0, size=len(data), hash="0x" + blake3(data).hexdigest())
            for i, (_, data) in enumerate(files)
        ),
    )
    found = {f"{WEIGHTS_PATH}/{manifest.id}/{name}": data for name, data in files}
    found[f"{WEIGHTS_PATH}/{manifest.id}/{MANIFEST_NAME}"] = manifest.canonical

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        return Reply(found[request.path]) if request.path in found else Reply(status=404)

    with serving(answer) as url:
        yield manifest, url


@pytest.mark.parametrize("kind", [*ODD_NAMES, *ODD_HEADS])
async def test_odd_checkpoint_is_refused_by_publisher_fetcher_relay_and_engine(kind: str, tmp_path: Path) -> None:
    odd: Odd = ODD_NAMES.get(kind) or ODD_HEADS[kind]
    folder = tmp_path / "checkpoint"
    odd.begin(folder)
    odd.change(folder)
    with pytest.raises(UsageError, match=f"cannot be published: .*{odd.says}"):
        publish(folder, tmp_path / "published", RUN, 3)
    with pytest.raises(MalformedError, match=odd.says):
        Engine(folder, CPU_FP32, EngineLimits(1.0, 8, 8))
    with served(folder) as (manifest, url):
        with pytest.raises(MusterError, match=odd.says):
            await get(manifest, tmp_path / "node", url)
        if kind in ODD_NAMES:
            async with relaying(tmp_path / "relay", url) as (relay, _):
                status, body = await asyncio.to_thread(http.get, f"{relay}{WEIGHTS_PATH}/{manifest.id}/{MANIFEST_NAME}")
            assert (status, versions(tmp_path / "relay")) == (502, [])
            assert b"upstream sends something else" in body
            with pytest.raises(MalformedError, match=odd.says):
                parse_manifest(manifest.canonical, manifest.root)


@pytest.mark.parametrize("begin", [whole, in_parts])
async def test_usual_checkpoint_is_taken_by_all(begin: Callable[[Path], None], tmp_path: Path) -> None:
    begin(tmp_path / "checkpoint")
    with served(tmp_path / "checkpoint") as (manifest, url):
        assert publish(tmp_path / "checkpoint", tmp_path / "published", RUN, 3) == manifest
        async with relaying(tmp_path / "relay", url) as (relay, _):
            fetched = await get(manifest, tmp_path / "node", relay)
    assert weights_in(fetched.path).keys() == {NORM, EMBEDDING}
    assert dict(read_weights(fetched.path))[NORM].numel() == 8
    assert not any(name_problem(file.name) for file in manifest.files)


def test_a_stored_head_that_equals_the_embedding_is_read_and_so_is_one_that_is_not_tied(tmp_path: Path) -> None:
    """As models of the hub have it: a copy changes nothing, and a model that says so has a head of its own."""
    whole(tmp_path)
    store_head(tmp_path, bytes(range(64)))
    assert HEAD in weights_in(tmp_path)
    store_head(tmp_path, bytes(64))
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    assert HEAD in weights_in(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MalformedError, match="does not untie them"):
        weights_in(tmp_path)
