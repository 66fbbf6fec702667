"""Numerics are pinned over earlier settings, and a process that cannot pin them computes nothing."""

from __future__ import annotations

import pytest
import torch

from muster.errors import MusterError
from muster.models.numerics import device_kind, numerics_pinned, pin_numerics
from testbed.samples.models import unpin_numerics


def test_pinning_switches_every_shortcut_off() -> None:
    unpin_numerics()
    assert not numerics_pinned()
    pin_numerics()
    assert numerics_pinned()
    assert torch.get_float32_matmul_precision() == "highest"
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)


@pytest.mark.parametrize("shortcut", ["matmul", "cudnn", "precision"])
def test_one_shortcut_is_enough_not_to_be_pinned(shortcut: str) -> None:
    pin_numerics()
    try:
        if shortcut == "precision":
            torch.set_float32_matmul_precision("high")
        else:
            (torch.backends.cudnn if shortcut == "cudnn" else torch.backends.cuda.matmul).allow_tf32 = True
        assert not numerics_pinned()
    finally:
        pin_numerics()


def test_ineffective_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        unpin_numerics()
        monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
        with pytest.raises(MusterError, match="although it is set to"):
            pin_numerics()
    finally:
        monkeypatch.undo()
        pin_numerics()


def test_the_device_is_a_gpu_where_torch_finds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=found: found)
        assert device_kind() == kind
