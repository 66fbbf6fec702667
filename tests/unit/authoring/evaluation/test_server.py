"""What is typed to serve a checkpoint, and what is refused before anything starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster.authoring.evaluation import openai_server as server
from muster.authoring.evaluation.openai_server import ServerSpec, free_port, serving
from muster.errors import ConfigError, MusterError
from muster.settings.schema import is_loopback
from testbed.waiting import BOUND

SPEC = ServerSpec(Path("/model"), "muster-step-3", "127.0.0.1", 8000, api_key="hidden")


def test_the_key_is_in_the_environment_and_not_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert "hidden" not in " ".join(SPEC.command())
    assert SPEC.environment()["VLLM_API_KEY"] == "hidden"
    assert SPEC.environment()["VLLM_CPU_KVCACHE_SPACE"] == "7", "what the environment says already wins"
    command = SPEC.command()
    assert command[command.index("--served-model-name") + 1] == "muster-step-3"
    assert "--max-model-len" not in command


@pytest.mark.parametrize(
    ("host", "local", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:8000/v1"),
        ("127.8.8.8", True, "http://127.8.8.8:8000/v1"),
        ("::1", True, "http://[::1]:8000/v1"),
        ("localhost", True, "http://localhost:8000/v1"),
        ("0.0.0.0", False, "http://127.0.0.1:8000/v1"),
        ("::", False, "http://[::1]:8000/v1"),
        ("run.example.org", False, "http://run.example.org:8000/v1"),
        ("", False, "http://:8000/v1"),
    ],
)
def test_host_decides_locality_and_url(host: str, local: bool, url: str) -> None:
    assert is_loopback(host) is local
    assert ServerSpec(Path("/model"), "m", host, 8000).url == url


def test_a_port_that_is_taken_is_refused_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="nothing can be served"):
        free_port("127.0.0.1", taken.getsockname()[1])
    assert 0 < free_port("127.0.0.1", 0) < 65536


async def test_a_server_that_ends_at_once_is_an_error_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MODULE", "no_such_module_of_vllm")
    with pytest.raises(MusterError, match="ended with status 1"):
        async with serving(ServerSpec(Path("/model"), "m", "127.0.0.1", free_port("127.0.0.1", 0))):
            pytest.fail("nothing is served")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["model", "--host", "0.0.0.0"], "add --api-key-file FILE"),
        (["7"], "a step is one of a run"),
        ([], "there is nothing to serve"),
        (["model", "--run", "1"], "model is no step"),
    ],
)
def test_unservable_model_is_a_usage_error(words: list[str], says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster", "serve", "--port", "0", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
