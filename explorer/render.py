"""Turn documents into HTML: the templates' environment, and how numbers, times, addresses and texts are shown. Pure.

Every value is escaped by Jinja. Strangers' text goes through `shown` besides: what is not printed becomes an escape, so
that it can neither turn the direction of writing nor hide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from explorer.words import WORDS, anchor_of
from muster.chain.gas import hours_text
from muster.constants import HOUR_SECONDS, TOKEN
from muster.protocol.turns.pieces import PIECE_NAMES
from muster.runtime.printable import printable
from muster.runtime.units import SYMBOL

DASH: Final = "–"
"""In place of what is not known."""
LAST_SECOND: Final = 1 << 37
"""Later times, which only a mistake or a lie names, are shown as this one."""
MAX_LINE: Final = 400
"""Characters of strangers' text within a line; the rest is left out."""
STRIP_WIDTH: Final = 720
STRIP_HEIGHT: Final = 72
"""Of a timeline, in its own units."""
_SIZES: Final = ("B", "kB", "MB", "GB", "TB")
_SPANS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def number(value: float | None, digits: int = 4) -> str:
    """Return a number as people read it: whole ones with separators, others to `digits` significant digits."""
    if value is None:
        return DASH
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return text if "e" not in text or not 1e-6 <= abs(value) < 1e15 else f"{value:.6f}".rstrip("0")


