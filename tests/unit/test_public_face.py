"""The public imports of outside authors: three packages export names, and no other does."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from muster.console.tasks.import_options import environment_of
from testbed.paths import ROOT

FACES = {
    "muster.clients": [
        "CheckedRun",
        "CheckpointFetcher",
        "OrchestratorClient",
        "Relays",
        "RunTasks",
        "fetch_run",
        "make_rules",
    ],
    "muster.environments": [
        *("AuthoredTool", "ChatMessage", "Environment", "EnvironmentManifest", "Parameter", "Score", "ScorerCall"),
        *("Scorers", "Task", "TurnsManifest", "ask", "make_environment", "make_tools", "own_manifest"),
    ],
    "muster.verification": [
        *("Audit", "CommittedWork", "Finding", "Profile", "Rules", "audit_file", "check_signatures", "find_commitment"),
        *("known_profile",),
    ],
}


@pytest.mark.parametrize("room", FACES)
def test_a_face_exports_what_it_names(room: str) -> None:
    face = import_module(room)
    assert sorted(face.__all__) == dir(face) == FACES[room]
    assert {getattr(face, name).__name__ for name in FACES[room]} == set(FACES[room])


@pytest.mark.parametrize("room", FACES)
def test_a_face_has_a_stub_for_editors_with_the_same_names(room: str) -> None:
    stub = ast.parse((ROOT / room.replace(".", "/") / "__init__.pyi").read_text(encoding="utf-8"))
    names = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(map(str, names)) == FACES[room]


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(AttributeError, match="audit_everything"):
        import_module("muster.verification").audit_everything  # noqa: B018


def test_faces_import_no_module_before_a_name_is_used() -> None:
    code = f"import sys, {', '.join(FACES)}; print(*(name for name in sys.modules if name.startswith('muster.')))"
    output = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout
    assert sorted(output.split()) == sorted(FACES)


def test_no_other_room_exports_names() -> None:
    trees = {path.parent.name: ast.parse(path.read_text()) for path in (ROOT / "muster").glob("*/__init__.py")}
    importing = {
        room for room, tree in trees.items() if {type(one) for one in tree.body} & {ast.Import, ast.ImportFrom}
    }
    assert {f"muster.{room}" for room in importing - {"console", "contracts"}} == set(FACES)


def test_the_environment_of_the_examples_scores_in_the_sandbox() -> None:
    command = [sys.executable, "examples/environment.py"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.split(" fuel")[0].rsplit(" ", 1)[0] for line in lines] == [
        "'42': (1000000,),",
        "'41': (500000,),",
        "'forty-two': (0,),",
    ]


def test_the_tool_of_the_examples_answers_in_the_sandbox_and_stands_in_its_manifest(tmp_path: Path) -> None:
    file = tmp_path / "convert.json"
    command = [sys.executable, "examples/tool.py", str(file)]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "3 km in m: 3000 m",
        "5 mi in km: 8.04672 km",
        "1 kg in m: kg and m measure different things",
    ]
    turns = environment_of(str(file)).turns
    assert turns is not None
    assert turns.names == ("convert",)
