"""What a publisher keeps of the past: the newest steps whole, of older ones every so many, and differences between.

A step is *wanted* while it is among the newest or young enough to be evidence. What is kept is what every wanted step
can be made of, and its own difference, by which those who have the step before come to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deltas:
    """How a publisher keeps steps as differences."""

    whole_every: int = 16
    """Steps that this divides stay whole until nobody needs them."""
    whole: int = 2
    """So many of the newest steps are whole besides."""
    seconds: float = 0
    """Steps younger than this are kept."""


@dataclass(frozen=True)
class Held:
    """A version in the publisher's folder."""

    root: bytes
    step: int
    base_step: int | None
    """None for a whole step."""
    published: float
    """When, in seconds since the epoch."""


def kept(held: Collection[Held], newest: int, deltas: Deltas, now: float, always: Collection[int] = ()) -> set[bytes]:
    """The roots of one run's versions that must stay, if at least the `newest` steps are wanted, and the steps in
    `always` whole."""
    shelf = _Shelf(held, deltas.whole_every)
    steps = sorted({version.step for version in held}, reverse=True)
    wanted = [
        step for place, step in enumerate(steps) if place < newest or shelf.published(step) > now - deltas.seconds
    ]
    for place, step in enumerate(wanted):
        if place < deltas.whole or shelf.stays_whole(step):
            shelf.keep_whole(step)
        shelf.keep(step)
    for step in always:
        shelf.keep_whole(step)
    return shelf.roots


class _Shelf:
    """The versions by what they are, and those chosen so far."""

    def __init__(self, held: Iterable[Held], whole_every: int) -> None:
        self._whole_every = whole_every
        self._whole: dict[int, Held] = {}
        self._deltas: dict[int, Held] = {}
        self._chosen: dict[bytes, Held] = {}
        for version in sorted(held, key=lambda version: version.published):  # of two for one step the later one counts
            (self._whole if version.base_step is None else self._deltas)[version.step] = version

    @property
    def roots(self) -> set[bytes]:
        return set(self._chosen)

    def stays_whole(self, step: int) -> bool:
        return step % self._whole_every == 0 and step in self._whole

    def published(self, step: int) -> float:
        return max(found[step].published for found in (self._whole, self._deltas) if step in found)

    def keep_whole(self, step: int) -> None:
        if (version := self._whole.get(step)) is not None:
            self._chosen[version.root] = version

    def keep(self, step: int) -> None:
        """Keep the difference of a step, if it has one, and what the step can be made of: itself or a chain."""
        while self._can_be_made(step):
            delta = self._deltas[step]
            self._chosen[delta.root] = delta
            if self._is_kept_whole(step):
                return
            assert delta.base_step is not None
            step = delta.base_step
            if self.stays_whole(step):
                break
        self.keep_whole(step)

    def _is_kept_whole(self, step: int) -> bool:
        return (version := self._whole.get(step)) is not None and version.root in self._chosen

    def _can_be_made(self, step: int) -> bool:
        """Whether a chain of differences leads from a whole step to this one."""
        while (delta := self._deltas.get(step)) is not None:
            assert delta.base_step is not None
            step = delta.base_step
            if step in self._whole:
                return True
        return False
