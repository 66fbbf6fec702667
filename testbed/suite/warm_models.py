"""Warm a model up once for all tests of a run that ask for the same: it takes 14 seconds and gives equal weights.

`muster.models.init.warm_up` is a function of its arguments, which tests/unit/models/test_init.py holds. A dozen swarms,
stories and labs begin with the demo's model: the first of them keeps what it made and the others read it. What is
started in the plain way (testbed/suite/fork_server.py) warms its own model up.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.paths import ROOT

WarmUp = Callable[..., tuple[float, int]]

RUN = "PYTEST_XDIST_TESTRUNUID"
"""Set by pytest-xdist, to a value of its own in every run."""


def share(warm_up: WarmUp) -> WarmUp:
    """Return a `muster.models.init.warm_up` that a run of pytest-xdist calls once for equal arguments.

    Without pytest-xdist it calls each time.
    """
    if hasattr(warm_up, "calls"):
        return warm_up

    def shared(model: Any, tokenizer: Any, task_set: Any, terms: Any, *, seed: int) -> tuple[float, int]:
        if RUN not in os.environ:
            return warm_up(model, tokenizer, task_set, terms, seed=seed)
        from safetensors.torch import load_file, save_file

        folder = folder_of(os.environ[RUN])
        folder.mkdir(parents=True, exist_ok=True)
        wanted = repr((model.config.to_json_string(), len(tokenizer), task_set.root, terms, seed))
        weights = folder / hashlib.sha256(wanted.encode()).hexdigest()
        report = weights.with_suffix(".json")
        with weights.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits instead of computing the same
            if not report.exists():
                accuracy, steps = warm_up(model, tokenizer, task_set, terms, seed=seed)
                save_file({name: one.detach() for name, one in model.named_parameters()}, weights)
                report.write_text(json.dumps([accuracy, steps]), encoding="utf-8")
                return accuracy, steps
        model.load_state_dict(load_file(weights), strict=False)
        accuracy, steps = json.loads(report.read_text(encoding="utf-8"))
        return accuracy, steps

    shared.calls = warm_up  # type: ignore[attr-defined]
    return shared


def folder_of(run: str) -> Path:
    return ROOT / "cache" / "warm" / run


def remove(run: str) -> None:
    """Remove what a run has kept."""
    shutil.rmtree(folder_of(run), ignore_errors=True)
