"""Counting an hour's looks: what is paid of them, after what was checked by then. Pure; the simulation plays it too.

Each hour has a list (`muster.protocol.messages.LookList`), in rising order, published from `settles_at` on. Its count
follows from the lists before it, from the looks of its hour and of the hours after it whose links are due, and from the
checks that were made since the list before it. Those may be of looks of any hour that is not counted yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.protocol.looks import PlacedLook, Record, settles_at, voided_with
from muster.protocol.messages import ListedLook, LookList, RowCheck
from muster.protocol.reasons import Why

LookKey = tuple[str, str, int]
"""Validator, node and index."""


def key_of(one: PlacedLook | RowCheck | ListedLook) -> LookKey:
    return one.validator, one.node, one.index


def records_of(found: LookList) -> dict[str, Record]:
    """Return what a list says of each validator."""
    return {one.validator: Record(one.total, one.refuted_at, one.barred_until) for one in found.totals}


@dataclass
class Tally:
    """What the lists so far say that the next ones count by."""

    records: dict[str, Record] = field(default_factory=dict)
    """By validator."""
    void: dict[LookKey, Why] = field(default_factory=dict)
    """Why looks of hours that are not counted yet will not count."""

    def record(self, validator: str) -> Record:
        return self.records.setdefault(validator, Record())

    @property
    def total(self) -> int:
        """Return the token wei of all that was counted."""
        return sum(record.total for record in self.records.values())


def count_hour(
    tally: Tally, hour: int, looks: Sequence[PlacedLook], checks: Sequence[RowCheck], left: int
) -> dict[LookKey, Why | None]:
    """Count the looks of an hour into `tally`; return of each whether it is paid (None), or why not.

    looks: those that took places and are not refuted, of `hour` and of the later ones whose links are due, at most
    SETTLE_HOURS. checks: made since the list before, of such looks, each with its search; "refuted" ones of any
    rejection. left: token wei that are funded and not counted.
    """
    now = settles_at(hour)
    pending = sorted((look for look in looks if key_of(look) not in tally.void), key=lambda look: look.came)
    known = {key_of(look): look for look in pending}

    # 1. What checks found.
    false: dict[str, set[LookKey]] = {}
    for check in checks:
        key = key_of(check)
        if check.outcome == "refuted":
            tally.record(check.validator).refute(now)
        elif check.outcome == "false" and key in known:
            false.setdefault(check.validator, set()).add(key)

    # 2. What that takes with it.
    for validator, keys in false.items():
        tally.record(validator).find((known[key].operator for key in keys), now)
        own = [look for look in pending if look.validator == validator]
        places = [place for place, look in enumerate(own) if key_of(look) in keys]
        tally.void |= {key_of(own[place]): "voided" for place in voided_with(places, own)}
        tally.void |= dict.fromkeys(keys, "false")

    # 3. What is paid, as far as the money reaches.
    counted: dict[LookKey, Why | None] = {}
    for look in sorted((look for look in looks if look.hour == hour), key=lambda look: look.came):
        key, record = key_of(look), tally.record(look.validator)
        why = tally.void.pop(key, None)
        if why is None and record.barred_until > now:
            why = "barred"
        if why is None and look.wage > left:
            why = "unfunded"
        if why is None:
            record.total += look.wage
            left -= look.wage
        counted[key] = why
    return counted
