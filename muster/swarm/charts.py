"""Style every chart alike, and turn it into an SVG. Drawn without pyplot: no display, no global state."""

from __future__ import annotations

import io
import re
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GRID, GOOD, BAD, QUIET = "#1f2937", "#e5e7eb", "#0f766e", "#b91c1c", "#9ca3af"
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "muster",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


def lines_behind(axes: Axes) -> None:
    """Draw horizontal lines to read values by."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold")


def svg_text(figure: Figure) -> str:
    """Return the figure as an SVG element, equal bytes for equal figures. Draw it under `rc_context(STYLE)`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "muster"})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
