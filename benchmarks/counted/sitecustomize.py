"""Count what this process receives, by the peer's port, into the file that COUNTED names. For benchmarks/install.py.

Python imports it at its start, where its folder is on the path.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

received: Counter[str] = Counter()


def counting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a socket so that it counts the bytes it returns."""

    def call(one: socket.socket, *arguments: Any, **options: Any) -> Any:
        got = method(one, *arguments, **options)
        if one.family in (socket.AF_INET, socket.AF_INET6):
            received[str(one.getpeername()[1])] += got if isinstance(got, int) else len(got)
        return got

    return call


def write() -> None:
    """Add a line to the file."""
    with Path(os.environ["COUNTED"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(received) + "\n")


if "COUNTED" in os.environ:
    socket.socket.recv = counting(socket.socket.recv)  # type: ignore[method-assign]
    socket.socket.recv_into = counting(socket.socket.recv_into)  # type: ignore[method-assign]
    atexit.register(write)
