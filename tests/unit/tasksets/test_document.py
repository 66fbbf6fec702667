"""The document: one form, one root, and draws that are as even as it says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import MalformedError
from muster.tasksets.document import (
    MAX_DOCUMENT_BYTES,
    MAX_SLOTS,
    ShardEntry,
    TaskSetDocument,
    TaskSetPart,
    TaskSource,
)
from testbed.paths import ROOT
from testbed.samples.task_sets import ARITHMETIC, SORTING, SOURCE

VECTOR = json.loads((ROOT / "tests" / "unit" / "vectors" / "task_set.json").read_text())


def part_of(count: int, name: str = "p", weight: int = 1) -> TaskSetPart:
    """A part whose shards are named only."""
    sizes = [1024] * (count // 1024) + ([count % 1024] if count % 1024 else [])
    shards = tuple(
        ShardEntry(f"0x{i:064x}", i.to_bytes(32, "big"), size, 100 * size) for i, size in enumerate(sizes, start=1)
    )
    return TaskSetPart(name, SORTING, shards, weight, (SOURCE,))


# --- One form


def test_the_committed_document_has_its_committed_root() -> None:
    data = VECTOR["document"].encode()
    document = TaskSetDocument.parse(data)
    assert document.to_bytes() == data
    assert document.root.hex() == VECTOR["root"]
    assert document.parts[0].root.hex() == VECTOR["part_root"]
    assert document.slots == VECTOR["slots"] == 4294967292
    assert [[slot, *document.locate(slot)] for slot, _, _ in VECTOR["located"]] == VECTOR["located"]


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
entries = st.builds(
    ShardEntry,
    st.binary(min_size=32, max_size=32).map(lambda data: "0x" + data.hex()),
    st.binary(min_size=32, max_size=32),
    st.integers(1, 1024),
    st.integers(1, 16 * 1024**2),
)
sources = st.builds(TaskSource, texts.filter(bool), texts.filter(bool), texts)
parts = st.builds(
    TaskSetPart,
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
    st.sampled_from([SORTING, ARITHMETIC]),
    st.lists(entries, min_size=1, max_size=4).map(tuple),
    st.integers(1, 100),
    st.lists(sources, max_size=2).map(tuple),
)
some_parts = st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part.name).map(tuple)


@given(some_parts, st.just(()) | some_parts)
def test_any_document_comes_back_as_it_was(train: tuple[TaskSetPart, ...], held: tuple[TaskSetPart, ...]) -> None:
    document = TaskSetDocument(train, held)
    assert TaskSetDocument.parse(document.to_bytes()) == document


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_bytes_that_are_no_document_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        TaskSetDocument.parse(data)


def change(path: list[Any], value: object) -> bytes:
    """The committed document with one value changed, in canonical JSON."""
    document = json.loads(VECTOR["document"])
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["format"], "muster.tasks.v1", "format: Input should be 'muster.tasks.v2'"),
        (["grades"], {}, "canonical form"),
        (["more"], 1, "canonical form"),
        (["held_out"], ..., "canonical form"),
        (["parts"], [], "1 to 256 parts"),
        (["parts"], {}, "parts: Input should be a valid array"),
        (["parts", 1, "name"], "first", "one name"),
        (["parts", 0, "name"], "../../etc", "parts.0.name: String should match"),
        (["parts", 0, "name"], "First", "parts.0.name: String should match"),
        (["parts", 0, "name"], "n" * 65, "parts.0.name: String should match"),
        (["parts", 0, "count"], 4, 'canonical form: .*"count":4,.* not .*"count":3,'),
        (["parts", 0, "count"], 3.0, 'canonical form: .*"count":3.0'),
        (["parts", 0, "root"], "00" * 32, 'canonical form: .*"root":"00'),
        (["parts", 0, "weight"], 0, "parts.0.weight: Input should be greater"),
        (["parts", 0, "weight"], True, "parts.0.weight: Input should be a valid integer"),
        (["parts", 0, "weight"], 1.0, "parts.0.weight: Input should be a valid integer"),
        (["parts", 0, "weight"], 10**400, "parts.0.weight: Input should be less"),
        (["parts", 0, "weight"], MAX_SLOTS // 2, "too large"),
        (["parts", 0, "shards"], [], "parts.0.shards: Tuple should have at least 1"),
        (["parts", 0, "shards", 0, "count"], 1025, "less than or equal to 1024"),
        (["parts", 0, "shards", 0, "count"], 0, "greater than or equal to 1"),
        (["parts", 0, "shards", 0, "bytes"], 16 * 1024**2 + 1, "parts.0.shards.0.bytes: Input should be less"),
        (["parts", 0, "shards", 0, "hash"], "0x" + "A" * 64, "shards.0.hash: String should match"),
        (["parts", 0, "shards", 0, "hash"], "../" * 22, "shards.0.hash: String should match"),
        (["parts", 0, "shards", 0, "root"], "0x" + "a" * 62, "shards.0.root: Data should be valid hex"),
        (["parts", 0, "shards", 0, "root"], "a" * 64, "canonical form"),
        (["parts", 0, "environment"], {}, "parts.0.environment.name: Field required"),
        (["parts", 0, "environment", "version"], True, "environment.version: Input should be a valid integer"),
        (["parts", 0, "environment", "weights"], {str(i): "x" for i in range(9)}, "weights: .* 9 members; at most 8"),
        (["parts", 0, "sources", 0, "licence"], "", "sources.0.licence: String should have at least 1"),
        (["parts", 0, "sources", 0, "note"], "n" * 2001, "sources.0.note: String should have at most 2000"),
        (["parts", 0, "sources"], [{"licence": "MIT", "origin": "here"}] * 65, "at most 64"),
    ],
)
def test_a_document_that_does_not_fit_together_is_refused_and_says_why(
    path: list[Any], value: object, says: str
) -> None:
    with pytest.raises(MalformedError, match=says):
        TaskSetDocument.parse(change(path, value))


@pytest.mark.parametrize(
    "data",
    [
        VECTOR["document"].encode() + b"\n",
        b" " + VECTOR["document"].encode(),
        VECTOR["document"].replace(":3,", ":3, ", 1).encode(),
        VECTOR["document"].replace("\\u00dc", "Ü").encode(),
        json.dumps(json.loads(VECTOR["document"])).encode(),
    ],
)
def test_another_form_of_the_same_document_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError, match="canonical form"):
        TaskSetDocument.parse(data)


def test_a_document_of_any_size_or_depth_is_only_malformed() -> None:
    for data in (b"[" * 10**6, b'{"format":' * 10**5, b" " * (MAX_DOCUMENT_BYTES + 1), b"1" * 10**5):
        with pytest.raises(MalformedError):
            TaskSetDocument.parse(data)


# --- Slots


def test_one_part_has_a_slot_per_task() -> None:
    document = TaskSetDocument((part_of(2500, weight=7),))
    assert document.slots == 2500
    assert [document.locate(slot) for slot in (0, 1, 2499)] == [(0, 0), (0, 1), (0, 2499)]
    for slot in (-1, 2500):
        with pytest.raises(IndexError):
            document.locate(slot)


def test_exact_slots_of_a_mixture() -> None:
    document = TaskSetDocument((part_of(10, "a", 2), part_of(3, "b", 1), part_of(5, "c", 4)))
    assert document.slots == 7 * 613566756 == 4294967292
    assert [document.locate(slot) for slot in range(9)] == [
        *[(0, 0), (0, 0), (1, 0), (2, 0), (2, 0), (2, 0), (2, 0)],
        *[(0, 1), (0, 1)],
    ]
    assert document.locate(7 * 13 + 2) == (1, 13 % 3)
    assert document.locate(4294967291) == (2, 613566755 % 5)
    with pytest.raises(IndexError):
        document.locate(4294967292)


@given(
    st.lists(st.tuples(st.integers(1, 300_000), st.integers(1, 12)), min_size=2, max_size=5), st.integers(0, MAX_SLOTS)
)
def test_tasks_of_a_part_are_drawn_equally_often_and_parts_by_weight(sizes: list[tuple[int, int]], slot: int) -> None:
    document = TaskSetDocument(tuple(part_of(n, f"p{i}", w) for i, (n, w) in enumerate(sizes)))
    total = sum(weight for _, weight in sizes)
    rounds, rest = divmod(document.slots, total)
    assert rest == 0
    assert document.slots > MAX_SLOTS - total
    for count, _ in sizes:
        least, most = rounds // count, -(-rounds // count)
        assert most / least <= 1.01
    part, index = document.locate(slot % document.slots)
    assert 0 <= index < sizes[part][0]
    # The slots of one round fall on the parts by weight, and on one task of each.
    start = slot % document.slots // total * total
    assert Counter(document.locate(one)[0] for one in range(start, start + total)) == Counter(
        {i: weight for i, (_, weight) in enumerate(sizes)}
    )


def test_frequencies_over_many_random_slots() -> None:
    from random import Random

    document = TaskSetDocument((part_of(20, "a", 3), part_of(5, "b", 1)))
    random = Random(1)
    drawn = Counter(document.locate(random.randrange(1 << 128) % document.slots) for _ in range(40_000))
    assert abs(sum(n for (part, _), n in drawn.items() if part == 0) / 40_000 - 0.75) < 0.01
    assert all(abs(drawn[0, i] - 1500) < 5 * 1500**0.5 for i in range(20))
    assert all(abs(drawn[1, i] - 2000) < 5 * 2000**0.5 for i in range(5))


def test_weights_that_would_make_draws_uneven_are_refused() -> None:
    large = part_of(285_000, "a", 149)
    assert TaskSetDocument((large, part_of(10, "b", 1))).slots == 150 * (MAX_SLOTS // 150)
    with pytest.raises(MalformedError, match="smaller weights"):
        TaskSetDocument((replace(large, weight=150), part_of(10, "b", 1)))


@given(st.integers(1, 5000), st.data())
def test_an_index_is_found_in_the_shard_that_holds_it(count: int, data: st.DataObject) -> None:
    part = part_of(count)
    index = data.draw(st.integers(0, count - 1))
    assert part.locate(index) == (index // 1024, index % 1024)
    for outside in (-1, count):
        with pytest.raises(IndexError):
            part.locate(outside)
