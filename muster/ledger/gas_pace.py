"""How much gas a node takes in an hour, by what it sent to the chain last."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, and_, func, select

from muster.chain.gas import COMMITMENT_GAS, TRANSACTION_GAS, pace
from muster.constants import HOUR_SECONDS
from muster.ledger.tables import cases, commitments, nodes, seals, uploads, votes
from muster.protocol.terms import Terms

LAST_COMMITMENTS: Final = 20
"""That a worker's pace is taken from."""
DUTY_HOURS: Final = 24
"""Whose seals, votes and accusations a validator's pace is taken from."""
VOTE_TRANSACTIONS: Final = 2


def hourly_gas(connection: Connection, address: str, terms: Terms, now: int) -> float:
    """Return the gas that a node takes in an hour; 0 where that is not known yet. `now`: the chain's seconds."""
    node = connection.execute(select(*nodes.c["role", "joined"]).where(nodes.c.address == address)).one()
    if node.role == "worker":
        same = and_(uploads.c.node == commitments.c.node, uploads.c.index == commitments.c.index)
        last = select(uploads.c.received).join(commitments, and_(same, uploads.c.root == commitments.c.root))
        last = last.where(commitments.c.node == address).order_by(commitments.c.index.desc()).limit(LAST_COMMITMENTS)
        moments = [received / HOUR_SECONDS for received in connection.execute(last).scalars()]
        return pace(moments, terms.commitments_per_hour) * COMMITMENT_GAS
    begin = max(node.joined, now - DUTY_HOURS * HOUR_SECONDS)
    late = cases.c.commit_ends >= begin
    sealed = select(func.count()).where(seals.c.validator == address, seals.c.hour >= begin // HOUR_SECONDS)
    opened = select(func.count()).where(cases.c.challenger == address, late)
    voted = select(func.count()).select_from(votes).join(cases, and_(cases.c.id == votes.c.case_id, late))
    counts = [
        connection.execute(query).scalar() or 0 for query in (sealed, opened, voted.where(votes.c.judge == address))
    ]
    sent = counts[0] + counts[1] + VOTE_TRANSACTIONS * counts[2]
    return sent / max(1.0, (now - begin) / HOUR_SECONDS) * TRANSACTION_GAS
