"""The client every process uses to talk to an orchestrator: one method for each thing that can be asked of it.

All calls are idempotent, so that `muster.clients.transport` may send each again. Files are checked against their hash
before they are returned.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from muster.clients.transport import SignedClient, parse_answer
from muster.constants import MAX_EVIDENCE_BYTES, MAX_FILE_BYTES, MAX_SUMMARY_BYTES
from muster.errors import MalformedError, MismatchError
from muster.protocol.acceptance import date_of
from muster.protocol.announcements import BenchmarkScore, CurrentList, NodeName, Said
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import (
    MAX_GRADES_CHARS,
    MAX_LIST_CHARS,
    CallAnswer,
    CallQuestion,
    Demand,
    EnvironmentDecision,
    JoinDocument,
    LogDocument,
    LogPage,
    Message,
    NodeReport,
    RunDescription,
    ShownMaster,
    SignedText,
    StepDocument,
    StepReport,
    SubmittedEnvironment,
    Upload,
    UploadReceipt,
    Verdict,
)
from muster.protocol.receipts import sign_text, upload_target
from muster.tasksets.contribution_pack import MAX_PACK_BYTES, ListedEnvironment, listed_environments

HELD_SECONDS: Final = 20
"""Longest wait for a change of the demand, and never more than half of a client's time-out."""

MAX_OF_KIND: Final = 10_000
"""Documents that are read of a kind of which a log has fewer."""

D = TypeVar("D", bound=Message)


