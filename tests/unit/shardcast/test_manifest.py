"""The manifest: one root, one sequence of bytes, and nothing a stranger writes gets further than the parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from blake3 import blake3
from Crypto.Hash import keccak as pycryptodome_keccak
from eth_abi.abi import encode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multiproof.core import process_proof
from pydantic import ValidationError

from muster.errors import MalformedError, MismatchError
from muster.models.files import FIXED_FILES
from muster.shardcast.format.manifest import (
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    MAX_SHARD_BYTES,
    File,
    Manifest,
    Shard,
    name_problem,
    parse_manifest,
)
from testbed import paths

VECTORS = json.loads((paths.VECTORS / "manifests.json").read_text())

Document = dict[str, Any]

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""On a machine that is busy with other tests, slow is no failure."""


def keccak(data: bytes) -> bytes:
    return pycryptodome_keccak.new(data=data, digest_bits=256).digest()


def leaf(types: list[str], values: list[object]) -> bytes:
    return keccak(keccak(encode(types, values)))


def root_by_hand(document: Document) -> bytes:
    """Return the root, from the words of the module's docstring and nothing else of ours."""
    files = json.dumps(document["files"], sort_keys=True, separators=(",", ":")).encode()
    base = document["base_step"]
    header = [0, document["version"], document["run"], document["step"], 0 if base is None else base + 1]
    leaves = [leaf(["uint256"] * 6 + ["bytes32"], [*header, len(document["shards"]), keccak(files)])]
    for shard in document["shards"]:
        words = [1, shard["index"], shard["file"], shard["offset"], shard["size"]]
        leaves.append(leaf(["uint256"] * 5 + ["bytes32"], [*words, bytes.fromhex(shard["hash"][2:])]))
    tree = [b""] * (len(leaves) - 1) + sorted(leaves, reverse=True)
    for i in reversed(range(len(leaves) - 1)):
        tree[i] = keccak(b"".join(sorted(tree[2 * i + 1 : 2 * i + 3])))
    return tree[0]


def make(sizes: dict[str, int], shard_bytes: int, *, run: int = 1, step: int = 5) -> Manifest:
    """Return a manifest of files of these sizes; the hashes are of nothing real."""
    files = tuple(File(name=name, size=size) for name, size in sorted(sizes.items()))
    shards: list[Shard] = []
    for number, file in enumerate(files):
        for offset in range(0, file.size, shard_bytes):
            size = min(shard_bytes, file.size - offset)
            digest = "0x" + blake3(f"{file.name}/{offset}".encode()).hexdigest()
            shards.append(Shard(index=len(shards), file=number, offset=offset, size=size, hash=digest))
    return Manifest(run=run, step=step, files=files, shards=tuple(shards))


def document_of(manifest: Manifest) -> Document:
    return json.loads(manifest.canonical)


def canonical(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


names = st.sampled_from(FIXED_FILES)
manifests = st.builds(
    make,
    st.builds(
        lambda sizes, weights: sizes | {"model.safetensors": weights},
        st.dictionaries(names, st.integers(0, 2_000), max_size=6),
        st.integers(0, 2_000),
    ),
    st.integers(40, 700),
    run=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**32 - 1),
)
SAMPLE = make({"config.json": 10, "model.safetensors": 100, "tokenizer.json": 64}, 32)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector: Document) -> None:
    data = vector["canonical"].encode()
    manifest = parse_manifest(data, bytes.fromhex(vector["root"][2:]))
    assert manifest.id == vector["root"] == "0x" + root_by_hand(json.loads(data)).hex()
    assert ["0x" + manifest.header_leaf.hex(), *("0x" + s.leaf.hex() for s in manifest.shards)] == vector["leaves"]


@unhurried
@given(manifests)
def test_canonical_bytes_are_read_back_as_what_they_were(manifest: Manifest) -> None:
    read = parse_manifest(manifest.canonical, manifest.root)
    assert read == manifest
    assert read.canonical == manifest.canonical
    assert manifest.root == root_by_hand(document_of(manifest))


@unhurried
@given(manifests, st.data())
def test_a_shard_can_be_proved_alone(manifest: Manifest, data: st.DataObject) -> None:
    if manifest.shards:
        shard = data.draw(st.sampled_from(manifest.shards))
        assert process_proof(shard.leaf, manifest.tree.proof(shard.index + 1)) == manifest.root


@unhurried
@given(manifests, st.data())
def test_every_change_is_refused_or_changes_the_root(manifest: Manifest, data: st.DataObject) -> None:
    document = document_of(manifest)
    place = data.draw(st.sampled_from(["run", "step", "version", "base_step", "name", "size", "shard", "drop"]))
    if place in ("name", "size"):
        file = data.draw(st.sampled_from(document["files"]))
        file[place] = data.draw(names) if place == "name" else file["size"] + data.draw(st.integers(-50, 50))
    elif place in ("shard", "drop"):
        if not document["shards"]:
            return
        index = data.draw(st.integers(0, len(document["shards"]) - 1))
        if place == "drop":
            del document["shards"][index]
        else:
            key = data.draw(st.sampled_from(["index", "file", "offset", "size", "hash"]))
            other = "0x" + data.draw(st.binary(min_size=32, max_size=32)).hex()
            document["shards"][index][key] = other if key == "hash" else data.draw(st.integers(0, 3_000))
    else:
        document[place] = data.draw(st.integers(0, 2**32 - 1))
    if canonical(document) != manifest.canonical:
        with pytest.raises((MalformedError, MismatchError)):
            parse_manifest(canonical(document), manifest.root)


