"""List who serves weights: the owner's relays, and the members that offer what they hold.

An offer lasts as long as its member renews it; a new one is taken only if its URL answers here. A node that received
other bytes than the anchored root names reports the source, signed. Reports by two operators hide an offer for a while;
one alone hides nothing, so that no operator can silence a rival. The owner's own relays stay listed: every client
checks every byte anyway. Offers are in the database alone, reports in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from sqlalchemy import Connection, delete, func, select

from muster.ledger.database import Database
from muster.ledger.documents import Placed
from muster.ledger.queries import member_of
from muster.ledger.statements import upsert
from muster.ledger.tables import relay_offers, relay_reports
from muster.protocol.announcements import CurrentRelay
from muster.protocol.messages import MisbehaviourReport, RelayOffer
from muster.runtime import problems, telemetry
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.connection import is_private, url_problem
from muster.shardcast.fetch.sources import Pool
from orchestrator.auth import Caller
from orchestrator.log import Kind, KnownError, Log, Offered

OFFER_SECONDS: Final = 600.0
"""How long an offer lasts; its member renews it in half that time."""

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
        self._own = list(dict.fromkeys(url.rstrip("/") for url in self.own))
        self._local = is_private(self.url)
        self.documents.add_kind(
            Kind(
                name="misbehaviour",
                message=MisbehaviourReport,
                noun="report",
                key=lambda report: report.url,
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
        offers, reports, now = relay_offers.c, relay_reports.c, self.clock()
        accused = reports.url == offers.url, reports.operator != offers.operator, reports.expiry > now
        reporters = select(func.count()).select_from(relay_reports).where(*accused).scalar_subquery()
        query = select(offers.url).where(offers.expiry > now, reporters < REPORTERS)
        query = query.group_by(offers.url).order_by(func.max(offers.expiry).desc()).limit(MAX_LISTED)
        return list(dict.fromkeys([*self._own, *connection.execute(query).scalars()]))[:MAX_LISTED]

    def known(self, connection: Connection) -> list[CurrentRelay]:
        """Return the relays that are listed, and whose they are."""
        urls = self.listed(connection)
        query = select(*relay_offers.c["url", "operator"]).where(relay_offers.c.url.in_(urls))
        operators: dict[str, str] = dict(map(tuple, connection.execute(query.order_by(relay_offers.c.expiry))))
        operators |= dict.fromkeys(self._own, "")
        return [CurrentRelay(url=url, operator=operators[url]) for url in urls]

    async def count(self) -> int:
        """Return how many members offer to serve weights now."""
        query = select(func.count()).where(relay_offers.c.expiry > self.clock())
        return await self.database.read(lambda connection: connection.execute(query).scalar_one())

    async def check(self, caller: Caller, run: int, offered: RelayOffer) -> None:
        """Refuse an offer that is not valid, or new and of a URL that does not answer from here."""
        url, _ = self._accept(caller, run, offered)
        if url in self._own or await self.database.read(
            lambda connection: self._holds(connection, caller.address, url)
        ):
            return
        if self._checks >= MAX_CHECKS:
            raise problems.try_later("other offers are being tried")
        self._checks += 1
        try:
            await self._reach(url)
        finally:
            self._checks -= 1

    async def _reach(self, url: str) -> None:
        """Ask a URL for its index; refuse it if it does not send one, or is a name for a private address."""
        async with Pool([url], FetchBounds(stall_seconds=CHECK_SECONDS), public=not self._local) as pool:
            answered = await pool.indexes(CHECK_SECONDS)
        if not answered:
            where = "" if self._local else " at an address of the public network"
            raise problems.malformed(f"{url!r} cannot be listed: the orchestrator does not reach it{where}", UNREACHED)

    async def offer(self, caller: Caller, run: int, offered: RelayOffer) -> bool:
        """Take a member's offer, in place of its last; return whether it is a new one."""
        url, operator = self._accept(caller, run, offered)
        row = {"member": caller.address, "url": url, "operator": operator, "expiry": self.clock() + OFFER_SECONDS}

        def write(connection: Connection) -> bool:
            is_new = not self._holds(connection, caller.address, url)
            upsert(connection, relay_offers, row)
            return is_new

        return await self.database.write(write, news=False)  # no answer that is kept by version lists offers

    def _holds(self, connection: Connection, member: str, url: str) -> bool:
        """Return whether a member's offer of this URL lasts."""
        offers = relay_offers.c
        lasts = offers.member == member, offers.url == url, offers.expiry > self.clock()
        return connection.execute(select(offers.member).where(*lasts)).first() is not None

    def _accept(self, caller: Caller, run: int, offered: RelayOffer) -> tuple[str, str]:
        """Return the URL of a valid offer, and its operator; refuse any other."""
        member = caller.member
        if member is None or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active node of run {self.run}")
        if offered.run != run:
            raise problems.another_run(offered.run, self.run)
        problem = url_problem(offered.url)
        if not problem and is_private(offered.url) and not self._local:  # others would reach their own machines
            problem = "is not an address of the public network"
        if problem:
            raise problems.malformed(f"{offered.url!r} cannot be listed: it {problem}")
        return offered.url.rstrip("/"), member.operator

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

    def _project(self, connection: Connection, found: Sequence[Placed[MisbehaviourReport]]) -> None:
        for one in found:
            url = one.document.url.rstrip("/")
            _hide(connection, url, one.at.beside, one.at.received)
            REPORTS.inc()
            log.warning("relay misbehaved", url=url, by=one.signer, why=one.document.why)

    def _unknown(self, url: str) -> Exception:
        return problems.not_found(f"{url!r} is no relay of run {self.run}")

    def _is_new_report(self, connection: Connection, url: str, operator: str) -> bool:
        """Return whether an operator's report is its first of a source. Raises RefusedError where none is taken."""
        reports = relay_reports.c
        valid = select(reports.url).where(reports.expiry > self.clock())
        by = connection.execute(valid.add_columns(reports.operator).where(reports.url == url)).all()
        if not by and url not in self.listed(connection):
            raise self._unknown(url)
        if any(row.operator == operator for row in by):
            return False
        if len(connection.execute(valid.where(reports.operator == operator)).all()) >= MAX_REPORTS:
            raise problems.try_later(f"{operator} has reported {MAX_REPORTS} relays within the hour")
        return True


def _hide(connection: Connection, url: str, operator: str, now: float) -> None:
    """Let an operator's report of a source count for a while."""
    connection.execute(delete(relay_reports).where(relay_reports.c.expiry <= now))
    upsert(connection, relay_reports, {"url": url, "operator": operator, "expiry": now + HIDDEN_SECONDS})
