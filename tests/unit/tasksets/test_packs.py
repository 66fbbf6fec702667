"""Shards and proofs: exact values, and nothing hostile gets through."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pyarrow
import pytest
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.environments.task import MAX_DEPTH, MAX_TASK_BYTES, ChatMessage, Task
from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash
from muster.tasksets.document import MAX_SHARD_BYTES, ShardEntry, TaskSetDocument
from muster.tasksets.packs import MAX_STORED_BYTES, TaskProof, TaskShard, pack_shard, task_leaf
from testbed.paths import ROOT
from testbed.samples.task_sets import numbered
from testbed.suite.examples import up_to

VECTOR = json.loads((ROOT / "tests" / "unit" / "vectors" / "task_set.json").read_text())
LINES = [line.encode() for line in VECTOR["lines"]]
PART = TaskSetDocument.parse(VECTOR["document"].encode()).parts[0]

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(ChatMessage, st.sampled_from(["system", "user", "assistant"]), texts)
tasks = st.builds(
    lambda name, talk, last, reference, level: Task(name, (*talk, ChatMessage("user", last)), reference, level),
    texts.filter(bool),
    st.lists(messages, max_size=4),
    texts,
    st.dictionaries(texts, values, max_size=4),
    st.integers(-(2**63) + 1, 2**63 - 1),
)


# --- Exact values


def test_leaves_shards_and_proofs_are_the_committed_ones() -> None:
    firsts, stored = PART.firsts, [bytes.fromhex(data) for data in VECTOR["shards"]["first"]]
    shards = [TaskShard.open(PART.shards[i], firsts[i], stored[i]) for i in range(2)]
    assert firsts == (0, 2)
    for i, line in enumerate(LINES):
        number, place = PART.locate(i)
        path = (*shards[number].tree.proof(place), *PART.tree.proof(number))
        assert shards[number].line(place) == line
        assert task_leaf(i, line).hex() == VECTOR["leaves"][i]
        assert [node.hex() for node in path] == VECTOR["paths"][i]
        assert TaskProof(line, path).verify(PART.root, i) == Task.from_line(line)


def test_a_leaf_is_the_index_and_the_hash_of_the_line_hashed_twice() -> None:
    words = (2).to_bytes(32, "big") + hashlib.sha256(LINES[2]).digest()
    assert task_leaf(2, LINES[2]) == keccak(keccak(words))


# --- Round trips


@given(st.lists(tasks, min_size=1, max_size=8), st.integers(0, 2**31))
@settings(max_examples=up_to(60))
def test_any_unicode_and_several_messages_come_back(some: list[Task], first: int) -> None:
    entry, data = pack_shard([task.to_line() for task in some], first)
    shard = TaskShard.open(entry, first, data)
    assert [shard.task(i) for i in range(len(some))] == some
    for i, task in enumerate(some):
        proof = TaskProof(shard.line(i), tuple(shard.tree.proof(i)))
        assert proof.verify(entry.root, first + i) == task


def test_equal_lines_give_equal_bytes() -> None:
    lines = [task.to_line() for task in numbered(1024)]
    assert pack_shard(lines, 0) == pack_shard(lines, 0)
    assert pack_shard(lines, 0)[0].root != pack_shard(lines, 1024)[0].root


@pytest.mark.parametrize("count", [0, 1025])
def test_a_shard_has_1_to_1024_tasks(count: int) -> None:
    with pytest.raises(MalformedError):
        pack_shard([b"x"] * count, 0)


def test_written_task_can_be_read_at_any_depth() -> None:
    def nested(depth: int) -> dict[str, object]:
        value: dict[str, object] = {}
        for _ in range(depth):
            value = {"a": value}
        return value

    deepest = Task("deep", (ChatMessage("user", "?"),), nested(MAX_DEPTH - 1))
    assert Task.from_line(deepest.to_line()) == deepest
    for depth in (MAX_DEPTH, 150, 5000):
        with pytest.raises(MalformedError):
            Task("deep", (ChatMessage("user", "?"),), nested(depth)).to_line()


# --- Proofs


@given(st.integers(1, 40), st.data())
def test_one_bit_flipped_anywhere_is_refused(count: int, data: st.DataObject) -> None:
    lines = [task.to_line() for task in numbered(count)]
    entry, stored = pack_shard(lines, 0)
    index = data.draw(st.integers(0, count - 1))
    proof = TaskProof(lines[index], tuple(TaskShard.open(entry, 0, stored).tree.proof(index)))
    proof.verify(entry.root, index)
    whole = [proof.line, *proof.path, entry.root]
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 8 * len(whole[at]) - 1))
    flipped = bytearray(whole[at])
    flipped[bit // 8] ^= 1 << bit % 8
    whole[at] = bytes(flipped)
    with pytest.raises(MismatchError):
        TaskProof(whole[0], tuple(whole[1:-1])).verify(whole[-1], index)


@given(st.integers(2, 40), st.data())
def test_a_task_is_shown_under_its_own_index_only(count: int, data: st.DataObject) -> None:
    lines = [task.to_line() for task in numbered(count)]
    entry, stored = pack_shard(lines, 0)
    index, other = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
    path = tuple(TaskShard.open(entry, 0, stored).tree.proof(index))
    for wrong in (other, -1, 2**32, 2**300):
        with pytest.raises(MismatchError):
            TaskProof(lines[index], path).verify(entry.root, wrong)
    for broken in (path[:-1], (*path, bytes(32)), path[1:]):
        if broken != path:
            with pytest.raises(MismatchError):
                TaskProof(lines[index], broken).verify(entry.root, index)


def test_a_proven_line_that_is_no_task_is_malformed() -> None:
    entry, stored = pack_shard([b'{"not":"a task"}'], 0)
    proof = TaskProof(b'{"not":"a task"}', tuple(TaskShard.open(entry, 0, stored).tree.proof(0)))
    with pytest.raises(MalformedError):
        proof.verify(entry.root, 0)


def test_a_proof_with_nodes_of_other_lengths_is_malformed() -> None:
    for path in ((b"x",), (bytes(33),), (bytes(32),) * 65):
        with pytest.raises(MalformedError):
            TaskProof(b"x", path).verify(bytes(32), 0)


# --- Hostile shards


def hostile(text: bytes, *, count: int, size: int | None = None) -> tuple[ShardEntry, bytes]:
    """A shard that says something else about itself than is true."""
    data = bytes(pyarrow.Codec("zstd").compress(text, asbytes=True))
    return ShardEntry(content_hash(data), bytes(32), count, len(text) if size is None else size), data


@pytest.mark.parametrize(
    ("text", "count", "size"),
    [
        (b"\0" * 200_000_000, 1, 1000),  # a bomb: 200 MB from a few KB
        (b"\0" * 200_000_000, 1, MAX_SHARD_BYTES),
        (b"a\nb", 2, 2),  # one byte more than it says
        (b"a\nb", 2, 4),  # one less
        (b"a\nb", 1, None),
        (b"a\nb", 3, None),
        (b"a\nb\n", 2, None),  # a trailing newline
        (b"a\nb\n", 3, None),  # and the empty line behind it
        (b"\na", 2, None),
        (b"a\n\nb", 3, None),
        (b"\n", 2, None),
    ],
)
def test_shards_that_are_not_what_they_say_are_malformed(text: bytes, count: int, size: int | None) -> None:
    entry, data = hostile(text, count=count, size=size)
    with pytest.raises(MalformedError):
        TaskShard.open(entry, 0, data)


def test_a_bomb_costs_no_more_than_the_size_it_names() -> None:
    before = pyarrow.total_allocated_bytes()
    entry, data = hostile(b"\0" * 100_000_000, count=1, size=1000)
    peak = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(MalformedError):
        TaskShard.open(entry, 0, data)
    assert pyarrow.total_allocated_bytes() == before
    assert (pyarrow.default_memory_pool().max_memory() or 0) == peak


@given(st.binary(max_size=300))
def test_bytes_that_are_no_zstd_are_malformed(data: bytes) -> None:
    entry = ShardEntry(content_hash(data), bytes(32), 1, 100)
    with pytest.raises(MalformedError):
        TaskShard.open(entry, 0, data)


def test_other_bytes_than_the_named_ones_are_a_mismatch() -> None:
    entry, data = pack_shard([b"a"], 0)
    with pytest.raises(MismatchError):
        TaskShard.open(entry, 0, data + b"\0")
    with pytest.raises(MalformedError, match="at most"):
        TaskShard.open(entry, 0, bytes(MAX_STORED_BYTES + 1))


def test_a_shard_with_another_merkle_root_is_a_mismatch() -> None:
    entry, data = pack_shard([b"a", b"b"], 0)
    for wrong, first in ((replace(entry, root=bytes(32)), 0), (entry, 2)):
        with pytest.raises(MismatchError, match="Merkle root"):
            _ = TaskShard.open(wrong, first, data).tree


def test_a_line_that_is_no_task_is_malformed_when_it_is_asked_for() -> None:
    entry, data = pack_shard([numbered(1)[0].to_line(), b"{}"], 0)
    shard = TaskShard.open(entry, 0, data)
    assert shard.task(0) == numbered(1)[0]
    with pytest.raises(MalformedError):
        shard.task(1)


@pytest.mark.parametrize(
    "line", [b"\xff", b"\x01", b"\x7f", b"x" * (MAX_TASK_BYTES + 1)], ids=["8bit", "low", "del", "long"]
)
def test_a_shard_has_no_line_that_evidence_could_not_show(line: bytes) -> None:
    entry, stored = pack_shard([b"good", line], 0)
    with pytest.raises(MalformedError, match="too long, or not of printable ASCII"):
        TaskShard.open(entry, 0, stored)


def test_the_longest_line_is_read() -> None:
    entry, stored = pack_shard([b"~" * MAX_TASK_BYTES, b" "], 0)
    assert len(TaskShard.open(entry, 0, stored).line(0)) == MAX_TASK_BYTES
