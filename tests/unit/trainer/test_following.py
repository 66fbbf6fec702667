"""The process that follows log and chain for the trainer: what it may have signed, and what it takes in."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.chain.cursor import EventBatch
from muster.errors import MismatchError, UnreachableError
from muster.protocol.eip712 import sign_message
from muster.protocol.messages import Verdict
from muster.settings.schema import Settings
from muster.verification.look_facts import CalledWork
from muster.verification.rules import CommittedWork
from testbed.samples.commitments import WHERE
from testbed.samples.messages import KEY, request_of, verdict_of
from testbed.samples.trainer import DRAWN_BY, FORGED, NODE, RUN, STEP, VALIDATORS, commit, journal_in, judge
from trainer.following import AskedSigner, FollowProcess, RunFollower
from trainer.look_journal import LookJournal

NOTHING: Any = None


def saying(*lines: dict[str, Any]) -> tuple[FollowProcess, list[bytes]]:
    """Return the trainer's end of a process that says this, and what it is sent."""
    sent, ended = list[bytes](), asyncio.Event()
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    reader.feed_eof()
    process: Any = SimpleNamespace(
        stdin=SimpleNamespace(write=sent.append), stdout=reader, kill=ended.set, wait=ended.wait
    )
    beside = FollowProcess(Settings(), KEY, WHERE)
    beside.process = process
    return beside, sent


def asked(method: str) -> dict[str, Any]:
    return request_of(method=method).model_dump(exclude={"signature"})


async def test_a_read_is_signed_and_nothing_else() -> None:
    beside, sent = saying(asked("GET"), {"failed": ""})
    await beside.follow()
    assert sent == [b"\n", sign_message(KEY, WHERE, request_of(method="GET")).signature.encode() + b"\n"]
    for method in ("POST", "PUT"):
        beside, sent = saying(asked(method), {"failed": ""})
        with pytest.raises(UnreachableError, match=f"the signature of a {method}"):
            await beside.follow()
        assert (sent, beside.process) == ([b"\n"], None), "it is ended, and started anew when it is needed"


async def test_what_hinders_it_is_said_and_ends_nothing() -> None:
    beside, _ = saying({"failed": "the orchestrator does not answer"}, {"failed": ""})
    with pytest.raises(UnreachableError, match="the orchestrator does not answer"):
        await beside.follow()
    await beside.follow()
    with pytest.raises(UnreachableError, match="fails"):
        await beside.follow()
    assert beside.process is None


def test_the_process_asks_for_each_signature(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    request = request_of(method="GET")
    expected = sign_message(KEY, WHERE, request).signature
    monkeypatch.setattr("sys.stdin", io.StringIO(expected + "\n"))
    assert sign_message(AskedSigner(KEY.address), WHERE, request).signature == expected
    assert json.loads(capsys.readouterr().out) == asked("GET")


# What it takes in


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[LookJournal]:
    with journal_in(tmp_path) as opened:
        yield opened


class Log:
    """An orchestrator's log of verdicts, each in a page of its own."""

    domain = WHERE

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts_given = verdicts

    async def verdicts(self, run: int, after: int) -> tuple[list[tuple[Any, int]], int]:
        return [(one, 7) for one in self.verdicts_given[after : after + 1]], min(after + 1, len(self.verdicts_given))


def follower_of(journal: LookJournal, monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> RunFollower:
    """Return one whose chain stands still."""

    async def poll() -> EventBatch:
        return EventBatch((), 11, 11)

    async def nothing(*_: object) -> dict:
        return {}

    log: Any = Log(*verdicts)
    monkeypatch.setattr("trainer.following.shown_links", nothing)
    made = RunFollower(NOTHING, log, RUN, NOTHING, journal)
    monkeypatch.setattr(made, "_cursor", SimpleNamespace(poll=poll, ack=nothing))
    return made


async def test_verdicts_that_their_validators_did_not_sign_are_left_out(
    journal: LookJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(journal)
    [known] = journal.since(STEP)
    about = {"step": STEP, "node": NODE.lower(), "index": 0, "root": "0x" + "01" * 32, "file_hash": FORGED}
    good = sign_message(KEY, WHERE, verdict_of(**about))
    forged = good.model_copy(update={"validator": VALIDATORS[0]})
    other = sign_message(KEY, WHERE, verdict_of(**about, run=RUN + 1))
    await follower_of(journal, monkeypatch, forged, good, other).follow()
    assert [(one.validator, one.node, second) for one, second in journal.came(known.work)] == [(KEY.address, NODE, 7)]
    assert journal.place == 3


async def test_a_call_that_cannot_be_read_keeps_back_no_other(
    journal: LookJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(2):
        commit(journal, index)
        judge(journal, index)
    journal.execute("UPDATE commitments SET known = NULL")
    wrong = {0}

    async def read_call(_chain: object, _client: object, _terms: object, c: CommittedWork) -> CalledWork:
        if c.index in wrong:
            raise MismatchError("the orchestrator calls others")
        return CalledWork(c, VALIDATORS, 1000, DRAWN_BY, operator=NODE, work_class=0)

    monkeypatch.setattr("trainer.following.read_call", read_call)
    follower = follower_of(journal, monkeypatch)
    await follower.follow()
    assert [known.work.index for known in journal.since(0)] == [1]
    wrong.clear()
    await follower.follow()
    assert [known.work.index for known in journal.since(0)] == [0, 1]
