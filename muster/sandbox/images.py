"""Images for native programs: an interpreter or a compiler with all that it needs, as one file named by its hash.

An image is a tar of folders, regular files and symbolic links, packed by zstd, kept and fetched like a component. Its
file `image.json` says how programs are built and run in it. Unpacked it becomes the root of the sandbox's file system,
so a program's result does not depend on what is installed on a machine.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Final

import pyarrow
from pydantic import AfterValidator, ConfigDict, Field, with_config

from muster.errors import ConfigError, MalformedError
from muster.runtime.documents import parse_json
from muster.runtime.files import locked, private_folder
from muster.sandbox.component import Component, default_folder
from muster.sandbox.native_walls import WORK

DOCUMENT_NAME: Final = "image.json"
MAX_DOCUMENT_BYTES: Final = 1 << 16
MAX_FILES: Final = 20_000
"""Of files, folders and links, also of those folders that only a file's path names."""
MAX_TOP: Final = 64
"""Of these at the top: each is a mount of every program that is run."""
MAX_DEPTH: Final = 32
MAX_UNPACKED_BYTES: Final = 512 * 1024**2
MAX_HEADER_BYTES: Final = 64 * 1024**2
"""Of the archive, besides its files. tarfile holds a header as a whole, however long it says to be."""
MAX_STEPS: Final = 8

_RESERVED: Final = (WORK.strip("/"),)
"""Top-level names that are the sandbox's own. bubblewrap would follow a link of such a name out of the sandbox."""


def _check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words[0].startswith("/"):
        raise ValueError(f"a command begins with a path from the root, not with {words[0][:80]!r}")
    return words


def _check_name(name: str) -> str:
    if name in (".", "..", "in", "out", "program"):
        raise ValueError(f"a program cannot be called {name!r}")
    return name


_Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
_Command = Annotated[tuple[_Word, ...], Field(min_length=1, max_length=64), AfterValidator(_check_command)]


@with_config(ConfigDict(extra="forbid", strict=True))
@dataclass(frozen=True)
class Image:
    """How programs are built and run in an image. Every command is one process: it can start no other."""

    file: Annotated[_Word, Field(pattern=r"^[^/\x00]*$"), AfterValidator(_check_name)]
    """What the program's text is called in `/task`."""
    run: _Command
    """Runs a program that reads standard input and writes standard output."""
    call: _Command | tuple[()] = ()
    """Calls one function of a program: reads a JSON payload and writes a JSON result. Empty where that is not so."""
    build: Annotated[tuple[_Command, ...], Field(max_length=MAX_STEPS)] = ()
    """Steps that make a program of its text. Each reads `/task/in` and writes `/task/out`; the last one's output is
    `/task/program`."""
    environment: Mapping[Annotated[_Word, Field(pattern=r"^[^=\x00]*$")], _Word] = field(default_factory=dict)


# --- Unpacked


def unpacked(component: Component, folder: Path | None = None) -> tuple[Path, Image]:
    """Return an image's folder on this machine, unpacked when it is not here yet, and what it says of itself.

    Several processes that want it at once unpack it once. Raises MalformedError when it is no image.
    """
    folder = private_folder(folder or default_folder())
    root = folder / f"image-{component.hash[2:]}"
    if not root.exists():
        with locked(folder / "lock"):
            if not root.exists():
                temporary = folder / "image.part"  # one name, so that what a killed process left is deleted
                shutil.rmtree(temporary, ignore_errors=True)
                try:
                    _unpack(component.path, temporary)
                    read_image(temporary)
                    os.sync()  # after a power failure an empty file in a whole image would be the programs' fault
                    temporary.replace(root)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    return root, read_image(root)


def read_image(root: Path) -> Image:
    """Return what an unpacked image says of itself. Raises MalformedError."""
    try:
        with os.fdopen(os.open(root / DOCUMENT_NAME, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            document = stream.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise MalformedError(f"an image without a {DOCUMENT_NAME} that can be read: {error}") from error
    return parse_json(Image, document, f"an image's {DOCUMENT_NAME}", MAX_DOCUMENT_BYTES)


class _BoundedStream:
    """An archive's bytes, of which no more come than `room`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.room = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        """Read as a file does. Raises MalformedError where there is no room for it."""
        data = self._stream.read(size)
        self.room -= len(data)
        if self.room < 0:
            raise MalformedError(f"an image with more than {MAX_HEADER_BYTES} bytes besides its files")
        return data


def _unpack(source: Path, root: Path) -> None:
    """Unpack a stranger's archive into a new folder, and nowhere else."""
    root.mkdir(mode=0o700)
    places: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    links: list[tuple[PurePosixPath, str]] = []
    count = size = 0
    try:
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(source)), "zstd") as packed:
            stream: Any = _BoundedStream(packed)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # 1. Count it, and the folders that its path names.
                    path = _inside(member.name)
                    folders.update(path.parents)
                    places.update((path, *path.parents))
                    count, size = count + 1, size + max(0, member.size)
                    if max(count, len(places)) > MAX_FILES or size > MAX_UNPACKED_BYTES:
                        raise MalformedError(f"an image of over {MAX_FILES} files or {MAX_UNPACKED_BYTES} bytes")

                    # 2. Write it.
                    if member.isdir():
                        (root / path).mkdir(parents=True, exist_ok=True)
                    elif member.issym():
                        links.append((path, member.linkname))
                    elif member.isreg() and not member.issparse():
                        stream.room += member.size
                        _write(archive.extractfile(member), root / path, executable=bool(member.mode & 0o100))
                    else:
                        raise MalformedError(f"an image with {member.name[:80]!r}, which is no file, folder or link")

        # 3. Links come last, and none stands where a path leads through it: nothing is written through one.
        if any(path in folders for path, _ in links):
            raise MalformedError("an image with a file behind a link")
        if sum(len(path.parts) == 1 for path in places) > MAX_TOP:
            raise MalformedError(f"an image with more than {MAX_TOP} files and folders at its top")
        for path, target in links:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
    except (tarfile.TarError, pyarrow.ArrowException, OSError, EOFError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None and error.errno in _NO_ROOM:
            raise ConfigError(f"the image cannot be unpacked: {error.strerror}", hint="is the disk full?") from error
        raise MalformedError(f"an image that cannot be unpacked: {error}") from error


def _write(content: IO[bytes] | None, path: Path, *, executable: bool) -> None:
    assert content is not None  # it is a regular file's
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o500 if executable else 0o400)


_NO_ROOM: Final = (28, 122, 30)  # ENOSPC, EDQUOT, EROFS


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] in _RESERVED or "\0" in name:
        raise MalformedError(f"an image with a file outside of it: {name[:80]!r}")
    if len(path.parts) > MAX_DEPTH:
        raise MalformedError(f"an image with a file more than {MAX_DEPTH} folders deep: {name[:80]!r}")
    return path
