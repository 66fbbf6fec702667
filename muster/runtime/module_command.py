"""How a Python module is started as a process."""

from __future__ import annotations

import os
import sys
from typing import Final

_KEPT: Final = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


def module_command(module: str, *arguments: object) -> tuple[str, ...]:
    """Return the command that runs a module.

    -P keeps the current directory out of the module path: a folder `worker/` or a file `trainer.py` where a user stands
    is never imported in place of ours.
    """
    return (sys.executable, "-P", "-m", module, *map(str, arguments))


def bare_environment(**besides: str) -> dict[str, str]:
    """Return the environment of a process that holds a stranger's data: what Python needs, and `besides`."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | besides
