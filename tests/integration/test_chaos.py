"""Twenty seconds of benchmarks/chaos.py: what the swarm acknowledged is so, although processes and chain failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.chaos import chaos

SEED = 6492
"""One with SQLite and without a fault that needs root."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built_contracts")]


def test_twenty_seconds_of_faults_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, SEED, 20.0)
    assert outcome.violations == []
    assert outcome.faults == Counter(kill=1, reorg=1, lost_answers=1, cut=1)
    done = outcome.acknowledged
    # The run ends once what is due is claimed, perhaps before a claim is answered: a claim too few is a violation.
    assert done.keys() >= {"upload", "commit", "verdict", "publish", "report", "fetch"}
