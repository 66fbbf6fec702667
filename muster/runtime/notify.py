"""Tell an operator what needs attention, through a webhook (`notify.webhook`): a rejection, a case, little gas, an end.

    async with notifying(settings, state_dir) as notifier:
        notifier.tell("low_gas", node, f"worker-1: {held.sentence}")

Each is one POST of JSON: kind, node, name, run, text, time, details. Chats that take Slack's form show `text`; Discord
shows `content`, which each also has. `tell` never waits and never raises. One task sends; it tries again for some
minutes and then gives up. The state folder's notifications.json keeps the history of sent notifications, so that a
process that is restarted again and again does not repeat itself. The URL is a secret and is never logged.
"""

from __future__ import annotations

import asyncio
import json
import time
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2

from muster.constants import HOUR_SECONDS
from muster.errors import ConfigError, FinishedError, MusterError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.files import write_atomically
from muster.runtime.retries import TRY_AGAIN_STATUSES, Repeats
from muster.runtime.secret_files import read_secret
from muster.runtime.tls import http_client
from muster.settings.schema import NotificationKind, NotifySettings, Settings, check_webhook

QUEUE_LIMIT: Final = 64
"""Notifications that wait to be sent; the oldest makes room for a newer one."""

ANSWER_SECONDS: Final = 10.0
"""Longest wait for the answer to one attempt: a webhook that needs longer has failed, and is tried again."""

RETRY_PAUSES: Final = (2.0, 10.0, 60.0)
"""Seconds between the attempts to send one notification. After the last it is dropped, and may be queued again in an
hour."""

AGAIN_SECONDS: Final = float(HOUR_SECONDS)
"""The same kind about the same subject is not sent again before this."""

FOR_GOOD: Final = float("inf")
"""In place of AGAIN_SECONDS: sent once, until `forget`."""

REMEMBERED: Final = 2_048
"""Subjects that are remembered; the oldest is forgotten first."""

STOP_SECONDS: Final = 10.0
"""Longest time that an ending process spends on what waits to be sent."""

SIGNAL_SECONDS: Final = 1.0
"""The same, where a signal ended it."""

MAX_TEXT: Final = 500
"""Characters of a notification's text."""

MAX_QUOTE: Final = 300
"""Characters of an error that is quoted: a part of it may be a stranger's words."""

DISCORD: Final = ("discord.com", "discordapp.com")

log = telemetry.logger("notify")
NOTIFICATIONS: Final = telemetry.counter("notifications", "Notifications by what became of them", ("outcome",))

Outcome = Literal["sent", "again", "refused"]

FAILURES: Final = (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError, ValueError, ImportError)
"""All that making a client and a request with it may raise; the last for a proxy of a kind that is not installed."""


@dataclass(frozen=True)
class Notification:
    """One message to the operator."""

    kind: NotificationKind | Literal["test"]
    text: str
    time: float
    """Unix seconds."""
    details: Mapping[str, str | int]
    keys: tuple[str, ...] = ()
    """Its keys in the history, so that it is sent once."""


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """Return text that a chat shows as it stands: one line, nothing invisible, no tags and links, at most `limit` long.

    Letters that are not printed, such as those that turn the direction of writing, become spaces.
    """
    seen = "".join(" " if unicodedata.category(letter)[0] in "CZ" else letter for letter in text[: 4 * limit])
    seen = " ".join(seen.split()).replace("<", "‹").replace(">", "›").replace("](", "] (")
    return seen if len(seen) <= limit else seen[: limit - 1] + "…"


def webhook_of(settings: NotifySettings) -> str:
    """Return the URL to post to, "" for none. Raises ConfigError, which does not show it."""
    if settings.webhook_file is None:
        return settings.webhook
    if settings.webhook:
        raise ConfigError("notify.webhook and notify.webhook_file are both set", hint="keep one of them")
    url = read_secret(settings.webhook_file, "notify.webhook_file").strip()
    try:
        return check_webhook(url)
    except ValueError as error:
        hint = "its first line is the URL that your chat shows for the webhook"
        raise ConfigError(f"{settings.webhook_file} has no webhook: {error}", hint=hint) from None


