"""Terms of runs that nobody signs, and whose hashes nobody looks up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.protocol.terms import Terms
from muster.protocol.terms_file import NOBODY
from muster.tasksets.taskset import TaskSet


def made_terms(values: Mapping[str, Any], tasks: TaskSet | None = None, **changes: Any) -> Terms:
    """Return a run's terms with these values, for a task set if there is one; keys and hashes are zero unless given."""
    hashes = dict.fromkeys(("task_root", "model_hash", "tokenizer_hash", "profile"), bytes(32))
    made = {"trainer": NOBODY, "storage_key": NOBODY, "task_count": 1_000, **hashes, **values}
    if tasks is not None:
        made |= {"task_count": tasks.size, "task_root": tasks.root}
    return Terms(**{**made, **changes})