@unhurried
@given(st.binary(max_size=400))
def test_noise_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_manifest(data)


@unhurried
@given(manifests, st.data())
def test_a_truncated_manifest_is_malformed(manifest: Manifest, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(manifest.canonical) - 1))
    with pytest.raises(MalformedError):
        parse_manifest(manifest.canonical[:length])


@unhurried
@given(manifests)
def test_the_shards_of_each_file_are_its_bytes(manifest: Manifest) -> None:
    for number, file in enumerate(manifest.files):
        assert list(manifest.shards_of(file.name)) == [s for s in manifest.shards if s.file == number]
        assert sum(shard.size for shard in manifest.shards_of(file.name)) == file.size
    assert manifest.shards_of("missing.json") == ()


def change(path: str, value: object) -> Document:
    """Return the sample with one value replaced; path like "files.1.name"."""
    document = document_of(SAMPLE)
    place: Any = document
    *way, last = path.split(".")
    for part in way:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "a/b.json",
        "/etc/passwd.json",
        "..",
        "a..json",
        ".hidden.json",
        "config.json\x00",
        "C:\\x.json",
        "manifest.json",
        "Manifest.json",
        "Manifest.JSON",
        "Config.json",
        "consolidated.safetensors",
        "model-1-of-2.safetensors",
        "model-00001-of-00002.safetensors.index.json",
        "tekken.json",
        "modeling.py",
        "pytorch_model.bin",
        "model.pt",
        "x.json\n",
        "é.json",
        "",
        "a" * 128 + ".json",
    ],
)
def test_a_name_that_could_lead_elsewhere_or_be_executed_is_malformed(name: str) -> None:
    assert name_problem(name)
    with pytest.raises(MalformedError, match="name"):
        parse_manifest(canonical(change("files.0.name", name)))


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("version", 2, "version"),
        ("run", -1, "run"),
        ("run", 1 << 32, "run"),
        ("step", 1.0, "step"),
        ("step", "5", "step"),
        ("step", True, "step"),
        ("base_step", 5, "base step 5 is not before step 5"),
        ("extra", 1, "canonical"),
        ("files", [], "files"),
        ("files.0.size", -1, "size"),
        ("files.0.size", 1 << 60, "size"),
        ("files.0.size", 9, "shard 0 is not the one"),
        ("files.0.size", 11, "shard 1 is not the one that goes on at byte 10"),
        ("files.2.name", "config.json", "in order of name"),
        ("shards.1.index", 2, "shard 1 is not the one"),
        ("shards.1.file", 0, "shard 1 is not the one"),
        ("shards.2.offset", 31, "shard 2 is not the one"),
        ("shards.2.offset", 33, "shard 2 is not the one"),
        ("shards.2.size", 0, "size"),
        ("shards.2.size", MAX_SHARD_BYTES + 1, "size"),
        ("shards.2.size", 33, "shard 3 is not the one"),
        ("shards.4.size", 1 << 20, "shard 4 is not the one"),
        ("shards.2.hash", "0x00", "hash"),
        ("shards.2.hash", "0x" + "AB" * 32, "hash"),
    ],
)
def test_out_of_bounds_value_is_named(path: str, value: object, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        parse_manifest(canonical(change(path, value)))


@pytest.mark.parametrize(
    "document", [{"shards": [0] * 1000}, {"files": [{}] * 200}, {f"unknown {i}": 0 for i in range(1000)}]
)
def test_a_thousand_mistakes_are_not_named_one_by_one(document: Document) -> None:
    with pytest.raises(ValidationError) as caught:
        Manifest.model_validate_json(json.dumps(document))
    assert caught.value.error_count() < 10


def test_a_gap_an_overlap_a_duplicate_and_a_surplus_are_malformed() -> None:
    for edit in (
        lambda shards: shards.pop(),
        lambda shards: shards.insert(2, shards[2]),
        lambda shards: shards.append({**shards[-1], "index": len(shards)}),
        lambda shards: shards.reverse(),
    ):
        document = document_of(SAMPLE)
        edit(document["shards"])
        with pytest.raises(MalformedError, match="shard"):
            parse_manifest(canonical(document))


def test_another_spelling_of_the_same_manifest_is_malformed() -> None:
    document = document_of(SAMPLE)
    twice = SAMPLE.canonical.replace(b'{"base_step"', b'{"run":1,"base_step"', 1)
    assert json.loads(twice) == document
    for spelling in (
        json.dumps(document).encode(),
        SAMPLE.canonical + b"\n",
        b"\xef\xbb\xbf" + SAMPLE.canonical,
        twice,
    ):
        with pytest.raises(MalformedError):
            parse_manifest(spelling)


def test_absurd_sizes_are_refused_before_they_cost_anything() -> None:
    with pytest.raises(MalformedError, match="at most"):
        parse_manifest(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(MalformedError):
        parse_manifest(b"[" * 100_000)
    many = {f"f{i:04}.json": 0 for i in range(MAX_FILES + 1)}
    document = {**document_of(SAMPLE), "files": [{"name": n, "size": s} for n, s in many.items()], "shards": []}
    with pytest.raises(MalformedError, match="files"):
        parse_manifest(canonical(document))


def test_another_root_is_a_mismatch() -> None:
    with pytest.raises(MismatchError, match=SAMPLE.id):
        parse_manifest(SAMPLE.canonical, bytes(32))
