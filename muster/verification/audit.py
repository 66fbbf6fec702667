"""Audit a rollout file by everything that takes no forward pass: format, shape, root, draws, prompts and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from muster.chain.reads import ChainReader
from muster.contracts.runs import WorkCommitted
from muster.errors import MalformedError, MismatchError
from muster.protocol.draws import Draw
from muster.rollouts.parquet import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.verification.checks import Finding, check_file
from muster.verification.rules import CommittedWork, Rules

ReadFile = Callable[[bytes, FileLimits], Awaitable[list[Rollout]]]
"""Parses a file, as `RolloutReader.read` does. Raises MalformedError where the file is to blame."""


@dataclass(frozen=True)
class Audit:
    """What an audit came to."""

    rollouts: Sequence[Rollout]
    """The rows, in the file's order; none where the file cannot be parsed."""
    finding: Finding | None
    """The first thing that is wrong, if anything is."""


async def find_commitment(chain: ChainReader, run: int, node: str, index: int) -> CommittedWork:
    """Return a commitment of a run by its node and index. Raises MismatchError where there is none."""
    for event in await chain.all_events(WorkCommitted):
        if (event.run, event.node, event.index) == (run, node, index):
            return CommittedWork.of(event)
    raise MismatchError(f"{node} has made no commitment {index} in run {run}", hint="muster worker status")


async def audit_file(
    data: bytes, commitment: CommittedWork, draw: Draw, rules: Rules, read: ReadFile | None = None
) -> Audit:
    """Check the file of a commitment against its draw. The tasks of the draw must be in `rules.task_set`.

    read: parses the file; without it a `RolloutReader` is started for this one.

    Raises UnreachableError where this machine cannot read the file or a task: that is never the work's fault.
    """
    if read is None:
        async with RolloutReader() as reader:
            return await audit_file(data, commitment, draw, rules, reader.read)
    try:
        rollouts = await read(data, FileLimits.from_terms(rules.terms))
    except MalformedError as error:
        return Audit((), Finding("malformed", detail=str(error)))
    return Audit(rollouts, await asyncio.to_thread(check_file, rollouts, commitment, draw, rules))
