"""Verification on demand: one commitment, or the evidence of one case, checked here and now.

`muster validator verify` and `muster slash verify` start it. It needs no key and reports no verdict. Every row goes
through the replay checks, not only a sample. Progress is in the log, on stderr.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from eth_utils.address import is_address, to_checksum_address

from muster.chain.client import Chain
from muster.clients.orchestrator import OrchestratorClient
from muster.errors import CheckError, UnreachableError, UsageError
from muster.protocol.kinds import reason_of
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.verification.audit import find_commitment
from muster.verification.bundles import Inspection, finite
from muster.verification.checks import Finding
from validator.context import RunVerificationContext, make_context
from validator.evidence import CannotVerifyError, verify_evidence
from validator.inspector import inspect_commitment

_log = telemetry.logger("validator")


class BadWorkError(CheckError):
    """What was verified is not good. The document on stdout says why."""


async def verify_commitment(settings: Settings, name: str, *, as_json: bool) -> None:
    """Inspect NODE:INDEX and print what was found. Raises BadWorkError when the work is bad."""
    node, index = _parse(name)
    async with connected(settings) as run:
        commitment = await find_commitment(run.chain, settings.run, node, index)
        context = await run.context(commitment.step)
        _log.info("inspecting", node=node, index=index, step=commitment.step)
        everything = range(context.rules.terms.positions)
        inspection = await inspect_commitment(context, commitment, everything, missing_counts=True)
    finding = inspection.finding
    show_document(
        {
            "node": node,
            "index": index,
            "step": commitment.step,
            "good": finding is None,
            "rows_replayed": inspection.replayed,
            **_finding(finding),
        },
        as_json=as_json,
    )
    if finding is not None:
        raise BadWorkError(f"commitment {index} of {node} is bad: {finding.reason}")


async def verify_case(settings: Settings, case_id: int, *, as_json: bool) -> None:
    """Re-run the evidence of a case. Raises BadWorkError when it does not show what it says."""
    inspection: Inspection | None = None
    async with connected(settings) as run:
        opened = await run.chain.opened(case_id)
        commitment = await find_commitment(run.chain, opened.run, opened.node, opened.index)
        context = await run.context(commitment.step)
        data = await context.client.get_evidence(opened.evidence_hash)
        _log.info("verifying evidence", case=case_id, node=opened.node, index=opened.index, step=commitment.step)
        try:
            opened_in = await context.chain.block_hash(opened.at.block)
            inspection = await verify_evidence(data, opened.kind, commitment, context, opened_in)
            why = inspection.why
        except CannotVerifyError as error:
            why = str(error)
    show_document(
        {
            "case": case_id,
            "node": opened.node,
            "index": opened.index,
            "kind": reason_of(opened.kind),
            "guilty": inspection.guilty if inspection else None,
            "why": why,
            **_finding(inspection.finding if inspection else None),
        },
        as_json=as_json,
    )
    if inspection is None:
        raise UnreachableError(f"case {case_id} cannot be verified here: {why}")
    if not inspection.guilty:
        raise BadWorkError(f"the evidence of case {case_id} does not hold: {why}")


@dataclass(frozen=True)
class ConnectedRun:
    """A run that answers."""

    settings: Settings
    chain: Chain
    client: OrchestratorClient
    reader: RolloutReader
    closing: ExitStack

    async def context(self, step: int | None = None) -> RunVerificationContext:
        """Return what verifying work of a step takes, else of the newest; in a folder beside a running validator's."""
        _log.info("fetching the run's tasks and weights", run=self.settings.run, step=step)
        folder = self.settings.validator.state_dir / "verify"
        context = await make_context(self.settings, self.chain, self.client, self.reader, folder, step=step)
        self.closing.enter_context(context.rules.scorers)
        return context


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[ConnectedRun]:
    async with (
        await Chain.connect(settings.chain) as chain,
        OrchestratorClient.on_chain(settings.orchestrator.url, chain) as client,
        RolloutReader() as reader,
    ):
        with ExitStack() as closing:
            yield ConnectedRun(settings, chain, client, reader, closing)


def _parse(name: str) -> tuple[str, int]:
    node, _, index = name.partition(":")
    if not is_address(node) or not index.isdecimal():
        raise UsageError(f"{name!r} is not NODE:INDEX", hint="e.g. 0x1234…:7, as muster worker why shows them")
    return to_checksum_address(node), int(index)


def _finding(finding: Finding | None) -> dict[str, Any]:
    if finding is None:
        return {}
    return {
        "reason": finding.reason,
        "position": finding.position,
        "measured": finite(finding.measured),
        "threshold": finding.threshold,
        "beyond_accusing": finding.accuse,
        "detail": finding.detail,
    }


def show_document(document: dict[str, Any], *, as_json: bool) -> None:
    """Print a document as JSON, or a line for each of its values."""
    if as_json:
        print(json.dumps(document))
        return
    for name, value in document.items():
        print(f"{name.replace('_', ' '):16} {value}")
