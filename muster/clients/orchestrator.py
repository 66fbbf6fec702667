"""The client every process uses to talk to an orchestrator: signed, bounded, retried.

Each attempt is signed anew (a nonce counts once) and all calls are idempotent, so whatever fails on the way is
tried again, a bounded number of times, and not before the seconds of a `Retry-After` are over. A problem document
becomes RefusedError, silence UnreachableError, an answer too large or of the wrong shape MalformedError. Files are
checked against their hash before they are returned.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from muster.constants import MAX_EVIDENCE_BYTES, MAX_FILE_BYTES, SLOWEST_BYTES_PER_SECOND
from muster.contributions.pack import MAX_PACK_BYTES
from muster.errors import ConfigError, MalformedError, MismatchError, RefusedError, UnreachableError
from muster.grading.envelope import KeyExchange, about_master, open_master
from muster.protocol.announcements import DayEarnings
from muster.protocol.eip712 import Domain, TypedSigner
from muster.protocol.hashes import NOTHING_HASH, content_hash, hex_hash
from muster.protocol.messages import (
    AcceptedCommitment,
    Demand,
    EnvironmentDecision,
    EnvironmentPage,
    GradePage,
    JoinDocument,
    ListedEnvironment,
    Many,
    MasterEnvelope,
    MasterRequest,
    MisbehaviourReport,
    NodeReport,
    Problem,
    RelayOffer,
    RunDescription,
    ShownGrades,
    StepReport,
    Upload,
    UploadReceipt,
    Verdict,
    VerdictPage,
)
from muster.protocol.receipts import upload_target
from muster.protocol.requests import sign_request
from muster.runtime.retries import TRY_AGAIN_STATUSES, TryAgainError, retry, retry_after
from muster.runtime.tls import tls_context

if TYPE_CHECKING:
    from muster.chain.reads import ChainReader

MAX_JSON_BYTES = 16 * 1024 * 1024
"""Longest JSON answer that is read."""

MAX_PROBLEM_BYTES = 64 * 1024
"""Longest refusal that is read."""

MAX_ENVIRONMENTS = 10_000
"""Listed environments that are read; an orchestrator lists fewer."""

ATTEMPTS = 6
CONNECT_SECONDS = 5.0

INTRODUCE_SECONDS = 60.0
"""A client with a key that has signed nothing for so long signs its next read, so that it is answered as a member."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

T = TypeVar("T")


