"""JSON-RPC over HTTP as everything in this room uses it: bounded in time and size, retried a little, errors typed.

Silence becomes UnreachableError; an answer that is an error becomes RpcError with its revert data. The ABI codec and
the keys are those of web3 (eth_abi, eth_account); web3's own providers are not used: they double a process's start and
bring a second HTTP client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, Self

import httpx2
import stamina

from muster.errors import ChainError, ConfigError, MalformedError, UnreachableError, WrongChainError
from muster.settings import ChainSettings
from muster.settings_sources import mask

ATTEMPTS: Final = 5
CONNECT_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_BATCH: Final = 10
"""Calls in one round trip; public endpoints refuse more."""

_AGAIN: Final = frozenset({429, 502, 503, 504})

Request = tuple[str, Sequence[Any]]
"""Method and parameters."""


class RpcError(ChainError):
    """The endpoint answered with an error. `data` is the revert data, or b"" when there is none."""

    def __init__(self, method: str, code: int, message: str, data: bytes) -> None:
        super().__init__(f"{method}: {message}")
        self.code = code
        self.reason = message
        self.data = data


class _TryAgainError(Exception):
    """An attempt failed in a way that another one may not."""


class Rpc:
    """One endpoint. Use as an async context manager, or `close` it. Belongs to the event loop it is first used in."""

    def __init__(self, url: str, *, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"chain.rpc_url {mask(url)!r} is not http:// or https://", hint="set chain.rpc_url")
        self.url = url
        self.timeout = timeout
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            limits=httpx2.Limits(max_connections=16, max_keepalive_connections=8, keepalive_expiry=15),
            trust_env=httpx2.URL(url).host not in ("127.0.0.1", "localhost", "::1"),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def request(self, method: str, *params: Any) -> Any:
        """The result of one call. Raises RpcError or UnreachableError."""
        return _result(method, await self.exchange({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))

    async def batch(self, requests: Sequence[Request]) -> list[Any]:
        """The results of several calls in order, MAX_BATCH to a round trip. Raises RpcError for one that failed."""
        found: list[Any] = []
        for start in range(0, len(requests), MAX_BATCH):
            found += await self._batch(requests[start : start + MAX_BATCH])
        return found

    async def _batch(self, requests: Sequence[Request]) -> list[Any]:
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(requests)
        ]
        answers = await self.exchange(body)
        if not isinstance(answers, list):
            answers = [answers]  # a server may answer a batch it cannot take with one error
        by_id = {answer.get("id"): answer for answer in answers if isinstance(answer, dict)}
        if set(by_id) != set(range(len(requests))):
            _result("batch", answers[0] if answers else None)
            raise MalformedError(f"{mask(self.url)} answered {len(by_id)} of {len(requests)} calls of a batch")
        return [_result(method, by_id[number]) for number, (method, _) in enumerate(requests)]

    async def exchange(self, body: object) -> Any:
        """Post a JSON body and return the JSON answer; at most `timeout` seconds, retries included."""
        data = json.dumps(body, default=_hex).encode()
        reason = f"no answer in {self.timeout:g} s"
        try:
            async with asyncio.timeout(self.timeout):
                async for attempt in stamina.retry_context(
                    on=_TryAgainError, attempts=ATTEMPTS, timeout=None, wait_initial=0.1, wait_max=2, wait_jitter=0.2
                ):
                    with attempt:
                        return await self._attempt(data)
        except TimeoutError:
            pass
        except _TryAgainError as error:
            reason = str(error)
        raise UnreachableError(
            f"the chain at {mask(self.url)} does not answer: {reason}", hint="check chain.rpc_url, or start one: anvil"
        )

    async def _attempt(self, data: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        answer = bytearray()
        try:
            async with self._client.stream("POST", self.url, content=data, headers=headers) as reply:
                async for chunk in reply.aiter_bytes(1 << 16):
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise MalformedError(f"{mask(self.url)} sends more than {MAX_ANSWER_BYTES} bytes")
        except httpx2.TransportError as error:
            raise _TryAgainError(str(error) or type(error).__name__) from error
        if reply.status_code in _AGAIN:
            raise _TryAgainError(f"HTTP status {reply.status_code}")
        try:
            parsed = json.loads(answer)
        except ValueError as error:
            if reply.status_code >= 500:
                raise _TryAgainError(f"HTTP status {reply.status_code}") from error
            message = f"{mask(self.url)} answers HTTP {reply.status_code} and no JSON: is this a chain's endpoint?"
            raise MalformedError(message, hint="check chain.rpc_url") from error
        if any("rate limit" in str(item.get("error", "")).lower() for item in _items(parsed)):
            raise _TryAgainError("the endpoint's rate limit is reached")
        return parsed


async def connect(settings: ChainSettings) -> Rpc:
    """An Rpc to the endpoint of the settings, which serves the right chain. Raises WrongChainError otherwise."""
    rpc = Rpc(settings.rpc_url, timeout=settings.timeout_seconds)
    try:
        served = int(await rpc.request("eth_chainId"), 16)
        if served != settings.chain_id:
            raise WrongChainError(
                f"{mask(settings.rpc_url)} serves chain {served}, and the settings name chain {settings.chain_id}",
                hint=f"set chain.rpc_url to an endpoint of chain {settings.chain_id}, or chain.chain_id to {served}",
            )
    except BaseException:
        await rpc.close()
        raise
    return rpc


def _items(answer: Any) -> list[dict[str, Any]]:
    """The answers in an answer, batched or not, for whoever looks for errors in them."""
    return [item for item in (answer if isinstance(answer, list) else [answer]) if isinstance(item, dict)]


def _result(method: str, answer: Any) -> Any:
    if not isinstance(answer, dict) or ("result" not in answer and "error" not in answer):
        raise MalformedError(f"{method}: the answer is not JSON-RPC", hint="check chain.rpc_url")
    error = answer.get("error")
    if error is None:
        return answer.get("result")
    if not isinstance(error, dict):
        raise RpcError(method, 0, str(error), b"")
    raise RpcError(method, int(error.get("code") or 0), str(error.get("message", "")), revert_data(error.get("data")))


def revert_data(data: Any) -> bytes:
    """Revert data as endpoints send it: hex, hex with a prefix, or an object around it; b"" when there is none."""
    if isinstance(data, dict):
        data = data.get("data") or data.get("result")
    if not isinstance(data, str):
        return b""
    try:
        return bytes.fromhex(data.removeprefix("Reverted ").removeprefix("0x"))
    except ValueError:
        return b""


def _hex(value: object) -> str:
    """How a value of ours is written in a request."""
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")
