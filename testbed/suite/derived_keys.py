"""Derive the key of a keystore once for all processes of a run: scrypt takes a second, on purpose.

A dozen commands that are typed one after the other open the same keystores again and again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from testbed.suite.warm_models import RUN, folder_of

Derive = Callable[..., bytes]


def share(scrypt: Derive) -> Derive:
    """Return `scrypt`, which a run of pytest-xdist calls once for equal arguments, and other processes once each."""
    if hasattr(scrypt, "calls"):
        return scrypt

    @functools.cache
    def shared(*arguments: object, **options: object) -> bytes:
        if RUN not in os.environ:
            return scrypt(*arguments, **options)
        folder = folder_of(os.environ[RUN])
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / f"{hashlib.sha256(repr((arguments, options)).encode()).hexdigest()}.key"
        if not known.exists():
            handle, name = tempfile.mkstemp(dir=folder)
            with open(handle, "wb") as stream:
                stream.write(scrypt(*arguments, **options))
            Path(name).rename(known)
        return known.read_bytes()

    shared.calls = scrypt  # type: ignore[attr-defined]
    return shared
