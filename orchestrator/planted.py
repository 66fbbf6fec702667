"""Which rejections name rows that were planted: once a trap is opened they say nothing of its node."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection

from muster.protocol.messages import OpenedTrap, Verdict
from muster.protocol.traps import true_rows


class KeptTicket(BaseModel):
    """A ticket as storage has it: with its map, and the step that the node named."""

    step: int
    trap: OpenedTrap


def planted_rejections(connection: Connection, statement: Any, given: dict[str, Any]) -> set[tuple[str, str, int]]:
    """Return validator, node and index of rejections for planted rows.

    `statement`: reads the step of a commitment, and the documents of its opened ticket and of a sampling mismatch. A
    node names the step of its ticket, and so the epoch: one of another step opens nothing.
    """
    found = set()
    for row in connection.execute(statement, given):
        kept, verdict = KeptTicket.model_validate_json(row.document), Verdict.model_validate_json(row.verdict)
        rows = [] if verdict.position is None else [verdict.position]
        if kept.step == row.step and rows and not true_rows(rows, kept.trap):
            found.add((verdict.validator, verdict.node, verdict.index))
    return found
