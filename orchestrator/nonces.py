"""Remember every request's nonce until it expires, so that replays fail, across restarts and within bounds."""

from __future__ import annotations

from typing import Final, Literal

from sqlalchemy import Connection, delete, func, select

from orchestrator.database import insert_once
from orchestrator.tables import nonces

MAX_PER_SIGNER: Final = 6_000
"""Unexpired nonces of one signer: a hundred requests a second until they expire. More are refused."""


def remember(
    connection: Connection, signer: str, nonce: str, expiry: int, now: float
) -> Literal["new", "replayed", "flooded"]:
    """Record a request; return whether it is new, was seen before, or is one too many of its signer's.

    Expired nonces are deleted: such a request is refused for its expiry.
    """
    connection.execute(delete(nonces).where(nonces.c.expiry <= int(now)))
    count = select(func.count()).select_from(nonces).where(nonces.c.signer == signer)
    if (connection.execute(count).scalar() or 0) >= MAX_PER_SIGNER:
        return "flooded"
    row = {"signer": signer, "nonce": nonce, "expiry": expiry}
    return "new" if insert_once(connection, nonces, row) else "replayed"
