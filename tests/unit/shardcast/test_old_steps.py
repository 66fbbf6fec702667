"""Every client can rebuild the old steps that a publisher owes as evidence, from any holdings and any source.

The histories use the real retention, the real index pages and the real choice of a route.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.shardcast.fetch.route import MAX_CHAIN_STEPS, Route, offers_of, route_to
from muster.shardcast.format.store import (
    MAX_CHAIN,
    MAX_INDEX_ENTRIES,
    Index,
    IndexEntry,
    index_of,
    index_page,
    page_of,
)
from muster.shardcast.retention import HeldVersion, StepRetention, kept
from testbed.suite.examples import up_to
from testbed.weights.checkpoints import keeping

RUN = 1
WHOLE = 1000
HOUR = 3600.0


def root_of(step: int, base: int | None) -> bytes:
    return sha256(f"{step} from {base}".encode()).digest()


@dataclass(frozen=True)
class Update:
    """One update that a trainer publishes."""

    hours: float
    """Since the update before."""
    size: int
    """Of its difference; one of more than half a step is not published."""
    adapter: bool = False
    """Whether the difference is an adapter to step 0."""


@dataclass
class Publisher:
    """The served folder of a trainer, as `muster.shardcast.publish` keeps it."""

    deltas: StepRetention
    newest: int
    held: list[HeldVersion] = field(default_factory=list)
    now: float = 0.0
    replaced: dict[int, float] = field(default_factory=dict)
    """By step: when the one after it was published."""

    def publish(self, step: int, update: Update) -> None:
        self.now += update.hours * HOUR
        self.replaced[step - 1] = self.now
        whole = {version.step for version in self.held if version.base_step is None}
        self.held.append(HeldVersion(root_of(step, None), step, None, WHOLE, self.now))
        if step and update.size <= WHOLE // 2:
            base = 0 if update.adapter and 0 in whole else max(whole)
            self.held.append(HeldVersion(root_of(step, base), step, base, update.size, self.now))
        always = [0] if update.adapter else []
        roots = kept(self.held, self.newest, self.deltas, self.now, always)
        self.held = [version for version in self.held if version.root in roots]

    def owed(self, last: int) -> list[int]:
        """Return the steps that were replaced less than the time to keep ago, and the newest in any case."""
        first, since = last - self.newest, self.now - self.deltas.kept_hours * HOUR
        return [step for step in range(last + 1) if step > first or self.replaced[step] > since]

    def entries(self) -> list[IndexEntry]:
        return [
            IndexEntry(root=f"0x{v.root.hex()}", run=RUN, step=v.step, base_step=v.base_step, size=v.size)
            for v in self.held
        ]


def asked(step: int, *sources: list[IndexEntry]) -> dict[str, list[Index]]:
    """Return the indexes of sources, and their pages of a step."""
    return {
        f"http://{number}": [index_of(entries), index_page(entries, page_of(step))]
        for number, entries in enumerate(sources)
    }


def route_of(step: int, held: set[int], *sources: list[IndexEntry]) -> Route | None:
    return route_to(step, root_of(step, None), offers_of(asked(step, *sources), RUN), held, WHOLE)


def check(route: Route | None, step: int, held: set[int], offered: list[IndexEntry]) -> None:
    """Assert that a route leads to a step from what is held or offered; return what it costs."""
    assert route is not None, f"step {step} cannot be made from {sorted(held)}"
    roots = {entry.root for entry in offered}
    assert {f"0x{offer.root.hex()}" for offer in route.offers} <= roots
    assert route.begin_with is not None or route.start in held
    at = route.start
    for offer in route.chain:
        assert offer.base_step == at
        at = offer.step
    assert at == step
    assert len(route.chain) <= MAX_CHAIN
    assert route.cost == sum(offer.size for offer in route.offers) <= WHOLE * (1 + MAX_CHAIN_STEPS)


updates = st.builds(
    Update, st.floats(0.01, 40), st.integers(1, WHOLE // 2 + 50) | st.just(WHOLE // 2) | st.just(5), st.booleans()
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Publisher, int]:
    """Draw a publisher and its newest step: a pattern of updates, repeated over up to 300 steps.

    Perhaps the settings are others from some step on, as after a restart.
    """
    deltas = st.builds(
        keeping,
        whole_every=st.integers(1, 20) | st.integers(1, 10_000),
        whole=st.integers(1, 5) | st.integers(1, 300),
        seconds=st.sampled_from([0.0, 5 * HOUR, 168 * HOUR, 10_000 * HOUR]),
    )
    publisher = Publisher(draw(deltas), draw(st.integers(1, 20) | st.integers(1, 300)))
    pattern = draw(st.lists(updates, min_size=1, max_size=12))
    adapters = draw(st.booleans())
    steps, change = draw(st.integers(1, 300)), draw(st.none() | st.integers(1, 300))
    for step in range(steps):
        if step == change:
            later = draw(deltas)
            publisher.deltas = replace(later, kept_hours=publisher.deltas.kept_hours)
        update = pattern[step % len(pattern)]
        publisher.publish(step, update if adapters else Update(update.hours, update.size))
    return publisher, steps - 1


@settings(deadline=None, max_examples=up_to(30, few=8))
@given(histories(), st.sets(st.integers(0, 299), max_size=6), st.data())
def test_owed_steps_can_be_rebuilt_by_every_client(
    history: tuple[Publisher, int], holdings: set[int], data: st.DataObject
) -> None:
    publisher, last = history
    origin, held = publisher.entries(), {step for step in holdings if step <= last}
    relay = [entry for entry in origin if entry.step > last - 3]
    mirror = data.draw(st.lists(st.sampled_from(origin), max_size=5), label="a mirror that lacks most")
    for step in publisher.owed(last):
        if step not in held:
            check(route_of(step, held, relay, origin, mirror), step, held, origin)


def test_two_newest_of_240_steps_suffice_for_every_other() -> None:
    publisher = Publisher(keeping(seconds=168 * HOUR), newest=16)
    for step in range(240):
        publisher.publish(step, Update(0.5, 30))
    origin = publisher.entries()
    assert len([entry for entry in origin if entry.base_step is None]) == 17, "fifteen anchors, and the two newest"
    lost = [step for step in range(238) if route_of(step, {238, 239}, origin) is None]
    assert lost == []


def test_a_week_of_a_step_a_minute_is_on_pages_of_bounded_size() -> None:
    """No single index names so many."""
    publisher = Publisher(keeping(seconds=168 * HOUR), newest=16)
    for step in range(1, 3001):  # what stays after a week of these, without the week
        publisher.held.append(HeldVersion(root_of(step, step - 1), step, step - 1, 30, 0))
        if step % 16 == 0 or step > 2998:
            publisher.held.append(HeldVersion(root_of(step, None), step, None, WHOLE, 0))
    origin = publisher.entries()
    assert len(index_of(origin).versions) == MAX_INDEX_ENTRIES
    pages = {page: offers_of({"origin": [index_page(origin, page)]}, RUN) for page in {page_of(s) for s in range(3001)}}
    for step in range(16, 2999, 7):  # at every distance to a whole step, and on every page
        check(route_to(step, root_of(step, None), pages[page_of(step)], {2999, 3000}, WHOLE), step, set(), origin)
    assert len(index_page(origin, 5).versions) == 320 + 20, "of its steps, and of the 64 before"
