"""A local Anvil on a free port, in a separate session."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

from muster.chain.anvil import anvil_command
from muster.constants import CHAIN_ANVIL
from testbed.http import open_url
from testbed.processes import Process
from testbed.waiting import BOUND

PORTS: Final = range(12_000, 32_000)
"""Below those that Linux gives to outgoing connections."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on right now, and that no outgoing connection is given meanwhile."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port


class Anvil(Process):
    """An Anvil: ready after about 0.1 s."""

    ends_at = signal.SIGTERM
    port = 0

    def __init__(
        self,
        *,
        port: int = 0,
        block_time: float | None = None,
        mining: bool = True,
        chain_id: int = CHAIN_ANVIL,
        log: Path | None = None,
        history: int | None = None,
    ) -> None:
        """port: 0 takes any that is free; mining: without it nothing is mined until a block is asked for.

        history: number of older states to keep. They fill a disk where many thousands of blocks are mined.
        """
        command = anvil_command(port, block_time=block_time, chain_id=chain_id, history=history)
        super().__init__([*command, *([] if mining else ["--no-mining"])], log or Path(os.devnull))

    def is_ready(self) -> bool:
        with suppress(psutil.Error):  # it has ended
            connections = psutil.Process(self.pid).net_connections("tcp4")
            self.port = next((one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN), 0)
        return self.port != 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, *params: Any) -> Any:
        """Make one JSON-RPC call without an event loop. Raises KeyError when it is refused."""
        return self.batch([(method, params)])[0]["result"]

    def batch(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
        """Make several calls at once; return their answers, which have a `result` or an `error`, in the same order."""
        body = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            for number, (method, params) in enumerate(calls)
        ]
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with open_url(request, timeout=BOUND) as reply:
            return sorted(json.load(reply), key=lambda answer: answer["id"])
