"""The coverage check: what it counts of a report, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.coverage import CHECK_FAILED, main, read

REPORT = """TN:
SF:contracts/Runs.sol
DA:1,3
LF:100
LH:99
BRF:50
BRH:48
end_of_record
SF:tests/contracts/House.sol
LF:900
LH:1
BRF:10
BRH:0
end_of_record
SF:contracts/libraries/Draws.sol
LF:10
LH:10
BRF:0
BRH:0
end_of_record
"""


def test_contracts_are_counted_and_nothing_else() -> None:
    files = read(REPORT.splitlines())
    assert sorted(files) == ["contracts/Runs.sol", "contracts/libraries/Draws.sol"]
    runs = files["contracts/Runs.sol"]
    assert (runs.lines, runs.lines_hit, runs.branches, runs.branches_hit) == (100, 99, 50, 48)


@pytest.mark.parametrize(("percent", "code"), [("96", 0), ("96.1", CHECK_FAILED)])
def test_lines_and_branches_must_both_be_enough(tmp_path: Path, percent: str, code: int) -> None:
    report = tmp_path / "lcov.info"
    report.write_text(REPORT)
    assert main([str(report), "--at-least", percent]) == code


def test_the_totals_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "lcov.info"
    report.write_text(REPORT)
    main([str(report), "--at-least", "90"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == ["all", "lines", "99.09", "%", "(109/110)", "branches", "96.00", "%", "(48/50)"]


def test_a_report_of_nothing_is_not_enough(tmp_path: Path) -> None:
    report = tmp_path / "lcov.info"
    report.write_text("")
    assert main([str(report), "--at-least", "0"]) == CHECK_FAILED
