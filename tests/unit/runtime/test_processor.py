"""Which of a processor's features matter, from /proc/cpuinfo's own words."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from muster.runtime.processor import features_in, processor_name, read_features, replay_note

OLD = "processor : 0\nflags\t\t: fpu sse4_2 avx avx2 fma\n"
NEW = "processor : 1\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"


def test_features_are_those_that_every_processor_has() -> None:
    assert features_in(NEW) == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert features_in(OLD + "\n" + NEW) == ("avx2",)
    assert features_in("Hardware : something else\n") == ()


def test_a_system_that_does_not_say_has_none(tmp_path: Path) -> None:
    assert read_features(tmp_path / "cpuinfo") == ()


def test_bf16_is_slow_without_avx512() -> None:
    assert replay_note(("avx2",), "bfloat16") == "bf16 replay on AVX2 takes 4 to 8 times as long"
    assert replay_note(("avx2", "avx512f"), "bfloat16") == replay_note(("avx2",), "float32") == ""


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
