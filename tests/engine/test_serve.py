"""muster serve: a plain client asks vLLM's own server, which ends with the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil

from muster.models.files import model_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model

SECONDS = 240
KEY = "a-key-of-this-test"


def test_a_checkpoint_is_served_to_who_has_the_key_until_interrupted(tmp_path: Path) -> None:
    model = tmp_path / "small"
    save_model(make_model(make_tokenizer(), ModelShape(), seed=1), make_tokenizer(), model)
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    command = [sys.executable, "-m", "muster", "serve", "small", "--port", "0", "--api-key-file", "key", "--json"]
    # Not forked (tests/support/fork_server.py): it imports little, and vLLM's server is a process of its own.
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONWARNINGS": "ignore", "MUSTER_TEST_FORKS": "0"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    started: list[psutil.Process] = []
    try:
        lines = [process.stdout.readline()]
        while lines[-1].strip() not in (b"}", b""):
            lines.append(process.stdout.readline())
        assert lines[-1], (tmp_path / "log").read_text()[-2000:]
        document = json.loads(b"".join(lines))
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        assert not any(KEY in word for one in started for word in one.cmdline()), "anybody may read commands"
        assert document["model_hash"] == "0x" + model_hash(model).hex()

        url, question = document["base_url"], {"model": "small", "messages": [{"role": "user", "content": "2+3"}]}
        assert url.startswith("http://127.0.0.1:")
        with httpx2.Client(timeout=60, trust_env=False) as stranger:
            assert stranger.post(f"{url}/chat/completions", json=question).status_code == 401
        with httpx2.Client(timeout=60, trust_env=False, headers={"Authorization": f"Bearer {KEY}"}) as client:
            assert [one["id"] for one in client.get(f"{url}/models").json()["data"]] == ["small"]
            answer = client.post(f"{url}/chat/completions", json={**question, "max_tokens": 4, "temperature": 0})
            assert answer.status_code == 200, answer.text
            assert 1 <= answer.json()["usage"]["completion_tokens"] <= 4
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        process.kill()
        process.communicate()
    _, alive = psutil.wait_procs(started, timeout=5)
    assert alive == []
