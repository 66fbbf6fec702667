"""What a person is asked on a terminal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def asking() -> Iterator[None]:
    """Let Ctrl-C end the process while a person is asked: an event loop would wait for the answer first."""
    is_ours = sys.stdin.isatty() and threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler) if is_ours else None
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