def amount(wei: int | None) -> str:
    """Return token wei as tokens with their unit, to at most four digits after the point."""
    if wei is None:
        return DASH
    whole, part = divmod(round(abs(wei) / (TOKEN // 10_000)), 10_000)
    if wei and not whole and not part:
        return f"< 0.0001 {SYMBOL}"
    return ("-" if wei < 0 else "") + f"{whole:,}" + (f".{part:04d}".rstrip("0") if part else "") + f" {SYMBOL}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: of one, or of several."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float | None) -> str:
    if share is None:
        return DASH
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def size(count: int | None) -> str:
    """Return bytes in the largest unit that leaves a whole number before the point."""
    if count is None:
        return DASH
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} B" if not unit else f"{value:.3g} {_SIZES[unit]}"


def short(text: str | None) -> str:
    """Return an address or hash by its ends."""
    if not text:
        return DASH
    return f"{text[:6]}…{text[-4:]}" if text.startswith("0x") and len(text) > 12 else text


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return DASH
    left, parts = max(0, round(seconds)), []
    for name, length in _SPANS:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def moment(seconds: float | None) -> Markup | str:
    """Return a time in UTC, as an element whose text scripts may replace by how long ago it is."""
    if not seconds:
        return DASH
    there = datetime.fromtimestamp(min(seconds, LAST_SECOND), UTC)
    exact = f"{there:%Y-%m-%dT%H:%M:%SZ}"
    return Markup('<time datetime="{}" data-moment="{:.0f}">{:%Y-%m-%d %H:%M} UTC</time>').format(exact, seconds, there)


def countdown(until: int, now: int) -> Markup:
    """Return how long the chain's clock has to go, as an element that scripts count down."""
    text = f"in {span(until - now)}" if until > now else "now"
    return Markup('<span class="countdown" data-until="{}">{}</span>').format(until, text)


def hour(hours: int) -> str:
    """Return an hour of the chain's clock, in UTC."""
    return f"{datetime.fromtimestamp(min(hours * HOUR_SECONDS, LAST_SECOND), UTC):%b %d, %H:00}"


def shown(text: str, limit: int = MAX_LINE) -> str:
    """Return strangers' text with escapes for what is not printed, at most `limit` characters; lines stay lines."""
    cut = text[:limit]
    return printable(cut.replace("\r\n", "\n"), kept="\n\t") + ("…" if len(text) > limit else "")


def written(text: str, special: Sequence[str], limit: int = MAX_LINE) -> Markup:
    """Return what a model or a task's author wrote, as `shown`; special tokens in elements that the sheet hides."""
    if not special:
        return escape(shown(text, limit))
    pieces = re.split(f"({'|'.join(map(re.escape, special))})", text[:limit])
    marked = [Markup('<i class="special">{}</i>') if place % 2 else Markup("{}") for place in range(len(pieces))]
    made = (form.format(shown(piece, limit)) for form, piece in zip(marked, pieces, strict=True))
    return Markup("").join(made) + ("…" if len(text) > limit else "")


def mark(address: str) -> Markup:
    """Return a small symmetrical picture that follows from an address, by which people recognise it."""
    digest = hashlib.sha256(address.lower().encode()).digest()
    cells = [(x, y) for y in range(5) for x in range(3) if digest[5 * x + y] & 1]
    path = "".join(f"M{x} {y}h1v1h-1z" for x, y in sorted({*cells, *((4 - x, y) for x, y in cells)}))
    hue = digest[20] * 360 // 256
    return Markup(
        '<svg class="mark" viewBox="0 0 5 5" width="15" height="15" aria-hidden="true">'
        '<path d="{}" fill="hsl({} 55% 48%)"/></svg>'
    ).format(path, hue)


def word(term: str, label: str = "") -> Markup:
    """Return a term as a link to its explanation, which it also shows when pointed at."""
    return Markup('<a class="word" href="/explain#{}" title="{}">{}</a>').format(
        anchor_of(term), WORDS[term], label or term
    )


def bars(parts: Iterable[tuple[str, int]], total: int) -> Markup:
    """Return one horizontal bar of parts, each with its own class; empty parts are left out."""
    drawn, at = [], 0.0
    for kind, count in parts:
        if count and total:
            width = 100 * count / total
            drawn.append(
                Markup('<rect class="is-{}" x="{:.2f}" y="0" width="{:.2f}" height="6"/>').format(kind, at, width)
            )
            at += width
    return Markup('<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(
        Markup("").join(drawn)
    )


def query(values: Mapping[str, Any], **changes: Any) -> str:
    """Return a query string of the values that are set, some of them changed; beginning with a question mark."""
    given = {name: value for name, value in {**values, **changes}.items() if value not in (None, "")}
    return "?" + urlencode(given)


def environment() -> Environment:
    """Return the templates' environment."""
    made = Environment(
        loader=PackageLoader("explorer", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "amount": amount,
        "counted": counted,
        "hour": hour,
        "mark": mark,
        "moment": moment,
        "number": number,
        "percent": percent,
        "hours_text": hours_text,
        "short": short,
        "shown": shown,
        "size": size,
        "span": span,
        "written": written,
    }
    made.globals |= {"bars": bars, "countdown": countdown, "query": query, "word": word}
    made.globals |= {"DASH": DASH, "PIECE_NAMES": PIECE_NAMES}
    return made


def strip(hours: Sequence[tuple[int, Mapping[str, int]]]) -> Markup:
    """Return a timeline: a column for each hour from the first to the last, its parts stacked, with the hours named.

    hours: (hours since 1970, commitments by what became of them), rising.
    """
    if not hours:
        return Markup("")
    first, last = hours[0][0], hours[-1][0]
    most = max(1, *(sum(parts.values()) for _, parts in hours))
    width = STRIP_WIDTH / (last - first + 1)
    columns = []
    for hours_since, parts in hours:
        foot = STRIP_HEIGHT
        counts = ", ".join(f"{count} {kind}" for kind, count in parts.items() if count)
        rects = []
        for kind, count in parts.items():
            height = STRIP_HEIGHT * count / most
            foot -= height
            if count:
                x = (hours_since - first) * width
                rect = '<rect class="is-{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>'
                rects.append(Markup(rect).format(kind, x, foot, max(0.5, width * 0.86), height))
        columns.append(
            Markup("<g><title>{}: {}</title>{}</g>").format(
                hour(hours_since), counts or "nothing", Markup("").join(rects)
            )
        )
    label = f"Commitments by the hour, from {hour(first)} to {hour(last)}; at most {most} in one hour"
    return Markup(
        '<figure class="strip"><svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        "<figcaption><span>{}</span><span>{}</span></figcaption></figure>"
    ).format(STRIP_WIDTH, STRIP_HEIGHT, label, Markup("").join(columns), hour(first), hour(last))
