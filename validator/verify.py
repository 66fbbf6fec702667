"""Looking without judging: one commitment, or the evidence of one case, checked here and now for whoever asks.

`muster validator verify` and `muster slash verify` end up here. No key is needed and nobody is told anything. Every
row goes through the dear checks, not only a sample.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from eth_utils.address import is_address, to_checksum_address

from muster.chain.contracts.court import CaseOpened
from muster.chain.contracts.runs import WorkCommitted
from muster.chain.reads import ChainReader, open_book
from muster.errors import CheckError, MismatchError, UnreachableError, UsageError
from muster.evidence import finite, parse_bundle, verify_evidence
from muster.http import OrchestratorClient
from muster.inspection import Commitment, Finding
from muster.rollouts.reader import RolloutReader
from muster.settings import Settings
from validator.bench import RunBench, make_bench
from validator.inspector import examine


class BadWorkError(CheckError):
    """What was looked at is not good. The document on stdout says why."""


async def verify_commitment(settings: Settings, name: str, *, as_json: bool) -> None:
    """Inspect NODE:INDEX. Prints what was found; raises BadWorkError when the work is bad."""
    node, index = _parse(name)
    async with _bench(settings) as bench:
        commitment = await _committed(bench.chain, settings.run, node, index)
        everything = range(bench.rules.terms.positions)
        examination = await examine(bench, commitment, everything, missing_counts=True)
    finding = examination.inspection.finding
    _show(
        {
            "node": node,
            "index": index,
            "step": commitment.step,
            "good": finding is None,
            "rows_replayed": examination.inspection.inspected,
            **_finding(finding),
        },
        as_json=as_json,
    )
    if finding is not None:
        raise BadWorkError(f"commitment {index} of {node} is bad: {finding.reason}")


async def verify_case(settings: Settings, case_id: int, *, as_json: bool) -> None:
    """Re-run the evidence of a case. Raises BadWorkError when it does not show what it says."""
    async with _bench(settings) as bench:
        opened = await _opened(bench.chain, case_id)
        commitment = await _committed(bench.chain, opened.run, opened.node, opened.index)
        bundle = parse_bundle(await bench.client.get_evidence(opened.evidence_hash))
        draw = await bench.draw(commitment)
        ruling = await verify_evidence(bundle, commitment, draw, bench.rules, bench.client.domain, bench)
    _show(
        {
            "case": case_id,
            "node": opened.node,
            "index": opened.index,
            "kind": opened.kind.name.lower(),
            "guilty": ruling.guilty,
            "why": ruling.why,
            **_finding(ruling.finding),
        },
        as_json=as_json,
    )
    if ruling.guilty is None:
        raise UnreachableError(f"case {case_id} cannot be judged here: {ruling.why}")
    if not ruling.guilty:
        raise BadWorkError(f"the evidence of case {case_id} does not hold: {ruling.why}")


@asynccontextmanager
async def _bench(settings: Settings) -> AsyncIterator[RunBench]:
    """Everything that checking takes, beside what a running validator uses."""
    rpc, book = await open_book(settings.chain)
    async with (
        ChainReader(rpc, book, settings.chain) as chain,
        OrchestratorClient(
            settings.orchestrator.url, chain_id=chain.chain_id, registry=chain.addresses.registry
        ) as client,
        RolloutReader() as reader,
    ):
        yield await make_bench(settings, chain, client, reader, settings.validator.state_dir / "look")


def _parse(name: str) -> tuple[str, int]:
    node, _, index = name.partition(":")
    if not is_address(node) or not index.isdecimal():
        raise UsageError(f"{name!r} is not NODE:INDEX", hint="e.g. 0x1234…:7, as muster worker why shows them")
    return to_checksum_address(node), int(index)


async def _committed(chain: ChainReader, run: int, node: str, index: int) -> Commitment:
    head = await chain.head()
    for event in await chain.events([WorkCommitted], chain.addresses.from_block, head.number):
        if isinstance(event, WorkCommitted) and (event.run, event.node, event.index) == (run, node, index):
            return Commitment(run, event.step, node, index, event.root, event.hour, event.at.block)
    raise MismatchError(f"{node} has made no commitment {index} in run {run}", hint="muster worker status")


async def _opened(chain: ChainReader, case_id: int) -> CaseOpened:
    head = await chain.head()
    for event in await chain.events([CaseOpened], chain.addresses.from_block, head.number):
        if isinstance(event, CaseOpened) and event.case_id == case_id:
            return event
    raise MismatchError(f"there is no case {case_id}", hint="muster slash list")


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


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(document))
        return
    for name, value in document.items():
        print(f"{name.replace('_', ' '):16} {value}")
