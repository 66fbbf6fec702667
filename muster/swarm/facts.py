"""Gather what a swarm's summary is made of: from the chain, the orchestrator, and the files that were served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from muster.chain.client import Chain
from muster.chain.codec import Event
from muster.chain.contracts.court import CaseOpened, CaseResolved, Refuted, VoteRevealed
from muster.chain.contracts.registry import Convicted, Registered
from muster.chain.contracts.runs import CheckpointPublished, Claimed, HourSealed, Voided, WorkCommitted
from muster.errors import CheckError, StorageError
from muster.shardcast.folder import verify_folder, version_path
from muster.swarm.summary import Books, Committed, Judged, Published, Settled, Travel, Update
from muster.telemetry import WEIGHTS_ARRIVED, WEIGHTS_LOADED

KINDS = (
    CaseOpened,
    CaseResolved,
    CheckpointPublished,
    Claimed,
    Convicted,
    HourSealed,
    Refuted,
    Registered,
    Voided,
    VoteRevealed,
    WorkCommitted,
)
"""Events that the summary reads."""

NOT_SERVED = "not served"
"""Root of files of a step that the origin no longer has."""


async def chain_events(chain: Chain) -> tuple[Event, ...]:
    """Everything that happened on chain since the deployment."""
    return await chain.events(KINDS, chain.addresses.from_block, (await chain.head()).number)


async def block_times(chain: Chain, events: Sequence[Event]) -> dict[int, int]:
    """Timestamps of the blocks that hold the events."""
    numbers = sorted({event.at.block for event in events})
    found = await chain.rpc.batch([("eth_getBlockByNumber", [hex(number), False]) for number in numbers])
    return {number: int(block["timestamp"], 16) for number, block in zip(numbers, found, strict=True)}


def committed(events: Sequence[Event], times: Mapping[int, int], pay: Mapping[str, int]) -> list[Committed]:
    """Commitments in order; `pay` is per commitment, by node."""
    return [
        Committed(one.node, one.index, one.step, pay[one.node], times[one.at.block])
        for one in events
        if isinstance(one, WorkCommitted)
    ]


def settled(events: Sequence[Event], times: Mapping[int, int], operators: Mapping[str, str]) -> list[Settled]:
    """Pay that left the window: claimed, or voided by a conviction."""
    found: list[Settled] = []
    for one in events:
        time = times[one.at.block]
        if isinstance(one, Claimed):
            found.append(Settled(one.node, one.operator, one.paid, False, time))
        elif isinstance(one, Voided):
            found.append(Settled(one.node, operators.get(one.node, ""), one.amount, True, time))
    return found


def seal_pay(events: Sequence[Event]) -> dict[str, int]:
    """What validators were paid for sealing."""
    paid: dict[str, int] = {}
    for one in events:
        if isinstance(one, HourSealed):
            paid[one.validator] = paid.get(one.validator, 0) + one.paid
    return paid


def judged(events: Sequence[Event]) -> list[Judged]:
    """Cases and objective proofs, each with the conviction of its own transaction."""
    locks = {one.node: one.lock for one in events if isinstance(one, Registered)}
    convictions = {one.at.transaction: one for one in events if isinstance(one, Convicted)}
    ends = {one.case_id: one for one in events if isinstance(one, CaseResolved)}
    found = []
    for case in (one for one in events if isinstance(one, CaseOpened)):
        end = ends.get(case.case_id)
        conviction = convictions.get(end.at.transaction) if end else None
        votes = [one.guilty for one in events if isinstance(one, VoteRevealed) and one.case_id == case.case_id]
        found.append(
            _judged(
                case=case.case_id,
                node=case.node,
                kind=case.kind.name.lower(),
                outcome=end.outcome.name.lower() if end else "open",
                at=end or case,
                lock=locks.get(case.node, 0),
                conviction=conviction if conviction and conviction.node == case.node else None,
                votes=votes,
                jury=case.jury,
                challenger=case.challenger,
            )
        )
    for proof in (one for one in events if isinstance(one, Refuted)):
        found.append(
            _judged(
                case=0,
                node=proof.node,
                kind=proof.kind.name.lower(),
                outcome="guilty",
                at=proof,
                lock=locks.get(proof.node, 0),
                conviction=convictions.get(proof.at.transaction),
                votes=[],
                jury=0,
                challenger=proof.prover,
            )
        )
    return found


def _judged(
    *,
    case: int,
    node: str,
    kind: str,
    outcome: str,
    at: Event,
    lock: int,
    conviction: Convicted | None,
    votes: Sequence[bool],
    jury: int,
    challenger: str,
) -> Judged:
    return Judged(
        case=case,
        node=node,
        kind=kind,
        outcome=outcome,
        transaction="0x" + at.at.transaction.hex(),
        stake_before=lock,
        stake_after=lock - (conviction.slashed if conviction else 0),
        bounty=conviction.bounty if conviction else 0,
        guilty_votes=sum(votes),
        votes=len(votes),
        jury=jury,
        challenger=challenger,
    )


def updates(document: Mapping[str, Any]) -> list[Update]:
    """The trainer's reports, as the orchestrator's summary has them."""
    return [
        Update(
            step=line["step"],
            metrics={name: value for name, value in line["metrics"].items() if value is not None},
            stages=line["stages"],
        )
        for line in document["steps"]
        if line["metrics"]
    ]


async def books(chain: Chain) -> list[Books]:
    """Tokens against books, contract by contract."""
    found = await chain.solvency()
    return [
        Books("Registry", found.registry_tokens, found.registry_books),
        Books("Runs", found.runs_tokens, found.runs_books),
    ]


async def published(events: Sequence[Event], shards: Path) -> list[Published]:
    """Every checkpoint's root on chain, and the root computed from the bytes that the origin serves."""
    found = []
    for one in events:
        if isinstance(one, CheckpointPublished):
            root = await asyncio.to_thread(root_of_files, version_path(shards, one.manifest_root))
            found.append(Published(one.step, "0x" + one.manifest_root.hex(), root))
    return found


def root_of_files(version: Path) -> str:
    """The root that a version's bytes hash to: that of its manifest, if every byte is as the manifest says."""
    try:
        verification = verify_folder(version)
    except StorageError:
        return NOT_SERVED
    except CheckError as error:
        return f"unreadable: {error}"
    return verification.problems[0] if verification.problems else "0x" + verification.manifest.root.hex()


def travels(logs: Mapping[str, Path]) -> list[Travel]:
    """How weights came to each worker, by what its log says."""
    found = []
    for name, path in logs.items():
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        arrived = [line for line in lines if line["event"] == WEIGHTS_ARRIVED][1:]
        pauses = [line["seconds"] for line in lines if line["event"] == WEIGHTS_LOADED]
        seconds, generating = ([line[key] for line in arrived] for key in ("seconds", "generating"))
        found.append(Travel(name, seconds, generating, pauses))
    return found


async def bytes_served(urls: Sequence[str]) -> int:
    """Bytes of weights that these sources have sent, by their own count; those that have left do not count."""
    total = 0
    async with httpx2.AsyncClient(timeout=5, trust_env=False) as client:
        for url in urls:
            with suppress(httpx2.TransportError):
                total += (await client.get(f"{url}/v1/stats")).json()["served_bytes"]
    return total
