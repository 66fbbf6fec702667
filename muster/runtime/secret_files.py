"""Read small files that hold a secret: a password, a raw key, a webhook's URL. Only their owner may read them.

Those that systemd hands over (LoadCredential=) lie in a folder that only the service can enter, whatever their modes.
A container's secrets may lie in such a folder too: CREDENTIALS_DIRECTORY names it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from muster.errors import ConfigError

MAX_SECRET_FILE_BYTES: Final = 64 * 1024


def read_secret(path: Path, settings: str = "keys.*", *, may_be_empty: bool = False) -> str:
    """Return the first line of a file that only its owner may read. Raises ConfigError with what to type.

    `settings`: which of them name the file.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        credentials = Path(os.environ.get("CREDENTIALS_DIRECTORY") or os.devnull)
        if mode & 0o077 and path.absolute().parent != credentials:
            mounted = os.statvfs(path).f_flag & os.ST_RDONLY
            hint = f"export CREDENTIALS_DIRECTORY={path.absolute().parent}" if mounted else f"chmod 600 {path}"
            raise ConfigError(f"others may read {path} (mode {mode:04o})", hint=hint)
        lines = read_small(path).splitlines()
    except OSError as error:
        hint = f"check {settings} in your settings"
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
    secret = lines[0] if lines else ""
    if not secret and not may_be_empty:
        raise ConfigError(f"{path} is empty")
    return secret


def read_small(path: Path) -> str:
    """Return the text of a file of at most MAX_SECRET_FILE_BYTES characters, without a byte-order mark.

    Raises ConfigError, OSError.
    """
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(MAX_SECRET_FILE_BYTES + 1)
    if len(text) > MAX_SECRET_FILE_BYTES:
        raise ConfigError(f"{path} is too large to hold a secret")
    return text
