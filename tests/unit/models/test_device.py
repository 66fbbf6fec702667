"""What a machine computes on, by its maker's name; CUDA is not initialised for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from muster.models.numerics import device_name, listed_gpu
from muster.runtime.processor import processor_name


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The folder of a driver that lists two GPUs, as NVIDIA's does."""
    for slot, model in (("0000:3b:00.0", "NVIDIA H100 80GB HBM3"), ("0000:af:00.0", "NVIDIA T4")):
        (tmp_path / slot).mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 42\nGPU UUID: \t GPU-0\nVideo BIOS: \t ??.??.??\n"
        (tmp_path / slot / "information").write_text(text)
    return tmp_path


def cuda(monkeypatch: pytest.MonkeyPatch, *, initialised: bool) -> None:
    def name() -> str:
        assert initialised, "asking would initialise CUDA"
        return "NVIDIA GeForce RTX 4090"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
    monkeypatch.setattr(torch.cuda, "get_device_name", name)


def test_without_a_gpu_it_is_the_processor(monkeypatch: pytest.MonkeyPatch, driver: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_name(driver) == processor_name()


def test_an_engine_that_runs_says_which_gpu_it_is_on(monkeypatch: pytest.MonkeyPatch, driver: Path) -> None:
    cuda(monkeypatch, initialised=True)
    assert device_name(driver) == "NVIDIA GeForce RTX 4090"


def test_before_an_engine_runs_the_driver_names_the_gpu(
    monkeypatch: pytest.MonkeyPatch, driver: Path, tmp_path: Path
) -> None:
    cuda(monkeypatch, initialised=False)
    assert device_name(driver) == "NVIDIA H100 80GB HBM3"
    assert device_name(tmp_path / "absent") == "GPU"


def test_a_driver_without_information_lists_no_gpu(driver: Path) -> None:
    for path in driver.glob("*/information"):
        path.write_text("Model:\nIRQ: 42\n")
    assert listed_gpu(driver) == ""
