"""python -m orchestrator --config FILE: serve one run until SIGTERM or SIGINT.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when the chain does not
answer, 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn

from muster import telemetry
from muster.chain.keys import Signer, load_signer
from muster.errors import ConfigError, MusterError
from muster.settings import OrchestratorSettings, Settings
from muster.settings_sources import load_settings
from orchestrator.app import create_app
from orchestrator.connections import BoundedProtocol
from orchestrator.service import serving

GRACE_SECONDS = 10
"""Time that requests under way have to end after SIGTERM."""

MAX_CONNECTIONS = 512
BACKLOG = 128
log = telemetry.logger("orchestrator")


class Server(uvicorn.Server):
    """uvicorn, ending normally on SIGTERM and SIGINT instead of dying of them once it has cleaned up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--config", type=Path, required=True, help="settings file (TOML)")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings(options.config)
        telemetry.configure(settings.name or "orchestrator", log_file=settings.log.file, level=settings.log.level)
        asyncio.run(_serve(settings, load_signer(settings.keys, settings.chain.chain_id)))
    except MusterError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"  try: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


async def _serve(settings: Settings, signer: Signer) -> None:
    with _listen(settings.orchestrator) as listener:
        async with serving(settings, signer) as service:
            config = uvicorn.Config(
                create_app(service),
                http=BoundedProtocol,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=20,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
            host, port = listener.getsockname()[:2]
            log.info("listening", host=host, port=port, run=settings.run)
            await Server(config).serve(sockets=[listener])
            log.info("stopped")


def _listen(settings: OrchestratorSettings) -> socket.socket:
    """The listening socket. Raises ConfigError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, because only on such sockets the event loop sets TCP_NODELAY: without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            hint = f"choose another orchestrator.port, or see who has it: ss -ltnp sport = :{settings.port}"
            raise ConfigError(f"port {where} is occupied", hint=hint) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}", hint="set orchestrator.host") from error
    return listener


if __name__ == "__main__":
    sys.exit(main())
