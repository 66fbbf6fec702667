"""Hand the terminal over to one of the processes of a swarm.

The command line never imports worker, validator, trainer or orchestrator: it becomes them.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from muster.cli.session import Session
from muster.errors import ConfigError


def become(session: Session, module: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m module --config FILE arguments`, after checking the settings.

    Modules in the current directory are not imported (-P).
    """
    if session.config_path is None:
        raise ConfigError("no settings file", hint="muster config init, or name one with --config")
    _ = session.settings
    command = [sys.executable, "-P", "-m", module, "--config", str(session.config_path), *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
