"""Send signed requests and read their answers: bounded in time and size, and tried again where that may help.

Each attempt has a new signature, since a nonce counts once. Transport failures are retried a bounded number of times,
never before the seconds of a `Retry-After` have passed. A problem document becomes RefusedError, silence
UnreachableError, an answer too large or of the wrong shape MalformedError.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import ConfigError, MalformedError, NotFoundError, RefusedError, UnreachableError
from muster.protocol.eip712 import Domain, TypedSigner
from muster.protocol.hashes import NOTHING_HASH, content_hash
from muster.protocol.requests import sign_request
from muster.runtime import telemetry
from muster.runtime.closing import AsyncClosing
from muster.runtime.documents import first_problem
from muster.runtime.problem_document import Problem
from muster.runtime.retries import TRY_AGAIN_STATUSES, TryAgainError, retry, retry_after
from muster.runtime.tls import http_client

if TYPE_CHECKING:
    from muster.chain.reads import ChainReader

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""Longest JSON answer that is read."""

MAX_PROBLEM_BYTES: Final = 64 * 1024
"""Longest refusal that is read."""

MAX_SAID: Final = 600
"""Characters of each text of a refusal that are kept."""

ATTEMPTS: Final = 6

INTRODUCE_SECONDS: Final = 60.0
"""A client with a key that has signed nothing for so long signs its next read, so that it is answered as a member."""

T = TypeVar("T")


class SignedClient(AsyncClosing):
    """Requests to one orchestrator. Use as an async context manager, or `close` it.

    `signer` may be None for a client that only reads. A call makes at most `attempts` attempts and takes at most
    `timeout` seconds, retries included; where a file passes, as long again as a slow connection needs for it.
    """

    def __init__(
        self,
        url: str,
        signer: TypedSigner | None = None,
        *,
        chain_id: int,
        registry: str,
        timeout: float = 30,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.url = url.rstrip("/")
        self.signer = signer
        self.domain = Domain(chain_id, registry)
        self.timeout = timeout
        self.attempts = attempts
        self._last_signed = float("-inf")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"orchestrator url {url!r} is not http:// or https://", hint="set orchestrator.url")
        limits = httpx2.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=15)
        self._client = http_client(url, timeout, limits=limits)

    @classmethod
    def on_chain(cls, url: str, chain: ChainReader, signer: TypedSigner | None = None, *, timeout: float = 30) -> Self:
        """Return a client of the orchestrator at `url`, whose signatures are for this chain's contracts."""
        return cls(url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry, timeout=timeout)

    async def close(self) -> None:
        await self._client.aclose()

    # Requests

    async def _get(self, kind: type[T], target: str, **query: object) -> T:
        """Return a JSON answer."""
        given = {name: value for name, value in query.items() if value is not None}
        target += f"?{urlencode(given)}" if given else ""
        return parse_answer(kind, await self._call("GET", target))

    async def _post(self, target: str, message: BaseModel) -> None:
        await self._call("POST", target, message.model_dump_json().encode())

    async def _call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        body_hash: str | None = None,
        max_bytes: int = MAX_JSON_BYTES,
        file_bytes: int = 0,
        signed: bool = False,
    ) -> bytes:
        """Send one request, tried again where that may help, and return the body of the answer.

        `body_hash`: the body's content hash, where it is known: every attempt signs it. `file_bytes`: size of the file
        that passes, or the largest that may. All attempts have one request id, which an error names.
        """
        seconds = self.timeout + file_bytes / SLOWEST_BYTES_PER_SECOND
        url, request_id = self.url + target, telemetry.request_id()
        with telemetry.about_request(request_id):
            try:
                body_hash = NOTHING_HASH if body is None else body_hash or content_hash(body)
                return await retry(
                    lambda again: self._attempt(
                        method, url, body, body_hash, max_bytes, request_id, introduce=again or signed
                    ),
                    attempts=self.attempts,
                    seconds=seconds,
                )
            except (TryAgainError, TimeoutError) as error:
                reason = str(error) or f"no answer in {seconds:.3g} s"
                hint = getattr(error, "hint", "") or f"is the orchestrator up? curl {self.url}/readyz"
                raise UnreachableError(f"{method} {url}: {reason}", hint=hint) from error

    async def _attempt(
        self,
        method: str,
        url: str,
        body: bytes | None,
        body_hash: str,
        max_bytes: int,
        request_id: str,
        *,
        introduce: bool,
    ) -> bytes:
        headers = self._headers(method, url, body_hash, introduce=introduce) | {telemetry.REQUEST_ID_HEADER: request_id}
        try:
            async with self._client.stream(method, url, content=body, headers=headers) as reply:
                data = await _read(reply, max_bytes if reply.is_success else MAX_PROBLEM_BYTES)
        except httpx2.TransportError as error:
            raise self._try_again(method, url, str(error) or type(error).__name__) from error
        if reply.is_success:
            return data
        problem = _problem(reply, data)
        if reply.status_code in TRY_AGAIN_STATUSES:
            wait = retry_after(reply.headers.get("retry-after", ""))
            raise self._try_again(method, url, f"{problem.title}: {problem.detail}", problem.hint, wait)
        refusal = NotFoundError if reply.status_code == HTTPStatus.NOT_FOUND else RefusedError
        raise refusal(
            f"{problem.title}: {problem.detail}" if problem.detail else problem.title,
            status=reply.status_code,
            title=problem.title,
            hint=problem.hint,
        )

    def _try_again(
        self, method: str, url: str, reason: str, hint: str = "", wait: float | None = None
    ) -> TryAgainError:
        request = f"{method} {urlsplit(url).path}"
        service = f"the orchestrator at {self.url}"
        return TryAgainError(reason, service=service, request=request, hint=hint, wait=wait)

    def _headers(self, method: str, url: str, body_hash: str, *, introduce: bool) -> dict[str, str]:
        """Return a request's headers. Writes must be signed.

        Reads need no signature. One is added every INTRODUCE_SECONDS, and to `introduce` the sender: after an attempt
        that failed, so that a busy orchestrator answers it as a member, and where a stranger may read less.
        """
        headers = {"Accept-Encoding": "identity"}
        if method == "GET":
            due = time.monotonic() - self._last_signed >= INTRODUCE_SECONDS
            if not self.signer or not (due or introduce):
                return headers
        else:
            headers["Content-Type"] = "application/octet-stream" if method == "PUT" else "application/json"
        if self.signer is None:
            raise ConfigError(f"{method} {url} must be signed, and there is no key", hint="set keys.keystore")
        self._last_signed = time.monotonic()
        return headers | sign_request(self.signer, self.domain, method, url, body_hash, now=time.time())


