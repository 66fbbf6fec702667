"""Sealed parts: what a set holds of them, which slots fall on them in which epoch, and what refuses them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.tasks.mixing import mix_sets
from muster.authoring.tasks.sealing import seal_set
from muster.environments.task import Task
from muster.errors import ConfigError, MalformedError, UsageError
from muster.tasksets.build import NewPart, write_subset, write_task_set
from muster.tasksets.document import TaskSetDocument
from muster.tasksets.masters import Masters
from muster.tasksets.sealing import open_task, seal_task
from muster.tasksets.taskset import TaskSet
from testbed.samples.task_sets import ARITHMETIC, numbered, write_numbered

MASTERS = Masters(1, b"\x07" * 32)
THREE = Masters(3, b"\x09" * 32)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    return write_numbered(tmp_path_factory.mktemp("public") / "tasks", (50, 70), held_out=5, weights=(1, 2))


@pytest.fixture(scope="module")
def one_epoch(public: TaskSet) -> TaskSet:
    return seal_set(public, ["b"], public.folder.parent / "one", MASTERS)


@pytest.fixture(scope="module")
def three_epochs(public: TaskSet) -> TaskSet:
    return seal_set(public, ["b"], public.folder.parent / "three", THREE)


def test_one_epoch_changes_nothing_but_the_references(public: TaskSet, one_epoch: TaskSet) -> None:
    assert (one_epoch.size, one_epoch.document.epochs) == (public.size, 1)
    assert [(part.name, part.count, part.weight, part.sealed) for part in one_epoch.document.parts] == [
        ("a", 50, 1, 0),
        ("b", 70, 2, 1),
    ]
    assert one_epoch.root != public.root
    for slot in range(0, 900, 7):
        was, now = public.task(slot), one_epoch.task(slot)
        assert (now.id, now.messages, now.level) == (was.id, was.messages, was.level)
        if one_epoch.part(slot).sealed:
            assert now.sealed is not None
            assert open_task(now, MASTERS.of(1), "b") == was
        else:
            assert now == was


def test_a_task_of_a_sealed_part_is_proven_like_any_other(one_epoch: TaskSet) -> None:
    slot = next(slot for slot in range(9) if one_epoch.part(slot).sealed)
    part, index = one_epoch.locate(slot)
    assert one_epoch.proof(slot).verify(part.root, index) == one_epoch.task(slot)


def test_no_sealed_reference_is_in_the_folder(public: TaskSet, tmp_path: Path) -> None:
    marked = [replace(task, reference={"answer": f"marker {i} marker"}) for i, task in enumerate(numbered(40))]
    plain = write_task_set(tmp_path / "plain", [NewPart("p", ARITHMETIC, marked)])
    sealed = seal_set(plain, ["p"], tmp_path / "sealed", MASTERS)

    def found(task_set: TaskSet) -> int:
        lines = b"".join(task_set.proof(slot).line for slot in range(task_set.size))
        stored = b"".join(path.read_bytes() for path in task_set.folder.rglob("*") if path.is_file())
        return (lines + stored).count(b"marker")

    assert found(sealed) == 0
    assert found(plain) >= 80


def test_several_epochs_share_the_tasks_out(public: TaskSet, three_epochs: TaskSet) -> None:
    document = three_epochs.document
    assert (document.epochs, document.slots) == (3, public.size)
    assert [(part.name, part.count, part.weight, part.sealed) for part in document.parts] == [
        ("a", 50, 1, 0),
        ("b-1", 24, 2, 1),
        ("b-2", 23, 2, 2),
        ("b-3", 23, 2, 3),
    ]
    ids = []
    for part in document.parts[1:]:
        for task in three_epochs.tasks_of(part):
            opened = open_task(task, THREE.of(part.sealed), part.name)
            assert opened is not None
            ids.append(opened.id)
            assert all(
                open_task(task, THREE.of(epoch), part.name) is None for epoch in (1, 2, 3) if epoch != part.sealed
            )
    assert sorted(ids) == sorted(task.id for task in numbered(70, "b"))


@given(st.integers(0, (1 << 32) - 4))
def test_in_each_epoch_a_slot_falls_on_a_public_task_or_one_sealed_for_it(three_epochs: TaskSet, slot: int) -> None:
    found = [three_epochs.at(epoch).locate(slot) for epoch in (1, 2, 3)]
    names = [part.name for part, _ in found]
    assert names in (["a", "a", "a"], ["b-1", "b-2", "b-3"])
    assert names[0] == ("a" if slot % 3 == 0 else "b-1")
    assert [index for _, index in found] == [slot // 3 % part.count for part, _ in found]


def test_parts_are_drawn_by_weight_in_every_epoch(three_epochs: TaskSet) -> None:
    for epoch in (1, 2, 3):
        drawn = Counter(three_epochs.at(epoch).part(slot).name for slot in range(3000))
        assert drawn == {"a": 1000, f"b-{epoch}": 2000}


@pytest.mark.parametrize("epoch", [0, 4, -1])
def test_there_is_no_other_epoch(three_epochs: TaskSet, epoch: int) -> None:
    with pytest.raises(IndexError, match="of 3"):
        three_epochs.at(epoch)


def test_the_shards_of_an_epoch_s_draws_are_fetched(three_epochs: TaskSet, tmp_path: Path) -> None:
    slot = 1
    empty = TaskSet.receive(tmp_path, three_epochs.document.to_bytes(), three_epochs.root)
    assert [empty.at(epoch).missing([slot]) for epoch in (1, 2, 3)] == [
        [part.shards[0].hash] for part in three_epochs.document.parts[1:]
    ]


# --- What is refused


def changed(document: TaskSetDocument, part: int, **fields: object) -> bytes:
    value = json.loads(document.to_bytes())
    value["parts"][part].update(fields)
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("part", "fields", "reason"),
    [
        (1, {"sealed": 0}, "not for 1, 2"),
        (1, {"sealed": True}, "a valid integer"),
        (1, {"sealed": 1.0}, "a valid integer"),
        (1, {"sealed": "1"}, "a valid integer"),
        (1, {"sealed": None}, "a valid integer"),
        (1, {"sealed": 257}, "less than or equal to 256"),
        (1, {"sealed": 4}, "not for 1, 2"),
        (0, {"sealed": 5}, "not for 1, 2"),
        (0, {"sealed": 1}, "add up to"),
        (2, {"weight": 3}, "add up to"),
        (1, {"seal": 1}, "canonical form"),
    ],
)
def test_epochs_that_do_not_fit_together_are_refused(
    three_epochs: TaskSet, part: int, fields: dict[str, object], reason: str
) -> None:
    with pytest.raises(MalformedError, match=reason):
        TaskSetDocument.parse(changed(three_epochs.document, part, **fields))


def test_a_sealed_held_out_part_is_refused(one_epoch: TaskSet) -> None:
    document = one_epoch.document
    held = tuple(replace(part, sealed=1) for part in document.held_out)
    with pytest.raises(MalformedError, match="held-out part is sealed"):
        TaskSetDocument(document.parts, held)


def test_tasks_that_are_not_sealed_as_their_part_says_are_refused(tmp_path: Path) -> None:
    tasks = numbered(4)
    mixed = write_task_set(
        tmp_path / "mixed",
        [NewPart("p", ARITHMETIC, [seal_task(tasks[0], MASTERS.of(1), "p"), tasks[1]], 1, (), 1)],
    )
    assert mixed.task(0).sealed is not None
    with pytest.raises(MalformedError, match="is not sealed in a sealed part"):
        mixed.task(1)
    public = write_task_set(
        tmp_path / "public", [NewPart("p", ARITHMETIC, [tasks[0], seal_task(tasks[1], MASTERS.of(1), "p")])]
    )
    with pytest.raises(MalformedError, match="is sealed in a public part"):
        list(public.tasks_of(public.document.parts[0]))


def test_a_sealed_set_is_not_mixed_filtered_or_sealed_again(one_epoch: TaskSet, tmp_path: Path) -> None:
    for make in (
        lambda: mix_sets(tmp_path / "x", [(one_epoch, 1)]),
        lambda: write_subset(one_epoch, [0, 1], tmp_path / "x"),
        lambda: seal_set(one_epoch, ["a"], tmp_path / "x", MASTERS),
    ):
        with pytest.raises(ConfigError, match="has sealed parts"):
            make()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("name", "masters", "reason"), [("c", MASTERS, "no training part"), ("held", MASTERS, "no")])
def test_only_training_parts_are_sealed(
    public: TaskSet, tmp_path: Path, name: str, masters: Masters, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        seal_set(public, [name], tmp_path / "x", masters)


def test_a_part_has_a_task_for_each_epoch(public: TaskSet, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="50 tasks for 51 epochs"):
        seal_set(public, ["a"], tmp_path / "x", Masters(51, bytes(32)))


LINE = seal_task(numbered(1)[0], MASTERS.of(1), "p").to_line()


@pytest.mark.parametrize(
    "change",
    [
        {"reference": {}},
        {"reference": {"answer": "0"}},
        {"sealed": None},
        {"sealed": []},
        {"sealed": ["", "0x" + "00" * 32]},
        {"sealed": ["AAAA", "0x" + "00" * 32]},
        {"sealed": ["A" * 24, "0x" + "AB" * 32]},
        {"sealed": ["A" * 24, "00" * 32]},
        {"sealed": ["A" * 25, "0x" + "00" * 32]},
        {"sealed": ["A" * 24, "0x" + "00" * 32, 1]},
        {"sealed": ["=" * 24, "0x" + "00" * 32]},
        {"sealed": ["é" * 24, "0x" + "00" * 32]},
        {"sealed": [1, "0x" + "00" * 32]},
        {"sealed": {"cipher": "A" * 24}},
    ],
    ids=lambda change: str(change)[:50],
)
def test_a_line_with_a_bad_seal_is_malformed(change: dict[str, object]) -> None:
    document = json.loads(LINE) | change
    with pytest.raises(MalformedError):
        Task.from_line(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def test_base64_has_one_form() -> None:
    """Trailing bits that a decoder drops would give two lines for one task."""
    document = json.loads(LINE)
    cipher = document["sealed"][0]
    assert cipher.endswith("==") or cipher.endswith("=")
    at = cipher.rstrip("=")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = at[:-1] + letters[letters.index(at[-1]) + 1] + "=" * (len(cipher) - len(at))
    document["sealed"][0] = other
    with pytest.raises(MalformedError, match="not in canonical form"):
        Task.from_line(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
