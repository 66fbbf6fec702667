"""List who serves weights: the owner's relays, and the members that offer what they hold.

An offer lasts as long as its member renews it; a new one is taken only if its URL answers here. A node that received
other bytes than the anchored root names reports the source, signed. Reports by two operators hide an offer for a while;
one alone hides nothing, so that no operator can silence a rival. The owner's own relays stay listed: every client
checks every byte anyway. Reports are in the log, offers in `current.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from muster.ledger.database import Database
from muster.ledger.documents import Placed
from muster.ledger.queries import member_of
from muster.ledger.tables import current, entries, nodes
from muster.protocol.messages import MisbehaviourReport
from muster.runtime import problems, telemetry
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.connection import is_private, url_problem
from muster.shardcast.fetch.sources import Pool
from orchestrator.log import Kind, KnownError, Log, Offered

CURRENT_SECONDS: Final = 600.0
"""How long counts what a node says of what is current. It says it again in half that time."""

MISBEHAVIOUR: Final = "misbehaviour"
"""The kind of reports of bad sources."""

HIDDEN_SECONDS: Final = 3600.0
"""How long reports count."""

REPORTERS: Final = 2
"""Operators whose reports hide an offer."""

MAX_REPORTS: Final = 32
"""Relays that one operator's reports can be about at a time: each is kept in storage."""

UNREACHED: Final = "forward the port and set shardcast.host and shardcast.url, or shardcast.share = false"

MAX_LISTED: Final = 64
"""Relays named to a client, the owner's first, then the offers renewed last."""

CHECK_SECONDS: Final = 5.0
"""How long an offered URL may take to answer."""

MAX_CHECKS: Final = 8
"""Offered URLs that are tried at the same time; further ones are refused meanwhile."""

log = telemetry.logger("orchestrator")
OFFERS: Final = telemetry.gauge("relay_offers", "Members that offer to serve weights now")
REPORTS: Final = telemetry.counter("relay_misbehaviour_reports", "Reports of sources that sent other bytes")


@dataclass(eq=False)
class RelayDirectory:
    """The relays of one run. One per service."""

    run: int
    url: str
    """The orchestrator's own."""
    own: list[str]
    """The owner's relays, always listed first."""
    database: Database
    documents: Log
    _: KW_ONLY
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.own = list(dict.fromkeys(url.rstrip("/") for url in self.own))
        self._local = is_private(self.url)
        self.documents.add_kind(
            Kind(
                name=MISBEHAVIOUR,
                message=MisbehaviourReport,
                noun="report",
                key=lambda report: report.url.rstrip("/"),
                fits=self._fits,
                replaces=lambda _new, _earlier: True,
                repeats=True,
                project=self._project,
            )
        )
        self._checks = 0
        """Offered URLs that are being tried now."""

    def listed(self, connection: Connection) -> list[str]:
        """Return base URLs to fetch from, each once."""
        now = self.clock()
        reports = entries.c.kind == MISBEHAVIOUR, entries.c.key == current.c.key
        lately = entries.c.received > now - HIDDEN_SECONDS, entries.c.beside != nodes.c.operator
        operators = select(func.count(entries.c.beside.distinct())).where(*reports, *lately)
        query = select(current.c.key).outerjoin(nodes, nodes.c.address == current.c.node)
        query = query.where(*_lasting(now), operators.correlate(current, nodes).scalar_subquery() < REPORTERS)
        query = query.group_by(current.c.key).order_by(func.max(current.c.received).desc()).limit(MAX_LISTED)
        return list(dict.fromkeys([*self.own, *connection.execute(query).scalars()]))[:MAX_LISTED]

    async def count(self) -> int:
        """Return how many members offer to serve weights now."""
        query = select(func.count()).where(*_lasting(self.clock()))
        return await self.database.read(lambda connection: connection.execute(query).scalar_one())

    async def check(self, member: str, offered: str) -> str:
        """Return the base URL that a member offers.

        Raises RefusedError for one that cannot be listed, or is new and does not answer from here.
        """
        problem = url_problem(offered)
        if not problem and is_private(offered) and not self._local:  # others would reach their own machines
            problem = "is not an address of the public network"
        if problem:
            raise problems.malformed(f"{offered!r} cannot be listed: it {problem}")
        url = offered.rstrip("/")
        lasts = select(current.c.node).where(*_lasting(self.clock()), current.c.node == member, current.c.key == url)
        if url in self.own or await self.database.read(lambda connection: connection.execute(lasts).first()):
            return url
        if self._checks >= MAX_CHECKS:
            raise problems.try_later("other offers are being tried")
        self._checks += 1
        try:
            await self._reach(url)
        finally:
            self._checks -= 1
        return url

    async def _reach(self, url: str) -> None:
        """Ask a URL for its index; refuse it if it does not send one, or is a name for a private address."""
        async with Pool([url], FetchBounds(stall_seconds=CHECK_SECONDS), public=not self._local) as pool:
            answered = await pool.indexes(CHECK_SECONDS)
        if not answered:
            where = "" if self._local else " at an address of the public network"
            raise problems.malformed(f"{url!r} cannot be listed: the orchestrator does not reach it{where}", UNREACHED)

    def _fits(self, connection: Connection, offered: Offered[MisbehaviourReport]) -> str:
        """Return the reporter's operator. Raises RefusedError where no report is taken, KnownError where one is."""
        member, url = member_of(connection, offered.signer), offered.document.url.rstrip("/")
        if member is None:
            raise problems.not_allowed(f"{offered.signer} is no node of run {self.run}")
        if url_problem(url):  # what is no URL may not even be asked a database for
            raise self._unknown(url)
        if not self._is_new_report(connection, url, member.operator):
            raise KnownError
        return member.operator

    def _project(self, _connection: Connection, found: Sequence[Placed[MisbehaviourReport]]) -> None:
        for one in found:
            REPORTS.inc()
            log.warning("relay misbehaved", url=one.document.url, by=one.signer, why=one.document.why)

    def _unknown(self, url: str) -> Exception:
        return problems.not_found(f"{url!r} is no relay of run {self.run}")

    def _is_new_report(self, connection: Connection, url: str, operator: str) -> bool:
        """Return whether an operator's report is its first of a source. Raises RefusedError where none is taken."""
        lately = set(_reports(connection, self.clock() - HIDDEN_SECONDS))
        if all(about != url for about, _ in lately) and url not in self.listed(connection):
            raise self._unknown(url)
        if (url, operator) in lately:
            return False
        if sum(by == operator for _, by in lately) >= MAX_REPORTS:
            raise problems.try_later(f"{operator} has reported {MAX_REPORTS} relays within the hour")
        return True


def _lasting(now: float) -> tuple[Any, ...]:
    """Return the conditions that an offer lasts."""
    return current.c.kind == "relay", current.c.received > now - CURRENT_SECONDS


def _reports(connection: Connection, since: float) -> Iterator[tuple[str, str]]:
    """Yield source and reporter's operator of the reports that came after a time, the last first."""
    query = select(*entries.c["key", "beside", "received"]).where(entries.c.kind == MISBEHAVIOUR)
    with connection.execute(query.order_by(entries.c.place.desc()).execution_options(yield_per=64)) as found:
        for row in found:
            if row.received <= since:
                return
            yield row.key, row.beside