async def _read(reply: httpx2.Response, limit: int) -> bytes:
    """Return the body, stopping as soon as it is longer than `limit`."""
    announced = reply.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise MalformedError(f"{reply.url} announces {announced} bytes; at most {limit} are read")
    data = bytearray()
    async for chunk in reply.aiter_raw(1 << 16):
        data += chunk
        if len(data) > limit:
            raise MalformedError(f"{reply.url} sends more than {limit} bytes")
    return bytes(data)


def _problem(reply: httpx2.Response, data: bytes) -> Problem:
    """Return what a refusal says, each text on one line: more lines could look like another program's."""
    if reply.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            problem = Problem.model_validate_json(data)
            said = {name: _line(getattr(problem, name)) for name in ("title", "detail", "hint")}
            return problem.model_copy(update=said)
        except ValidationError:
            pass
    return Problem(title=_line(f"{reply.status_code} {reply.reason_phrase}"), status=reply.status_code)


def _line(text: str) -> str:
    """Return a stranger's text as one line of at most MAX_SAID characters."""
    line = " ".join(text[: MAX_SAID + 1].split())
    return line if len(text) <= MAX_SAID else line[:MAX_SAID] + "…"


def parse_answer(kind: type[T], data: bytes) -> T:
    """Return the JSON document as a `kind`. Raises MalformedError."""
    try:
        return TypeAdapter(kind).validate_json(data)
    except ValidationError as error:
        raise MalformedError(f"the orchestrator's answer does not parse: {first_problem(error)}") from error
