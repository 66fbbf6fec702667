"""muster serve: a plain client asks vLLM's own server, which ends with the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from muster.environments.tools.base import function_schema
from muster.environments.tools.calculator import Calculator
from muster.models.files import model_hash
from muster.tasksets.taskset import TaskSet
from testbed.chain.contracts import Deployment
from testbed.processes import Muster
from testbed.runs.world import published
from testbed.samples.tool_model import MAX_COMPLETION, MAX_PROMPT, make_tool_model, tool_tasks
from testbed.waiting import BOUND

KEY = "a-key-of-this-test"


@contextmanager
def serving(folder: Path, *words: str, forked: bool) -> Iterator[dict[str, Any]]:
    """`muster serve WORDS` in a folder: what it prints once the model can be asked. Interrupted, it ends with 0.

    Not `forked` (testbed/suite/forks.py): exactly as from a shell, and everybody can read its commands.
    """
    command = [sys.executable, "-m", "muster", "serve", *words, "--port", "0", "--json"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONWARNINGS": "ignore"}
    environment |= {} if forked else {"MUSTER_TEST_FORKS": "0"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    started: list[psutil.Process] = []
    try:
        lines = [process.stdout.readline()]
        while lines[-1].strip() not in (b"}", b""):
            lines.append(process.stdout.readline())
        document = json.loads(b"".join(lines) or b"{}")
        assert "base_url" in document, (folder / "log").read_text()[-2000:]
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        assert not any(KEY in word for one in started for word in one.cmdline()), "every user can read command lines"
        yield document
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0, (folder / "log").read_text()[-2000:]
        _, alive = psutil.wait_procs(started, timeout=BOUND)
        assert alive == []
    finally:
        if process.poll() is None:
            started = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        process.communicate()
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.kill()


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`calls`, a small model that was taught to call, and `tasks`, where it may."""
    folder = tmp_path_factory.mktemp("calling")
    make_tool_model(folder / "calls", tool_tasks(folder / "tasks"))
    return folder


def check_calls(document: dict[str, Any]) -> None:
    """Send tools to what is served, and the result of its call: the next turn comes."""
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Work out 12+34."}]
    url = f"{document['base_url']}/chat/completions"
    body = {"model": document["model"], "tools": [function_schema(Calculator())], "temperature": 0, "max_tokens": 128}
    with httpx2.Client(timeout=BOUND, trust_env=False) as client:
        answer = client.post(url, json={**body, "messages": asked})
        assert answer.status_code == 200, answer.text
        [choice] = answer.json()["choices"]
        [call, *more] = choice["message"]["tool_calls"]
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "46"} for one in [call, *more]]
        followed = client.post(url, json={**body, "messages": [*asked, choice["message"], *results]})
    assert (choice["finish_reason"], call["type"], call["function"]["name"]) == ("tool_calls", "function", "calculator")
    assert set(json.loads(call["function"]["arguments"])) == {"expression"}
    assert not choice["message"]["content"]
    assert followed.status_code == 200, followed.text


@pytest.mark.parametrize("forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_checkpoint_is_served_to_who_has_the_key_until_interrupted(
    forked: bool, calling: Path, tmp_path: Path
) -> None:
    model = calling / "calls"
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    with serving(tmp_path, str(model), "--api-key-file", "key", forked=forked) as document:
        assert document["model_hash"] == "0x" + model_hash(model).hex()
        url, question = document["base_url"], {"model": "calls", "messages": [{"role": "user", "content": "2+3"}]}
        assert url.startswith("http://127.0.0.1:")
        with httpx2.Client(timeout=BOUND, trust_env=False) as stranger:
            assert stranger.post(f"{url}/chat/completions", json=question).status_code == 401
        with httpx2.Client(timeout=BOUND, trust_env=False, headers={"Authorization": f"Bearer {KEY}"}) as client:
            assert [one["id"] for one in client.get(f"{url}/models").json()["data"]] == ["calls"]
            answer = client.post(f"{url}/chat/completions", json={**question, "max_tokens": 4, "temperature": 0})
            assert answer.status_code == 200, answer.text
            assert 1 <= answer.json()["usage"]["completion_tokens"] <= 4


def test_a_step_of_a_run_with_tools_is_served_checked_against_the_chain_and_measured(
    deployment: Deployment, calling: Path, tmp_path: Path
) -> None:
    def furnish(folder: Path) -> TaskSet:
        shutil.copytree(calling / "calls", folder / "model")
        return TaskSet.open(Path(shutil.copytree(calling / "tasks", folder / "run" / "tasks")))

    room = {"max_prompt_tokens": MAX_PROMPT, "max_completion_tokens": MAX_COMPLETION}
    with published(deployment, tmp_path, "calls", furnish=furnish, **room) as world:
        run = world.run_fixture.run
        with serving(tmp_path, "0", "--run", str(run), forked=True) as document:
            check_calls(document)
        words = ("eval", "--run", run, "--step", 0, "--part", "train", "--limit", 4, "--samples", 2, "--json")
        with Muster(words, tmp_path / "said", output=tmp_path / "out", folder=tmp_path) as measured:
            status, said = measured.end()
        assert status == 0, said
        with Muster(("serve", "2", "--run", run), tmp_path / "refused", folder=tmp_path) as refused:
            status, said = refused.end()
        assert status == 3
        assert f"run {run} has not published step 2" in said
    assert (document["run"], document["step"], document["model"]) == (run, 0, "muster-step-0")
    assert document["model_hash"] == "0x" + model_hash(world.run_fixture.checkpoint(0)).hex()
    assert Path(tmp_path / document["checkpoint"] / "config.json").is_file()
    result = measured.document
    assert (result["run"], result["step"], result["max_tokens"], result["tasks"]) == (run, 0, MAX_COMPLETION, 4)
    assert result["mean_calls"] > 0
