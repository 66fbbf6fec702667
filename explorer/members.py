"""Read who takes part in a run, and what each has done: from the tallies, whatever the number of commitments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from explorer.current import ListedRelay
from explorer.hours import first_hour_of_day
from explorer.leaderboard import (
    MAX_LINES,
    Board,
    LookSums,
    Others,
    TrainerLine,
    ValidatorLine,
    WorkerLine,
)
from muster.constants import HOUR_SECONDS
from muster.ledger.attribution import AuthorLine
from muster.ledger.documents import newest_sums
from muster.ledger.read_model import NodeSums, oldest_nodes, read_nodes
from muster.ledger.run_facts import latest_step
from muster.ledger.tables import (
    deeds,
    hour_tallies,
    machines,
    node_names,
    steps,
)
from muster.protocol.acceptance import UNREFUTED
from muster.protocol.messages import Message, Wei
from muster.protocol.terms import Terms

SAID_SECONDS: Final = 900.0
"""How long what a machine said of its speed counts."""


class MemberSums(Message):
    """Sums over all nodes."""

    claimed: Wei
    in_window: Wei
    slashed: Wei
    """Token wei."""
    tokens_per_second: float
    """Together, as workers that are active said in the last minutes."""


@dataclass(frozen=True)
class Members:
    """Everybody who is registered, and sums over them."""

    workers: Board[WorkerLine]
    validators: Board[ValidatorLine]
    sums: MemberSums


def read_members(connection: Connection, terms: Terms, now: int) -> Members:
    """Read all nodes. `now`: the chain's second."""
    # 1. What is known of each node, by its address. One query a table: joins of them take longer.
    names = _rows_by_address(connection, select(node_names.c.node, node_names.c.name))
    said = _rows_by_address(
        connection, select(*machines.c["node", "device", "devices", "tokens_per_second", "received"])
    )
    lately = _rows_by_address(connection, _lately(first_hour_of_day(now)))
    counted_looks = newest_sums(connection)
    # 2. A row for each.
    workers, validators = [], []
    since, claimed, slashed = time.time() - SAID_SECONDS, 0, 0
    for node in read_nodes(connection, oldest_nodes()):
        row, done, paid = node.row, node.done, node.paid
        address = row["address"]
        device, devices, speed, received = said.get(address, ("", 0, 0.0, 0.0))
        is_running = row["status"] == "active" and received >= since
        claimed, slashed = claimed + paid["claim"], slashed + paid["slash"]
        shared = {key: row[key] for key in ("address", "operator", "status")}
        shared |= {"name": names.get(address, ("",))[0], "since": row["joined"], "device": device}
        if row["role"] == "worker":
            machine = {"devices": devices, "tokens_per_second": speed if is_running else 0.0}
            made = _of_worker(node, lately.get(address, (0,))[0], terms, now)
            workers.append({**shared, **machine, "earned": paid["claim"], **made})
        else:
            given = {"accepts": done["accepts"], "rejections": done["rejections"]}
            money = {"slashed": paid["slash"], "fined": paid["fine"]}
            looks = _look_sums(counted_looks, address)
            in_court = _in_court(done)
            validators.append({**shared, **given, **money, **in_court, **looks, "inspections": sum(given.values())})
    of_workers = {key: sum(one[key] for one in workers) for key in ("in_window", "tokens_per_second")}
    sums = MemberSums(claimed=claimed, slashed=slashed, **of_workers)
    return Members(Board(WorkerLine, workers), Board(ValidatorLine, validators), sums)


def _rows_by_address(connection: Connection, query: Any) -> dict[str, Sequence[Any]]:
    """Return the rows of a query whose first column is an address, by it and without it."""
    rows: Any = connection.execute(query).all()
    return {address: values for address, *values in rows}


def _lately(first_hour: int) -> Any:
    """Return the query for each node's commitments since an hour that were not refuted."""
    node = hour_tallies.c.node.concat("")  # else SQLite takes the index by node, and reads all hours
    unrefuted = hour_tallies.c.status.in_(UNREFUTED)
    query = select(node, func.sum(hour_tallies.c["count"]))
    return query.where(hour_tallies.c.hour >= first_hour, unrefuted).group_by(node)


def _of_worker(node: NodeSums, lately: int, terms: Terms, now: int) -> dict[str, Any]:
    """Return the columns of a worker's line that follow from its commitments."""
    row, made, pay = node.row, node.commitments, terms.pay_of(node.row["work_class"])
    return made.model_dump(exclude={"total"}) | {
        "work_class": row["work_class"],
        "accepted_groups": made.accepted * terms.groups_per_commitment,
        "in_window": max(0, made.total - row["settled"]) * pay,
        "day": int(lately) * pay,
        "uptime": uptime(row["hours"], row["joined"], now),
    }


def uptime(hours: int, joined: int, now: int) -> float:
    """Return the share of the chain's hours since a node joined in which it made a commitment. Pure."""
    return min(1.0, hours / max(1, now // HOUR_SECONDS - joined // HOUR_SECONDS + 1))


_SHOWN_AS: Final = {
    "won": ("guilty", "proofs"),
    "lost": ("not_guilty",),
    **{kind: (kind,) for kind in ("open", "votes", "absences", "seals")},
}


def _in_court(done: Mapping[str, int]) -> dict[str, int]:
    """Return what a validator did in court, and how many hours it sealed."""
    return {name: sum(done[kind] for kind in kinds) for name, kinds in _SHOWN_AS.items()}


def looks_of(connection: Connection, address: str) -> LookSums:
    """Return what the newest list of looks says of a validator."""
    return LookSums(**_look_sums(newest_sums(connection), address))


def _look_sums(sums: Mapping[str, Any], address: str) -> dict[str, int]:
    mine = sums.get(address, {})
    names = {"wages": "total", "checked": "checked", "found_false": "false", "barred_until": "barred_until"}
    return {name: int(mine.get(key, 0)) for name, key in names.items()}


# Everybody else


def read_others(
    connection: Connection, run: int, trainer: str, relays: Sequence[ListedRelay], authors: list[AuthorLine]
) -> Others:
    """Read who takes part without being a node."""
    published = latest_step(connection)
    newest = select(steps.c.received).order_by(steps.c.step.desc()).limit(1)
    updates = select(func.sum(deeds.c["count"])).where(deeds.c.kind == "updates")  # of earlier trainers too
    line = TrainerLine(
        address=trainer,
        steps=0 if published is None else published + 1,
        updates=connection.execute(updates).scalar() or 0,
        last=connection.execute(newest).scalar(),
    )
    return Others(run=run, trainers=[line], relays=[*relays], authors=authors[:MAX_LINES])
