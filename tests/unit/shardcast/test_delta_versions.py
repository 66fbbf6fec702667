"""Differences as versions: published beside the steps, kept instead of them, opened with suspicion."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.errors import MalformedError, MismatchError, StorageError
from muster.shardcast.delta.codec import TypedSpan
from muster.shardcast.delta.difference import TargetStep, made_shard, same_tiling
from muster.shardcast.delta.frames import cut, spans_of, write_frames
from muster.shardcast.delta.kinds import open_difference
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.format.manifest import FRAMES_NAME, TARGET_NAME, File, Manifest
from muster.shardcast.format.store import (
    MAX_CHAIN,
    MAX_INDEX_ENTRIES,
    entry_of,
    index_of,
    parse_index,
    read_manifest,
    verify_folder,
    version_path,
    versions,
)
from muster.shardcast.publish import publish
from muster.shardcast.retention import HeldVersion, StepRetention, kept
from testbed.weights.checkpoints import (
    RUN,
    SHARD,
    contents,
    flip_bit,
    keeping,
    noise,
    publish_steps,
    safetensors,
    write_step,
)


def differences(folder: Path) -> dict[tuple[int | None, int], Path]:
    """Return the differences in a folder of versions, by base step and step."""
    found = {version.path: read_manifest(version.path) for version in versions(folder)}
    return {(made.base_step, made.step): path for path, made in found.items() if made.base_step is not None}


def whole_steps(folder: Path) -> set[int]:
    manifests = [read_manifest(version.path) for version in versions(folder)]
    return {manifest.step for manifest in manifests if manifest.base_step is None}


@pytest.fixture(scope="module")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Manifest]]:
    """Return a folder with steps 0 to 2 and their differences in `published`, and the steps' manifests."""
    folder = tmp_path_factory.mktemp("deltas")
    return folder, publish_steps(folder, 3)


# Publishing


def test_a_difference_is_a_small_version_that_makes_the_step(run_fixture: tuple[Path, list[Manifest]]) -> None:
    folder, made = run_fixture
    published = folder / "published"
    found = differences(published)
    assert set(found) == {(0, 1), (1, 2)}
    assert whole_steps(published) == {0, 1, 2}
    for (base, step), path in found.items():
        assert base is not None
        manifest = read_manifest(path)
        assert verify_folder(path).problems == ()
        assert manifest.total_bytes * 50 < made[step].total_bytes
        start = TargetStep(version_path(published, made[base].root), made[base])
        difference = open_difference(path, made[step].root)
        shards = [made_shard(start, [difference], shard) for shard in made[step].shards]
        whole = contents(folder / f"checkpoint-{step}")
        assert b"".join(shard or b"" for shard in shards) == whole["config.json"] + whole["model.safetensors"]
    index = parse_index((published / "index.json").read_bytes())
    assert [(e.step, e.base_step) for e in index.versions] == [(2, None), (2, 1), (1, None), (1, 0), (0, None)]


