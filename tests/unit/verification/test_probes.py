"""Probes' files: bounded, checked, and read back as they were written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from muster.errors import MalformedError, MismatchError
from muster.rollouts.spans import one_span
from muster.verification import probes
from muster.verification.probes import (
    AgreedRow,
    AgreementReport,
    EngineOptions,
    ProbeSpec,
    check_probe_rows,
    read_agreement,
    read_spec,
    write_document,
)
from testbed.samples.probes import small_spec
from worker.engine import Generation, GenerationRequest
from worker.probe import limits_of
from worker.rollouts import bare_rows

SPEC = small_spec(Path("model"))


def rows_of(spec: ProbeSpec) -> list[Any]:
    requests = [GenerationRequest(np.array(one.prompt_tokens, np.int32), one.seed, 16) for one in spec.requests]
    made = Generation(np.arange(20, 24, dtype=np.int32), np.full(4, -1, np.float32), "length", b"", one_span(4))
    return bare_rows(requests, [made] * len(requests))


def test_a_spec_is_read_as_written_and_its_model_begins_at_its_folder(tmp_path: Path) -> None:
    write_document(SPEC, tmp_path / "spec.json")
    assert read_spec(tmp_path / "spec.json") == SPEC.model_copy(update={"model": tmp_path / "model"})
    elsewhere = SPEC.model_copy(update={"model": Path("/models/one")})
    write_document(elsewhere, tmp_path / "spec.json")
    assert read_spec(tmp_path / "spec.json") == elsewhere


def test_a_report_is_read_as_written(tmp_path: Path) -> None:
    row = AgreedRow(position=0, length=2, engine=0.25, alone=0.5, packed=1.0)
    write_document(report := AgreementReport(rows=[row]), tmp_path / "report.json")
    assert read_agreement(tmp_path / "report.json") == report


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profile", "made-up"),
        ("temperature", 0),
        ("temperature", "NaN"),
        ("calls", []),
        ("calls", [[]]),
        ("calls", [[{"prompt_tokens": [], "seed": 1, "max_tokens": 1}]]),
        ("calls", [[{"prompt_tokens": [-1], "seed": 1, "max_tokens": 1}]]),
        ("calls", [[{"prompt_tokens": [1], "seed": 1 << 63, "max_tokens": 1}]]),
        ("calls", [[{"prompt_tokens": [1], "seed": 1, "max_tokens": 0}]]),
        ("engine", {"max_completion_tokens": 15}),
        ("engine", {"gpu": True}),
        ("threads", 0),
        ("code", "x"),
    ],
)
def test_a_spec_out_of_bounds_is_malformed(field: str, value: Any, tmp_path: Path) -> None:
    document = json.loads(SPEC.model_dump_json()) | {field: value}
    (tmp_path / "spec.json").write_text(json.dumps(document))
    with pytest.raises(MalformedError, match="not a ProbeSpec in "):
        read_spec(tmp_path / "spec.json")


def test_too_many_rows_or_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_document(SPEC, tmp_path / "spec.json")
    monkeypatch.setattr(probes, "MAX_FILE_BYTES", 100)
    with pytest.raises(MalformedError, match="more than 100 bytes"):
        read_spec(tmp_path / "spec.json")
    monkeypatch.setattr(probes, "MAX_ROWS", 5)
    with pytest.raises(ValidationError, match="1 to 5 requests"):
        small_spec(Path("model"))


def test_lengths_are_the_engine_s_own_or_those_of_the_longest_request() -> None:
    longest = max(len(request.prompt_tokens) for request in SPEC.requests)
    limits = limits_of(SPEC)
    assert (limits.max_prompt_tokens, limits.max_completion_tokens, limits.temperature) == (longest, 16, 1.0)
    options = EngineOptions(max_prompt_tokens=64, max_completion_tokens=48, cache_blocks=9, prefix_caching=False)
    limits = limits_of(small_spec(Path("model"), engine=options))
    assert (limits.max_prompt_tokens, limits.max_completion_tokens) == (64, 48)
    assert (limits.cache_blocks, limits.prefix_caching) == (9, False)


def test_only_rows_of_the_spec_are_replayed() -> None:
    rows = rows_of(SPEC)
    check_probe_rows(rows, SPEC, vocabulary=128)
    wrong = [
        replace(rows[1], seed=7),
        replace(rows[1], position=2),
        replace(rows[1], prompt_tokens=rows[0].prompt_tokens),
        replace(rows[1], completion_tokens=rows[1].completion_tokens[:0]),
        replace(rows[1], completion_tokens=np.array([128], np.int32)),
        replace(rows[1], completion_tokens=np.array([-1], np.int32)),
        replace(rows[1], completion_tokens=np.full(17, 20, np.int32)),
    ]
    for row in wrong:
        with pytest.raises(MismatchError, match="row 1"):
            check_probe_rows([rows[0], row, *rows[2:]], SPEC, vocabulary=128)
    with pytest.raises(MismatchError, match="5 rows for 6 requests"):
        check_probe_rows(rows[:5], SPEC, vocabulary=128)
