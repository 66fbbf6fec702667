"""The memory that makes replays fail: every request's nonce until it expires, across restarts, bounded."""

from __future__ import annotations

from typing import Final, Literal

from sqlalchemy import Connection, delete, func, select

from orchestrator.database import insert_once
from orchestrator.tables import nonces

MAX_PER_SIGNER: Final = 6_000
"""Live nonces of one signer: a hundred requests a second for the life of a request. More are refused."""


def remember(
    connection: Connection, signer: str, nonce: str, expiry: int, now: float
) -> Literal["new", "replayed", "flooded"]:
    """Note a request; whether it is new, was seen before, or is one too many of its signer's.

    Expired ones are forgotten: such a request is refused for its expiry.
    """
    connection.execute(delete(nonces).where(nonces.c.expiry <= int(now)))
    count = select(func.count()).select_from(nonces).where(nonces.c.signer == signer)
    if (connection.execute(count).scalar() or 0) >= MAX_PER_SIGNER:
        return "flooded"
    row = {"signer": signer, "nonce": nonce, "expiry": expiry}
    return "new" if insert_once(connection, nonces, row) else "replayed"
