"""Notifications: the exact posts; servers that hang, fail, redirect and close; messages that repeat, or never do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ConfigError, FinishedError, MusterError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.notify import (
    FOR_GOOD,
    MAX_TEXT,
    QUEUE_LIMIT,
    REMEMBERED,
    NotificationHistory,
    Notifier,
    notifying,
    plain,
    webhook_of,
)
from muster.settings.schema import NotifySettings, Settings
from testbed.http import DRIP, NO_CONTENT, Held, ScriptedServer, answer, scripted
from testbed.waiting import until

NODE = "0x" + "1" * 40
NOON = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


webhook = functools.partial(scripted, path="/services/T0/B0/a-secret-path")


def notifier(
    url: str,
    clock: Clock | None = None,
    history: NotificationHistory | None = None,
    timeout: float = 0.5,
    **settings: Any,
) -> Notifier:
    quick: Any = {"pauses": (0.01, 0.01), "timeout": timeout, "clock": clock or Clock()}
    made = Notifier(url, NotifySettings(**settings), name="worker-1", run=3, history=history, **quick)
    made.node = NODE
    return made


@contextlib.asynccontextmanager
async def sending(made: Notifier) -> AsyncIterator[None]:
    task = asyncio.create_task(made.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_notification_is_posted_as_json() -> None:
    async with webhook() as server:
        made = notifier(server.url)
        async with sending(made):
            assert made.tell(
                "rejected", "wrong_draw", "worker-1: commitment 12 was rejected", commitments="12", count=1
            )
            await until(lambda: len(server.posts) == 1)
    assert server.posts == [
        {
            "kind": "rejected",
            "node": NODE,
            "name": "worker-1",
            "run": 3,
            "text": "worker-1: commitment 12 was rejected",
            "time": "2023-11-14T22:13:20Z",
            "details": {"commitments": "12", "count": 1},
        }
    ]
    assert server.heads[0].startswith("POST /services/T0/B0/a-secret-path HTTP/1.1\r\n")
    assert "content-type: application/json\r\n" in server.heads[0].lower()


def test_discord_gets_its_own_field_and_no_mentions() -> None:
    for host, is_discord in (("discord.com", True), ("canary.discord.com", True), ("notdiscord.com", False)):
        made = notifier(f"https://{host}/api/webhooks/1/secret")
        made.tell("claimed", "through 3", "@everyone worker-1 claimed 1 MUST")
        document = made.document(made.queue[0])
        expected = {"content": "@everyone worker-1 claimed 1 MUST", "allowed_mentions": {"parse": []}}
        assert {key: document.get(key) for key in expected} == (expected if is_discord else dict.fromkeys(expected))


@pytest.mark.parametrize(
    ("answers", "posts"),
    [
        ((NO_CONTENT,), 1),
        ((answer("500 Internal Server Error"), NO_CONTENT), 2),
        ((answer("429 Too Many Requests"), answer("503 Service Unavailable"), NO_CONTENT), 3),
        ((b"", NO_CONTENT), 2),
        ((Held(), NO_CONTENT), 2),
        ((Held(b"HTTP/1.1 20"), NO_CONTENT), 2),
        ((DRIP, NO_CONTENT), 2),
        ((b"nonsense\r\n\r\n", NO_CONTENT), 2),
        ((answer("500 Internal Server Error"),), 3),
        ((b"",), 3),
        ((answer("404 Not Found"),), 1),
        ((answer("302 Found", "Location: http://127.0.0.1:1/elsewhere"),), 1),
        ((answer("307 Temporary Redirect", "Location: /elsewhere"),), 1),
    ],
    ids=str,
)
async def test_it_is_sent_again_where_that_may_help_and_the_next_goes_on(
    answers: tuple[bytes, ...], posts: int
) -> None:
    async with webhook(*answers) as server:
        made = notifier(server.url)
        async with sending(made):
            made.tell("accused", "case 1", "first")
            await until(lambda: len(server.posts) == posts)
            server.answers[:] = [NO_CONTENT]
            made.tell("accused", "case 2", "second")
            await until(lambda: server.posts[-1]["text"] == "second")
    assert [post["text"] for post in server.posts] == ["first"] * posts + ["second"]


async def test_an_endless_answer_is_not_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536
    async with webhook(Held(endless)) as server:
        made = notifier(server.url, timeout=5)
        await asyncio.wait_for(made.send_test(), 4)
    assert server.posts[0]["kind"] == "test"


async def test_repeat_is_sent_once_an_hour_or_once_until_resolved() -> None:
    clock = Clock()
    made = notifier("https://chat.example.org/x", clock)
    assert made.tell("rejected", "wrong_draw", "a", covers=["commitment 1"])
    assert made.is_known("rejected", "commitment 1")
    clock.now += 3599
    assert not made.tell("rejected", "wrong_draw", "b")
    assert made.tell("rejected", "malformed", "another subject")
    clock.now += 1
    assert made.tell("rejected", "wrong_draw", "c")
    assert made.tell("low_gas", NODE, "low", again=FOR_GOOD)
    clock.now += 10**9
    assert not made.tell("low_gas", NODE, "still low", again=FOR_GOOD)
    made.forget("low_gas", NODE)
    assert made.tell("low_gas", NODE, "low again", again=FOR_GOOD)
    assert made.is_known("rejected", "commitment 1"), "for good"
    assert [one.text for one in made.queue] == ["a", "another subject", "c", "low", "low again"]


async def test_sent_messages_survive_a_restart_and_a_spoilt_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "state" / "notifications.json", Clock()
    async with webhook() as server:
        made = notifier(server.url, clock, NotificationHistory.load(path))
        assert made.history.fresh
        async with sending(made):
            made.tell("stopped", "ConfigError", "ended")
            made.tell("low_gas", NODE, "low", again=FOR_GOOD)
            await until(lambda: len(server.posts) == 2)
        await made.finish(1)
    assert json.loads(path.read_text()) == {"stopped:ConfigError": NOON + 3600, f"low_gas:{NODE}": None}
    again = notifier("https://chat.example.org/x", clock, NotificationHistory.load(path))
    assert not again.history.fresh
    assert not again.tell("stopped", "ConfigError", "ended")
    assert not again.tell("low_gas", NODE, "low", again=FOR_GOOD)
    for spoilt in ("[1]", "{", '{"a": "b"}', "\x00"):
        path.write_text(spoilt)
        assert NotificationHistory.load(path).until == {}
    for number in range(REMEMBERED + 5):
        again.know("rejected", f"commitment {number}")
    assert len(again.history.until) == REMEMBERED
    assert not again.is_known("rejected", "commitment 4")
    assert again.is_known("rejected", "commitment 5")


async def test_unsent_message_may_repeat_after_an_hour() -> None:
    clock = Clock()
    async with webhook(answer("404 Not Found")) as server:
        made = notifier(server.url, clock)
        async with sending(made):
            made.tell("accused", "case 1", "first", again=FOR_GOOD)
            await until(lambda: len(server.posts) == 1)
            await until(lambda: not made.queue)
    clock.now += 3599
    assert not made.tell("accused", "case 1", "first", again=FOR_GOOD)
    clock.now += 2
    assert made.tell("accused", "case 1", "first", again=FOR_GOOD)


def test_the_oldest_makes_room_and_is_counted() -> None:
    made = notifier("https://chat.example.org/x")
    for number in range(QUEUE_LIMIT + 3):
        made.tell("accused", f"case {number}", f"{number}")
    assert (len(made.queue), made.dropped) == (QUEUE_LIMIT, 3)
    assert (made.queue[0].text, made.queue[-1].text) == ("3", str(QUEUE_LIMIT + 2))


def test_only_what_is_wanted_is_taken() -> None:
    made = notifier("https://chat.example.org/x", events=["accused"])
    assert not made.tell("low_gas", NODE, "low")
    assert made.tell("accused", "case 1", "accused")
    assert not Notifier().tell("accused", "case 1", "no webhook is set")


def test_strangers_words_are_cut_and_cleaned() -> None:
    assert plain("a\x1b[31mred\r\nb\u202etxt\u2066 \x00\u200bend") == "a [31mred b txt end"
    assert plain("<!channel> [here](http://bad.example)") == "‹!channel› [here] (http://bad.example)"
    assert plain("x" * 10_000) == "x" * (MAX_TEXT - 1) + "…"
    assert plain("é 漢字 🙂") == "é 漢字 🙂"


@pytest.mark.usefixtures("kept_logging")
@pytest.mark.parametrize(
    "given", [b"", Held(), answer("404 Not Found"), answer("302 Found", "Location: /a-secret-path")]
)
async def test_the_url_is_in_no_log_and_no_error(tmp_path: Path, given: bytes) -> None:
    log = tmp_path / "log.jsonl"
    telemetry.configure("worker-1", log_file=log, level="error")
    async with webhook(given) as server:
        made = notifier(server.url)
        async with sending(made):
            made.tell("accused", "case 1", "first")
            await until(lambda: log.read_text().count("a notification was not sent"))
        with pytest.raises(UnreachableError) as caught:
            await made.send_test()
    assert str(caught.value).startswith("the webhook at 127.0.0.1 did not take it: ")
    assert "secret" not in log.read_text() + str(caught.value) + repr(made) + caught.value.hint


async def test_unreachable_webhook_is_no_error_of_the_node() -> None:
    made = notifier("http://127.0.0.1:1/a-secret-path")
    async with sending(made):
        made.tell("accused", "case 1", "first")
        await until(lambda: not made.queue)


# How a process ends


def settings(server: ScriptedServer, **changes: Any) -> Settings:
    return Settings(run=3, name="worker-1", notify=NotifySettings(webhook=server.url, **changes))


async def ends(error: Exception, settings: Settings, folder: Path) -> None:
    async with notifying(settings, folder, "worker") as made:
        made.node = NODE
        raise error


@pytest.mark.parametrize(
    ("error", "text", "details"),
    [
        (
            ConfigError("this key is for run 1", hint="set run"),
            "worker-1 stopped: this key is for run 1. Next: set run",
            {"exit_code": 78, "reason": "this key is for run 1", "next": "set run"},
        ),
        (
            FinishedError("this worker has retired"),
            "worker-1 has nothing left to do: this worker has retired",
            {"exit_code": 0, "reason": "this worker has retired", "next": ""},
        ),
        (
            ZeroDivisionError("a/b"),
            "worker-1 stopped: unexpected ZeroDivisionError. Next: the log has the traceback",
            {"exit_code": 1, "reason": "unexpected ZeroDivisionError", "next": "the log has the traceback"},
        ),
    ],
    ids=["configuration", "finished", "crash"],
)
async def test_error_exit_is_posted_before_the_process_ends(
    tmp_path: Path, error: Exception, text: str, details: dict[str, object]
) -> None:
    async with webhook() as server:
        for _ in range(2):  # a supervisor restarts it: one post
            with pytest.raises(type(error)):
                await ends(error, settings(server), tmp_path)
    assert [(post["kind"], post["text"], post["details"]) for post in server.posts] == [("stopped", text, details)]


async def test_signal_exit_is_not_posted_or_delayed_by_a_deaf_webhook(tmp_path: Path) -> None:
    async with webhook(Held()) as server:
        begun = asyncio.Event()

        async def work() -> None:
            async with notifying(settings(server), tmp_path, "worker") as made:
                made.tell("claimed", "through 1", "claimed")
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        await until(lambda: bool(server.posts))
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=3)
        assert done == {task}
        assert task.cancelled()
    assert {post["kind"] for post in server.posts} == {"claimed"}


async def test_without_a_webhook_nothing_is_kept_or_sent(tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="over"):
        await ends(MusterError("over"), Settings(), tmp_path)
    assert list(tmp_path.iterdir()) == []


# Settings


def test_webhook_file_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "webhook"
    path.write_text("https://chat.example.org/secret\n")
    path.chmod(0o600)
    assert webhook_of(NotifySettings(webhook_file=path)) == "https://chat.example.org/secret"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read .* \(mode 0640\)"):
        webhook_of(NotifySettings(webhook_file=path))
    path.chmod(0o600)
    path.write_text("http://chat.example.org/secret\n")
    with pytest.raises(ConfigError, match="has no webhook: it must begin with https://") as caught:
        webhook_of(NotifySettings(webhook_file=path))
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="both set"):
        webhook_of(NotifySettings(webhook="https://a.example/x", webhook_file=path))