class OrchestratorClient:
    """A client of one orchestrator. Use as an async context manager, or `close` it.

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
        trust_env = urlsplit(url).hostname not in _LOOPBACK
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            limits=httpx2.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=15),
            trust_env=trust_env,
            verify=tls_context(trust_env=trust_env),
        )

    @classmethod
    def on_chain(cls, url: str, chain: ChainReader, signer: TypedSigner | None = None, *, timeout: float = 30) -> Self:
        """Return a client of the orchestrator at `url`, whose signatures are for this chain's contracts."""
        return cls(url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    # Files and evidence

    async def put_file(
        self, data: bytes, run: int, index: int, root: bytes | str, name: str | None = None
    ) -> UploadReceipt:
        """Upload the rollout file of a commitment to come. Without the receipt, do not commit.

        `name` is the content hash of `data`, for a caller that has computed it.
        """
        name = name or await asyncio.to_thread(content_hash, data)
        path, query = upload_target(name, run, index, hex_hash(root))
        answer = await self._call("PUT", f"{path}?{query}", data, body_hash=name, file_bytes=len(data))
        return _parse(UploadReceipt, answer)

    async def upload(self, run: int, node: str, index: int, root: bytes | str) -> Upload:
        """Return which file a node uploaded for (index, root). RefusedError with status 404 when it uploaded none.

        Check it with `muster.protocol.receipts.check_upload` and `check_receipt` before holding it against anybody.
        """
        return await self._get(Upload, f"/v1/runs/{run}/uploads/{node}/{index}/{hex_hash(root)}")

    async def get_file(self, name: bytes | str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return a file by its content hash, verified."""
        return await self._content("files", name, max_bytes)

    async def put_evidence(self, data: bytes) -> str:
        """Keep an evidence bundle; return its content hash, which `openCase` takes."""
        if len(data) > MAX_EVIDENCE_BYTES:
            raise MalformedError(f"an evidence bundle of {len(data)} bytes; at most {MAX_EVIDENCE_BYTES}")
        name = content_hash(data)
        await self._call("POST", "/v1/evidence", data, body_hash=name, file_bytes=len(data))
        return name

    async def get_evidence(self, name: bytes | str) -> bytes:
        """Return an evidence bundle by its content hash, verified."""
        return await self._content("evidence", name, MAX_EVIDENCE_BYTES)

    async def _content(self, kind: str, name: bytes | str, max_bytes: int) -> bytes:
        wanted = hex_hash(name)
        data = await self._call("GET", f"/v1/{kind}/{wanted}", max_bytes=max_bytes, file_bytes=max_bytes)
        found = await asyncio.to_thread(content_hash, data)
        if found != wanted:
            raise MismatchError(f"asked {self.url} for {wanted}, got a file that hashes to {found}")
        return data

    # Verdicts and what follows from them

    async def post_verdict(self, verdict: Verdict) -> None:
        """Report a verdict. Reporting the same one again changes nothing."""
        await self._post("/v1/verdicts", verdict)

    async def verdicts(self, run: int, after: str | None = None) -> tuple[list[Verdict], str]:
        """Return verdicts in order of arrival after a cursor (None: from the first), and the next cursor."""
        page = await self._get(VerdictPage, f"/v1/runs/{run}/verdicts", after=after)
        return page.verdicts, page.cursor

    async def show_grades(self, shown: ShownGrades) -> None:
        """Show grades of private tests. RefusedError with status 425 while too few validators have accepted."""
        await self._post(f"/v1/runs/{shown.statement.run}/grades", shown)

    async def grades(self, run: int, after: str | None = None) -> tuple[list[ShownGrades], str]:
        """Return grades that were shown after a cursor (None: from the first), and the next cursor."""
        page = await self._get(GradePage, f"/v1/runs/{run}/grades", after=after)
        return page.grades, page.cursor

    async def master(self, run: int, epoch: int, key: KeyExchange) -> bytes:
        """Return the master of an epoch as the orchestrator has it; `key` is the signer's. Check it with the terms."""
        body = MasterRequest(epoch=epoch).model_dump_json().encode()
        answer = _parse(MasterEnvelope, await self._call("POST", f"/v1/runs/{run}/master", body))
        return open_master(bytes.fromhex(answer.envelope[2:]), key, about_master(self.domain.separator, run, epoch))

    async def accepted(self, run: int, min_step: int = 0) -> list[AcceptedCommitment]:
        """Return commitments fit for training, of `min_step` and later."""
        return await self._get(Many[AcceptedCommitment], f"/v1/runs/{run}/accepted", min_step=min_step)  # type: ignore[arg-type]

    async def demand(self, run: int) -> Demand:
        """Return whether more work is wanted now."""
        return await self._get(Demand, f"/v1/runs/{run}/demand")

    async def post_step(self, report: StepReport) -> None:
        """Report an update; signed by the run's trainer."""
        await self._post(f"/v1/runs/{report.run}/steps", report)

    async def offer_relay(self, offer: RelayOffer) -> None:
        """Offer this node as a source of weights; to be repeated every few minutes."""
        await self._post(f"/v1/runs/{offer.run}/relays", offer)

    async def report_misbehaviour(self, report: MisbehaviourReport) -> None:
        """Report a source of weights that sent other bytes than the anchored root names."""
        await self._post(f"/v1/runs/{report.run}/misbehaviour", report)

    # Environments of strangers

    async def submit_environment(self, run: int, data: bytes) -> bool:
        """Submit a pack, signed by its author's key; return whether it is new."""
        answer = await self._call("POST", f"/v1/runs/{run}/environments", data, file_bytes=len(data))
        return _parse(dict[str, bool], answer).get("new", False)

    async def environments(self, run: int) -> list[ListedEnvironment]:
        """Return the submitted environments in order of arrival. Their signatures are not checked here."""
        found: list[ListedEnvironment] = []
        after = 0
        while len(found) < MAX_ENVIRONMENTS:
            page = await self._get(EnvironmentPage, f"/v1/runs/{run}/environments", after=after)
            if not page.environments or page.cursor <= after:
                break
            found, after = found + page.environments, page.cursor
        return found

    async def get_environment(self, name: str) -> bytes:
        """Return a pack by its content hash, verified. `muster.contributions.pack.read_pack` reads it."""
        return await self._content("environments", name, MAX_PACK_BYTES)

    async def decide_environment(self, decision: EnvironmentDecision) -> None:
        """Admit an environment or refuse it; signed by the owner of the run."""
        await self._post(f"/v1/runs/{decision.run}/environments/decisions", decision)

    # Reads

    async def node(self, address: str) -> NodeReport:
        """Return what became of a node's work."""
        return await self._get(NodeReport, f"/v1/nodes/{address}")

    async def join_document(self) -> JoinDocument:
        """Return where the orchestrator's run is. Check it with `muster.clients.join.check_run`."""
        return await self._get(JoinDocument, "/v1/join")

    async def earnings(self, run: int) -> DayEarnings | None:
        """Return what the workers of a run made in the last day; None where the orchestrator does not serve it."""
        try:
            return await self._get(DayEarnings, f"/v1/runs/{run}/earnings")
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def run_info(self, run: int) -> RunDescription:
        """Return terms, addresses, relays and files of a run: all a newcomer needs."""
        return await self._get(RunDescription, f"/v1/runs/{run}")

    async def relays(self, run: int) -> list[str]:
        """Return base URLs that serve the run's weights."""
        return (await self.run_info(run)).relays

    async def summary(self, run: int) -> dict[str, Any]:
        """Return everything a live view shows. Schema: the orchestrator's OpenAPI document."""
        return await self._get(dict[str, Any], f"/v1/runs/{run}/summary")

    async def events(self, run: int, after: int = 0) -> dict[str, Any]:
        """Return events after number `after`, oldest first: {"events": [...], "cursor": number to go on from}."""
        return await self._get(dict[str, Any], f"/v1/runs/{run}/events", after=after)

    # Transport

    async def _get(self, kind: type[T], target: str, **query: object) -> T:
        given = {name: value for name, value in query.items() if value is not None}
        return _parse(kind, await self._call("GET", target + (f"?{urlencode(given)}" if given else "")))

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
    ) -> bytes:
        """Send one request, tried again where that may help, and return the body of the answer.

        `body_hash`: the body's content hash, where it is known: every attempt signs it. `file_bytes`: size of the file
        that passes, or the largest that may.
        """
        seconds = self.timeout + file_bytes / SLOWEST_BYTES_PER_SECOND
        url = self.url + target
        try:
            signed = NOTHING_HASH if body is None else body_hash or content_hash(body)
            return await retry(
                lambda again: self._attempt(method, url, body, signed, max_bytes, again=again),
                attempts=self.attempts,
                seconds=seconds,
            )
        except (TryAgainError, TimeoutError) as error:
            reason = str(error) or f"no answer in {seconds:.3g} s"
            hint = getattr(error, "hint", "") or f"is the orchestrator up? curl {self.url}/readyz"
            raise UnreachableError(f"{method} {url}: {reason}", hint=hint) from error

    async def _attempt(
        self, method: str, url: str, body: bytes | None, body_hash: str, max_bytes: int, *, again: bool
    ) -> bytes:
        headers = self._headers(method, url, body_hash, again=again)
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
        raise RefusedError(
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

    def _headers(self, method: str, url: str, body_hash: str, *, again: bool) -> dict[str, str]:
        """Return a request's headers. Writes must be signed.

        Reads need no signature. One is added every INTRODUCE_SECONDS, and after an attempt that failed, so that a busy
        orchestrator answers this client as a member.
        """
        headers = {"Accept-Encoding": "identity"}
        if method == "GET":
            due = time.monotonic() - self._last_signed >= INTRODUCE_SECONDS
            if not self.signer or not (due or again):
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
    if reply.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            return Problem.model_validate_json(data)
        except ValidationError:
            pass
    return Problem(title=f"{reply.status_code} {reply.reason_phrase}", status=reply.status_code)


def _parse(kind: type[T], data: bytes) -> T:
    """Return the JSON document as a `kind`. Raises MalformedError."""
    try:
        return TypeAdapter(kind).validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise MalformedError(f"the orchestrator's answer does not parse: {where}: {first['msg']}") from error
