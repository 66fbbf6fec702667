"""Which versions a publisher keeps: the newest steps whole, of older ones every so many, and differences between.

A step is *wanted* while it is among the newest or young enough to be evidence. What is kept is what every wanted step
can be made of by somebody who holds none, within the limits of `muster.shardcast.fetch.route`, and its own difference,
by which those who have the step before come to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.constants import HOUR_SECONDS
from muster.shardcast.fetch.route import MAX_CHAIN_STEPS, NamedVersion
from muster.shardcast.format.store import MAX_CHAIN


@dataclass(frozen=True)
class HeldVersion(NamedVersion):
    """A version in the publisher's folder."""

    published: float
    """When, in seconds since the epoch."""


@dataclass(frozen=True)
class StepRetention:
    """How steps that are not the newest are kept."""

    whole_every: int = 16
    """Steps that this divides stay whole."""
    kept_hours: float = 168
    """Steps that a newer one replaced less than this ago are kept."""
    whole_newest: int = 2
    """Newest steps that stay whole besides: the newest, and the one that its difference is to."""


def kept(
    held: Collection[HeldVersion], newest: int, chosen: StepRetention, now: float, always: Collection[int] = ()
) -> set[bytes]:
    """Return the roots of one run's versions that must stay.

    At least the `newest` steps are wanted, and those that were replaced less than `kept_hours` ago: until then there
    was work on them. The steps in `always` stay whole.

    A step that can be made of `held` within the limits of a route can be made of what stays, as long as it is wanted:
    called after each publication, nothing that was published is out of reach before its time.
    """
    # 1. The versions of each step that routes use; of two of a kind the later one counts.
    whole, deltas = dict[int, HeldVersion](), dict[int, HeldVersion]()
    largest = max((version.size for version in held if version.base_step is None), default=0)
    for version in sorted(held, key=lambda version: version.published):
        if version.base_step is None:
            whole[version.step] = version
        elif version.is_difference(largest):
            deltas[version.step] = version
    # 2. The steps that are wanted, and those that stay whole whatever else does.
    steps = sorted(whole.keys() | deltas.keys(), reverse=True)
    replaced = [now, *(max(of[step].published for of in (whole, deltas) if step in of) for step in steps)]
    since = now - chosen.kept_hours * HOUR_SECONDS
    wanted = [step for place, step in enumerate(steps) if place < newest or replaced[place] > since]
    stays = {*wanted[: chosen.whole_newest], *always}
    anchors = {step for step in whole if step % chosen.whole_every == 0 or step in stays}
    # 3. What makes each of them, newest first, so that one chain serves many.
    needed = {step for step in anchors if step in stays or step in wanted}
    differences: set[int] = set()
    for step in wanted:
        chain = _chain(step, whole, deltas, anchors | needed, MAX_CHAIN_STEPS * largest)
        if step in needed:
            differences.update(chain[:1])
        else:
            differences.update(chain)
            needed.add(_base(deltas[chain[-1]]) if chain else step)
    return {whole[step].root for step in needed if step in whole} | {deltas[step].root for step in differences}


def _chain(
    step: int, whole: Mapping[int, HeldVersion], deltas: Mapping[int, HeldVersion], anchors: Collection[int], limit: int
) -> list[int]:
    """Return the steps whose differences make a step, its own first; none where no whole step is within reach.

    They begin at an anchor, or else at the oldest whole step within reach. limit: bytes of all of them.
    """
    chain: list[int] = []
    best = cost = 0
    while (delta := deltas.get(step)) is not None:
        cost += delta.size
        if len(chain) == MAX_CHAIN or cost > limit:
            break
        chain.append(step)
        step = _base(delta)
        if step in whole:
            best = len(chain)
            if step in anchors:
                break
    return chain[:best]


def _base(delta: HeldVersion) -> int:
    assert delta.base_step is not None, "a whole step is no difference"
    return delta.base_step
