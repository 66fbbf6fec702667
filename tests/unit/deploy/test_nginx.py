"""The configuration of deploy/nginx, as nginx reads it. tests/integration/test_nginx.py sends requests through it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.servers.nginx import PORTS, PROGRAM, Nginx
from testbed.waiting import BOUND


@pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed here")
def test_nginx_takes_the_configuration(tmp_path: Path) -> None:
    made = Nginx(tmp_path, list(PORTS), tmp_path)
    done = subprocess.run([*made.command, "-t"], capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr
