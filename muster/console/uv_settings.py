"""What pip's settings mean for uv, which reads none. Standard library only: scripts/set_up.py runs this file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALL_SECONDS = 60.0


def uv_environment(python: Path | str = sys.executable) -> dict[str, str]:
    """Return the environment for uv: the local wheels and mirrors of `python`'s pip hold for uv too."""
    env = dict(os.environ)
    env.setdefault("UV_HTTP_TIMEOUT", "180")
    for name, key in (("UV_FIND_LINKS", "find-links"), ("UV_DEFAULT_INDEX", "index-url")):
        value = env.get("PIP_" + key.upper().replace("-", "_")) or pip_setting(key, python)
        if value and name not in env:
            env[name] = ",".join(value.split()) if name == "UV_FIND_LINKS" else value
    return env


def pip_setting(key: str, python: Path | str) -> str:
    """Return a value of pip's configuration files; "" when it has none."""
    command = [str(python), "-P", "-m", "pip", "config", "get", f"global.{key}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS)
    return answer.stdout.strip() if answer.returncode == 0 else ""
