"""Processes start our modules, whatever files stand where the user does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster.runtime.module_command import module_command
from testbed.decoys import place_decoys, was_imported
from testbed.paths import ROOT
from testbed.suite.forks import exec_process

PRODUCTION = ("muster", "orchestrator", "worker", "validator", "trainer", "adversary")


@pytest.mark.parametrize("module", ["orchestrator", "muster.shardcast"])
def test_a_folder_with_files_called_like_ours_changes_nothing(module: str, tmp_path: Path) -> None:
    place_decoys(tmp_path)
    process = exec_process([*module_command(module), "--help"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    assert (process.returncode, was_imported(tmp_path)) == (0, False)
    assert "--config" in output


def test_the_decoys_are_imported_by_a_process_that_looks_where_the_user_stands(tmp_path: Path) -> None:
    place_decoys(tmp_path)
    process = exec_process([sys.executable, "-m", "orchestrator", "--help"], cwd=tmp_path)
    assert (process.wait(), was_imported(tmp_path)) == (99, True)


def test_no_module_is_started_without_a_safe_path() -> None:
    sources = {path: path.read_text(encoding="utf-8") for name in PRODUCTION for path in (ROOT / name).rglob("*.py")}
    unsafe = [
        path for path, text in sources.items() if re.search(r"sys\.executable,\s*(\"-W\", \"ignore\",\s*)?\"-m\"", text)
    ]
    assert unsafe == []
