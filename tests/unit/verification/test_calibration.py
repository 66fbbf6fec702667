"""Calibrations: the limits from measurements, the verdicts on cheats, and invalid documents."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.reasons import UNIT_STATISTICS
from muster.verification.calibration import (
    LEAST,
    LEAST_UNITS,
    MAX_DOCUMENT,
    Calibration,
    MarginError,
    calibrate,
    check_against,
    check_calibration,
    parse_calibration,
    read_document,
)
from muster.verification.measured import MeasuredCell
from muster.verification.profiles import BF16, CPU_FP32, STATISTICS, Limit, PoolLimits, Profile
from muster.verification.statistics import TokenErrors
from testbed.samples.cells import cell, errors

MODEL, MICRO = bytes(range(32)), 1_000_000
FLOOR = LEAST["float32"]
EXACT = errors()


def derived(*cells: MeasuredCell, cheats: tuple[MeasuredCell, ...] = (), profile: Profile = CPU_FP32) -> Calibration:
    return calibrate(cells, cheats, profile, model_hash=MODEL, temperature_micro=MICRO, hardware="x")


def pool(found: Calibration) -> PoolLimits:
    return found.to_profile().pool


@pytest.fixture
def sample() -> Calibration:
    cheat = cell([errors(distance=0.0005)] * 100, "int4 weights", "cheat")
    return derived(cell([errors(distance=0.0001)] * 30), cheats=(cheat,))


# --- Limits


def test_limits_are_the_floor_without_measurements() -> None:
    assert pool(derived(cell([EXACT] * 20))) == FLOOR


def test_a_limit_is_twice_the_mean_of_the_worst_cell() -> None:
    mild, worst = [errors(distance=0.00011)] * 20, [errors(distance=0.00012345)] * 20
    found = pool(derived(cell(mild), cell(worst, "four at once")))
    assert found.activation == 0.000247, "0.0002469, rounded up to three digits"
    assert found.model_copy(update={"activation": FLOOR.activation}) == FLOOR


def test_a_limit_is_five_quarters_of_the_quantile_where_that_is_more() -> None:
    """One unit of forty is far out: the 99 % quantile, which is the next higher value, is that unit."""
    found = pool(derived(cell([errors(distance=0.0001)] * 39 + [errors(distance=0.0004)])))
    assert found.activation == 0.0005
    found = pool(derived(cell([errors(distance=0.0001)] * 199 + [errors(distance=0.0004)])))
    assert found.activation == 0.000203, "one of 200 is beyond the quantile, and only in the mean: 0.0002030"


@pytest.mark.parametrize(("gap", "limit"), [(0.0099, 0.02), (0.01, 0.02), (0.1, 0.2), (0.10001, 0.201), (0.1999, 0.4)])
def test_limits_are_rounded_up_to_three_digits_and_exact_ones_stay(gap: float, limit: float) -> None:
    assert pool(derived(cell([errors(gap=gap)] * 20))).gap_mean == limit


def test_errors_of_log_probabilities_have_two_limits() -> None:
    found = pool(derived(cell([errors(error=0.4)] * 20)))
    assert (found.logprob_rms, found.logprob_mean) == pytest.approx((0.8, 0.8), rel=2e-3)
    signs = [errors(error=0.4 * sign) for sign in (1, -1)]
    halves = [replace(signs[0], claimed=np.concatenate([one.claimed[:128] for one in signs]))] * 20
    found = pool(derived(cell(halves)))
    assert found.logprob_rms == pytest.approx(0.8, rel=2e-3)
    assert found.logprob_mean == FLOOR.logprob_mean, "errors of both signs leave no mean"


def test_rows_are_put_together_into_units_of_256_tokens() -> None:
    """Short rows: 3 x 100 tokens form a unit, and the remainder is ignored."""
    rows = [errors(100, distance=d) for d in (0.0001, 0.0002, 0.0003)] * LEAST_UNITS + [errors(100, distance=0.0009)]
    found = derived(cell(rows))
    mean = math.sqrt((0.0001**2 + 0.0002**2 + 0.0003**2) / 3)
    assert found.cells[0].units["activation"] == pytest.approx(mean)
    assert pool(found).activation == 0.000433, f"twice {mean:.7f}"


def test_too_few_units_give_no_limits() -> None:
    """Without units the least limits would hold, which honest work in bfloat16 is beyond."""
    enough, few = cell([EXACT] * LEAST_UNITS), cell([EXACT] * (LEAST_UNITS - 1), model="logits × 2")
    with pytest.raises(MarginError, match="19 pool units were measured of the model logits × 2; 20 are") as at:
        derived(enough, few)
    assert "--tokens" in at.value.hint
    more = cell([errors(100)] * 3, "AVX2", "logits × 2")
    found = derived(enough, few, more)
    assert [one.units == {} for one in found.cells] == [False, False, False]
    with pytest.raises(MarginError, match="19 pool units"):
        check_against([few], found)


# --- Margins


def test_the_report_says_what_each_cell_came_to_and_the_least_margin() -> None:
    rows = [errors(distance=0.0002)] * 20 + [errors(100, distance=0.0005)]
    found = derived(cell(rows), cell([EXACT] * 20, "four at once"))
    assert (found.tokens, found.hardware, found.profile) == (20 * 256 + 100 + 20 * 256, "x", CPU_FP32.name)
    first, second = found.cells
    assert (first.model, first.cell, first.rows, first.distinct) == ("as it is", "many at once", 21, 21)
    assert (first.tokens, first.rejected, first.accused) == (20 * 256 + 100, 0, 0)
    # A row's own distance has 32 tokens without any beside it: 0.0005 of 100 tokens is 0.00043518.
    assert first.worst["activation"] == pytest.approx(0.0005 * math.sqrt(100 / 132))
    assert second.worst == dict.fromkeys(first.worst, 0.0)
    assert found.margin == pytest.approx(2.0), "of the pool: its limit is twice the mean"


def test_a_calibration_of_exact_work_has_a_margin_of_a_trillion_at_most() -> None:
    assert derived(cell([EXACT] * 20)).margin == pytest.approx(1e8), "the least activation limit over 1e-12"


def test_a_row_that_is_near_a_limit_that_accuses_is_a_thin_margin() -> None:
    """It is just below what rejects it, and 1.6 times below what accuses: 256 tokens stand beside 32 exact ones."""
    far = errors(distance=0.00099 * math.sqrt(288 / 256))
    profile = replace(CPU_FP32, activation=replace(CPU_FP32.activation, accuse=0.0016))
    with pytest.raises(MarginError) as at:
        derived(cell([EXACT] * 400 + [far], "AVX2"), profile=profile)
    assert str(at.value) == (
        "cpu-fp32-projection-v3 keeps a margin of 1.62 only, for activation (as it is, AVX2); at least 2 are needed"
    )
    assert at.value.exit_code == 3


def test_a_rejected_honest_row_is_no_calibration() -> None:
    rows = [EXACT] * 300 + [errors(gap=9.0)] * 2
    with pytest.raises(MarginError) as at:
        derived(cell([EXACT] * 20), cell(rows, "split sums", "logits × 4"))
    assert str(at.value) == "cpu-fp32-projection-v3 rejects 2 of 302 honest rows (logits × 4, split sums)"
    assert "float32" in at.value.hint


@pytest.mark.parametrize("broken", ["claimed", "states", "gaps"])
def test_a_value_that_is_no_number_is_a_rejected_row(broken: str) -> None:
    row = replace(EXACT, **{broken: np.full(256, np.nan)})
    with pytest.raises(MarginError, match="rejects 1 of 21 honest rows"):
        derived(cell([EXACT] * 20 + [row]))


def test_other_hardware_is_measured_against_the_limits_in_force() -> None:
    found = derived(cell([errors(distance=0.0001)] * 20))
    assert pool(found).activation == 0.0002
    assert check_against([cell([errors(distance=0.00008)] * 20)], found) == pytest.approx(2.5)
    with pytest.raises(MarginError, match=r"keeps a margin of 1\.67 only, for activation \(as it is, AVX2\)"):
        check_against([cell([errors(distance=0.00012)] * 20, "AVX2")], found)
    with pytest.raises(MarginError, match="rejects 20 of 20 honest rows"):
        check_against([cell([errors(distance=0.002)] * 20)], found)


# --- Cheats


def test_a_cheat_that_always_leans_is_rejected_after_six_units_and_accused_after_eleven() -> None:
    cheat = cell([errors(distance=0.0005)] * 100, "int4 weights", "cheat")
    report = derived(cell([errors(distance=0.0001)] * 20), cheats=(cheat,)).cheats[0]
    assert (report.name, report.rows, report.tokens) == ("int4 weights", 100, 25_600)
    assert (report.rejected, report.accused) == (0, 0)
    assert report.leaning == {**dict.fromkeys(UNIT_STATISTICS, 0), "activation": 1}
    assert (report.units_to_reject, report.units_to_accuse) == (6, 11)


def test_the_share_of_rows_and_of_units_is_what_is_counted() -> None:
    """Of four rows one is accused, one only rejected, and one leans."""
    rows = [EXACT, errors(distance=0.0003), errors(distance=0.0008), errors(distance=0.01)] * 10
    report = derived(cell([errors(distance=0.0001)] * 20), cheats=(cell(rows, "a cheat", "cheat"),)).cheats[0]
    assert (report.rejected, report.accused) == (0.5, 0.25)
    assert report.leaning["activation"] == 0.75
    assert report.units_to_reject is not None
    assert report.units_to_accuse is not None
    assert 6 < report.units_to_reject < report.units_to_accuse


def test_a_cheat_that_leans_as_seldom_as_honest_work_is_never_found() -> None:
    rows = [EXACT] * 19 + [errors(distance=0.0005)]
    report = derived(cell([errors(distance=0.0001)] * 20), cheats=(cell(rows * 5, "a cheat", "cheat"),)).cheats[0]
    assert report.leaning["activation"] == 0.05
    assert (report.units_to_reject, report.units_to_accuse) == (None, None)
    short = derived(cell([EXACT] * 20), cheats=(cell([errors(10, distance=0.0005)], "short", "cheat"),)).cheats[0]
    assert (max(short.leaning.values()), short.units_to_reject) == (0, None)


# --- The document


def test_the_document_is_canonical_and_its_hash_is_what_the_terms_name(sample: Calibration) -> None:
    data = sample.to_bytes()
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert parse_calibration(data) == sample
    assert parse_calibration(data).hash == sample.hash == hash_bytes(content_hash(data))
    changed = sample.model_copy(update={"hardware": "y"})
    assert changed.hash != sample.hash


def test_a_run_is_judged_by_the_profile_with_the_pool_limits_of_its_calibration(sample: Calibration) -> None:
    profile = sample.to_profile()
    assert profile.pool == PoolLimits(gap_mean=0.02, activation=0.0002, logprob_rms=0.5, logprob_mean=0.1)
    plain = {name: getattr(CPU_FP32, name) for name in STATISTICS}
    assert replace(profile, pool=CPU_FP32.pool, **plain) == CPU_FP32
    for name in STATISTICS:
        limit = plain[name].reject / 2
        assert getattr(profile, name) == Limit(reject=limit, accuse=2 * limit), (
            "the least: nothing was measured near it"
        )


def test_a_row_limit_is_twice_the_worst_honest_row_between_half_the_profiles_and_all_of_it() -> None:
    """A gap of 2.345 in each of 256 tokens stands beside 32 exact ones in the mean, and alone in the largest."""
    found = derived(cell([EXACT] * 400 + [errors(gap=0.123)]), cell([EXACT] * 20 + [gap_of(2.345)], "AVX2"))
    limits = found.rows
    assert limits["gap_worst"] == 4.69
    assert limits["gap_mean"] == 0.219, "0.123 * 256 / 288 is 0.10933"
    assert limits["activation"] == CPU_FP32.activation.reject / 2
    found = derived(cell([EXACT] * 400), cell([EXACT] * 20 + [gap_of(4.5)], "AVX2"))
    assert found.rows["gap_worst"] == CPU_FP32.gap_worst.reject, "never wider than the profile's"


def with_looks(states: float, leads: float, name: str = "many at once", perturbed: float = 0.0) -> MeasuredCell:
    """Return a cell of the same rows each time, of which one's numbers are these.

    A perturbed machine's are `perturbed` further.
    """
    looks = np.zeros((2, 20, 2, 4), dtype=np.float32)
    looks[:, 7, :, 2] = states, -leads
    looks[1, 3, :, 1] = perturbed
    return replace(cell([EXACT] * 20, name), looks=looks)


@pytest.mark.parametrize(
    ("profile", "states", "leads", "expected"),
    [
        (CPU_FP32, 2**-18, 2**-15, (7.63e-6, 6.11e-5)),
        (BF16, 2**-5, 0.1875, (0.0782, 0.469)),
        (CPU_FP32, 0.0, 1.0, (3e-6, 4.8e-4)),
        (BF16, math.nan, 0.1875, (0.6, 0.469)),
    ],
)
def test_limits_of_looks_are_from_what_machines_differ_by_on_the_same_rows(
    profile: Profile, states: float, leads: float, expected: tuple[float, float]
) -> None:
    """Twice as much, in bfloat16 2.5 times, rounded up; from an eighth of the profile's own limits to four times."""
    other = replace(cell([errors(error=0.01)] * 20, "other rows"), looks=np.ones((2, 20, 2, 4), dtype=np.float32))
    found = derived(
        with_looks(0, 0), with_looks(states, leads, "split sums"), with_looks(0, 0, "AVX2"), other, profile=profile
    )
    assert (found.look.states, found.look.leads) == pytest.approx(expected)
    assert [one.looks["leads"] for one in found.cells] == pytest.approx([0, leads, 0, 0])
    assert found.to_profile().look == found.look
    check_calibration(found, MODEL, MICRO)


