"""The endpoint of a chain: JSON-RPC over HTTP, bounded in time and size, retried a little, errors typed.

Silence becomes UnreachableError; an answer that is an error becomes RpcError with its revert data. web3's own HTTP
provider bounds neither the size of an answer nor the time of all its retries, and does not retry a refusal (429).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

import httpx2

from muster.errors import ChainError, ConfigError, MalformedError, UnreachableError
from muster.runtime.retries import TRY_AGAIN_STATUSES, TryAgainError, retry, retry_after
from muster.runtime.tls import http_client
from muster.settings.sources import mask

ErrorKind = Literal[
    "reverted",  # the call, or the transaction in it, reverts
    "known",  # the endpoint has this transaction already
    "nonce_used",  # a mined transaction has this nonce: perhaps this one
    "taken",  # a waiting transaction has this nonce, and this one does not outbid it
    "cheap",  # the fees are too low
    "unfunded",  # the sender cannot pay
    "behind",  # this server does not have the block yet: another one, or the same one later, answers
    "wide",  # a log query covers too many blocks or results
    "busy",  # too many requests, or a reorg at this moment: the same one later is answered
    "unclear",  # says nothing of the request: a transaction may be on its way
    "refused",  # anything else
]

_WORDINGS: Final[dict[ErrorKind, str]] = {
    "reverted": r"revert",
    "known": r"already ?(known|imported|exists|mined|in)\b|\bknown transaction|same hash",
    "nonce_used": r"nonce( is)? ?too ?low|old ?nonce",
    "taken": r"replac.*underpriced|could not replace|replacement ?not|same nonce|nonce ?already ?used",
    "cheap": r"underpriced|base ?fee|fee ?cap\b|fee ?too ?low|gas ?price .*(too low|below)",
    "unfunded": r"insufficient ?(funds|balance)|exceeds account balance|not enough funds",
    "refused": r"block gas limit|gas ?limit ?exceeded",
    "behind": r"(beyond|after|above|past|er than|ahead of|>) ((the|its|current|last|latest|chain) )*"
    r"(head|latest|accepted|tip|block ?(number|height))|(unknown|future) (block|header)\b"
    r"|\b(to)?(block|header)s?\b[^.:]*(not ?(be )?found|not (yet )?(available|known|indexed|synced|exist)"
    r"|in the future)|(not find|no such) block|block height \d+ exceeds",
    "wide": r"\branges?\b|\bresults\b|response (size|(is )?too)|blocks? distance|many (blocks|logs)|\d blocks"
    r"|logs matched",
    "busy": r"rate.?(limit|exceed)|(count|quota) exceed|too many requests?\b|request (rate|limit|count)|compute units"
    r"|capacity|\brps\b|per second|/sec|credits|throttl|block ?out ?of ?range",
    "unclear": r"internal (server )?error|try again|time-?d? ?out|deadline|unavailable|overload|gateway|no backend"
    r"|connection",
}
_CODES: Final[dict[ErrorKind, frozenset[int]]] = {
    "busy": frozenset({429, -32005, -32016, -32029, -32090}),
    "refused": frozenset({-32700, -32600, -32601, -32602, -32000, -32003, -32004, -32010}),
}


def error_kind(code: int, text: str, revert_data: bytes = b"") -> ErrorKind:
    """Return what an error means. `text`: its message, with whatever it explains in `data`.

    One table for every provider and node, since neither codes nor wordings are standard. The first row that matches
    counts; a code decides only where no wording does: nodes and gateways use the same codes for different things.
    """
    if revert_data or code == 3:
        return "reverted"
    plain = text.lower().replace("_", " ")
    for kind, words in _WORDINGS.items():
        if re.search(words, plain):
            return kind
    for kind, codes in _CODES.items():
        if code in codes:
            return kind
    return "unclear"


ATTEMPTS: Final = 5
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_BATCH: Final = 10
"""Calls in one round trip; public endpoints refuse more."""


class RpcError(ChainError):
    """The endpoint answered with an error. `data` is the revert data, or b"" when there is none."""

    def __init__(self, method: str, error: Any) -> None:
        """`error`: as the answer has it."""
        parts = error if isinstance(error, dict) else {"message": error}
        code, detail = parts.get("code"), parts.get("data")
        self.reason = str(parts.get("message", ""))
        self.data = revert_data(detail)
        self.kind = error_kind(code if isinstance(code, int) else 0, f"{self.reason} {detail or ''}", self.data)
        super().__init__(f"{method}: {self.reason}")


class OversizedError(MalformedError):
    """An answer is larger than MAX_ANSWER_BYTES."""


class BoundedProvider:
    """One endpoint. Use as an async context manager, or `disconnect` it. Belongs to one event loop.

    `request` and `batch` return results as the endpoint sent them, None included: web3's methods raise where a block or
    receipt is not there, which is an answer that the cursor and the sender need.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"chain.rpc_url {mask(url)!r} is not http:// or https://", hint="set chain.rpc_url")
        self.url = url
        self.timeout = timeout
        limits = httpx2.Limits(max_connections=16, max_keepalive_connections=8, keepalive_expiry=15)
        self._client = http_client(url, timeout, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        await self._client.aclose()

    async def request(self, method: str, *params: Any, attempts: int = ATTEMPTS) -> Any:
        """Return the result of one call. Raises RpcError or UnreachableError."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return results([_answer(method, await self.exchange(body, attempts))])[0]

    async def batch(self, requests: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Return the results of (method, parameters) in order, MAX_BATCH to a round trip. Raises as `request`."""
        return results(await self.answers(requests))

    async def answers(self, requests: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Return the same, and each RpcError in its place: what came beside it may say more."""
        found: list[Any] = []
        for start in range(0, len(requests), MAX_BATCH):
            found += await self._batch(requests[start : start + MAX_BATCH])
        return found

    async def _batch(self, requests: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(requests)
        ]
        answers = await self.exchange(body)
        if not isinstance(answers, list):
            answers = [answers]  # a server may answer a batch it cannot take with one error
        by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
        if set(by_id) != set(range(len(requests))):
            results([_answer("batch", answers[0] if answers else None)])
            raise MalformedError(f"{mask(self.url)} answered {len(by_id)} of {len(requests)} calls of a batch")
        return [_answer(method, by_id[number]) for number, (method, _) in enumerate(requests)]

    async def exchange(self, body: object, attempts: int = ATTEMPTS) -> Any:
        """Post a JSON body and return the JSON answer; at most `timeout` seconds, retries included."""
        data = json.dumps(body, default=_hex).encode()
        try:
            return await retry(lambda _: self._attempt(data), attempts=attempts, seconds=self.timeout)
        except (TimeoutError, TryAgainError) as error:
            reason = str(error) or f"no answer in {self.timeout:g} s"
            raise UnreachableError(
                f"the chain at {mask(self.url)} does not answer: {reason}",
                hint="check chain.rpc_url, or start one: anvil",
            ) from error

    def _try_again(self, reason: str, wait: float | None = None) -> TryAgainError:
        return TryAgainError(reason, service=f"the chain at {mask(self.url)}", request="JSON-RPC", wait=wait)

    async def _attempt(self, data: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        answer = bytearray()
        try:
            async with self._client.stream("POST", self.url, content=data, headers=headers) as reply:
                async for chunk in reply.aiter_bytes(1 << 16):
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise OversizedError(f"{mask(self.url)} sends more than {MAX_ANSWER_BYTES} bytes")
        except httpx2.TransportError as error:
            raise self._try_again(str(error) or type(error).__name__) from error
        wait = retry_after(reply.headers.get("retry-after", ""))
        if reply.status_code in TRY_AGAIN_STATUSES:
            raise self._try_again(f"HTTP status {reply.status_code}", wait)
        try:
            parsed = json.loads(answer)
        except ValueError as error:
            if reply.status_code >= 500:
                raise self._try_again(f"HTTP status {reply.status_code}") from error
            message = f"{mask(self.url)} answers HTTP {reply.status_code} and no JSON: is this a chain's endpoint?"
            raise MalformedError(message, hint="check chain.rpc_url") from error
        for item in parsed if isinstance(parsed, list) else [parsed]:
            if isinstance(item, dict) and item.get("error") and (error := RpcError("", item["error"])).kind == "busy":
                raise self._try_again(f"the endpoint cannot answer now: {error.reason}", wait)
        return parsed


def quantity(answer: Any) -> int:
    """Read a number in hex. Raises MalformedError."""
    try:
        return int(answer, 16)
    except (TypeError, ValueError) as error:
        raise MalformedError(f"the endpoint answers {str(answer)[:80]!r} instead of a number in hex") from error


def data(answer: Any) -> bytes:
    """Read bytes in hex. Raises MalformedError."""
    try:
        return bytes.fromhex(answer.removeprefix("0x"))
    except (AttributeError, ValueError) as error:
        raise MalformedError(f"the endpoint answers {str(answer)[:80]!r} instead of bytes in hex") from error


def results(answers: list[Any]) -> list[Any]:
    """Return the answers of a batch. Raises the first RpcError among them."""
    for one in answers:
        if isinstance(one, RpcError):
            raise one
    return answers


def _answer(method: str, answer: Any) -> Any:
    """Return the result of an answer, or its error. Raises MalformedError."""
    if not isinstance(answer, dict) or ("result" not in answer and "error" not in answer):
        raise MalformedError(f"{method}: the answer is not JSON-RPC", hint="check chain.rpc_url")
    error = answer.get("error")
    return answer.get("result") if error is None else RpcError(method, error)


def revert_data(data: Any) -> bytes:
    """Return revert data as endpoints send it: hex, with a prefix, or in an object; b"" when there is none."""
    if isinstance(data, dict):
        data = data.get("data") or data.get("result")
    if not isinstance(data, str):
        return b""
    try:
        return bytes.fromhex(data.removeprefix("Reverted ").removeprefix("0x"))
    except ValueError:
        return b""


def _hex(value: object) -> str:
    """Return how a value of ours is written in a request."""
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
