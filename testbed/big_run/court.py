"""Cases, votes, proofs and the newest events of a synthetic run.

Every cheater was convicted, one in four by a proof; honest work was cleared where a validator lost a case about it; and
the newest rejections of honest work are before the court. `Shape.moot` more cases and proofs changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from muster.ledger.events import MAX_EVENTS
from testbed.big_run.rows import Row, Rows
from testbed.big_run.shape import CHEATER_EVERY, REASONS, REJECTED, hashes

OPEN: Final = 3
"""Cases that are open."""
JURY: Final = 7
PROVEN_EVERY: Final = 4


@dataclass(frozen=True)
class Charge:
    """An accused commitment."""

    place: int
    """Of the commitment."""
    outcome: str
    opened: int
    """The chain's second."""
    resolved: int


class CourtRows:
    """What there is to insert about accusations. A method per table, as `Rows`."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._work, self._members, self._terms = rows, rows.work, rows.members, rows.terms
        self._rng = np.random.default_rng(rows.shape.seed + 3)

    @cached_property
    def _charges(self) -> tuple[list[Charge], list[Charge]]:
        """Return cases, oldest first, and proofs."""
        work = self._work
        phases = self._terms.commit_phase + self._terms.reveal_phase
        refused = np.flatnonzero(work.refused & work.is_cheater[work.worker])
        workers, firsts = np.unique(work.worker[refused], return_index=True)
        cases, proofs = list[Charge](), list[Charge]()
        for worker, place in zip(workers.tolist(), refused[firsts].tolist(), strict=True):
            convicted = self._rows.convicted_at(worker)
            kept = proofs if worker // CHEATER_EVERY % PROVEN_EVERY == 0 else cases
            kept.append(Charge(place, "guilty", int(work.time[place]) + 60, convicted))
        for place in np.flatnonzero(work.cleared).tolist():
            opened = int(work.time[place]) + 60
            cases.append(Charge(place, "not_guilty", opened, opened + phases))
        doubted = np.flatnonzero((work.status == REJECTED) & ~work.is_cheater[work.worker])[-OPEN:]
        cases += [
            Charge(place, "open", work.now - 120 - 5 * number, 0) for number, place in enumerate(doubted.tolist())
        ]
        moot = self._rng.integers(max(1, len(work.step)), size=2 * self._rows.shape.moot)
        for number, place in enumerate(moot.tolist()):
            opened = int(work.time[place]) + 60
            (cases if number % 2 else proofs).append(Charge(place, "moot", opened, opened + phases))
        return sorted(cases, key=lambda case: case.opened), proofs

    def cases(self) -> Iterator[Row]:
        work, terms = self._work, self._terms
        for number, case in enumerate(self._charges[0], 1):
            opened_in, resolved_in, evidence = hashes(self._rng, 3)
            ended = case.outcome != "open"
            jury = self._jury(case)
            guilty = len(jury) if case.outcome == "guilty" else 0
            reveals = len(jury) if ended else 0
            place, commit_ends = case.place, case.opened + terms.commit_phase
            yield (
                *(number, self._node(place), int(work.index[place]), self._challenger(place)),
                *(REASONS[work.reason[place]], case.outcome, evidence, len(jury), reveals, guilty),
                *(opened_in, resolved_in if ended else None, int(work.step[place]), work.root[place], 3),
                *(commit_ends, commit_ends + terms.reveal_phase),
            )

    def votes(self) -> Iterator[Row]:
        for number, case in enumerate(self._charges[0], 1):
            for judge in self._jury(case):
                committed, revealed = hashes(self._rng, 2)
                if case.outcome == "open":
                    yield number, judge, None, False, committed, None
                else:
                    yield number, judge, case.outcome == "guilty", False, committed, revealed

    def proofs(self) -> Iterator[Row]:
        for log, proof in enumerate(self._charges[1]):
            block = self._work.block_of(proof.resolved)
            node, index = self._node(proof.place), int(self._work.index[proof.place])
            (transaction,) = hashes(self._rng, 1)
            yield block, log, node, index, self._challenger(proof.place), "wrong_draw", "wrong_seed", 3, transaction

    def _node(self, place: int) -> str:
        return self._members.workers[self._work.worker[place]]

    def _challenger(self, place: int) -> str:
        return self._members.validators[self._work.validator[place]]

    def _jury(self, case: Charge) -> list[str]:
        """Return the judges: the validators after the challenger."""
        first, validators = int(self._work.validator[case.place]) + 1, self._members.validators
        return [validators[(first + i) % len(validators)] for i in range(min(JURY, len(validators) - 1))]

    # Events

    def events(self) -> Iterator[Row]:
        """Yield the newest events, oldest first."""
        found = sorted([*self._work_events(), *self._court_events()], key=lambda event: event[1])[-MAX_EVENTS:]
        for kind, second, data, source in found:
            yield kind, float(second), json.dumps(data), source

    def _work_events(self) -> Iterator[tuple[str, int, dict[str, Any], str]]:
        work, newest = self._work, max(0, len(self._work.step) - MAX_EVENTS)
        for place in range(newest, len(work.step)):
            second = int(work.time[place])
            data = {"node": self._node(place), "index": int(work.index[place]), "step": int(work.step[place])}
            yield "committed", second, data, f"chain:{work.block_of(second)}:{place}"
            if work.refused[place]:
                why = {"reason": REASONS[work.reason[place]], "validator": self._challenger(place)}
                del data["step"]
                source = f"verdict:{why['validator'][:10]}:{data['node'][:10]}:{data['index']}"
                yield "rejected", second + 40, data | why, source
        first = int(work.step[newest]) if len(work.step) else 0
        for step in range(first, self._rows.shape.steps + 1):
            second = int(work.published(np.int64(step)))
            yield (
                "checkpoint",
                second,
                {"step": step, "root": work.root[step % len(work.root)]},
                f"chain:{work.block_of(second)}:step {step}",
            )
            yield "step", second + 2, {"step": step, "metrics": {"reward": 0.5}, "files": 16}, f"step:{step}:{second}"

    def _court_events(self) -> Iterator[tuple[str, int, dict[str, Any], str]]:
        cases, proofs = self._charges
        for number, case in enumerate(cases, 1):
            about = {"case": number, "node": self._node(case.place), "index": int(self._work.index[case.place])}
            why = {"kind": REASONS[self._work.reason[case.place]], "challenger": self._challenger(case.place)}
            yield "case opened", case.opened, about | why, f"chain:{self._work.block_of(case.opened)}:case {number}"
            if case.outcome != "open":
                jury = len(self._jury(case))
                votes = {"guilty": jury if case.outcome == "guilty" else 0, "reveals": jury, "jury": jury}
                ended = about | {"outcome": case.outcome} | votes
                yield "case ended", case.resolved, ended, f"chain:{self._work.block_of(case.resolved)}:ended {number}"
        convicted = [case for case in (*cases, *proofs) if case.outcome == "guilty"]
        for case in convicted:
            terms, to = self._terms, self._challenger(case.place)
            data = {"node": self._node(case.place), "slashed": terms.slash, "bounty": terms.bounty, "to": to}
            yield "convicted", case.resolved, data, f"chain:{self._work.block_of(case.resolved)}:convicted {case.place}"
