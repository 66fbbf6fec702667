"""Draw a chart of a metric for other sites, as a small SVG text without scripts.

It follows the reader's light or dark colours, says what it shows to who does not see it, and loads nothing. What text
it holds may come from the trainer, so all of it is escaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Final

from sqlalchemy import Connection

from explorer.series import Series, SeriesPage, newest_step, read_series
from explorer.source import PageSource
from muster.runtime.printable import printable

WIDTH: Final = 640
HEIGHT: Final = 280
LEFT, RIGHT, TOP, BOTTOM = 62, 622, 44, 236
"""Edges of the area that the lines are drawn in."""
POINTS: Final = 500
"""Of a chart, at most."""
TICKS: Final = 5
"""About as many on each axis."""
LARGEST: Final = 1e100
"""Larger numbers are drawn as this."""
SMALLEST: Final = 1e-200
"""Smaller numbers are drawn as 0."""
_FLAT: Final = 1e-9
"""A range that is smaller, measured by its numbers, is drawn as one number."""

_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2430}.quiet{fill:#5b6372}.name{font-weight:600;font-size:14px}"
    ".paper{fill:#fff}.grid{stroke:#dfe3ea}.axis{stroke:#7a8394}.line{fill:none;stroke:#0f766e;stroke-width:2}"
    ".band{fill:#0f766e;fill-opacity:.18}.dot{fill:#0f766e}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9f0}.quiet{fill:#a4acbb}.paper{fill:#14171e}.grid{stroke:#2b303b}"
    ".axis{stroke:#8791a3}.line{stroke:#2dd4bf}.band,.dot{fill:#2dd4bf}}"
)


def chart(connection: Connection, source: PageSource, name: str) -> str:
    """Return a chart of a metric over the whole run."""
    last = newest_step(connection) or 0
    return chart_svg(read_series(connection, source.run, [name], 0, last, POINTS), name)


def chart_svg(page: SeriesPage, name: str) -> str:
    """Return a chart of one metric of a page as SVG: a line of means in a band of what they are means of. Pure."""
    series = next((one for one in page.series if one.name == name and one.steps), None)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img"><title>{xml(name)}</title>'
    )
    body = [f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>', _label(16, 26, name, "name")]
    if series is None:
        said = f"No reports of {name} yet."
        body.append(_label(WIDTH / 2, HEIGHT / 2, "no numbers yet", "quiet", "middle"))
    else:
        said = described(series)
        body += _drawn(series, page)
    body.append(_label(RIGHT, 26, f"run {page.run}", "quiet", "end"))
    return f"{head}<desc>{xml(said)}</desc><style>{_STYLE}</style>{''.join(body)}</svg>\n"


def described(series: Series) -> str:
    """Return a chart as a sentence."""
    return (
        f"{series.name} over steps {series.steps[0]} to {series.steps[-1]}: {short_number(series.mean[0])} at first, "
        f"{short_number(series.mean[-1])} at last, from {short_number(min(series.low))} to "
        f"{short_number(max(series.high))}."
    )


def _drawn(series: Series, page: SeriesPage) -> list[str]:
    """Return axes, band and line of a metric that has points."""
    # 1. The axes.
    width = page.steps_per_point
    places = [step + (width - 1) / 2 for step in series.steps]
    lows, means, highs = ([_bounded(value) for value in values] for values in (series.low, series.mean, series.high))
    across = Axis(*_range(places[0], places[-1]), LEFT, RIGHT)
    up = Axis(*_range(min(lows), max(highs)), BOTTOM, TOP)
    parts = [_tick_across(tick, across) for tick in ticks(across.low, across.high, whole=True)]
    parts += [_tick_up(tick, up) for tick in ticks(up.low, up.high)]
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none"/>')
    parts.append(_label((LEFT + RIGHT) / 2, HEIGHT - 8, "step", "quiet", "middle"))
    # 2. The band, where a point stands for several steps, and the line.
    xs = [across.at(place) for place in places]
    top = [_point(x, up.at(value)) for x, value in zip(xs, highs, strict=True)]
    bottom = [_point(x, up.at(value)) for x, value in zip(xs, lows, strict=True)]
    line = [_point(x, up.at(value)) for x, value in zip(xs, means, strict=True)]
    if lows != highs:
        parts.append(f'<polygon class="band" points="{" ".join([*top, *reversed(bottom)])}"/>')
    parts.append(f'<polyline class="line" points="{" ".join(line)}"/>')
    x, y = line[-1].split(",")
    parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>')
    return parts


def _tick_across(tick: float, axis: Axis) -> str:
    x = axis.at(tick)
    label = _label(x, BOTTOM + 19, short_number(tick), "", "middle")
    return f'<path class="axis" d="M{_short(x)} {BOTTOM}v5"/>{label}'


def _tick_up(tick: float, axis: Axis) -> str:
    y = axis.at(tick)
    label = _label(LEFT - 8, y + 4, short_number(tick), "", "end")
    return f'<path class="grid" d="M{LEFT} {_short(y)}H{RIGHT}"/>{label}'


# Axes


@dataclass(frozen=True)
class Axis:
    """Where numbers from `low` to `high` stand between two pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return round numbers from `low` to `high`, about TICKS of them: 1, 2 or 5 times a power of ten apart. Pure."""
    step = tick_step((high - low) / TICKS)
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - _FLAT), math.floor(high / step + _FLAT)
    places = max(0, -math.floor(math.log10(step)))
    return [round(i * step, places) for i in range(first, last + 1)]


def tick_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least this. Pure."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if least <= factor * power * (1 + _FLAT))


def short_number(value: float) -> str:
    """Return a number as an axis has it: 1200 as 1.2k, and no more than four digits. Pure."""
    value = _bounded(value)
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _range(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an axis: some more than the numbers where these are all one."""
    size = max(abs(low), abs(high))
    if high - low > size * _FLAT:
        return low, high
    margin = size / 10 or 1.0
    return low - margin, high + margin


def _bounded(value: float) -> float:
    return 0.0 if abs(value) < SMALLEST else max(-LARGEST, min(LARGEST, value))


# Text


def xml(text: str) -> str:
    """Return text for XML: escaped, with what XML cannot hold as escapes that people can read."""
    return escape(printable(text))


def _label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{_short(x)}" y="{_short(y)}"{named}{placed}>{xml(text)}</text>'


def _point(x: float, y: float) -> str:
    return f"{_short(x)},{_short(y)}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
