"""Private tests from sealed set to reveal, on a real chain with a real orchestrator (docs/use/private-tests.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.runs.private_tests import play


@pytest.mark.timeout(1500)
def test_private_tests_stay_private_and_rewards_are_proven(tmp_path: Path) -> None:
    facts = play(tmp_path)

    # 1. Only validators receive the master, and no file or answer that a worker can read contains a test.
    assert facts.refused == {"w1": 403, "trainer": 403, "stranger": 403, "copier": 403}
    assert facts.test_bytes_found == 0
    assert facts.control_found >= 48, "the search finds them in the set before it was sealed"
    assert facts.searched_bytes > 50_000

    # 2. The trainer gets the rewards that the tests give, although no row states them.
    assert (facts.graded, facts.solved, facts.right_rewards, facts.signal) == (16, 6, True, True)

    # 3. The wrong grader is convicted and loses half of its lock. All other nodes keep theirs.
    assert facts.wrong_grader_punished, facts.convicted
    assert (facts.honest_free, facts.lock_lost) == (True, 100 * 10**18)

    # 4. Once the master is public, a stranger reproduces every grade.
    report = facts.report
    assert (report.commitments, report.grades, report.reproduced, report.void) == (1, 32, 32, 0)
    assert report.convicted == {next(iter(facts.convicted)): 10}
