"""How a Python module is started as a process."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: object) -> tuple[str, ...]:
    """Return the command that runs a module.

    -P keeps the current directory out of the module path: a folder `worker/` or a file `trainer.py` where a user stands
    is never imported in place of ours.
    """
    return (sys.executable, "-P", "-m", module, *map(str, arguments))
