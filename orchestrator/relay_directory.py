"""List who serves weights: the owner's relays, and the members that offer what they hold.

An offer lasts as long as its member renews it. A node that received other bytes than the anchored root names reports
the source, signed. Reports by two operators hide an offer for a while; one alone hides nothing, so that no operator can
silence a rival. The owner's own relays stay listed: every client checks every byte anyway. Offers are kept in memory,
reports with their signatures in storage.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from muster.clients.storage import ContentStore
from muster.protocol.messages import MisbehaviourReport, RelayOffer, SignedMisbehaviourReport
from muster.runtime import telemetry
from muster.shardcast.fetch.connection import url_problem
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.events import record_event

OFFER_SECONDS: Final = 600.0
"""How long an offer lasts; its member renews it in half that time."""

HIDDEN_SECONDS: Final = 3600.0
"""How long reports count."""

REPORTERS: Final = 2
"""Operators whose reports hide an offer."""

MAX_REPORTS: Final = 32
"""Relays that one operator's reports can be about at a time: each is kept in storage."""

MAX_LISTED: Final = 64
"""Relays named to a client, the owner's first, then the offers renewed last."""

MAX_KNOWN: Final = 1_000
"""Relays that are known besides, though their offers may have lapsed."""

log = telemetry.logger("orchestrator")
OFFERS: Final = telemetry.gauge("relay_offers", "Members that offer to serve weights now")
REPORTS: Final = telemetry.counter("relay_misbehaviour_reports", "Reports of sources that sent other bytes")


@dataclass(frozen=True)
class _Offer:
    url: str
    operator: str
    until: float


@dataclass(frozen=True)
class KnownRelay:
    """A relay, and whose it is."""

    url: str
    operator: str
    """Empty for one of the run's owner."""
    listed: bool
    """Whether clients get it now."""


@dataclass(eq=False)
class RelayDirectory:
    """The relays of one run. One per service."""

    run: int
    url: str
    """The orchestrator's own."""
    own: list[str]
    """The owner's relays, always listed first."""
    database: Database
    _: KW_ONLY
    storage_url: str
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._own = list(dict.fromkeys(url.rstrip("/") for url in self.own))
        self._local = _is_private(self.url)
        self._offers: dict[str, _Offer] = {}
        """By member."""
        self._offered: dict[str, tuple[str, str]] = {}
        """The URL that each member offered last, since the start, and its operator."""
        self._urls: Counter[str] = Counter()
        """How many members' last offer is of each of these."""
        self._accused: dict[str, dict[str, float]] = {}
        """By URL: when each operator's report expires."""
        self.copies = ContentStore(self.storage_url, "misbehaviour")

    def listed(self) -> list[str]:
        """Return base URLs to fetch from, each once."""
        now = self.clock()
        self._forget(now)
        offers = sorted(self._offers.values(), key=lambda offer: offer.until, reverse=True)
        urls = [*self._own, *(offer.url for offer in offers if not self._hidden(offer))]
        return list(dict.fromkeys(urls))[:MAX_LISTED]

    def known(self) -> list[KnownRelay]:
        """Return the owner's relays, then those that members offered since the start, the newest offers first."""
        listed = set(self.listed())
        found = {url: KnownRelay(url, "", url in listed) for url in self._own}
        for url, operator in reversed(self._offered.values()):
            if len(found) < MAX_KNOWN:
                found.setdefault(url, KnownRelay(url, operator, url in listed))
        return list(found.values())

    def offer(self, caller: Caller, run: int, offered: RelayOffer) -> bool:
        """Take a member's offer, in place of its last; return whether it is a new one."""
        member = caller.member
        if member is None or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active node of run {self.run}")
        if offered.run != run:
            raise problems.another_run(offered.run, self.run)
        problem = url_problem(offered.url)
        if not problem and _is_private(offered.url) and not self._local:  # others would reach their own machines
            problem = "is not an address of the public network"
        if problem:
            raise problems.malformed(f"{offered.url!r} cannot be listed: it {problem}")
        url, now = offered.url.rstrip("/"), self.clock()
        before = self._offers.get(caller.address)
        self._offers[caller.address] = _Offer(url, member.operator, now + OFFER_SECONDS)
        self._remember(caller.address, url, member.operator)
        self._forget(now)
        return before is None or before.url != url

    def has_listed(self, url: str) -> bool:
        """Return whether a base URL is one of the owner's, or what a member offered last."""
        return url in self._own or url in self._urls

    def _remember(self, member: str, url: str, operator: str) -> None:
        """Note a member's offer in place of its last, as the newest."""
        last, _ = self._offered.pop(member, ("", ""))
        self._urls[last] -= 1
        self._offered[member] = url, operator
        self._urls[url] += 1
        self._urls = +self._urls  # without those that are no longer offered

    async def report(self, caller: Caller, run: int, report: MisbehaviourReport) -> bool:
        """Take a report of a misbehaving source; return whether its operator had not reported that source yet."""
        if caller.member is None:
            raise problems.not_allowed(f"{caller.address} is no node of run {self.run}")
        if report.run != run:
            raise problems.another_run(report.run, self.run)
        url, now = report.url.rstrip("/"), self.clock()
        self._forget(now)
        if url not in self.listed() and url not in self._accused:
            raise problems.not_found(f"{report.url!r} is no relay of run {self.run}")
        operator = caller.member.operator
        new = operator not in self._accused.get(url, {})
        if new and sum(operator in reporters for reporters in self._accused.values()) >= MAX_REPORTS:
            raise problems.try_later(f"{operator} has reported {MAX_REPORTS} relays within the hour")
        self._accused.setdefault(url, {})[operator] = now + HIDDEN_SECONDS
        if new:
            REPORTS.inc()
            signed = SignedMisbehaviourReport(report=report, request=caller.request)
            name = await self.copies.put(signed.model_dump_json().encode())
            data = {"relay": url, "by": caller.address, "root": report.root, "why": report.why, "evidence": name}
            source = f"misbehaviour:{url}:{caller.address}:{name}"
            await self.database.write(lambda connection: record_event(connection, "relay misbehaved", data, source))
            log.warning("relay misbehaved", url=url, by=caller.address, why=report.why)
        return new

    def _hidden(self, offer: _Offer) -> bool:
        """Return whether enough operators besides its own have reported it."""
        return len(self._accused.get(offer.url, {}).keys() - {offer.operator}) >= REPORTERS

    def _forget(self, now: float) -> None:
        """Drop offers that were not renewed, and reports that no longer count."""
        self._offers = {member: offer for member, offer in self._offers.items() if offer.until > now}
        for url in list(self._accused):
            self._accused[url] = {operator: end for operator, end in self._accused[url].items() if end > now}
            if not self._accused[url]:
                del self._accused[url]
        OFFERS.set(len(self._offers))


def _is_private(url: str) -> bool:
    """Return whether a URL names this machine or a private network. A host name counts as public: it can change."""
    host = urlsplit(url).hostname or ""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
