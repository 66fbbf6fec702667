"""The page of benchmarks says what the documents say."""

from __future__ import annotations

import pytest

from benchmarks.asynchrony import Curve, figures, seconds_to
from benchmarks.report import DOCS, figure, slower
from benchmarks.tables import async_part, economics_parts, looking_parts, part, scale_part


def test_a_table_of_figures() -> None:
    figures = [
        slower("build", [2.0, 2.5, 1.5], peer=[10.0, 11.0, 12.0], target=5.0, unit="s"),
        figure("memory", [200.0], ratio=200.0, target=128, unit="MiB", limit=[1234567.0], at_most=True),
    ]
    assert part([{"machine": "here", "figures": figures}, {"machine": "here", "figures": []}]) == (
        "| figure | unit | ours | peer | limit | ratio | target | runs |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
        "| `build` | s | 2 (1.5 to 2.5) | 11 (10 to 12) |  | 5.5 | ≥ 5 | 3 |\n"
        "| `memory` | MiB | 200 |  | 1,234,567 | **200** | ≤ 128 | 1 |\n"
        "\n"
        "Measured on: here."
    )


def test_every_part_of_the_page_has_been_measured() -> None:
    page = (DOCS / "change" / "benchmarks.md").read_text(encoding="utf-8")
    for name in ("gas", "broadcast", "trainer", "verification", "service"):
        text = page.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
        assert text.count("\n| `") >= 3, name


def test_every_async_level_has_been_measured() -> None:
    page = (DOCS / "use" / "training.md").read_text(encoding="utf-8")
    text = page.partition("<!-- begin async -->")[2].partition("<!-- end async -->")[0]
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()] == [
        "| 0",
        "| 1",
        "| 2",
        "| 4",
    ]


def curve(level: int, times: list[float], scores: dict[int, float]) -> Curve:
    return Curve(level, 0, times, scores, sampling=2.0, updating=1.0)


def test_the_time_to_a_score_lies_between_two_scored_steps_of_the_mean_curve() -> None:
    seconds = [0.0, 10.0, 20.0, 30.0, 40.0]
    one = curve(0, seconds, {0: 0.1, 2: 0.3, 4: 0.5})
    other = curve(0, [2 * at for at in seconds], {0: 0.1, 2: 0.1, 4: 0.7})
    assert seconds_to([one], 0.4) == pytest.approx(30.0)
    assert seconds_to([one, other], 0.4) == pytest.approx(30.0 + 0.5 * 30.0)  # 0.2 at 30 s, 0.6 at 60 s
    assert seconds_to([one], 0.6) is None


def test_async_levels_are_a_table_of_their_own() -> None:
    fast = [curve(2, [0.0, 1.0, 2.0, 3.0], {0: 0.1, 1: 0.4, 2: 0.5, 3: 0.6}) for _ in range(2)]
    slow = [curve(0, [0.0, 4.0, 8.0, 12.0], {0: 0.1, 1: 0.3, 2: 0.5, 3: 0.7}) for _ in range(2)]
    speedup, difference = figures([*fast, *slow])
    assert (speedup["score"], speedup["ratio"], speedup["holds"]) == (0.46, pytest.approx(1.6 / 7.2, abs=1e-4), True)
    assert (difference["ratio"], difference["holds"]) == (0.0, True)
    text = async_part({"machine": "a machine", "figures": [difference, speedup]})
    assert "| 0 | 0.500 ± 0.000 | 7 (7 to 7) | 12 |" in text
    assert "| 2 | 0.500 ± 0.000 | 2 (2 to 2) | 3 |" in text
    assert "began at 0.100, and the score timed to is 0.460" in text


def test_a_level_that_learns_less_makes_no_difference_to_the_two_that_are_compared() -> None:
    scores = {0: 0.1, 1: 0.4, 2: 0.5, 3: 0.6}
    pair = [curve(level, [0.0, 1.0, 2.0, 3.0], scores) for level in (0, 2)]
    speedup, _ = figures([*pair, curve(4, [0.0, 1.0, 2.0, 3.0], {0: 0.1, 1: 0.1, 2: 0.2, 3: 0.3})])
    assert (speedup["score"], speedup["least"]) == (0.46, 0.19)


def test_one_seed_has_no_interval() -> None:
    scores = {0: 0.1, 1: 0.4, 2: 0.5, 3: 0.6}
    speedup, _ = figures([curve(level, [0.0, 1.0, 2.0, 3.0], scores) for level in (0, 2)])
    assert "| 0 | 0.500 | 2 | 3 |" in async_part({"machine": "a machine", "figures": [speedup]})