@dataclass
class NotificationHistory:
    """The notifications that were sent, in a file: keys, and until when each is not sent again."""

    path: Path | None = None
    until: dict[str, float] = field(default_factory=dict)
    fresh: bool = True
    """Whether nothing had ever been kept when this was loaded."""
    _saved: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> NotificationHistory:
        """Read the file; one that is missing or spoilt counts as empty."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            found = {str(key): FOR_GOOD if value is None else float(value) for key, value in document.items()}
        except FileNotFoundError:
            return cls(path)
        except (OSError, ValueError, TypeError, AttributeError):
            return cls(path, fresh=False)
        return cls(path, found, fresh=False, _saved=dict(found))

    def has(self, key: str, now: float) -> bool:
        return self.until.get(key, 0) > now

    def add(self, key: str, until: float) -> None:
        self.until.pop(key, None)
        self.until[key] = until
        while len(self.until) > REMEMBERED:
            del self.until[next(iter(self.until))]

    def remove(self, key: str) -> None:
        self.until.pop(key, None)

    def save(self) -> None:
        """Write the file if something has changed. A disk that does not take it is only logged."""
        current = dict(self.until)
        if self.path is None or current == self._saved:
            return
        document = {key: None if until == FOR_GOOD else until for key, until in current.items()}
        try:
            write_atomically(self.path, json.dumps(document))
            self._saved = current
        except OSError as error:
            log.warning("cannot write the history of notifications", file=str(self.path), reason=error.strerror)


class Notifier:
    """Sends to one webhook. `tell` takes a notification, `run` sends; without a URL nothing is taken."""

    def __init__(
        self,
        url: str = "",
        settings: NotifySettings | None = None,
        *,
        name: str = "",
        run: int = 0,
        history: NotificationHistory | None = None,
        pauses: Sequence[float] = RETRY_PAUSES,
        timeout: float = ANSWER_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`name` and `run`: whose notifications these are; `pauses`: seconds between attempts; `timeout`: of one."""
        settings = settings or NotifySettings()
        self.node = ""
        """Address of the node, once it is known."""
        self.dropped = 0
        """Notifications that made room for newer ones, unsent."""
        self.name = name
        self.history = history or NotificationHistory()
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._run = run
        self._kinds = frozenset(settings.events) if url else frozenset[str]()
        self._timeout = timeout
        self._pauses = tuple(pauses)
        self._clock = clock
        self.queue: deque[Notification] = deque()
        """What waits to be sent, oldest first."""
        self._news = asyncio.Event()
        self._failures = Repeats()

    @property
    def host(self) -> str:
        """Return all of the webhook that may be shown."""
        return self._host

    def wants(self, kind: NotificationKind) -> bool:
        return kind in self._kinds

    def tell(
        self,
        kind: NotificationKind,
        subject: str,
        text: str,
        *,
        again: float = AGAIN_SECONDS,
        covers: Sequence[str] = (),
        **details: str | int,
    ) -> bool:
        """Queue a notification, unless this kind and subject was queued less than `again` seconds ago.

        `covers`: other subjects of the kind that this notification includes. Return whether it was queued.
        """
        key, now = f"{kind}:{subject}", self._clock()
        if not self.wants(kind) or self.history.has(key, now):
            return False
        self.history.add(key, now + again)
        for other in covers:
            self.history.add(f"{kind}:{other}", FOR_GOOD)
        keys = (key, *(f"{kind}:{other}" for other in covers))
        self._put(Notification(kind, plain(text), now, details, keys))
        return True

    def is_known(self, kind: NotificationKind, subject: str) -> bool:
        """Return whether `tell` would skip this now."""
        return self.history.has(f"{kind}:{subject}", self._clock())

    def know(self, kind: NotificationKind, subject: str) -> None:
        """Remember this as sent."""
        self.history.add(f"{kind}:{subject}", FOR_GOOD)
        self._news.set()

    def forget(self, kind: NotificationKind, subject: str) -> None:
        """Allow this to be sent again: the condition that it reported is over."""
        self.history.remove(f"{kind}:{subject}")
        self._news.set()

    def _put(self, notification: Notification) -> None:
        if len(self.queue) >= QUEUE_LIMIT:
            self.queue.popleft()
            self.dropped += 1
            NOTIFICATIONS.labels(outcome="dropped").inc()
            if self._failures.count(("dropped", ""), time.monotonic()):
                log.warning("notifications were dropped", dropped=self.dropped, host=self._host)
        self.queue.append(notification)
        self._news.set()

    # Sending

    async def run(self) -> None:
        """Send queued notifications one after the other, until cancelled."""
        while True:
            self._news.clear()
            while self.queue:
                await self._deliver(self.queue[0])
            await asyncio.to_thread(self.history.save)
            if not self.queue:
                await self._news.wait()

    async def finish(self, seconds: float) -> None:
        """Send each queued notification once, within `seconds`, after `run` has ended. Then save the history."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.queue:
                    await self._attempt(self.queue.popleft())
        self.history.save()

    async def send_test(self) -> None:
        """Send a notification of kind `test`, once. Raises UnreachableError with what the webhook answered."""
        text = f"{self.name}: this is a test of muster notify test"
        outcome, answer = await self._attempt(Notification("test", plain(text), self._clock(), {}))
        if outcome != "sent":
            hint = "check notify.webhook: does the chat still have it?"
            raise UnreachableError(f"the webhook at {self._host} did not take it: {answer}", hint=hint)

    def document(self, notification: Notification) -> dict[str, Any]:
        document: dict[str, Any] = {
            "kind": notification.kind,
            "node": self.node,
            "name": self.name,
            "run": self._run,
            "text": notification.text,
            "time": f"{datetime.fromtimestamp(notification.time, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "details": dict(notification.details),
        }
        if any(self._host == domain or self._host.endswith(f".{domain}") for domain in DISCORD):
            document |= {"content": notification.text, "allowed_mentions": {"parse": []}}
        return document

    async def _deliver(self, notification: Notification) -> None:
        """Send the oldest in the queue, in several attempts; it leaves the queue when it is sent or given up."""
        for pause in (*self._pauses, None):
            outcome, answer = await self._attempt(notification)
            if outcome != "again" or pause is None:
                break
            await asyncio.sleep(pause)
            if notification not in self.queue:  # it made room for a newer one meanwhile
                break
        with suppress(ValueError):
            self.queue.remove(notification)
        if outcome != "sent":
            log.warning("a notification was not sent", kind=notification.kind, host=self._host, reason=answer)
            for key in notification.keys:
                self.history.add(key, self._clock() + AGAIN_SECONDS)

    async def _attempt(self, notification: Notification) -> tuple[Outcome, str]:
        """Post once, and read no more than the head of the answer. Return what came of it, in our own words."""
        body = json.dumps(self.document(notification)).encode()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        try:
            async with (
                asyncio.timeout(self._timeout),
                http_client(self._url, self._timeout) as client,
                client.stream("POST", self._url, content=body, headers=headers) as reply,
            ):
                status = reply.status_code
        except TimeoutError:
            return self._ended("again", f"no answer in {self._timeout:g} s")
        except FAILURES as error:  # whose text may have the URL
            return self._ended("again", type(error).__name__)
        if 200 <= status < 300:
            return self._ended("sent", str(status))
        again = status >= 500 or status in TRY_AGAIN_STATUSES
        return self._ended("again" if again else "refused", f"status {status}")

    @staticmethod
    def _ended(outcome: Outcome, answer: str) -> tuple[Outcome, str]:
        NOTIFICATIONS.labels(outcome=outcome).inc()
        return outcome, answer


@asynccontextmanager
async def notifying(settings: Settings, state_dir: Path, role: str) -> AsyncIterator[Notifier]:
    """Yield a notifier that sends until left; tell of whatever error leaves it, since that ends the process.

    Raises ConfigError where the webhook cannot be used.
    """
    url = await asyncio.to_thread(webhook_of, settings.notify)
    name = settings.name or role
    if not url:
        yield Notifier(name=name, run=settings.run)
        return
    history = await asyncio.to_thread(NotificationHistory.load, state_dir / "notifications.json")
    notifier = Notifier(url, settings.notify, name=name, run=settings.run, history=history)
    sender = asyncio.create_task(notifier.run(), name="notify")
    seconds = STOP_SECONDS
    try:
        yield notifier
    except asyncio.CancelledError:
        seconds = SIGNAL_SECONDS
        raise
    except Exception as error:
        tell_end(notifier, error)
        raise
    finally:
        sender.cancel()
        await asyncio.wait([sender])
        await notifier.finish(seconds)


def tell_end(notifier: Notifier, error: Exception) -> None:
    """Tell that the process ends by an error, and what to do next."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MusterError):
        code, what, hint = error.exit_code, plain(str(error), MAX_QUOTE), plain(error.hint, MAX_QUOTE)
    else:
        code, what, hint = 1, f"unexpected {type(error).__name__}", "the log has the traceback"
    ended = "has nothing left to do" if isinstance(error, FinishedError) else "stopped"
    text = f"{notifier.name} {ended}: {what}" + (f". Next: {hint}" if hint else "")
    notifier.tell("stopped", f"{type(error).__name__}: {what[:40]}", text, exit_code=code, reason=what, next=hint)
