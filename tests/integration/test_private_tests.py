"""Private tests from sealed set to last master, on a real chain with a real trainer (docs/use/private-tests.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.runs.private_tests import play


@pytest.mark.timeout(1500)
def test_private_tests_stay_private_and_rewards_are_proven(tmp_path: Path) -> None:
    facts = play(tmp_path)

    # 1. While its epoch lasts, no file or answer that others than owner and trainer can read contains a test.
    assert facts.test_bytes_found == 0
    assert facts.control_found == 96, "the search finds them in the set before it was sealed"
    assert facts.searched_bytes > 50_000
    assert facts.masters_before == 0

    # 2. The trainer trains on the rewards that the tests give, although no row states them.
    assert facts.solved == [6, 6]
    assert facts.trained == [6 / 16, 6 / 16]

    # 3. Once the masters are shown, a stranger reproduces every grade.
    told = ("epochs", "files", "grades", "reproduced", "unsure", "void", "lies", "unchecked")
    assert [facts.report[name] for name in told] == [[1, 2], 2, 32, 32, 0, 0, [], []]
