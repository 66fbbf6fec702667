"""Start a local Anvil on a free port in its own process group, and end exactly that group."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from muster.chain.anvil import anvil_command
from muster.constants import CHAIN_ANVIL
from muster.errors import ConfigError, UnreachableError
from testbed.waiting import BOUND

STOP_SECONDS: Final = 5.0


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def require_free_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise ConfigError when something listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} is occupied",
                hint=f"choose another port, or see who has it: ss -ltnp sport = :{port}",
            ) from error


class Anvil:
    """A running Anvil. Use as a context manager, or call `stop`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        block_time: float | None = None,
        mining: bool = True,
        chain_id: int = CHAIN_ANVIL,
        log: Path | None = None,
        latest_only: bool = False,
    ) -> Anvil:
        """Start one and wait until it answers. Port 0 takes any free one. Blocks for about 0.1 s.

        latest_only: keep no older states. They fill a disk where many thousands of blocks are mined.

        Raises ConfigError when the port is occupied or the binary missing, UnreachableError when it does not come up.
        """
        if port:
            require_free_port(port)
        last: UnreachableError | None = None
        for _ in range(1 if port else 3):  # a free port may be taken before Anvil gets to it
            try:
                chosen = port or free_port()
                command = anvil_command(chosen, block_time=block_time, chain_id=chain_id, latest_only=latest_only)
                command += [] if mining else ["--no-mining"]  # nothing is mined until a block is asked for
                return cls._start_on(chosen, command, log)
            except UnreachableError as error:
                last = error
        assert last is not None
        raise last

    @classmethod
    def _start_on(cls, port: int, command: list[str], log: Path | None) -> Anvil:
        with open(log or os.devnull, "ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        anvil = cls(process, port)
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(anvil.url) and process.poll() is None:
                return anvil
            time.sleep(0.02)
        anvil.stop()
        raise UnreachableError(
            f"anvil on port {port} did not come up (exit code {process.returncode})", hint=" ".join(command)
        )

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its process group."""
        return self._process.pid

    def request(self, method: str, *params: Any) -> Any:
        """Make one JSON-RPC call without an event loop. Raises KeyError when it is refused."""
        return _post(self.url, method, params)

    def stop(self) -> None:
        """End it and whatever it started; harmless when it has ended already."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _answers(url: str) -> bool:
    try:
        return bool(_post(url, "eth_chainId", []))
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return False


def _post(url: str, method: str, params: Sequence[Any]) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=BOUND) as reply:
        answer = json.load(reply)
    return answer["result"]
