"""The imports of a command that never uses the chain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.waiting import BOUND

COUNT = """
import sys
from muster.console import main
try:
    main()
except SystemExit as end:
    assert end.code in (0, None, 3), end.code  # 3: no swarm runs
print("imported:", *sorted({"web3", "eth_account"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["config", "show"],
        ["config", "init", "--config", "muster.toml"],
        ["tasks", "make", "tasks.json", "--levels", "3", "--train", "4", "--held-out", "2"],
        ["swarm", "down"],
    ],
    ids=" ".join,
)
def test_commands_without_the_chain_import_neither_web3_nor_eth_account(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *words], capture_output=True, text=True, cwd=tmp_path, timeout=BOUND
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "imported:"


def test_chain_reader_imports_neither_web3_nor_eth_account() -> None:
    code = "import sys, muster.console.node.worker; assert 'muster.chain.client' in sys.modules; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    assert {"web3", "eth_account"} & set(done.stdout.split()) == set()
