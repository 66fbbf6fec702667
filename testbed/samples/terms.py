"""Unsigned terms of small runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.constants import TOKEN
from muster.contracts.run_terms import Keys, Tenure
from muster.protocol.keys import ZERO_ADDRESS, RunKeys
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import PUBLIC_DEFAULTS
from muster.tasksets.taskset import TaskSet

SMALL: Final[dict[str, Any]] = {
    **PUBLIC_DEFAULTS,
    "pay": 2 * TOKEN,
    "worker_stake": 100 * TOKEN,
    "validator_stake": 200 * TOKEN,
    "case_fee": 2 * TOKEN,
    "jury_deposit": 8 * TOKEN,
    "group_size": 2,
    "groups_per_commitment": 4,
    "look_rows": 4,
    "commitments_per_hour": 255,
    "seal_quorum": 2,
    "min_step_interval": 1,
    "commit_phase": 3600,
    "reveal_phase": 3600,
    "jury_seniority": 1,
    "max_prompt_tokens": 64,
    "max_completion_tokens": 32,
    "task_count": 100,
    "task_root": b"\x01" * 32,
    "model_hash": b"\x02" * 32,
    "tokenizer_hash": b"\x03" * 32,
    "profile": b"\x04" * 32,
    "classes": (WorkClass(10_000, (8, 16)),),
}


def terms_of(**changes: Any) -> Terms:
    """Return terms with some of SMALL changed."""
    return Terms(**(SMALL | changes))


def keys_of(trainer: str = ZERO_ADDRESS, storage_key: str = "") -> RunKeys:
    """Return keys that are never changed. The trainer signs receipts where no storage key is given."""
    return RunKeys((Tenure(Keys(trainer, storage_key or trainer, ZERO_ADDRESS), 0),))


def made_terms(values: Mapping[str, Any], tasks: TaskSet | None = None, **changes: Any) -> Terms:
    """Return a run's terms with these values, for a task set if there is one; hashes are zero unless given."""
    hashes = dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), bytes(32))
    made = {"task_count": 1_000, **hashes, **values}
    if tasks is not None:
        made |= {"task_count": tasks.size, "task_root": tasks.root, "tools_root": tasks.document.tools_root}
    return Terms(**{**made, **changes})
