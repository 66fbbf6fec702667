"""Do costly work once for all tests of a run that ask for the same: a model's warm-up takes 14 seconds, a swarm more.

`muster.models.init.warm_up` is a function of its arguments, which tests/unit/models/test_init.py holds, and so is the
derivation of a keystore's key. The first process of a run of pytest-xdist that asks keeps the result; others wait and
read it. What is started in the plain way (testbed/suite/forks.py), or without pytest-xdist, works for itself.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.paths import ROOT

RUN = "PYTEST_XDIST_TESTRUNUID"
"""Set by pytest-xdist, to a new value in every run."""


def share_warm_up(warm_up: Callable[..., tuple[float, int]]) -> Callable[..., tuple[float, int]]:
    """Return a `muster.models.init.warm_up` that a run calls once for equal arguments."""

    def shared(model: Any, tokenizer: Any, task_set: Any, terms: Any, *, seed: int) -> tuple[float, int]:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file

        def compute(path: Path) -> None:
            report = warm_up(model, tokenizer, task_set, terms, seed=seed)
            weights = {name: one.detach() for name, one in model.named_parameters()}
            save_file(weights, path, metadata={"report": json.dumps(report)})

        if RUN not in os.environ:
            return warm_up(model, tokenizer, task_set, terms, seed=seed)
        path = _made_once((model.config.to_json_string(), len(tokenizer), task_set.root, terms, seed), compute)
        model.load_state_dict(load_file(path), strict=False)
        with safe_open(path, "pt") as file:
            accuracy, steps = json.loads(file.metadata()["report"])
        return accuracy, steps

    return _once(warm_up, shared)


def share_scrypt(scrypt: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return `scrypt`, which a run calls once for equal arguments, and other processes once each."""

    @functools.cache
    def shared(*arguments: object, **options: object) -> bytes:
        if RUN not in os.environ:
            return scrypt(*arguments, **options)
        made = _made_once((arguments, options), lambda path: path.write_bytes(scrypt(*arguments, **options)))
        return made.read_bytes()

    return _once(scrypt, shared)


def share(make: Callable[[Path], object], alone: Path, *of: object) -> Path:
    """Return the file or folder that `make` makes once for all processes of a run: `alone` without pytest-xdist.

    of: what it depends on.
    """
    if RUN in os.environ:
        return _made_once((make.__qualname__, *of), make)
    make(alone)
    return alone


def remove(run: str) -> None:
    """Remove what a run has kept."""
    shutil.rmtree(_folder_of(run), ignore_errors=True)


def _once(original: Any, shared: Any) -> Any:
    """Return what shares a function's work, unless that does already."""
    if hasattr(original, "shares"):
        return original
    shared.shares = original
    return shared


def _made_once(wanted: object, make: Callable[[Path], object]) -> Path:
    """Return the file or folder that the first process of this run makes for equal arguments."""
    folder = _folder_of(os.environ[RUN])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(repr(wanted).encode()).hexdigest()
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the second process waits instead of computing the same
        if not path.exists():
            part = path.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)  # a folder that another process could not finish
            make(part)
            part.rename(path)
    return path


def _folder_of(run: str) -> Path:
    return ROOT / "cache" / "shared" / run
