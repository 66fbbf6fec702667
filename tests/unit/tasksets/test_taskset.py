"""A task set in a folder: lazy, complete or not, checked on arrival, safe in threads, replaced whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.environments.task import ChatMessage, Task
from muster.errors import ConfigError, MalformedError, MismatchError, StorageError
from muster.protocol.merkle import LeafTree
from muster.tasksets import taskset
from muster.tasksets.build import NewPart, write_subset, write_task_set
from muster.tasksets.document import MAX_DOCUMENT_BYTES, MAX_SHARD_BYTES, ShardEntry, TaskSetDocument, TaskSetPart
from muster.tasksets.packs import TaskProof, TaskShard, pack_shard, task_leaf
from muster.tasksets.taskset import TaskSet
from testbed.samples.task_sets import ARITHMETIC, SORTING, numbered, write_numbered


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    return write_numbered(tmp_path_factory.mktemp("sets") / "set", (1500, 30), held_out=1030, weights=(3, 1))


@pytest.fixture
def partial_set(made: TaskSet, tmp_path: Path) -> TaskSet:
    """The same set without any shard, as a node has it that only fetched the document."""
    return TaskSet.receive(tmp_path / "set", (made.folder / "taskset.json").read_bytes(), made.root)


def test_a_set_is_opened_by_its_root(made: TaskSet) -> None:
    opened = TaskSet.open(made.folder, made.root)
    assert opened.document == made.document
    assert (opened.root, opened.size) == (made.root, 4 * ((2**32 - 1) // 4))
    with pytest.raises(MismatchError, match="the run's terms name 0x0000"):
        TaskSet.open(made.folder, bytes(32))


def test_tasks_manifests_and_proofs_of_slots(made: TaskSet) -> None:
    a, b = numbered(1500, "a"), numbered(30, "b")
    for slot in (0, 1, 3, 4 * 1499 + 2, 4 * 31 + 3, made.size - 1):
        part, index = made.document.locate(slot)
        assert made.task(slot) == (a, b)[part][index]
        assert made.manifest(slot) == ARITHMETIC
        assert made.proof(slot).verify(made.part(slot).root, index) == made.task(slot)
    with pytest.raises(IndexError):
        made.task(made.size)


def test_all_tasks_in_order(made: TaskSet) -> None:
    everything = numbered(1500, "a") + numbered(30, "b")
    assert len(made.train) == 1530
    assert [task for _, task in made.train] == everything
    assert [made.train[i][1] for i in (0, 1499, 1500, 1529, -1)] == [everything[i] for i in (0, 1499, 1500, 1529, -1)]
    assert [task for _, task in made.train[1498:1502]] == everything[1498:1502]
    assert [*made.held_out] == [(SORTING, task) for task in numbered(1030, "h")]
    for outside in (1530, -1531):
        with pytest.raises(IndexError):
            made.train[outside]


# --- Shards that are not there yet


def test_a_shard_that_is_absent_is_named(partial_set: TaskSet) -> None:
    name = partial_set.document.parts[0].shards[1].hash
    with pytest.raises(StorageError, match=name):
        partial_set.task(4 * 1024)
    assert len(partial_set.missing()) == 3
    assert len(partial_set.missing_held_out()) == 2
    assert partial_set.missing([4 * 1024, 4 * 1025, 4 * 1026 + 1]) == [name]
    assert partial_set.missing([]) == []


def test_a_shard_that_arrives_is_kept(made: TaskSet, partial_set: TaskSet) -> None:
    for name in partial_set.missing([0]):
        partial_set.put_shard(name, made.shard_path(name).read_bytes())
    assert partial_set.task(0) == made.task(0)
    assert len(partial_set.missing()) == 2
    for name in partial_set.missing() + partial_set.missing_held_out():
        partial_set.put_shard(name, made.shard_path(name).read_bytes())
    assert partial_set.missing() == partial_set.missing_held_out() == []
    assert [*partial_set.held_out] == [*made.held_out]


def test_shown_task_verifies_with_the_document_alone(made: TaskSet, partial_set: TaskSet) -> None:
    for slot, nodes in ((0, 10), (4 * 341, 10), (3, 5)):
        shown = made.shown_task(slot)
        assert len(shown.path) == nodes
        assert partial_set.verify_shown(slot, shown) == made.task(slot)
        for other in (slot + 4, made.size, -1):
            with pytest.raises(MismatchError):
                partial_set.verify_shown(other, shown)
    assert not (partial_set.folder / "shards").exists()


def test_a_second_leaf_in_another_shard_shows_nothing(tmp_path: Path) -> None:
    """An owner could add it, since workers never fetch that shard. Under the part's root it would count."""
    lines = [task.to_line() for task in numbered(4)]
    evil = Task("evil", (ChatMessage("user", "q number 0?"),), {"answer": "1"}).to_line()
    good, _ = pack_shard(lines, 0)
    trap = LeafTree.from_hashes([task_leaf(0, evil), task_leaf(4, lines[0])])
    part = TaskSetPart("p", SORTING, (good, ShardEntry("0x" + "00" * 32, trap.root, 2, 100)))
    made = TaskSet(tmp_path, TaskSetDocument((part,)))
    through_the_trap = TaskProof(evil, (*trap.proof(0), *part.tree.proof(1)))
    assert through_the_trap.verify(part.root, 0).id == "evil"
    for proof in (through_the_trap, TaskProof(evil, tuple(trap.proof(0)))):
        with pytest.raises(MismatchError, match="does not show"):
            made.verify_shown(0, proof)


