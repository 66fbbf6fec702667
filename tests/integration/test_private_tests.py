"""Private tests from sealed set to reveal, on a real chain with a real orchestrator (docs/use/private-tests.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.runs.private_tests import play


@pytest.mark.timeout(1500)
def test_private_tests_stay_private_and_rewards_are_proven(tmp_path: Path) -> None:
    told = play(tmp_path)

    # 1. Nobody but validators is given the master, and nothing that a worker can get holds a test.
    assert told.refused == {"w1": 403, "trainer": 403, "stranger": 403, "copier": 403}
    assert told.test_bytes_found == 0
    assert told.control_found >= 48, "the search finds them in the set before it was sealed"
    assert told.searched_bytes > 50_000

    # 2. The trainer gets the rewards that the tests give, though no row says them.
    assert (told.graded, told.solved, told.right_rewards, told.signal) == (16, 6, True, True)

    # 3. Who graded wrongly is convicted of it, and loses half of its lock; nobody else is harmed.
    assert told.wrong_grader_punished, told.convicted
    assert (told.honest_free, told.lock_lost) == (True, 100 * 10**18)

    # 4. Once the master is public, a stranger gets every grade again.
    report = told.report
    assert (report.commitments, report.grades, report.reproduced, report.void) == (1, 32, 32, 0)
    assert report.convicted == {next(iter(told.convicted)): 10}
