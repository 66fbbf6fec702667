"""The native sandbox: the outcomes of a program, and the refusal to run without walls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import default_manifest, make_environment
from muster.environments.scoring import Scorers
from muster.environments.task import ask
from muster.errors import ConfigError, MalformedError
from muster.sandbox import native_walls
from muster.sandbox.native import Native
from muster.sandbox.native_walls import missing_walls
from muster.sandbox.scorer import MAX_SECONDS, NATIVE, NativeManifest, Outcome
from testbed.escapes.runner import attack_native, build_image

HASH = "0x" + "5c" * 32
walled = pytest.mark.skipif(bool(missing_walls()), reason=f"needs the package bubblewrap: {missing_walls()}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("image")
    return folder, build_image(folder)


def run(image: tuple[Path, str], code: str, text: str = "", **limits: int) -> Outcome:
    scorer = NativeManifest(image[1], **limits)
    return Native(image[0], image[0] / "cache").call(scorer, {"kind": "stdin", "code": code, "input": text})


@walled
def test_a_program_reads_its_input_and_its_output_is_the_outcome(image: tuple[Path, str]):
    found = run(image, "print(int(input()) + 1)", "41")
    assert replace(found, near=False) == Outcome({"text": "42\n"}, 0)  # a busy machine may come near the limit
    assert run(image, "import sys; sys.exit(3)").value == {"error": "exit status 3"}
    code = "import numpy\nprint(int(numpy.arange(4).sum()))"
    assert run(image, code, memory=1 << 30).value == {"text": "6\n"}


@walled
def test_host_memory_does_not_count_for_the_program(image: tuple[Path, str]):
    held = b"x" * (1 << 29)  # as much as the program may take: a node that holds a model holds more
    assert run(image, "import sys; sys.exit(3)").value == {"error": "exit status 3"}
    assert len(held) == 1 << 29


@walled
@pytest.mark.parametrize(("code", "stopped"), [("while True: pass", "time"), ("import os; os._exit(137)", "killed")])
def test_program_stopped_by_the_machine_is_unsure(image: tuple[Path, str], code: str, stopped: str):
    outcome = run(image, code, seconds=1)
    assert (outcome.value, outcome.fuel, outcome.stopped, outcome.unsure) == (None, 0, stopped, True)


@walled
def test_native_score_is_given_or_unsure(image: tuple[Path, str]):
    default = default_manifest("code", image[1])
    scorer = NativeManifest(image[1], seconds=5)
    manifest = replace(default, options={**default.options, "runner": "native"}, scorer=scorer)
    task = ask("Add one.", kind="function", entry="f", tests=[{"input": [1], "output": 2}])
    program = "</think>```python\ndef f(x):\n    {}\n```"
    with Scorers(image[0]) as scorers:
        right = scorers.score(manifest, task, program.format("return x + 1"))
        ever = scorers.score(
            replace(manifest, scorer=replace(scorer, seconds=1)), task, program.format("while 1: pass")
        )
    assert (right.parts, right.fuel) == ((MICRO,), 0)
    assert (ever.parts, ever.fuel, ever.unsure) == ((0,), 0, True)


@walled
def test_attacks_gain_nothing(image: tuple[Path, str]):
    kinds = ("open a file", "connect", "fork", "read another's memory", "kill another", "leftovers in /dev/shm")
    assert attack_native(*image, kinds).escapes == []


def test_native_runner_refuses_to_run_without_walls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(native_walls.shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match="not run without their walls: bubblewrap is not installed"):
        Native(tmp_path).call(NativeManifest(HASH), {"kind": "stdin", "code": "1", "input": ""})


def test_the_runner_and_the_scorer_belong_together():
    default = default_manifest("code", HASH)
    native = EnvironmentManifest(
        "code", default.version, {**default.options, "runner": "native"}, default.weights, NativeManifest(HASH)
    )
    assert make_environment(EnvironmentManifest.from_document(native.to_document())).manifest == native
    for wrong in (replace(native, options=default.options), replace(default, options=native.options)):
        with pytest.raises(MalformedError, match="the scorer of the other one"):
            make_environment(wrong)


@pytest.mark.parametrize(
    "change", [{"image": "x"}, {"seconds": 0}, {"seconds": MAX_SECONDS + 1}, {"memory": 1}, {"x": 1}]
)
def test_a_native_manifest_out_of_bounds_is_refused(change: dict):
    document = {"image": HASH, "seconds": 1, "memory": 1 << 30, "runtime": NATIVE}
    environment = {"name": "code", "options": {}, "scorer": document, "version": 1, "weights": {"passed": MICRO}}
    assert EnvironmentManifest.from_document(environment).scorer == NativeManifest(**document)
    with pytest.raises(MalformedError):
        EnvironmentManifest.from_document(environment | {"scorer": document | change})