def test_other_bytes_and_other_shards_are_not_kept(made: TaskSet, partial_set: TaskSet) -> None:
    first, second = partial_set.missing()[:2]
    for name, data in (
        (first, made.shard_path(second).read_bytes()),
        (first, b""),
        ("0x" + "00" * 32, b""),
        ("../../taskset.json", b""),
        ("", b""),
    ):
        with pytest.raises((MismatchError, MalformedError)):
            partial_set.put_shard(name, data)
    assert not (partial_set.folder / "shards").exists()


def test_a_shard_whose_tasks_have_another_root_is_not_kept(tmp_path: Path) -> None:
    entry, data = pack_shard([task.to_line() for task in numbered(3)], 0)
    wrong = ShardEntry(entry.hash, bytes(32), entry.count, entry.bytes)
    document = TaskSetDocument((TaskSetPart("p", SORTING, (wrong,)),))
    made = TaskSet.receive(tmp_path / "set", document.to_bytes(), document.root)
    with pytest.raises(MismatchError, match="Merkle root"):
        made.put_shard(entry.hash, data)
    assert made.missing() == [entry.hash]


def test_a_shard_that_is_damaged_on_disk_is_noticed(made: TaskSet, tmp_path: Path) -> None:
    shutil.copytree(made.folder, tmp_path / "copy")
    copy = TaskSet.open(tmp_path / "copy")
    path = copy.shard_path(copy.document.parts[0].shards[0].hash)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(MismatchError, match="is damaged"):
        copy.task(0)
    path.write_bytes(bytes(64 * 1024 * 1024))
    with pytest.raises(MalformedError, match="more than"):
        copy.task(0)


def test_invalid_task_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task set in"):
        TaskSet.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no task set in"):
        TaskSet.open(tmp_path / "file")
    (tmp_path / "taskset.json").write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(MalformedError, match="more than"):
        TaskSet.open(tmp_path)
    with pytest.raises(MismatchError):
        TaskSet.receive(tmp_path / "new", b"{}", bytes(32))
    assert not (tmp_path / "new").exists()


# --- Memory and threads


