"""Whether a validator looks now, later, or leaves a commitment to others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.errors import UnreachableError
from muster.protocol.messages import CallAnswer
from testbed.samples.court import HEAD
from testbed.samples.validator import ME, Clock, pending, receive, verdict, work
from validator import turns as turns_room
from validator.journal import ValidatorJournal
from validator.turns import is_ours

NOW = HEAD.timestamp


@pytest.mark.parametrize(
    ("may_look", "turn_at", "waits_until"),
    [(True, None, 10_000.0), (True, NOW + 70, 10_000.0), (False, NOW + 70, 10_070.0), (False, NOW - 5, 10_001.0)],
)
async def test_a_validator_looks_where_a_place_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_look: bool, turn_at: int | None, waits_until: float
) -> None:
    monkeypatch.setattr(turns_room, "time", Clock())
    with ValidatorJournal(tmp_path, "me", 1, ME) as journal:
        turns = turns_of(journal, CallAnswer(order=[ME], opens=0, may_look=may_look, turn_at=turn_at))
        receive(journal, work(0))
        [c] = pending(journal)
        assert await turns.is_ours(c) is may_look
        assert journal.pending(1_000, waits_until - 0.5, 9) == ([] if waits_until > 10_000 else [(c, 1000.0)])
        assert journal.pending(1_000, waits_until, 9) == [(c, 1000.0)]


async def test_a_commitment_that_others_look_at_is_passed_over(tmp_path: Path) -> None:
    with ValidatorJournal(tmp_path, "me", 1, ME) as journal:
        turns = turns_of(journal, CallAnswer(order=[ME], opens=0, may_look=False))
        receive(journal, work(0))
        assert not await turns.is_ours(pending(journal)[0])
        assert (pending(journal), journal.backlog(), journal.open_hour(after=0, before=9)) == ([], 0, None)


async def test_who_had_a_place_looks_also_when_its_turn_is_over(tmp_path: Path) -> None:
    """The file did not come meanwhile, and nobody would accuse its node. A reorg calls others."""
    with ValidatorJournal(tmp_path, "me", 1, ME) as journal:
        receive(journal, work(0))
        [c] = pending(journal)
        assert await turns_of(journal, CallAnswer(order=[ME], opens=0, may_look=True)).is_ours(c)
        over = turns_of(journal, CallAnswer(order=[ME], opens=0, may_look=False))
        assert await over.is_ours(c)
        receive(journal, rewound_to=c.block)
        assert not await over.is_ours(c)


async def test_who_passes_over_work_that_it_has_judged_still_seals_its_hour(tmp_path: Path) -> None:
    with ValidatorJournal(tmp_path, "me", 1, ME) as journal:
        receive(journal, work(0))
        [c] = pending(journal)
        journal.judge(c, verdict(c), None, accuse_at=None)
        receive(journal, rewound_to=c.block)
        assert not await turns_of(journal, CallAnswer(order=[ME], opens=0, may_look=False)).is_ours(c)
        assert (journal.count(c.hour, "judged"), journal.vouched(c.hour)) == (1, [])


async def test_without_an_answer_nobody_passes_over_a_commitment(tmp_path: Path) -> None:
    with ValidatorJournal(tmp_path, "me", 1, ME) as journal:
        receive(journal, work(0))
        with pytest.raises(UnreachableError):
            await turns_of(journal, UnreachableError("no answer")).is_ours(pending(journal)[0])
        assert len(pending(journal)) == 1


def turns_of(journal: ValidatorJournal, answer: CallAnswer | Exception) -> SimpleNamespace:
    async def ask_call(*_: Any) -> CallAnswer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def head() -> Any:
        return HEAD

    chain: Any = SimpleNamespace(head=head)
    client: Any = SimpleNamespace(ask_call=ask_call)
    return SimpleNamespace(is_ours=partial(is_ours, chain=chain, client=client, journal=journal))
