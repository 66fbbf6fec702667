"""Draw docs/architecture.svg: which process talks to which, and about what.

    python scripts/architecture.py

Boxes and arrows are the two tables below; edit them and run the script. tests/unit/docs/test_architecture.py fails
when the picture is not what the script draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
WIDTH, HEIGHT = 860, 600

Point = tuple[int, int]

BOXES: dict[str, tuple[int, int, int, int, str, str]] = {
    # name: x, y, width, height, kind, what it does
    "contracts on Base": (40, 24, 780, 76, "chain", "Registry: stakes · Runs: escrow, commitments · SlashCourt: cases"),
    "operator": (40, 190, 150, 70, "person", "cold key"),
    "worker": (230, 190, 170, 70, "process", "generates rollouts"),
    "trainer": (440, 190, 170, 70, "process", "updates the model"),
    "validator": (650, 190, 170, 70, "process", "inspects and judges"),
    "explorer": (40, 350, 180, 64, "process", "shows the run to people"),
    "orchestrator": (290, 350, 230, 64, "process", "exchange of one run"),
    "storage": (290, 446, 230, 54, "store", "folder or S3, files by hash"),
    "relays": (230, 530, 590, 54, "store", "weights over HTTP, every shard checked against the chain"),
}
ARROWS: tuple[tuple[str, Point, tuple[Point, ...]], ...] = (
    # label, where it stands, the points of the line; the head is at the last
    ("stake, claim", (123, 150), ((115, 190), (115, 100))),
    ("commit roots", (323, 150), ((315, 190), (315, 100))),
    ("publish steps", (533, 150), ((525, 190), (525, 100))),
    ("seal, accuse, vote", (708, 150), ((700, 190), (700, 100))),
    ("events", (218, 150), ((210, 100), (210, 350))),
    ("log", (256, 374), ((290, 382), (220, 382))),
    ("page", (123, 310), ((115, 350), (115, 260))),
    ("rollouts", (353, 308), ((345, 260), (345, 350))),
    ("log, files", (423, 282), ((480, 350), (480, 260))),
    ("verdicts, evidence", (578, 326), ((690, 260), (690, 310), (506, 310), (506, 350))),
    ("", (0, 0), ((405, 414), (405, 446))),
    ("new version", (558, 470), ((550, 260), (550, 530))),
    ("weights", (258, 433), ((250, 530), (250, 260))),
    ("weights", (772, 400), ((765, 530), (765, 260))),
)
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2430",
    "quiet": "#5b6372",
    "line": "#7a8394",
    "process": "#e8f0fe",
    "chain": "#fdf0d9",
    "store": "#e6f4ea",
    "person": "#f3e8fd",
}
DARK = {
    "paper": "#14171e",
    "ink": "#e6e9f0",
    "quiet": "#a4acbb",
    "line": "#8791a3",
    "process": "#1f2f4d",
    "chain": "#45351a",
    "store": "#1d3a28",
    "person": "#38264a",
}
STYLE = """
    text {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }}
    .name {{ font-size: 16px; font-weight: 600; text-anchor: middle; }}
    .what, .label {{ font-size: 12px; }}
    .what {{ text-anchor: middle; }}
    .line {{ fill: none; stroke-width: 1.6; }}
    .box {{ stroke-width: 1.2; }}
{light}
    @media (prefers-color-scheme: dark) {{
{dark}
    }}
"""


def colours(palette: dict[str, str]) -> str:
    """Return the rules that paint the classes of the picture."""
    fills = {"paper": "paper", "head": "line", "name": "ink", "label": "ink", "what": "quiet"}
    fills |= {kind: kind for kind in ("process", "chain", "store", "person")}
    rules = [f"    .{name} {{ fill: {palette[colour]}; }}" for name, colour in fills.items()]
    return "\n".join([*rules, f"    .line, .box {{ stroke: {palette['line']}; }}"])


def box(name: str) -> str:
    """Return a box with its name and purpose."""
    x, y, width, height, kind, what = BOXES[name]
    middle = x + width // 2
    return (
        f'  <rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="9"/>\n'
        f'  <text class="name" x="{middle}" y="{y + height // 2 - 4}">{escape(name)}</text>\n'
        f'  <text class="what" x="{middle}" y="{y + height // 2 + 16}">{escape(what)}</text>\n'
    )


def arrow(label: str, at: Point, points: tuple[Point, ...]) -> str:
    """Return a line with a head at its last point, and its label."""
    path = " L ".join(f"{x} {y}" for x, y in points)
    line = f'  <path class="line" d="M {path}" marker-end="url(#head)"/>\n'
    text = f'  <text class="label" x="{at[0]}" y="{at[1]}">{escape(label)}</text>\n'
    return line + (text if label else "")


def picture() -> str:
    """Return the whole SVG. It draws its background, so that it reads on light and on dark pages."""
    body = "".join(arrow(*one) for one in ARROWS) + "".join(box(name) for name in BOXES)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title">\n'
        '  <title id="title">Architecture of Muster: who talks to whom</title>\n'
        f"  <style>{STYLE.format(light=colours(LIGHT), dark=colours(DARK))}  </style>\n"
        '  <defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="head" d="M 0 0 L 10 5 L 0 10 z"/></marker></defs>\n'
        f'  <rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="12"/>\n'
        f"{body}</svg>\n"
    )


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