def test_few_shards_stay_in_memory(made: TaskSet, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    class Counted:
        @staticmethod
        def open(entry: ShardEntry, first: int, data: bytes) -> TaskShard:
            reads.append(entry.hash)
            return TaskShard.open(entry, first, data)

    monkeypatch.setattr(taskset, "TaskShard", Counted)
    monkeypatch.setattr(taskset, "CACHED_SHARDS", 2)
    shards = [shard.hash for part in made.document.parts for shard in part.shards]
    opened = TaskSet.open(made.folder)
    for index in (0, 1, 1024, 1, 1500, 1, 1024):  # the least lately used one goes
        _ = opened.train[index]
    assert reads == [shards[0], shards[1], shards[2], shards[1]]
    monkeypatch.setattr(taskset, "CACHED_BYTES", 1)
    opened = TaskSet.open(made.folder)
    for index in (0, 0, 1024, 0):  # one always stays
        _ = opened.train[index]
    assert reads[4:] == [shards[0], shards[1], shards[0]]


def test_many_threads_read_the_same_tasks(made: TaskSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskset, "CACHED_SHARDS", 1)
    opened, wanted = TaskSet.open(made.folder), [task for _, task in made.train]
    indices = [i * 389 % 1530 for i in range(3000)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda i: opened.train[i][1], indices)] == [wanted[i] for i in indices]


# --- Writing


def test_equal_tasks_give_equal_roots(tmp_path: Path) -> None:
    first, second = (write_numbered(tmp_path / name, (40,)) for name in ("one", "two"))
    assert first.root == second.root
    assert write_numbered(tmp_path / "three", (41,)).root != first.root
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three", "two"]


def test_a_chosen_subset_keeps_what_is_held_out(made: TaskSet, tmp_path: Path) -> None:
    chosen = write_subset(made, [1502, 7, 1100, 3], tmp_path / "chosen")
    assert [task.id for _, task in chosen.train] == ["a7", "a1100", "a3", "b2"]
    assert [(part.name, part.weight, part.sources) for part in chosen.document.parts] == [
        (part.name, part.weight, part.sources) for part in made.document.parts
    ]
    assert chosen.document.held_out == made.document.held_out
    alone = write_subset(made, [1501], tmp_path / "alone")
    assert (alone.size, [part.name for part in alone.document.parts]) == (1, ["b"])
    with pytest.raises(IndexError):
        write_subset(made, [1530], tmp_path / "none")
    with pytest.raises(ConfigError, match="at least one training task"):
        write_subset(made, [], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_older_set_is_replaced_whole_and_nothing_else_is(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_numbered(folder, (1100,))
    second = write_numbered(folder, (3,), held_out=0)
    assert TaskSet.open(folder).root == second.root
    assert [path.name for path in (folder / "shards").iterdir()] == [second.document.parts[0].shards[0].hash]

    def broken() -> Iterator[Task]:
        yield from numbered(5)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        write_task_set(folder, [NewPart("p", SORTING, broken())])
    assert TaskSet.open(folder).root == second.root
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="no task set"):
        write_numbered(tmp_path / "mine", (3,))
    with pytest.raises(ConfigError, match="is a file"):
        write_numbered(tmp_path / "mine" / "thesis.tex", (3,))
    with pytest.raises(ConfigError, match="there is no folder"):
        write_numbered(tmp_path / "absent" / "set", (3,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "set"]


def test_a_set_without_a_training_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one training task"):
        write_task_set(tmp_path / "none", [NewPart("p", SORTING, [])], [NewPart("h", SORTING, numbered(3))])
    assert [*tmp_path.iterdir()] == []


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match="two tasks have the id 'q1'"):
        write_task_set(tmp_path / "set", [NewPart("p", SORTING, numbered(2))], [NewPart("h", SORTING, numbered(3)[1:])])


def test_large_tasks_make_more_shards(tmp_path: Path) -> None:
    large = [Task(f"t{i}", (ChatMessage("user", "x" * 3_000_000),), {}) for i in range(11)]
    made = write_task_set(tmp_path / "set", [NewPart("p", SORTING, large)])
    assert [shard.count for shard in made.document.parts[0].shards] == [5, 5, 1]
    assert all(shard.bytes <= MAX_SHARD_BYTES for shard in made.document.parts[0].shards)
    assert made.task(10) == large[10]
    with pytest.raises(MalformedError, match="at most 4194304"):
        write_task_set(
            tmp_path / "set", [NewPart("p", SORTING, [Task("t", (ChatMessage("user", "x" * 4_200_000),), {})])]
        )
