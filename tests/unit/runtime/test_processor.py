"""The features of the chip in /proc/cpuinfo, and those that torch uses, emulated or not."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from muster.runtime import processor
from muster.runtime.processor import EMULATIONS, limit_vllm, processor_name, read_features, used_features
from testbed.paths import ROOT
from testbed.waiting import BOUND

OLD = "processor : 0\nflags\t\t: fpu sse4_2 avx avx2 fma\n"
NEW = "processor : 1\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
ASKED = """
import json, torch
from muster.models.matmul import choose_matmul
from muster.runtime.processor import limit_vllm, read_features, used_features
supported = [torch.cpu._is_avx512_supported()]
limit_vllm()
supported += [torch.cpu._is_avx512_supported(), torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_avx2_supported()]
print(json.dumps([read_features(), used_features(), choose_matmul("auto"), supported]))
"""


@pytest.mark.parametrize("old", [False, True], ids=["all used", "AVX2 used"])
def test_features_are_those_that_every_processor_has_and_torch_uses(
    old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "lacks_bfloat16", lambda: old)
    path = tmp_path / "cpuinfo"
    assert read_features(path) == used_features(path) == (), "a system that does not say has none"
    for text, has in (
        (NEW, ("avx2", "avx512f", "avx512_bf16", "amx_bf16")),
        (OLD + "\n" + NEW, ("avx2",)),
        ("Hardware : something else\n", ()),
    ):
        path.write_text(text)
        assert read_features(path) == has
        assert used_features(path) == (has[:1] if old else has)


@pytest.mark.parametrize("old", [False, True], ids=["all used", "AVX2 used"])
def test_vllm_sees_only_instructions_that_torch_uses(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = {"avx2": True, "avx512_f": True, "avx512_bf16": True, "amx_tile": True, "avx10_1": True, "cores": 8}
    monkeypatch.setattr(processor, "lacks_bfloat16", lambda: old)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: MappingProxyType(chip))
    limit_vllm()
    known = chip | (dict.fromkeys(("avx512_f", "avx512_bf16", "amx_tile", "avx10_1"), False) if old else {})
    assert torch.cpu.get_capabilities() == known


@pytest.mark.skipif("AVX2" not in EMULATIONS, reason="not an x86 processor")
def test_an_emulated_process_uses_avx2_and_multiplies_in_float32() -> None:
    """The chip's own features stay what they are; the same answers are this process's own where it has no more."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=ROOT,
        env={**os.environ, **EMULATIONS["AVX2"]},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    chip, used, matmul, (before, *after) = json.loads(done.stdout)
    assert tuple(chip) == read_features()
    assert (used, matmul) == (["avx2"], "float32")
    assert before == ("avx512f" in chip)
    assert after == [False, False, True]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\nmodel name\t: another\n",
            "AMD EPYC 7763 64-Core Processor",
        ),
        ("model name\t:   Intel(R) Xeon(R)  \n", "Intel(R) Xeon(R)"),
        ("model name\t: \nflags\t: fpu\n", None),
        ("Hardware : something else\n", None),
        (None, None),
    ],
)
def test_a_processor_has_the_name_that_it_says(text: str | None, name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert processor_name(path) == (name or platform.machine())
