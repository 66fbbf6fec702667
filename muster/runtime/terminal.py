"""What a person is asked on a terminal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def asking() -> Iterator[None]:
    """Let Ctrl-C, or a signal that ends a process, raise KeyboardInterrupt while a person is asked.

    An event loop would wait for the answer first, and without a handler the terminal would be left without echo.
    """
    is_ours = sys.stdin.isatty() and threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, signal.default_int_handler) for number in ENDING} if is_ours else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
