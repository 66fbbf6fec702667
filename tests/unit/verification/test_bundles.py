"""Evidence bundles: canonical, strict, and never larger than a validator takes."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from pydantic import ValidationError

from muster.constants import MAX_EVIDENCE_BYTES
from muster.environments.task import MAX_TASK_BYTES
from muster.errors import MalformedError
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits, read_rollouts
from muster.verification.bundles import MAX_ROWS, finite, parse_bundle
from muster.verification.checks import MAX_ROW_BYTES, Finding, check_file
from muster.verification.shown_tasks import MAX_TASKS_BYTES, ShownTask, size_of
from testbed.samples.commitments import ACCUSER, committed, drawn, honest_rows, rules
from testbed.samples.verification_context import accuse, changed, sampling_mismatch


def test_the_largest_task_fits_beside_the_largest_row() -> None:
    """A line of nothing but characters that JSON escapes, under the longest path."""
    line = "\\" * MAX_TASK_BYTES
    task = ShownTask(slot=(1 << 32) - 1, line=line, path=["0x" + "ab" * 32] * 10)
    assert 2 * MAX_TASK_BYTES < size_of([task]) <= MAX_TASKS_BYTES
    rows = base64.b64encode(bytes(MAX_EVIDENCE_BYTES // 3))
    assert len(rows) + MAX_TASKS_BYTES + (1 << 14) <= MAX_EVIDENCE_BYTES
    assert MAX_ROW_BYTES + (1 << 20) < MAX_EVIDENCE_BYTES // 3


@pytest.mark.parametrize(
    "change", [{"line": "ü"}, {"line": "x\n"}, {"line": "x" * (MAX_TASK_BYTES + 1)}, {"path": ["0x00"]}, {"more": 1}]
)
def test_shown_task_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    shown = {"slot": 1, "line": "x", "path": []}
    assert ShownTask.model_validate(shown).line == "x"
    with pytest.raises(ValidationError):
        ShownTask.model_validate(shown | change)


def test_the_largest_row_fits_into_evidence() -> None:
    row = honest_rows()[4]
    noise = np.random.default_rng(1).bytes(MAX_ROW_BYTES - row.nbytes + len(row.proof))
    rows = changed(4, proof=noise)
    assert rows[4].nbytes == MAX_ROW_BYTES
    assert check_file(rows, committed(rows), drawn(), rules()) is None
    bundle, _ = accuse(rows, Finding("activation_mismatch", 4), 4)
    assert len(bundle.proofs) == 1
    assert parse_bundle(bundle.to_bytes()) == bundle


def test_a_bundle_shows_a_bounded_number_of_rows() -> None:
    rows = honest_rows()
    bundle, _ = accuse(rows, sampling_mismatch(0), *range(12))
    assert len(bundle.proofs) == MAX_ROWS
    shown = read_rollouts(base64.b64decode(bundle.rows), FileLimits(rows=MAX_ROWS))
    assert [row.position for row in shown] == list(range(MAX_ROWS))
    tree = rollout_tree(rows)
    assert bundle.proofs[3] == ["0x" + node.hex() for node in tree.proof(3)]


def test_numbers_that_no_signature_can_hold_are_refused() -> None:
    rows = honest_rows()
    document = json.loads(accuse(rows, sampling_mismatch(0), 0)[0].to_bytes())
    receipt = {"run": 1, "node": ACCUSER, "index": 0, "root": "0x" + "11" * 32, "file_hash": "0x" + "11" * 32}
    signature = "0x" + "11" * 65
    upload = {"receipt": receipt | {"size": 10**100, "signature": signature}, "signature": signature}
    with pytest.raises(MalformedError, match=r"receipt\.size"):
        parse_bundle(json.dumps(document | {"upload": upload}).encode())


def test_bundles_are_canonical_and_strict() -> None:
    bundle, _ = accuse(changed(4, budget=9), Finding("activation_mismatch", 4, float("inf"), 0.5), 4)
    data = bundle.to_bytes()
    assert parse_bundle(data) == bundle
    assert parse_bundle(data).to_bytes() == data
    assert bundle.measured == finite(float("inf"))
    document = json.loads(data)
    assert list(document) == sorted(document)
    for changes in ({"extra": 1}, {"version": 2}, {"reason": "ugly"}, {"root": "0x12"}, {"proofs": [["0x"]]}):
        with pytest.raises(MalformedError, match="not an evidence bundle"):
            parse_bundle(json.dumps(document | changes).encode())
    for junk in (b"", b"[]", b"{" * 100_000, b"\xff"):
        with pytest.raises(MalformedError, match="not an evidence bundle"):
            parse_bundle(junk)
    with pytest.raises(MalformedError, match="at most 16777216"):
        parse_bundle(bytes((16 << 20) + 1))


def test_a_bundle_shows_each_task_of_its_rows_once_with_a_short_proof() -> None:
    bundle, _ = accuse(honest_rows(), sampling_mismatch(0), *range(8))
    assert [task.slot for task in bundle.tasks] == [group.task for group in drawn().groups[:2]]
    for task in bundle.tasks:
        assert task.line.encode() == rules().task(task.slot).to_line()
        assert len(task.path) == 6, "one of 64 tasks"
    assert len(json.dumps(bundle.tasks[0].path)) == 420
    assert accuse(changed(4, budget=9), Finding("wrong_draw", 4), 4)[0].tasks == []
