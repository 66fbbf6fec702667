"""A kept-alive HTTP/1.1 connection to one source of weights, for one thread at a time.

It blocks, so bytes go from the socket into the buffer they are checked in without a copy, and hashing runs beside
receiving in other threads. What a stranger sends is bounded: head and lines by http.client, a body by the length that
was asked for (an answer without a length is refused), every read by `stall`. The caller bounds how long an answer may
take in all, and ends a read under way by `close`, from any thread. docs/change/benchmarks.md compares it with
aiohttp's.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from muster.errors import MalformedError, UnreachableError

PIECE_BYTES: Final = 1 << 18
"""Received, then hashed, then the next: small enough to stay in a core's cache."""

_RECEIVE_BYTES: Final = 4 << 20
"""Asked of the kernel as a socket's buffer: how much can arrive while the thread hashes."""

_SCHEMES: Final = ("http", "https")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": "muster"}


@dataclass(frozen=True)
class Answer:
    """The head of an answer; its body is `length` bytes, still to be read."""

    status: int
    reason: str
    length: int
    range: str
    """Content-Range, "" where there is none."""


class Connection:
    """One connection, opened for the first request and again after a failure."""

    def __init__(self, base: str, *, connect: float, stall: float, public: bool = False) -> None:
        """Prepare a connection to a base URL; `connect` and `stall` are seconds.

        public: ask nothing of an address outside the public network, whatever its name resolves to.
        """
        self.base = base
        self._public = public
        self._connect = connect
        self._stall = stall
        self._parts = urlsplit(base)
        self._connection: http.client.HTTPConnection | None = None
        self._reply: http.client.HTTPResponse | None = None
        self._closed = False
        self._busy = False
        self._lock = threading.Lock()
        """Over `_closed` and `_busy`."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Mark it as used by a thread: `close` then only interrupts, and the thread cleans up."""
        with self._lock:
            self._busy = True
        try:
            yield
        finally:
            with self._lock:
                self._busy = False
                if self._closed:
                    self._hang_up()

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send GET `target` (a path) and receive the answer's head.

        Raises UnreachableError when there is none, MalformedError when it does not say how long its body is.
        """
        idle = self._connection is not None
        try:
            return self._get(target, headers or {})
        except UnreachableError:
            self._hang_up()
            if not idle or self._closed:
                raise
        # The other side may have closed the idle connection, which shows only now: that is worth a second try.
        return self.get(target, headers)

    def _get(self, target: str, headers: Mapping[str, str]) -> Answer:
        try:
            connection = self._connection if self._connection and self._connection.sock else self._open()
            connection.request("GET", self._target(target), headers={**_HEADERS, **headers})
            self._reply = reply = connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(error) from error
        if reply.length is None:
            self._hang_up()
            raise MalformedError(f"{self.base} does not say how long its answer is")
        return Answer(reply.status, reply.reason[:100], reply.length, reply.getheader("Content-Range") or "")

    def read_into(self, view: memoryview) -> int:
        """Fill `view` with what comes next of the body; fewer bytes only where it ends. Raises UnreachableError."""
        assert self._reply is not None
        try:
            return self._reply.readinto(view)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            self._hang_up()
            raise self._failure(error) from error

    def done(self) -> None:
        """Keep the connection for the next request where the body has been read, else hang up."""
        if self._reply is None or not self._reply.isclosed():
            self._hang_up()
        self._reply = None

    def close(self) -> None:
        """End the connection for good, and with it whatever another thread waits for on it."""
        with self._lock:
            self._closed = True
            connection = self._connection
            if not self._busy:
                self._hang_up()
            elif connection is not None and connection.sock is not None:
                # Past a TLS wrapper, whose own shutdown is not for use beside a read.
                with suppress(OSError):
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def _open(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ConnectionAbortedError("closed")
        proxy = _proxy_of(self._parts)
        place = (proxy or self._parts).hostname or "", (proxy or self._parts).port
        if self._parts.scheme == "https":
            connection = http.client.HTTPSConnection(*place, timeout=self._connect, context=_tls_context())
            if proxy is not None:
                connection.set_tunnel(self._parts.hostname or "", self._parts.port)
        else:
            connection = http.client.HTTPConnection(*place, timeout=self._connect)
        connection.auto_open = 0  # the other side may end a connection; opening one is ours
        connection.connect()
        peer = connection.sock.getpeername()[0]
        if self._public and proxy is None and not ip_address(peer).is_global:
            connection.close()
            raise ConnectionRefusedError(f"{peer} is not of the public network (shardcast.relays may name it)")
        connection.sock.settimeout(self._stall)
        with suppress(OSError):
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._connection = connection
        if self._closed:  # while it was being opened
            raise ConnectionAbortedError("closed")
        return connection

    def _target(self, target: str) -> str:
        """Return what the request line says: a path, or the whole URL where a proxy forwards."""
        if self._parts.scheme == "http" and _proxy_of(self._parts) is not None:
            return self.base + target
        return self._parts.path + target

    def _hang_up(self) -> None:
        """Drop the connection, and what was left to read of an answer."""
        reply, self._reply = self._reply, None
        connection, self._connection = self._connection, None
        for each in (reply, connection):
            if each is not None:
                each.close()

    def _failure(self, error: Exception) -> UnreachableError:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return UnreachableError(f"{self.base}: {why[:200]}")


def url_problem(url: str) -> str:
    """Return why something is not the base URL of a source; "" when it is one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in _SCHEMES or not host:
        return "needs http:// or https:// and a host"
    if parts.query or parts.fragment:
        return "has a query or fragment"
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "has blanks, control characters or letters beyond ASCII (an international name goes as xn--…)"
    return ""


def is_private(url: str) -> bool:
    """Return whether a URL names this machine or a private network. A host name counts as public: it can change."""
    host = urlsplit(url).hostname or ""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for this address, if any; none for this machine itself."""
    host = parts.hostname or ""
    if host in _LOOPBACK or proxy_bypass(host):
        return None
    proxy = getproxies().get(parts.scheme)
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the one context of the process: loading certificates takes longer than fetching a small version."""
    return ssl.create_default_context()
