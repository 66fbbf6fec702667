"""Charts for other sites: positions of points, labels of axes, and escaped text."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from hypothesis import example, given
from hypothesis import strategies as st

from explorer.pictures import chart_svg, short_number, tick_step, ticks
from explorer.series import Series, SeriesPage

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\x1b[31m\u202egnp.\x00"


def page(*series: Series, first: int = 0, last: int = 4, width: int = 1) -> SeriesPage:
    return SeriesPage(run=3, first=first, last=last, steps_per_point=width, series=list(series))


def series(name: str, means: list[float], spread: float = 0.0, width: int = 1) -> Series:
    return Series(
        name=name,
        steps=[i * width for i in range(len(means))],
        mean=means,
        low=[mean - spread for mean in means],
        high=[mean + spread for mean in means],
    )


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_ticks_are_round_numbers_1_2_or_5_apart() -> None:
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.46, 0.72) == [0.5, 0.6, 0.7]
    assert ticks(-3, 12) == [0, 5, 10]
    assert ticks(0, 99_999) == [0, 20_000, 40_000, 60_000, 80_000]
    assert ticks(0, 3, whole=True) == [0, 1, 2, 3]
    assert ticks(1e-7, 9e-7) == [2e-7, 4e-7, 6e-7, 8e-7]
    assert [tick_step(least) for least in (0.11, 1, 1.1, 2.1, 5.1, 30)] == [0.2, 1, 2, 5, 10, 50]


def test_numbers_of_an_axis_are_short() -> None:
    values = (0, 0.25, 1200, 20_000, 1_500_000, -3e9, 4.5e12, 2e-7, 1e20, 1e300)
    assert [short_number(value) for value in values] == [
        "0", "0.25", "1.2k", "20k", "1.5M", "-3G", "4.5T", "2e-07", "1e+20", "1e+100",
    ]  # fmt: skip


def test_each_point_stands_where_its_numbers_say() -> None:
    root = parsed(chart_svg(page(series("reward", [0.0, 0.5, 1.0])), "reward"))
    (line,) = root.iter(f"{SVG}polyline")
    assert line.get("points") == "62,236 342,140 622,44"
    assert [dot.attrib for dot in root.iter(f"{SVG}circle")] == [{"class": "dot", "cx": "622", "cy": "44", "r": "3"}]
    assert not list(root.iter(f"{SVG}polygon")), "one step a point has no band"
    assert texts(root) == ["reward", "0", "1", "2", "0", "0.2", "0.4", "0.6", "0.8", "1", "step", "run 3"]


def test_points_of_several_steps_stand_in_their_middle_within_a_band() -> None:
    root = parsed(chart_svg(page(series("reward", [0.25, 0.75], 0.25, 8), last=15, width=8), "reward"))
    (line,), (band,) = root.iter(f"{SVG}polyline"), root.iter(f"{SVG}polygon")
    assert line.get("points") == "62,188 622,92"
    assert band.get("points") == "62,140 622,44 622,140 62,236"
    # From step 3.5, the middle of 0 to 7, to 11.5.
    assert texts(root)[1:5] == ["4", "6", "8", "10"]


def test_chart_describes_itself_to_screen_readers() -> None:
    root = parsed(chart_svg(page(series("kl", [0.001, 0.01], 0.0005)), "kl"))
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "kl"
    said = "kl over steps 0 to 1: 0.001 at first, 0.01 at last, from 0.0005 to 0.0105."
    assert root.findtext(f"{SVG}desc") == said
    assert "prefers-color-scheme:dark" in (root.findtext(f"{SVG}style") or "")


def test_without_numbers_a_chart_says_so() -> None:
    for empty in (page(), page(series("kl", [])), page(series("reward", [1.0]))):
        root = parsed(chart_svg(empty, "kl"))
        assert root.findtext(f"{SVG}desc") == "No reports of kl yet."
        assert texts(root) == ["kl", "no numbers yet", "run 3"]


def test_one_number_is_a_point_in_the_middle() -> None:
    root = parsed(chart_svg(page(series("reward", [0.5]), last=0), "reward"))
    (line,) = root.iter(f"{SVG}polyline")
    assert line.get("points") == "342,140"


def test_a_name_is_text_and_nothing_else() -> None:
    text = chart_svg(page(series(HOSTILE, [1.0, 2.0])), HOSTILE)
    root = parsed(text)
    assert [element.tag for element in root.iter(f"{SVG}script")] == []
    assert root.findtext(f"{SVG}title") == "</text><script>alert(1)</script>\\x1b[31m\\u202egnp.\\x00"
    assert "\u202e" not in text


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.floats(0, 1e300),
    st.text(max_size=80),
)
@example([5e-324, 0.0], 0.0, "the smallest number there is")
@example([1.7e308, -1.7e308], 1e300, "the largest")
def test_any_numbers_and_any_name_give_a_picture(means: list[float], spread: float, name: str) -> None:
    one = series(name, means)
    one = one.model_copy(
        update={
            "low": [max(-1.7e308, mean - spread) for mean in means],
            "high": [min(1.7e308, m + spread) for m in means],
        }
    )
    root = parsed(chart_svg(page(one), name))
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert len(points) == len(means)
    assert all(math.isfinite(x) and 62 <= x <= 622 and 44 <= y <= 236 for x, y in points)
    assert len(texts(root)) < 30
