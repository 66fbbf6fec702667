"""A node judges by a known profile, or by the calibration in the run's terms, which it fetches once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.clients.run_data import fetch_profile
from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.terms import Terms
from muster.verification.calibration import MAX_DOCUMENT, Calibration, calibrate
from muster.verification.profiles import CPU_FP32, PROFILES, profile_hash
from testbed.samples.cells import cell, errors
from testbed.samples.commitments import rules

MODEL = b"\x05" * 32


class Files:
    """A storage that answers every request with one file, and records the requests."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[bytes | str, int]] = []

    async def get_file(self, name: bytes | str, max_bytes: int) -> bytes:
        self.asked.append((name, max_bytes))
        return self.data


async def fetched(files: Files, terms: Terms, folder: Path) -> Any:
    return await fetch_profile(files, terms, folder)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    rows = [errors(distance=0.0001)] * 20
    return calibrate([cell(rows)], [], CPU_FP32, model_hash=MODEL, temperature_micro=1_000_000)


def naming(name: bytes, **changes: Any) -> Terms:
    return replace(rules().terms, profile=name, model_hash=MODEL, **changes)


@pytest.mark.parametrize("name", PROFILES)
async def test_a_known_profile_is_not_fetched(name: str, tmp_path: Path) -> None:
    files = Files(b"")
    assert await fetched(files, naming(profile_hash(name)), tmp_path) is PROFILES[name]
    assert files.asked == []
    assert list(tmp_path.iterdir()) == []


async def test_a_calibration_is_fetched_once_and_kept(calibration: Calibration, tmp_path: Path) -> None:
    files, terms = Files(calibration.to_bytes()), naming(calibration.hash)
    found = await fetched(files, terms, tmp_path / "new")
    assert found == calibration.to_profile()
    assert found.pool.activation == 0.0002
    assert await fetched(files, terms, tmp_path / "new") == found
    assert files.asked == [(calibration.hash, MAX_DOCUMENT)], "no more than a calibration can have is asked for"
    [kept] = (tmp_path / "new").iterdir()
    assert kept.name == f"calibration-{calibration.hash.hex()}.json"
    assert kept.read_bytes() == calibration.to_bytes()


async def test_other_bytes_than_the_terms_name_are_refused(calibration: Calibration, tmp_path: Path) -> None:
    loose = calibration.model_copy(update={"pool": calibration.pool.model_copy(update={"activation": 1.0})})
    terms = naming(calibration.hash)
    with pytest.raises(MismatchError, match="is not the calibration that the run's terms name"):
        await fetched(Files(loose.to_bytes()), terms, tmp_path)
    # The folder stays empty: the next attempt starts over.
    assert list(tmp_path.iterdir()) == []
    assert (await fetched(Files(calibration.to_bytes()), terms, tmp_path)).pool.activation == 0.0002
    # A file that was changed on disk is not used, and fetched again.
    [kept] = tmp_path.iterdir()
    kept.write_bytes(loose.to_bytes())
    assert (await fetched(Files(calibration.to_bytes()), terms, tmp_path)).pool.activation == 0.0002
    assert kept.read_bytes() == calibration.to_bytes()


async def test_a_calibration_of_another_model_or_temperature_is_refused(
    calibration: Calibration, tmp_path: Path
) -> None:
    files = Files(calibration.to_bytes())
    for terms in (
        replace(naming(calibration.hash), model_hash=b"\x06" * 32),
        naming(calibration.hash, temperature_micro=700_000),
    ):
        with pytest.raises(MismatchError, match=f"is of model 0x{MODEL.hex()} at temperature 1, the terms name"):
            await fetched(files, terms, tmp_path)


async def test_invalid_calibration_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    unknown = calibration.model_copy(update={"profile": "gpu-v9"}).to_bytes()
    for data, said in (
        (b"{}", "not a calibration"),
        (unknown, "for the profile 'gpu-v9'"),
        (calibration.to_bytes() + b" ", "not in canonical form"),
        (calibration.to_bytes().replace(b'"activation":0.0002', b'"activation":-0.002'), "not a calibration"),
        (calibration.to_bytes().replace(b'"activation":0.0002', b'"activation":NaN'), "not a calibration"),
    ):
        with pytest.raises(MalformedError, match=said):
            await fetched(Files(data), naming(hash_bytes(content_hash(data))), tmp_path)
