"""muster notify: the notifications that an operator gets through a webhook."""

from __future__ import annotations

import typer

from muster.console.command import command
from muster.console.session import Session
from muster.errors import ConfigError
from muster.runtime.notify import Notifier, webhook_of

app = typer.Typer()


@command(app, "test", of_node=True)
async def test(session: Session) -> None:
    """Send one notification to the webhook of the settings. Exit code 5 when it is not taken."""
    settings = session.settings
    url = webhook_of(settings.notify)
    if not url:
        hint = "set notify.webhook, or notify.webhook_file: a file (mode 0600) whose first line is the URL"
        raise ConfigError("no webhook is set: no notifications are sent", hint=hint)
    notifier = Notifier(url, settings.notify, name=settings.name or "muster", run=settings.run)
    await notifier.send_test()
    session.result({"sent": True, "host": notifier.host, "events": settings.notify.events})