def test_incomes_under_different_terms_stand_side_by_side() -> None:
    def row(name: str, per_day: float, **more: float) -> dict[str, object]:
        return {"name": name, "per_day": per_day, "honest": 2.0, **more}

    def world(scale: float) -> dict[str, list[dict[str, object]]]:
        return {
            "workers": [{"name": "honest", "per_day": 2.0}, row("cheater", -1234.5 * scale)],
            "validators": [
                {"name": name, "validators": size, "at": size * scale, "lost_founded": -0.01, "lost_unfounded": 1.5}
                for size in (4, 6)
                for name in ("honest", "judge that guesses")
            ],
            "cartels": [{"name": "two", "per_day": 1.0, "honest_worker": 2.0, "honest_validator": 3.0}],
        }

    document = {"machine": "here", "figures": [], "assumptions": "a", "worlds": {"public": world(1), "local": world(2)}}
    parts = economics_parts(document)
    assert parts["workers"].splitlines()[2:] == [
        "| honest | 2.00 |  | 2.00 |  |",
        "| cheater | \N{MINUS SIGN}1,234.50 | 2.00 | \N{MINUS SIGN}2,469.00 | 2.00 |",
    ]
    assert parts["validators"].splitlines()[0] == (
        "| strategy | 4 validators, public terms | 6 validators, public terms"
        " | 4 validators, local terms | 6 validators, local terms |"
    )
    assert parts["validators"].splitlines()[3] == "| judge that guesses | 4.00 | 6.00 | 8.00 | 12.00 |"
    assert parts["judges"].splitlines()[2:] == [
        f"| judge that guesses, {size} validators | \N{MINUS SIGN}0.0100 | 1.5000 | \N{MINUS SIGN}0.0100 | 1.5000 |"
        for size in (4, 6)
    ]
    assert parts["cartels"].splitlines()[2] == "| two | 1.00 | 2.00 | 3.00 | 1.00 | 2.00 | 3.00 |"


def test_tables_of_looking_have_a_column_for_each_number_of_validators() -> None:
    def alone(name: str, size: int, net: float, accepts: int = 2, per_hour: int = 40) -> dict[str, object]:
        shown = {"kind": "alone", "accepts": accepts, "per_hour": per_hour, "saved": 0.25}
        return {**shown, "name": name, "validators": size, "net": net}

    rows = [
        *(alone(name, size, size / 10) for name in ("honest", "lazy") for size in (4, 9)),
        *(alone("honest", size, 0.6, accepts=1) for size in (4, 9)),
        alone("lazy", 4, -0.0015, per_hour=400),
        alone("honest", 4, 9.9, per_hour=10),
        {
            "kind": "found",
            "name": "all",
            "validators": 4,
            "per_hour": 4,
            "hours": 2.96,
            "paid": 0.0123,
            "checks": 0.5,
        },
        {"kind": "helped", "name": "share", "members": 2, "validators": 9, "gain": 0.02, "others": 0.0},
        {"kind": "owner", "name": "counts nobody", "hours": 9.0, "spent": 7.5},
        {"kind": "pool", "each": 5, "validators": 9, "one_of_1": 12, "one_of_3": 66.5, "replayed": 0.004},
    ]
    figures = [figure("owner_cost", [0.1], target=0.15, unit="of the pay", at_most=True, part="looks")]
    parts = looking_parts({"machine": "here", "figures": figures, "worlds": {"public": {"looks": rows}}})
    assert parts["looks"].splitlines()[0] == "| strategy | saved | 4 validators | 9 validators |"
    last = {name: text.splitlines()[2:] for name, text in parts.items() if name != "looking"}
    assert last == {
        "looks": ["| honest | 25 % | 0.40 | 0.90 |", "| lazy | 25 % | 0.40 | 0.90 |"],
        "one-accept": ["| honest | 25 % | 0.60 | 0.60 |"],
        "rates": ["| lazy | 4 | 400 | \N{MINUS SIGN}0.002 |"],
        "lazy": ["| all | 4 | 4 | 3.0 | 1.2 % | 0.50 |"],
        "helped": ["| share | 2 of 9 | 0.02 | 0.00 |"],
        "owners": ["| counts nobody | 9 hours | 7.5 pay |"],
        "pools": ["| 5 | 9 | 12 | 66.5 | 0.40 % |"],
    }
    assert "| `owner_cost` | of the pay | 0.1 |" in parts["looking"]


def test_every_party_s_income_has_been_simulated() -> None:
    page = (DOCS / "understand" / "economics.md").read_text(encoding="utf-8")
    parts = {"figures": 13, "workers": 11, "validators": 10, "judges": 9, "cartels": 8}
    looking = {"looking": 24, "looks": 26, "one-accept": 4, "rates": 12, "lazy": 24, "helped": 10, "owners": 3}
    for name, rows in (parts | looking | {"pools": 9}).items():
        text = page.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
        assert text.count("\n| ") == rows + 1, name


def test_the_cost_at_scale_is_that_of_the_commitment_that_was_measured() -> None:
    gas = (DOCS / "change" / "benchmarks.md").read_text(encoding="utf-8").partition("| `commit_median` | gas | ")[2]
    page = (DOCS / "understand" / "economics.md").read_text(encoding="utf-8")
    assert scale_part(int(gas.partition(" ")[0].replace(",", ""))) in page


def test_the_cost_at_scale_is_computed() -> None:
    assert [row.split("|")[3].strip() for row in scale_part(69_769).splitlines()[2:]] == [
        "66.7 a second",
        "4.65 million a second",
        "210 GB a year",
        "140 gwei",
        "11 gwei",
        "316 ether",
        "2.8 a second",
    ]
