"""The masters of a run's private tests, in a file that only its owner may read."""

from __future__ import annotations

from pathlib import Path

from muster.chain.keys import read_secret, write_secret
from muster.errors import ConfigError
from muster.tasksets.masters import Masters


def write_masters(path: Path, masters: Masters) -> None:
    """Keep masters in a new file with mode 0600. Raises ConfigError when there is one."""
    write_secret(path, masters.to_text())


def read_masters(path: Path) -> Masters:
    """Read what `write_masters` wrote. Raises ConfigError with the command to type."""
    try:
        return Masters.from_text(read_secret(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error