class OrchestratorClient(SignedClient):
    """A client of one orchestrator; what it takes and how long a call lasts is `SignedClient`'s."""

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
        return parse_answer(UploadReceipt, answer)

    async def upload(self, run: int, node: str, index: int, root: bytes | str) -> Upload:
        """Return which file a node uploaded for (index, root). NotFoundError when it uploaded none.

        Check it with `muster.protocol.receipts.check_upload` and `check_receipt` before using it as evidence.
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
        """Return an evidence bundle by its content hash, verified.

        NotFoundError before a case on chain names it, but for who posted it.
        """
        return await self._content("evidence", name, MAX_EVIDENCE_BYTES, signed=True)

    async def _content(self, kind: str, name: bytes | str, max_bytes: int, *, signed: bool = False) -> bytes:
        target = f"/v1/{kind}/{(wanted := hex_hash(name))}"
        data = await self._call("GET", target, max_bytes=max_bytes, file_bytes=max_bytes, signed=signed)
        found = await asyncio.to_thread(content_hash, data)
        if found != wanted:
            raise MismatchError(f"asked {self.url} for {wanted}, got a file that hashes to {found}")
        return data

    # Verdicts

    async def post_verdict(self, verdict: Verdict) -> None:
        """Report a verdict. Reporting the same one again changes nothing."""
        await self._post("/v1/verdicts", verdict)

    async def verdicts(
        self, run: int, after: int = 0, *, node: str | None = None, index: int | None = None
    ) -> tuple[list[tuple[Verdict, int]], int]:
        """Return verdicts from a place of the log on, about all work or some, and the place to go on from.

        Each comes with the chain's second of its arrival. A later one of a validator about the same work takes the
        place of an earlier.
        """
        page = await self.log(run, after, kind="verdict", node=node, index=index)
        return [(parse_answer(Verdict, one.text.encode()), one.came) for one in page.entries], page.cursor

    # Looks

    async def ask_call(self, run: int, node: str, index: int, root: bytes | str) -> CallAnswer:
        """Return whose places a commitment's are, and whether this client's key may look at it now."""
        body = CallQuestion(node=node, index=index, root=hex_hash(root)).model_dump_json().encode()
        return parse_answer(CallAnswer, await self._call("POST", f"/v1/runs/{run}/calls", body))

    async def call(self, run: int, node: str, index: int) -> CallAnswer:
        """Return whose places a commitment's are. Check it with `muster.clients.looks.check_order`."""
        return await self._get(CallAnswer, f"/v1/runs/{run}/calls/{node}/{index}")

    async def looks(self, run: int, hour: int | None = None) -> SignedText:
        """Return what was counted of an hour's looks, else of the latest; `muster.clients.looks` checks it.

        NotFoundError where there is none.
        """
        target = f"/v1/runs/{run}/looks/{'latest' if hour is None else hour}"
        answer = await self._call("GET", target, max_bytes=2 * MAX_LIST_CHARS, file_bytes=MAX_LIST_CHARS)
        return parse_answer(SignedText, answer)

    # Private tests

    async def put_grades(self, run: int, text: str) -> str:
        """Publish the grades of a file of a batch; return their content hash. Signed by the run's trainer."""
        data = text.encode()
        name = content_hash(data)
        await self._call("PUT", f"/v1/runs/{run}/grades/{name}", data, body_hash=name)
        return name

    async def grades_text(self, run: int, name: str) -> str:
        """Return grades by their content hash, verified. Read them with `muster.tasksets.grades.parse_grades`."""
        data = await self._content(f"runs/{run}/grades", name, MAX_GRADES_CHARS)
        return data.decode(errors="replace")

    async def shown_master(self, run: int, epoch: int) -> ShownMaster:
        """Return the master of an epoch, to be checked by the terms. NotFoundError: it is not shown."""
        signed = await self._get(SignedText, f"/v1/runs/{run}/masters/{epoch}")
        return parse_answer(ShownMaster, signed.text.encode())

    # What follows from verdicts

    async def demand(self, run: int, seen: Demand | None = None) -> Demand:
        """Return whether more work is wanted now.

        seen: an earlier answer. The orchestrator may hold the next until it is of use to a worker, or HELD_SECONDS.
        """
        if seen is None:
            return await self._get(Demand, f"/v1/runs/{run}/demand")
        wait = int(min(HELD_SECONDS, self.timeout / 2))
        return await self._get(Demand, f"/v1/runs/{run}/demand", wait=wait, seen=seen.tag)

    # The log

    async def add_document(self, kind: str, document: LogDocument) -> None:
        """Add a document to the log of its run, signed by this client's key. The same again changes nothing."""
        await self.add_signed(self.signed(kind, document))

    async def post_step(self, report: StepReport) -> None:
        """Report an update; signed by the run's trainer."""
        await self.add_document("report", report)

    async def add_signed(self, signed: SignedText) -> None:
        """Add a document that is signed already to the log."""
        await self._call("POST", f"/v1/runs/{signed.run}/log", signed.to_bytes(), file_bytes=len(signed.text))

    def signed(self, kind: str, document: LogDocument) -> SignedText:
        """Return a document of the log, signed by this client's key."""
        assert self.signer is not None, "this client signs"
        return sign_text(self.signer, self.domain, kind, document)

    async def log(self, run: int, after: int = 0, **about: str | int | None) -> LogPage:
        """Return documents from a place on, in their order; check who signed each.

        `about`: their `kind`, or the `node` and `index` of the commitment that they are about. Raises MalformedError
        where places do not rise, or the cursor is not behind them.
        """
        given = {"after": after} | {name: value for name, value in about.items() if value is not None}
        target = f"/v1/runs/{run}/log?{urlencode(given)}"
        page = parse_answer(LogPage, await self._call("GET", target, max_bytes=4 * MAX_LIST_CHARS))
        places = [after - 1, *(one.place for one in page.entries), max(page.cursor, after)]
        if any(earlier >= later for earlier, later in pairwise(places)):
            raise MalformedError(f"{self.url} sent documents of the log that are not in their order")
        return page

    async def step_document(self, run: int, batch_root: bytes) -> StepDocument:
        """Return what a step was trained on, by its batch root on chain. RefusedError with status 404: it is not kept.

        Raises MismatchError for another document.
        """
        name = hex_hash(batch_root)
        signed = await self._get(SignedText, f"/v1/runs/{run}/batches/{name}")
        if (found := content_hash(signed.text.encode())) != name:
            raise MismatchError(f"asked {self.url} for {name}, got a document that hashes to {found}")
        return parse_answer(StepDocument, signed.text.encode())

    async def step_report(self, run: int, step: int) -> StepReport:
        """Return the trainer's last report of a step. NotFoundError where there is none."""
        return await self._get(StepReport, f"/v1/runs/{run}/steps/{step}")

    async def say(self, kind: str, said: Said) -> None:
        """Say what counts for some minutes, of one of `CURRENT_KINDS`, signed by this client's key; the last counts."""
        await self._post(f"/v1/runs/{said.run}/current", self.signed(kind, said))

    # What members say of themselves

    async def name_node(self, announced: NodeName) -> None:
        """Name a node: the node's operator signs the name, the sender signs the request."""
        await self._post(f"/v1/runs/{announced.run}/names", announced)

    async def announce_name(self, run: int, node: str, name: str) -> None:
        """Name a node, signed by this client's key, which must be its operator's. Raises as `name_node`."""
        signer = self.signer
        assert signer is not None
        unsigned = NodeName(run=run, node=node, name=name, named=int(time.time()), signature=UNSIGNED)
        await self.name_node(sign_message(signer, self.domain, unsigned))

    async def post_score(self, score: BenchmarkScore) -> None:
        """Post what a step scores on a benchmark; signed by the run's trainer or its owner."""
        await self._post(f"/v1/runs/{score.run}/scores", score)

    # Environments of strangers

    async def submit_environment(self, run: int, data: bytes) -> bool:
        """Submit a pack, signed by its author's key; return whether it is new."""
        answer = await self._call("POST", f"/v1/runs/{run}/environments", data, file_bytes=len(data))
        return parse_answer(dict[str, Any], answer).get("new") is True

    async def environments(self, run: int) -> list[ListedEnvironment]:
        """Return the submitted environments in order of arrival. Their signatures are not checked here."""
        submitted = await self._all(run, "environment", SubmittedEnvironment)
        return listed_environments(submitted, await self._all(run, "decision", EnvironmentDecision))

    async def _all(self, run: int, kind: str, message: type[D]) -> list[D]:
        found, after = list[D](), 0
        while len(found) < MAX_OF_KIND and (page := await self.log(run, after, kind=kind)).entries:
            found += [parse_answer(message, one.text.encode()) for one in page.entries]
            after = page.cursor
        return found

    async def get_environment(self, name: str) -> bytes:
        """Return a pack by its content hash, verified. `muster.tasksets.contribution_pack.read_pack` reads it."""
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

    async def run_info(self, run: int) -> RunDescription:
        """Return terms, addresses, relays and files of a run: all a newcomer needs."""
        return await self._get(RunDescription, f"/v1/runs/{run}")

    async def relays(self, run: int) -> list[str]:
        """Return base URLs that serve the run's weights."""
        return (await self.run_info(run)).relays

    async def current(self, run: int) -> CurrentList:
        """Return who serves weights, and what nodes said last of their machines. Signatures are not checked here."""
        return await self._get(CurrentList, f"/v1/runs/{run}/current")

    async def day_summary(self, run: int, day: int) -> bytes:
        """Return what is left of a day, counted from 1970, whose detail is gone. NotFoundError: it is kept.

        Read it with `muster.ledger.summaries.read_day`.
        """
        target = f"/v1/runs/{run}/summaries/{date_of(day)}"
        return await self._call("GET", target, max_bytes=2 * MAX_SUMMARY_BYTES, file_bytes=MAX_SUMMARY_BYTES)
