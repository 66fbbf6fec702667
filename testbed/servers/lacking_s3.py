"""A small S3 server that lacks operations: it answers some requests as stores do that do not have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from testbed.http import Reply, serving
from testbed.servers.s3 import Endpoint

Refusal = tuple[int, str]
"""Status and S3's code."""


@dataclass(eq=False)
class LackingS3:
    """Keeps files in memory. What it refuses may be changed between requests."""

    create: list[Refusal] = field(default_factory=list)
    """Answers to the next conditional puts; the last one stays."""
    bulk: Refusal | None = None
    """Answer to deletion in bulk."""
    files: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[Endpoint]:
        """Yield the server as an endpoint with a bucket."""
        with serving(self._answer) as url:
            yield Endpoint(url)

    def _answer(self, request: BaseHTTPRequestHandler) -> Reply:
        path, _, query = request.path.partition("?")
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        about = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": '"x"'}
        if request.command == "PUT":
            if "if-none-match" in request.headers and (refusal := self._refuses_create()):
                return _refused(*refusal)
            if "if-none-match" in request.headers and path in self.files:
                return _refused(412, "PreconditionFailed")
            self.files[path] = body
            return Reply(headers=about)
        if request.command == "POST":
            if self.bulk is not None:
                return _refused(*self.bulk)
            keys = re.findall(rb"<Key>.*?</Key>", body)
            for key in keys:
                self.files.pop(f"{path.rstrip('/')}/{key[5:-6].decode()}", None)
            return Reply(b"<DeleteResult><Deleted>%s</Deleted></DeleteResult>" % b"</Deleted><Deleted>".join(keys))
        if "list-type" in query:
            entry = (
                "<Contents><Key>{}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><Size>{}</Size></Contents>"
            )
            names = "".join(entry.format(name.split("/", 2)[2], len(data)) for name, data in self.files.items())
            return Reply(f"<ListBucketResult>{names}<IsTruncated>false</IsTruncated></ListBucketResult>".encode())
        if path not in self.files:
            return _refused(404, "NoSuchKey")
        data = self.files[path]
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")):
            first, last = int(asked[1]), int(asked[2])
            about |= {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            return Reply(data[first : last + 1], 206, about)
        return Reply(data, headers=about)

    def _refuses_create(self) -> Refusal | None:
        return self.create.pop(0) if len(self.create) > 1 else self.create[0] if self.create else None


def _refused(status: int, code: str) -> Reply:
    return Reply(f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode(), status)