def test_limits_of_looks_leave_room_for_perturbed_machines() -> None:
    found = derived(with_looks(1, 1), with_looks(1, 1, "split sums", perturbed=2**-17))
    assert (found.look.states, found.look.leads) == pytest.approx((1.53e-5, 1.53e-5))
    assert [one.looks["states"] for one in found.cells] == pytest.approx([0, 2**-17])


def test_without_looks_the_profile_s_limits_of_them_hold() -> None:
    assert derived(cell([EXACT] * 20)).look == CPU_FP32.look
    assert derived(cell([EXACT] * 20)).cells[0].looks == {}


@pytest.mark.parametrize("share", [0.12, 4.1])
def test_limits_of_looks_have_bounds(sample: Calibration, share: float) -> None:
    look = CPU_FP32.look.model_copy(update={"leads": share * CPU_FP32.look.leads})
    with pytest.raises(MalformedError, match=r"look limit leads is .*; 1\.5e-05 to 0\.00048 are taken"):
        check_calibration(sample.model_copy(update={"look": look}), MODEL, MICRO)


def gap_of(size: float) -> TokenErrors:
    """Return a row of which one token has this gap, in expected errors."""
    gaps = EXACT.gaps.copy()
    gaps[3] = errors(1, gap=size).gaps[0]
    return replace(EXACT, gaps=gaps)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 1}, "version"),
        ({"pool": 1}, "pool"),
        ({"rows": {}}, "rows: .*gap_mean"),
        ({"rows": {**dict.fromkeys(STATISTICS, 1.0), "gap_worst": math.nan}}, r"rows\.gap_worst"),
        ({"rows": {**dict.fromkeys(STATISTICS, 1.0), "other": 1.0}}, "rows"),
        ({"unheard": 1}, "the document: Value error, 13 members; at most 12 are known"),
        ({"profile": "gpu-v9"}, "for the profile 'gpu-v9'"),
        ({"model_hash": "0x12"}, "model_hash"),
        ({"temperature_micro": -1}, "temperature_micro"),
        ({"margin": -1.0}, "margin"),
        ({"margin": math.inf}, "margin"),
        ({"cells": []}, "cells"),
        ({"pool": {"gap_mean": 0.1}}, r"pool\.activation"),
        ({"pool": dict.fromkeys(PoolLimits.model_fields, -0.1)}, r"pool\.gap_mean"),
        ({"pool": dict.fromkeys(PoolLimits.model_fields, math.nan)}, r"pool\.gap_mean"),
        ({"pool": dict.fromkeys(PoolLimits.model_fields, math.inf)}, r"pool\.gap_mean"),
        ({"pool": {**dict.fromkeys(PoolLimits.model_fields, 0.1), "other": 1}}, "pool"),
        ({"hardware": "x" * 501}, "hardware"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_stranger_s_document_is_refused(sample: Calibration, changes: dict, said: str) -> None:
    document = sample.model_dump(mode="json") | changes
    with pytest.raises(MalformedError, match=said):
        parse_calibration(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def test_invalid_document_is_refused(sample: Calibration) -> None:
    for data in (b"", b"{", b"[]", b"1", b"\xff\xfe", b"null", sample.to_bytes()[:-1], b"[" * 100_000):
        with pytest.raises(MalformedError, match="not a calibration"):
            parse_calibration(data)
    with pytest.raises(MalformedError, match=f"{MAX_DOCUMENT + 1} bytes; at most {MAX_DOCUMENT}"):
        parse_calibration(sample.to_bytes().ljust(MAX_DOCUMENT + 1))


def test_a_document_that_was_written_otherwise_is_refused(sample: Calibration) -> None:
    """Storage names the file by its bytes: terms made from another spelling would name a missing file."""
    for data in (sample.to_bytes() + b"\n", json.dumps(sample.model_dump(mode="json"), indent=2).encode()):
        with pytest.raises(MalformedError, match="not in canonical form"):
            parse_calibration(data)
    twice = sample.to_bytes().replace(b'{"cells"', b'{"version":1,"cells"')
    with pytest.raises(MalformedError, match="not in canonical form"):
        parse_calibration(twice)


def test_a_file_that_is_too_large_or_not_there_is_refused(sample: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    with pytest.raises(MalformedError, match="cannot be read: No such file"):
        read_document(path)
    path.write_bytes(sample.to_bytes())
    assert read_document(path) == sample.to_bytes()
    path.write_bytes(bytes(MAX_DOCUMENT))
    assert len(read_document(path)) == MAX_DOCUMENT
    path.write_bytes(bytes(MAX_DOCUMENT + 1))
    with pytest.raises(MalformedError, match=f"more than {MAX_DOCUMENT} bytes"):
        read_document(path)


def test_a_calibration_is_of_one_model_at_one_temperature(sample: Calibration) -> None:
    check_calibration(sample, MODEL, MICRO)
    with pytest.raises(MismatchError) as at:
        check_calibration(sample, bytes(32), MICRO)
    assert str(at.value) == (
        f"the calibration is of model 0x{MODEL.hex()} at temperature 1, the terms name 0x{bytes(32).hex()} at 1"
    )
    with pytest.raises(MismatchError, match=r"at temperature 1, the terms name 0x[0-9a-f]{64} at 0\.7"):
        check_calibration(sample, MODEL, 700_000)


def test_the_least_limits_are_those_of_the_dtype() -> None:
    found = derived(cell([errors(distance=0.0001)] * 20), profile=BF16)
    assert found.to_profile().dtype == "bfloat16"
    assert pool(found) == LEAST["bfloat16"]


@pytest.mark.parametrize("name", PoolLimits.model_fields)
@pytest.mark.parametrize("times", [0.0, 0.5, 5.0, 1e200])
def test_an_owner_cannot_set_limits_that_convict_honest_work_or_see_nothing(
    sample: Calibration, name: str, times: float
) -> None:
    """Below the least limit of the dtype honest hardware would lean; far above the profile's own nothing does."""
    limits = sample.pool.model_copy(update={name: times * getattr(CPU_FP32.pool, name)})
    with pytest.raises(MalformedError, match=f"pool limit {name} is"):
        check_calibration(sample.model_copy(update={"pool": limits}), MODEL, MICRO)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("times", [0.0, 0.49, 1.01, 1e200])
def test_an_owner_cannot_set_row_limits_below_half_the_profile_s_or_above_them(
    sample: Calibration, name: str, times: float
) -> None:
    """So no node is accused for what the profile itself does not even reject."""
    rows = sample.rows | {name: times * getattr(CPU_FP32, name).reject}
    with pytest.raises(MalformedError, match=f"row limit {name} is"):
        check_calibration(sample.model_copy(update={"rows": rows}), MODEL, MICRO)


@pytest.mark.parametrize(
    "changes",
    [
        {"margin": 1.9},
        {"rejected": 1},
        {"accused": 1},
        {"leaning": 0.2},
        {"units": {**dict.fromkeys(UNIT_STATISTICS, 0.0), "activation": 0.00011}},
        {"worst": {**dict.fromkeys(STATISTICS, 0.0), "gap_mean": 0.201}},
    ],
    ids=str,
)
def test_a_calibration_that_its_own_cells_refute_is_refused(sample: Calibration, changes: dict) -> None:
    if "margin" in changes:
        refuted = sample.model_copy(update=changes)
    else:
        refuted = sample.model_copy(update={"cells": [sample.cells[0].model_copy(update=changes)]})
    with pytest.raises(MalformedError, match="own honest cells"):
        check_calibration(refuted, MODEL, MICRO)


def test_hardware_whose_units_lean_is_not_admitted_though_their_mean_is_low() -> None:
    """Four of five units are exact and one is half as far again as the limit: the mean keeps the margin."""
    found = derived(cell([errors(distance=0.0001)] * 20))
    uneven = [errors(distance=0.00002)] * 32 + [errors(distance=0.0003)] * 8
    with pytest.raises(MarginError, match=r"20\.0% of the honest units lean under these pool limits \(as it is, GPU\)"):
        check_against([cell(uneven, "GPU")], found)
