"""Serve the page's sheet, scripts and pictures, under a path that has their hash: browsers keep them for good.

All are read and compressed once, at the start.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Self

from starlette.requests import Request
from starlette.responses import Response

KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
PACKING: Final = 5
"""Level of compression of what is made again every few seconds."""
LEAST_COMPRESSED: Final = 1_000
"""Bytes below which compressing gains nothing."""


@dataclass(frozen=True)
class Asset:
    kind: str
    """Media type."""
    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, kind: str, data: bytes) -> Self:
        return cls(kind, data, pack(data, 9))


class Assets:
    """The files below static/, by their path there."""

    def __init__(self) -> None:
        self._files = {path: Asset.of(kind, data) for path, kind, data in _found(files("explorer") / "static")}
        digest = hashlib.sha256()
        for path, asset in sorted(self._files.items()):
            digest.update(f"{path}\0{len(asset.plain)}\0".encode() + asset.plain)
        self.base = f"/static/{digest.hexdigest()[:16]}"
        """Path that they are served under."""

    def response(self, request: Request, path: str) -> Response | None:
        """Return a file as an answer; None where there is none of this path."""
        asset = self._files.get(path)
        return None if asset is None else compressed(request, asset.plain, asset.packed, asset.kind, FOREVER)


def pack(plain: bytes, level: int = PACKING) -> bytes:
    """Compress what browsers are sent; the same bytes give the same result."""
    return gzip.compress(plain, level, mtime=0)


def compressed(request: Request, plain: bytes, packed: bytes, kind: str, headers: dict[str, str]) -> Response:
    """Return what the browser can read: gzip where it says so and where that is shorter."""
    gains = len(plain) >= LEAST_COMPRESSED and "gzip" in request.headers.get("accept-encoding", "")
    encoding = {"Content-Encoding": "gzip"} if gains else {}
    return Response(
        packed if gains else plain, media_type=kind, headers={**headers, **encoding, "Vary": "Accept-Encoding"}
    )


def _found(folder: Traversable, prefix: str = "") -> list[tuple[str, str, bytes]]:
    """Return path, media type and content of every file below a folder that is of a known kind."""
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _found(entry, f"{prefix}{entry.name}/")
        elif (kind := KINDS.get("." + entry.name.rpartition(".")[2])) is not None:
            found.append((prefix + entry.name, kind, entry.read_bytes()))
    return found
