"""Unpacking images: an untrusted archive writes only into its folder and within bounds."""

from __future__ import annotations

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
import pytest

from muster.errors import MalformedError
from muster.sandbox.component import Component
from muster.sandbox.images import MAX_DEPTH, MAX_FILES, MAX_HEADER_BYTES, MAX_TOP, unpacked

HASH = "0x" + "5c" * 32
DOCUMENT = b'{"build":[],"call":[],"environment":{},"file":"program.c","run":["/bin/run"]}'


def file(name: str, data: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def tar(*entries: tuple[tarfile.TarInfo, bytes], document: bytes | None = DOCUMENT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry, data in [*([file("image.json", document)] if document is not None else []), *entries]:
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def unpack(folder: Path, archive: bytes) -> Path:
    path = folder / "image"
    path.write_bytes(pyarrow.Codec("zstd").compress(archive, asbytes=True))
    root, image = unpacked(Component(HASH, path), folder / "cache")
    assert image.run == ("/bin/run",)
    return root


def test_an_image_is_unpacked_without_its_archives_rights(tmp_path: Path):
    setuid, data = file("bin/run", b"#!")
    setuid.mode = 0o4755
    root = unpack(tmp_path, tar((setuid, data), file("lib/a", b"x"), link("lib/b", "a"), link("usr", "/")))
    assert (root / "bin" / "run").stat().st_mode & 0o7777 == 0o500
    assert (root / "lib" / "a").stat().st_mode & 0o7777 == 0o400
    assert ((root / "lib" / "b").readlink(), (root / "usr").readlink()) == (Path("a"), Path("/"))


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../out", "task/x", "task"])
def test_an_image_unpacks_into_its_folder_alone(tmp_path: Path, name: str):
    with pytest.raises(MalformedError, match="outside of it"):
        unpack(tmp_path, tar(file(name)))
    assert not (tmp_path / "out").exists()


def test_no_link_stands_for_the_sandboxs_own_folder(tmp_path: Path):
    # bubblewrap follows it and makes the program's file there, on the machine itself.
    with pytest.raises(MalformedError, match="outside of it"):
        unpack(tmp_path, tar(link("task", f"/oldroot{tmp_path}")))


@pytest.mark.parametrize("behind", [file("way/new/x", b"x"), link("way/x", "/etc"), link("way/new/x", "/etc")])
@pytest.mark.parametrize("first", [True, False])
def test_unpacking_never_writes_through_a_link(tmp_path: Path, behind: tuple[tarfile.TarInfo, bytes], first: bool):
    (tmp_path / "outside").mkdir()
    way = link("way", str(tmp_path / "outside"))
    with pytest.raises(MalformedError, match="behind a link"):
        unpack(tmp_path, tar(*([way, behind] if first else [behind, way])))
    assert list((tmp_path / "outside").iterdir()) == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_an_image_holds_files_folders_and_links(tmp_path: Path, kind: bytes):
    with pytest.raises(MalformedError, match="no file, folder or link"):
        unpack(tmp_path, tar(link("x", "/etc/passwd", kind)))


def test_a_file_with_holes_is_refused(tmp_path: Path):
    entry, data = file("x", b"x" * 512)
    holes = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    holes[156:157], holes[386:410], holes[483:495] = b"S", b"%011o\0%011o\0" % (0, 512), b"%011o\0" % (1 << 28)
    holes[148:156] = b" " * 8
    holes[148:156] = b"%06o\0 " % sum(holes)
    with pytest.raises(MalformedError, match="no file, folder or link"):
        unpack(tmp_path, bytes(holes) + data + tar())


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_headers_have_a_bound_of_their_own(tmp_path: Path, kind: bytes):
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 2 * MAX_HEADER_BYTES
    with pytest.raises(MalformedError, match=f"more than {MAX_HEADER_BYTES} bytes besides its files"):
        unpack(tmp_path, header.tobuf() + b"a" * header.size)


def test_folders_count_that_only_paths_name(tmp_path: Path):
    depth = MAX_DEPTH - 2
    inside = [link(f"a/{i}/{'b/' * (depth - 1)}c", "x") for i in range(MAX_FILES // depth)]
    assert len(inside) < MAX_FILES // 10
    with pytest.raises(MalformedError, match=f"over {MAX_FILES} files"):
        unpack(tmp_path, tar(*inside))


@pytest.mark.parametrize("folders", [MAX_DEPTH, 1900])
def test_paths_are_not_deep(tmp_path: Path, folders: int):
    unpack(tmp_path, tar(file("a/" * (MAX_DEPTH - 1) + "b")))
    (tmp_path / "other").mkdir()
    with pytest.raises(MalformedError, match=f"more than {MAX_DEPTH} folders deep"):
        unpack(tmp_path / "other", tar(file("a/" * folders + "b")))


def test_the_top_is_small(tmp_path: Path):
    # Each is an argument of every program's command.
    with pytest.raises(MalformedError, match=f"more than {MAX_TOP} files and folders at its top"):
        unpack(tmp_path, tar(*(file(f"{i}/x") for i in range(MAX_TOP))))


def test_the_document_is_a_file_of_the_image(tmp_path: Path):
    (tmp_path / "image.json").write_bytes(DOCUMENT)
    with pytest.raises(MalformedError, match=r"without a image\.json"):
        unpack(tmp_path, tar(link("image.json", str(tmp_path / "image.json")), document=None))


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        DOCUMENT.replace(b'"/bin/run"', b'"bin/run"'),
        DOCUMENT.replace(b'"/bin/run"', b'"/bin/run\\u0000"'),
        DOCUMENT.replace(b'"/bin/run"', b""),
        DOCUMENT.replace(b'"environment":{}', b'"environment":{"a=b":"c"}'),
        DOCUMENT.replace(b'"environment":{}', b'"environment":{"\\u0000":"c"}'),
        DOCUMENT.replace(b'"environment":{}', b'"environment":{},"more":1'),
        DOCUMENT.replace(b'"file":"', b'"file":"../'),
        DOCUMENT.replace(b'"file":"', b'"file":"\\u0000'),
        DOCUMENT.replace(b'"build":[]', b'"build":[' + b",".join([b'["/a"]'] * 9) + b"]"),
        b'{"build":[],"call":[],"environment":{},"file":"out","run":["/a"]}',
        b'{"build":[],"call":[],"environment":{},"file":"program.c","run":["/\\ud800"]}',
        DOCUMENT.replace(b'"call":[]', b'"call":' + b"[" * 30_000 + b"]" * 30_000),
    ],
)
def test_a_document_that_no_command_can_be_made_of_is_refused(tmp_path: Path, document: bytes):
    with pytest.raises(MalformedError, match=r"not an image's image\.json"):
        unpack(tmp_path, tar(document=document))


def test_leftovers_of_a_killed_process_are_deleted(tmp_path: Path):
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "image.part" / "lib").mkdir(parents=True)
    (tmp_path / "cache" / "image.part" / "lib" / "old").touch()
    root = unpack(tmp_path, tar(file("lib/new")))
    assert [path.name for path in (root / "lib").iterdir()] == ["new"]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [root.name, "lock"]


def test_an_image_has_its_name_once_its_files_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # After a power failure its files might be empty otherwise, and programs fail that are right.
    there: list[list[str]] = []
    monkeypatch.setattr(os, "sync", lambda: there.append(sorted(path.name for path in (tmp_path / "cache").iterdir())))
    unpack(tmp_path, tar(file("lib/a")))
    assert there == [["image.part", "lock"]]


def test_several_that_want_it_at_once_unpack_it_once(tmp_path: Path):
    archive = tar(*(file(f"lib/{i}", b"x" * 1000) for i in range(300)))
    (tmp_path / "image").write_bytes(pyarrow.Codec("zstd").compress(archive, asbytes=True))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: unpacked(Component(HASH, tmp_path / "image"), tmp_path / "cache"), range(8)))
    assert len({root for root, _ in found}) == 1
    assert len(list((found[0][0] / "lib").iterdir())) == 300