def test_the_root_of_a_step_is_the_same_with_and_without_a_difference(
    run_fixture: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    folder, made = run_fixture
    alone = publish(folder / "checkpoint-2", tmp_path / "out", RUN, 2, shard_bytes=SHARD)
    assert alone.root == made[2].root


def test_publishing_again_changes_nothing_and_mends_a_difference(tmp_path: Path) -> None:
    publish_steps(tmp_path, 2)
    published = tmp_path / "published"
    ((_, path),) = differences(published).items()
    inode = (path / FRAMES_NAME).stat().st_ino
    publish_steps(tmp_path, 2)
    assert (path / FRAMES_NAME).stat().st_ino == inode
    flip_bit(path / FRAMES_NAME, 500)
    publish_steps(tmp_path, 2)
    assert verify_folder(path).problems == ()
    assert sorted(entry.name for entry in published.iterdir() if entry.name[0] != "0") == ["index.json"]


def test_difference_is_rebuilt_when_its_step_is_rewritten(tmp_path: Path) -> None:
    made = publish_steps(tmp_path, 2)
    published = tmp_path / "published"
    write_step(tmp_path / "other", 7)
    other = publish(tmp_path / "other", published, RUN, 1, shard_bytes=SHARD, deltas=keeping(whole=100))
    assert other.root != made[1].root
    ((_, path),) = differences(published).items()
    assert open_difference(path, other.root).target == other
    with pytest.raises(MismatchError):
        open_difference(path, made[1].root)


def test_no_difference_where_it_would_save_too_little(tmp_path: Path) -> None:
    out, deltas = tmp_path / "published", keeping(whole=100)
    publish(write_step(tmp_path / "0", 0), out, RUN, 0, shard_bytes=SHARD, deltas=deltas)
    (tmp_path / "0" / "model.safetensors").write_bytes(noise(1_000_000, 1))
    publish(tmp_path / "0", out, RUN, 1, shard_bytes=SHARD, deltas=deltas)
    assert differences(out) == {}
    publish(tmp_path / "0", out, RUN, 2, shard_bytes=SHARD // 2, deltas=deltas)
    assert differences(out) == {}, "cut differently"
    publish(tmp_path / "0", out, 9, 3, shard_bytes=SHARD // 2, deltas=deltas)
    assert differences(out) == {}, "of another run"


def test_a_damaged_base_makes_a_larger_difference_and_not_a_wrong_one(tmp_path: Path) -> None:
    made = publish_steps(tmp_path, 1)
    published = tmp_path / "published"
    flip_bit(version_path(published, made[0].root) / "model.safetensors", 2 * SHARD + 5)
    made += [
        publish(write_step(tmp_path / "1", 1), published, RUN, 1, shard_bytes=SHARD, keep=9, deltas=keeping(whole=100))
    ]
    ((_, path),) = differences(published).items()
    assert read_manifest(path).total_bytes > SHARD // 2, "the shard is in it as it is"
    good = TargetStep(tmp_path / "checkpoint-0", made[0])
    difference = open_difference(path)
    assert all(made_shard(good, [difference], shard) for shard in made[1].shards)


def test_a_damaged_step_is_not_what_a_difference_is_made_of(
    run_fixture: tuple[Path, list[Manifest]], tmp_path: Path
) -> None:
    folder, made = run_fixture
    damaged = write_step(tmp_path / "1", 1)
    flip_bit(damaged / "model.safetensors", 100_000)
    base = TargetStep(version_path(folder / "published", made[0].root), made[0])
    with pytest.raises(StorageError, match=r"shard 2 of .* is damaged"):
        write_frames(base, TargetStep(damaged, made[1]), tmp_path)


# StepRetention


def test_old_steps_are_kept_as_anchors_and_differences(tmp_path: Path) -> None:
    publish_steps(tmp_path, 7, deltas=keeping(whole_every=4, whole=2), keep=6)
    published = tmp_path / "published"
    assert whole_steps(published) == {0, 4, 5, 6}
    assert set(differences(published)) == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)}
    publish_steps(tmp_path, 8, first=7, deltas=keeping(whole_every=4, whole=1), keep=2)
    assert whole_steps(published) == {4, 7}
    assert set(differences(published)) == {(4, 5), (5, 6), (6, 7)}
    publish_steps(tmp_path, 8, first=7, deltas=keeping(whole_every=4, whole=1), keep=2)
    assert set(differences(published)) == {(4, 5), (5, 6), (6, 7)}, "there is one already"


def shelf(steps: int, missing: set[int] = frozenset()) -> list[HeldVersion]:  # type: ignore[assignment]
    """Return a whole version of each step, and a difference of most; published at the second of the step."""
    whole = [HeldVersion(bytes([0, step]), step, None, 1000, step) for step in range(steps)]
    return whole + [HeldVersion(bytes([1, s]), s, s - 1, 10, s) for s in range(1, steps) if s not in missing]


def chosen(
    held: list[HeldVersion], newest: int, deltas: StepRetention, now: float = 1000
) -> tuple[list[int], list[int]]:
    """Return steps kept whole, and steps whose difference is kept."""
    roots = kept(held, newest, deltas, now)
    return sorted(root[1] for root in roots if not root[0]), sorted(root[1] for root in roots if root[0])


def test_versions_that_wanted_steps_need_are_kept() -> None:
    assert chosen(shelf(10), 10, keeping(4, 2)) == ([0, 4, 8, 9], list(range(1, 10)))
    assert chosen(shelf(10), 4, keeping(4, 1)) == ([4, 8, 9], [5, 6, 7, 8, 9]), "7 and 6 are made from 4"
    assert chosen(shelf(10, missing={6}), 10, keeping(4, 1)) == ([0, 4, 6, 8, 9], [1, 2, 3, 4, 5, 7, 8, 9])
    assert chosen(shelf(10, missing=set(range(10))), 3, keeping(4, 1)) == ([7, 8, 9], [])


@pytest.mark.parametrize(("base_step", "size"), [(4, 10), (8, 501)], ids=["another base", "too large"])
def test_a_difference_that_no_route_uses_replaces_no_whole_step(base_step: int, size: int) -> None:
    odd = HeldVersion(bytes([1, 9]), 9, base_step, size, 9)
    kept_whole, kept_deltas = chosen([*shelf(11, missing={9}), odd], 11, keeping(20, 1))
    assert (kept_whole, kept_deltas) == ([0, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 10])


def test_steps_that_were_replaced_a_short_while_ago_are_kept_however_many_they_are() -> None:
    assert chosen(shelf(10), 1, keeping(100, 1, seconds=5.5), now=10) == ([0, 9], list(range(1, 10)))
    assert chosen(shelf(10), 1, keeping(2, 1, seconds=4.5), now=10) == ([4, 6, 8, 9], [5, 6, 7, 8, 9])
    old = [HeldVersion(bytes([0, s]), s, None, 1000, when) for s, when in enumerate((0, 1, 900, 901))]
    assert chosen(old, 1, keeping(1, 1, seconds=100), now=950) == ([1, 2, 3], []), "there was work on 1 until 900"


def test_a_step_stays_whole_before_the_way_to_it_grows_too_long_or_too_dear() -> None:
    assert chosen(shelf(MAX_CHAIN + 3), 2, keeping(1000, 1))[0] == [1, MAX_CHAIN + 2], "0 is 65 from the last but one"
    dear = [replace(h, size=500) if h.base_step is not None else h for h in shelf(20)]
    assert chosen(dear, 20, keeping(1000, 1))[0] == [0, 2, 19], "from 2 to 18 there are eight times a step"


@given(
    st.integers(1, 12),
    st.sets(st.integers(1, 11)),
    st.sets(st.integers(0, 11)),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_every_wanted_step_that_could_be_made_still_can(
    steps: int, no_delta: set[int], no_whole: set[int], newest: int, whole_every: int, whole: int
) -> None:
    held = [h for h in shelf(steps, no_delta) if h.base_step is not None or h.step not in no_whole]

    def makeable(versions: list[HeldVersion]) -> set[int]:
        whole_ones = {h.step for h in versions if h.base_step is None}
        for h in sorted(versions, key=lambda h: h.step):
            if h.base_step in whole_ones:
                whole_ones.add(h.step)
        return whole_ones

    roots = kept(held, newest, keeping(whole_every, whole), 1e9)
    wanted = sorted({h.step for h in held}, reverse=True)[:newest]
    assert makeable(held) & set(wanted) <= makeable([h for h in held if h.root in roots])


# Offsets of the numbers


def test_numbers_are_found_in_safetensors_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = safetensors({"a": ("F32", bytes(40)), "b": ("BF16", bytes(20)), "c": ("F16", bytes(6)), "d": ("U8", b"xyz")})
    path.write_bytes(data)
    head = len(data) - 69
    assert spans_of(path) == [TypedSpan(1, head), TypedSpan(4, 40), TypedSpan(2, 26), TypedSpan(1, 3)]
    for odd in (b"", b"\xff" * 9, data[:30], b"\x02" + bytes(7) + b"[]", b"\x0b" + bytes(7) + b'{"a": null}'):
        path.write_bytes(odd)
        assert spans_of(path) == ([TypedSpan(1, len(odd))] if odd else [])
    path.write_bytes(data[:-30])
    assert sum(span.size for span in spans_of(path)) == len(data) - 30
    (tmp_path / "model.json").write_bytes(data)
    assert spans_of(tmp_path / "model.json") == [TypedSpan(1, len(data))]


def test_a_number_that_is_cut_through_becomes_bytes() -> None:
    layout = [TypedSpan(1, 5), TypedSpan(4, 20), TypedSpan(2, 6)]
    assert cut(layout, 0, 31) == layout
    assert cut(layout, 0, 8) == [TypedSpan(1, 8)]
    assert cut(layout, 8, 15) == [TypedSpan(1, 1), TypedSpan(4, 4), TypedSpan(1, 2)]
    assert cut(layout, 9, 27) == [TypedSpan(4, 16), TypedSpan(2, 2)]
    assert cut(layout, 26, 27) == [TypedSpan(1, 1)]
    for start in range(32):
        for stop in range(start, 32):
            assert sum(span.size for span in cut(layout, start, stop)) == stop - start


# Hostile differences


@pytest.fixture
def version(run_fixture: tuple[Path, list[Manifest]], tmp_path: Path) -> Path:
    """Return a difference from step 0 to 1 that a test may spoil."""
    path = differences(run_fixture[0] / "published")[0, 1]
    for name in (TARGET_NAME, FRAMES_NAME):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    return tmp_path


def spoil(version: Path, at: int, data: bytes) -> None:
    frames = bytearray((version / FRAMES_NAME).read_bytes())
    frames[at : at + len(data)] = data
    (version / FRAMES_NAME).write_bytes(frames)


@pytest.mark.parametrize(
    ("at", "data", "says"),
    [
        (0, b"X", "no frames"),
        (8, struct.pack("<I", 3), "no frames"),
        (8, struct.pack("<I", 0xFFFFFFFF), "no frames"),
        (12, struct.pack("<I", 0xFFFFFFFF), "a frame of"),
        (12, struct.pack("<I", 7), "frames of"),
    ],
)
def test_a_table_that_is_not_right_is_refused(version: Path, at: int, data: bytes, says: str) -> None:
    spoil(version, at, data)
    with pytest.raises(MalformedError, match=says):
        open_difference(version)


def test_a_file_of_another_length_is_refused(version: Path) -> None:
    whole = (version / FRAMES_NAME).read_bytes()
    for data, says in (
        (whole[:-1], "frames of"),
        (whole + b"x", "frames of"),
        (whole[:9], "end at byte"),
        (b"", "end"),
    ):
        (version / FRAMES_NAME).write_bytes(data)
        with pytest.raises(MalformedError, match=says):
            open_difference(version)
    (version / FRAMES_NAME).unlink()
    with pytest.raises(StorageError):
        open_difference(version)


def test_a_lie_in_a_frame_makes_no_shard(version: Path, run_fixture: tuple[Path, list[Manifest]]) -> None:
    folder, made = run_fixture
    start = TargetStep(version_path(folder / "published", made[0].root), made[0])
    size = (version / FRAMES_NAME).stat().st_size
    lies = 0
    for at in range(12 + 4 * len(made[1].shards), size, 97):
        honest = (version / FRAMES_NAME).read_bytes()
        spoil(version, at, bytes([honest[at] ^ 1]))
        difference = open_difference(version, made[1].root)
        shards = [made_shard(start, [difference], shard) for shard in made[1].shards]
        assert shards.count(None) <= 1
        lies += shards.count(None)
        (version / FRAMES_NAME).write_bytes(honest)
    assert lies > size // 97 - 5, "all but a few, which zstd does not look at"


async def test_a_difference_is_what_was_offered(run_fixture: tuple[Path, list[Manifest]], tmp_path: Path) -> None:
    folder, made = run_fixture
    manifest = read_manifest(differences(folder / "published")[0, 1])

    async def check(manifest: Manifest, run: int, step: int, base: int | None, limit: int) -> None:
        bounds = FetchBounds(max_bytes=limit)
        await FetchRequest(manifest.root, run, step, (), tmp_path, bounds, base_step=base).check(manifest)

    await check(manifest, RUN, 1, 0, manifest.total_bytes)
    for run, step in ((2, 1), (RUN, 2)):
        with pytest.raises(MismatchError, match="is the root of step 1 of run 1"):
            await check(manifest, run, step, 0, 10**9)
    for base in (1, None):
        with pytest.raises(MalformedError, match="is a difference to step 0, which was not asked for"):
            await check(manifest, RUN, 1, base, 10**9)
    with pytest.raises(MalformedError, match="is a whole step"):
        await check(made[1], RUN, 1, 0, 10**9)
    with pytest.raises(MalformedError, match="at most"):
        await check(manifest, RUN, 1, 0, manifest.total_bytes - 1)
    with pytest.raises(ValidationError, match="are not those of a difference"):
        Manifest(**{**dict(made[1]), "base_step": 0})
    assert same_tiling(made[0], made[1])
    assert not same_tiling(made[0], manifest)


def test_an_index_that_cannot_hold_all_holds_the_newest_and_the_first_step() -> None:
    def manifest(step: int, base: int | None) -> Manifest:
        return empty.model_copy(update={"step": step, "base_step": base})

    empty = Manifest(run=RUN, step=0, files=(File(name="model.safetensors", size=0),), shards=())
    held = [manifest(0, None), *(manifest(step, 0) for step in range(1, 2 * MAX_INDEX_ENTRIES))]
    entries = index_of([entry_of(made) for made in held]).versions
    assert len(entries) == MAX_INDEX_ENTRIES
    assert [entry.step for entry in entries[-2:]] == [MAX_INDEX_ENTRIES + 1, 0]
    assert entries[0].step == 2 * MAX_INDEX_ENTRIES - 1
