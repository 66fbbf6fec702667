"""Which versions a publisher keeps: the newest steps whole, of older ones every so many, and differences between.

A step is *wanted* while it is among the newest or young enough to be evidence. What is kept is what every wanted step
can be made of by somebody who holds none, within the limits of `muster.shardcast.fetch.route`, and its own difference,
by which those who have the step before come to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster.constants import HOUR_SECONDS
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.route import MAX_CHAIN, MAX_CHAIN_STEPS


@dataclass(frozen=True)
class HeldVersion:
    """A version in the publisher's folder."""

    root: bytes
    step: int
    base_step: int | None
    """None for a whole step."""
    published: float
    """When, in seconds since the epoch."""
    size: int
    """Bytes of all files."""


def kept(
    held: Collection[HeldVersion], newest: int, settings: ShardcastSettings, now: float, always: Collection[int] = ()
) -> set[bytes]:
    """Return the roots of one run's versions that must stay.

    At least the `newest` steps are wanted, and those that were replaced less than `kept_hours` ago: until then there
    was work on them. The steps in `always` stay whole.

    A step that can be made of `held` within the limits of a route can be made of what stays, as long as it is wanted:
    called after each publication, nothing that was published is out of reach before its time.
    """
    selection = _Selection(held, settings.whole_every)
    steps = sorted({version.step for version in held}, reverse=True)
    replaced = [now, *map(selection.published, steps)]
    since = now - settings.kept_hours * HOUR_SECONDS
    wanted = [step for place, step in enumerate(steps) if place < newest or replaced[place] > since]
    for place, step in enumerate(wanted):
        if place < settings.whole_versions or selection.stays_whole(step):
            selection.keep_whole(step)
        selection.keep(step)
    for step in always:
        selection.keep_whole(step)
    return selection.roots


class _Selection:
    """The versions by what they are, and those chosen so far."""

    def __init__(self, held: Iterable[HeldVersion], whole_every: int) -> None:
        self._whole_every = whole_every
        self._whole: dict[int, HeldVersion] = {}
        self._deltas: dict[int, HeldVersion] = {}
        self.roots: set[bytes] = set()
        """Of the versions chosen so far."""
        for version in sorted(held, key=lambda version: version.published):  # of two for one step the later one counts
            (self._whole if version.base_step is None else self._deltas)[version.step] = version
        self._chain_bytes = MAX_CHAIN_STEPS * max((whole.size for whole in self._whole.values()), default=0)

    def stays_whole(self, step: int) -> bool:
        return step % self._whole_every == 0 and step in self._whole

    def published(self, step: int) -> float:
        return max(found[step].published for found in (self._whole, self._deltas) if step in found)

    def keep_whole(self, step: int) -> None:
        if (version := self._whole.get(step)) is not None:
            self.roots.add(version.root)

    def keep(self, step: int) -> None:
        """Keep the difference of a step, if it is of use, and what the step can be made of: itself or a chain."""
        chain = self._chain(step)
        if chain and self._is_kept_whole(step):
            chain = chain[:1]
        elif chain:
            self.keep_whole(_base(chain[-1]))
        else:
            self.keep_whole(step)
        self.roots |= {delta.root for delta in chain}

    def _chain(self, step: int) -> list[HeldVersion]:
        """Return the differences that make a step, its own first; none where no whole step is within reach.

        They begin at a whole step that stays anyway, or else at the oldest within reach.
        """
        chain: list[HeldVersion] = []
        best = cost = 0
        while (delta := self._deltas.get(step)) is not None:
            cost += delta.size
            if len(chain) == MAX_CHAIN or cost > self._chain_bytes:
                break
            chain.append(delta)
            step = _base(delta)
            if step in self._whole:
                best = len(chain)
                if self.stays_whole(step) or self._is_kept_whole(step):
                    break
        return chain[:best]

    def _is_kept_whole(self, step: int) -> bool:
        return (version := self._whole.get(step)) is not None and version.root in self.roots


def _base(delta: HeldVersion) -> int:
    assert delta.base_step is not None, "a whole step is no difference"
    return delta.base_step
