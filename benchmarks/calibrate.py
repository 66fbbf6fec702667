"""How far off honest work is: the distributions behind the limits in `muster.verification.profiles`.

    python benchmarks/calibrate.py [--json] [--write] [--scale 1.0] [--only NAME]

Honest work of vLLM is measured by the transformers forward of `muster.verification.replay` over the grid of
`benchmarks.calibration`: every profile (and with it the dtype), trained and random models of 0.34M to 494M
parameters, flat logits and those of trained and of collapsed models, outlier channels, completions of 1 to 4,096
tokens, two temperatures, calls of 1 to 256 requests, the prefix cache cold, warm and off, prompts prefilled in chunks
and preempted. Not one rollout may be rejected, and a limit that accuses must be at least twice as far out as the worst
of them. --write puts tables and plots into docs/understand/verification.md. Takes hours on two cores, most of
them over rows of 4,096 tokens; --scale makes it shorter.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.calibration import measure
from benchmarks.report import DOCS, rewrite, small, table
from muster.verification.calibration import beyond, pool_units
from muster.verification.measured import MeasuredCell
from muster.verification.profiles import PROFILES, STATISTICS, Profile
from muster.verification.statistics import scaled_errors

WORDS = {
    "gap_mean": "mean gap to the sampled tokens",
    "gap_worst": "largest gap to a sampled token",
    "activation": "distance of the activation proof",
    "logprob_rms": "mean difference of the log-probabilities",
    "logprob_worst": "largest difference of a log-probability",
    "logprob_drift": "signed difference of the log-probabilities",
}
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
SAMPLE = 16
"""Rows of a commitment that the default policy replays."""
DAY = 24
"""Commitments of a node."""


# --- Results


@dataclass(frozen=True)
class HonestCell:
    """One measured cell, judged by the limits of its profile."""

    profile: str
    model: str
    cell: str
    large: bool
    tokens: int
    distinct: int
    rejected: int
    accused: int
    values: dict[str, list[float]]
    """Of every statistic, one for each row."""
    units: list[dict[str, float]]
    """Statistics of its pool units."""


def judged(cell: MeasuredCell) -> HonestCell:
    profile = PROFILES[cell.profile]
    rows = [scaled_errors(row, profile).statistics() for row in cell.rows]
    verdicts = [beyond(row, profile) for row in rows]
    return HonestCell(
        *(cell.profile, cell.model, cell.cell, cell.large, cell.tokens, cell.distinct),
        rejected=sum(rejected for rejected, _ in verdicts),
        accused=sum(accused for _, accused in verdicts),
        values={statistic: [getattr(row, statistic) for row in rows] for statistic in STATISTICS},
        units=pool_units(cell, profile),
    )


@dataclass(frozen=True)
class Margin:
    """One statistic of one profile over the whole grid, of rows or of pool units."""

    profile: Profile
    statistic: str
    worst: float
    """The largest value of a row, or mean of a cell's units."""
    limit: float
    """The one that accuses, or the pool's."""
    quantiles: tuple[float, ...] = ()
    """Of the rows."""
    units: int = 0
    leaning: int = 0

    @property
    def times(self) -> float:
        """Return how many times as far out as the worst honest value the limit is."""
        return self.limit / max(self.worst, 1e-12)


def margins(cells: Sequence[HonestCell]) -> list[Margin]:
    found = []
    for profile in PROFILES.values():
        for statistic in STATISTICS:
            values = honest_values(cells, profile, statistic)
            if len(values):
                quantiles = tuple(map(float, np.quantile(values, QUANTILES, method="higher")))
                found.append(Margin(profile, statistic, quantiles[-1], getattr(profile, statistic).accuse, quantiles))
    return found


def pool_margins(cells: Sequence[HonestCell], profile: Profile) -> list[Margin]:
    mine = [cell.units for cell in cells if cell.profile == profile.name and cell.units]
    found = []
    for name, limit in profile.pool.model_dump().items() if mine else ():
        worst = max(sum(unit[name] for unit in units) / len(units) for units in mine)
        leaning = sum(unit[name] > limit for units in mine for unit in units)
        found.append(Margin(profile, name, worst, limit, units=sum(map(len, mine)), leaning=leaning))
    return found


def honest_values(cells: Sequence[HonestCell], profile: Profile, statistic: str) -> np.ndarray:
    mine = [cell.values[statistic] for cell in cells if cell.profile == profile.name]
    return np.concatenate([np.zeros(0), *mine])


def figures(runs: int, *, write: bool = False, scale: float = 1.0, save: Path | None = None) -> list[report.Figure]:
    """Return the figures over all runs together, since the worst counts; with `write`, rewrite the page too."""
    cells = [cell for run in range(runs) for cell in measured(scale, save and save / str(run))]
    if write:
        write_page(cells)
    return figures_of(cells)


def measured(scale: float, save: Path | None, only: str = "") -> list[HonestCell]:
    """Measure the grid, in a folder that goes unless there is one to save it in, and judge its cells."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return list(map(judged, asyncio.run(measure(save or Path(folder), scale, only))))


def figures_of(cells: Sequence[HonestCell]) -> list[report.Figure]:
    rejected, rollouts = sum(cell.rejected for cell in cells), count_rollouts(cells)
    large = [cell for cell in cells if cell.large and PROFILES[cell.profile].dtype == "bfloat16"]
    collapsed = [cell for cell in cells if cell.model.startswith("collapsed")]
    large_rejected, large_rollouts = sum(cell.rejected for cell in large), count_rollouts(large)
    least = min(margins(cells), key=lambda one: one.times)
    pools = [one for profile in PROFILES.values() for one in pool_margins(cells, profile)]
    pool = min(pools, key=lambda one: one.times)
    bound = None if rejected else rule_of_three(rollouts)
    honest, of_collapsed = "accused honest rollouts", "accused rollouts of collapsed models"
    return [
        report.none("false_accusations", rejected, "rejected honest rollouts", rollouts=rollouts, upper_bound_95=bound),
        report.figure(
            "honest_large_rejected",
            large_rejected,
            ratio=large_rejected / max(1.0, large_rollouts / SAMPLE),
            target=0.001,
            at_most=True,
            unit="rejected honest rollouts, over samples of 16",
            rollouts=large_rollouts,
        ),
        report.none("honest_accused", sum(cell.accused for cell in cells), honest),
        report.none("collapse_accused", sum(cell.accused for cell in collapsed), of_collapsed),
        _margin("accuse_margin", least, f"worst honest value of {least.statistic} under {least.profile.name}"),
        _margin(
            "pool_margin", pool, f"mean of the worst cell's pool units, {pool.statistic} under {pool.profile.name}"
        ),
        report.none("pool_leaning", sum(one.leaning for one in pools), "honest pool units above a pool limit"),
        *(_margin(f"{one.profile.name}: {one.statistic}", one, "worst honest value") for one in margins(cells)),
    ]


def _margin(name: str, one: Margin, unit: str) -> report.Figure:
    return report.figure(name, one.worst, limit=one.limit, ratio=one.times, target=2.0, unit=unit)


def count_rollouts(cells: Sequence[HonestCell]) -> int:
    return sum(len(cell.values["activation"]) for cell in cells)


def rule_of_three(count: int) -> float:
    """Upper bound, at 95%, of the rate of something that did not happen in `count` independent tries."""
    return 3 / count


# --- The page


def write_page(cells: Sequence[HonestCell]) -> None:
    for profile in PROFILES.values():
        plot_path(profile).write_text(plot(cells, profile), encoding="utf-8")
    rewrite(DOCS / "understand" / "verification.md", "calibration", page(cells))


def page(cells: Sequence[HonestCell]) -> str:
    """Write the part of docs/understand/verification.md: counts, quantiles, margins, the worst of each cell, plots."""
    tokens, rollouts = sum(cell.tokens for cell in cells), count_rollouts(cells)
    rejected, accused = (sum(getattr(cell, name) for cell in cells) for name in ("rejected", "accused"))
    text = [
        f"{tokens:,} honest tokens in {rollouts:,} rollouts; rejected {rejected}, accused {accused}. Gaps and "
        "differences of log-probabilities are in expected errors (`muster/verification/statistics.py`)."
    ]
    for profile in PROFILES.values():
        mine = [one for one in margins(cells) if one.profile is profile]
        if not mine:
            continue
        heads = ("honest", *("worst" if q == 1 else f"{q:.1%}" for q in QUANTILES), "rejects", "accuses", "margin")
        lines = []
        for one in mine:
            limit = getattr(profile, one.statistic)
            numbers = (*map(small, one.quantiles), small(limit.reject), small(limit.accuse), _times(one))
            lines.append((WORDS[one.statistic], *numbers))
        own = [cell for cell in cells if cell.profile == profile.name]
        worst = [
            (
                f"{cell.model}, {cell.cell}",
                f"{len(cell.values['activation']):,}",
                f"{cell.tokens:,}",
                *(small(max(cell.values[s])) for s in STATISTICS),
            )
            for cell in own
        ]
        text += [
            f"### {profile.name}",
            _bounds(own),
            table(heads, lines),
            f"![Honest distributions under {profile.name}]({plot_path(profile).name})",
            _pools(pool_margins(cells, profile)),
            "The worst rollout of each cell of the grid:",
            table(("cell", "rollouts", "tokens", *(s.replace("_", " ") for s in STATISTICS)), worst),
        ]
    return "\n\n".join(text)


def _pools(found: Sequence[Margin]) -> str:
    """Say how far honest pool units are from the profile's pool limits."""
    heads = ("", "mean of the worst cell", "pool limit", "units above it", "margin")
    lines = [
        (one.statistic.replace("_", " "), small(one.worst), small(one.limit), one.leaning, _times(one)) for one in found
    ]
    return f"Of {found[0].units:,} pool units:\n\n" + table(heads, lines)


def _times(one: Margin) -> str:
    return f"{one.times:.1f} ×" if one.worst else "∞"


def _bounds(cells: Sequence[HonestCell]) -> str:
    """Say how often one profile rejects honest work, and what weakens the bound."""
    rollouts, distinct = count_rollouts(cells), sum(cell.distinct for cell in cells)
    rejected, tokens = sum(cell.rejected for cell in cells), sum(cell.tokens for cell in cells)
    counts = f"{tokens:,} tokens in {rollouts:,} rollouts, {distinct:,} of them different from each other; "
    if rejected:
        return counts + f"{rejected} rejected."
    bound = rule_of_three(distinct)
    return counts + (
        f"none rejected. So fewer than {bound:.1e} of honest rows are (three over the number of different rows, with "
        f"95% confidence), fewer than {min(1.0, SAMPLE * bound):.1e} of commitments with {SAMPLE} rows in the sample, "
        f"and in a day of {DAY} commitments under two validators fewer than "
        f"{min(1.0, 2 * DAY * SAMPLE * bound):.1e} of honest nodes meet one. That is what counting can show: rows of a "
        "group share their prompt and rows of a cell their model, and all share one machine, so the number of "
        "independent tries is smaller. The margins in the table say more."
    )


def plot_path(profile: Profile) -> Path:
    return DOCS / "understand" / f"verification-{profile.name}.svg"


def plot(cells: Sequence[HonestCell], profile: Profile) -> str:
    """For each statistic the share of honest rollouts beyond a value, with both limits, as an SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "muster", "font.size": 9, "axes.grid": True}):
        drawing = Figure(figsize=(9.6, 7.2), layout="constrained", facecolor="white")
        for axes, statistic in zip(drawing.subplots(3, 2).flat, STATISTICS, strict=True):
            values, limit = honest_values(cells, profile, statistic), getattr(profile, statistic)
            floor = limit.reject * 1e-4
            shares = np.geomspace(1, 1 / max(1, len(values)), 80)
            points = np.maximum(np.quantile(values, 1 - shares, method="higher"), floor)
            axes.plot(points, shares, color="teal", linewidth=1.6, label="honest")
            axes.axvline(limit.reject, color="gray", linestyle="--", linewidth=1.2, label="rejects")
            axes.axvline(limit.accuse, color="firebrick", linestyle="--", linewidth=1.2, label="accuses")
            axes.set(xscale="log", yscale="log", xlim=(floor, limit.accuse * 3), ylabel="share beyond")
            axes.set_title(WORDS[statistic], loc="left", fontsize=10, fontweight="bold")
        drawing.axes[0].legend(frameon=False, fontsize=8)
        drawing.savefig(drawn, format="svg", metadata={"Date": None, "Creator": "muster"})
    return drawn.getvalue()


def main() -> int:
    parser = report.parser(__doc__, write="tables and plots in docs/understand/verification.md")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the grid's tokens")
    parser.add_argument("--only", metavar="NAME", help="models with this in their name; print their part of the page")
    parser.add_argument("--save", type=Path, help="folder that keeps what is measured: a run goes on from it")
    options = parser.parse_args()
    if options.only:
        print(page(measured(options.scale, options.save, options.only)))
        return 0
    found = figures(1, write=options.write, scale=options.scale, save=options.save)
    return report.show(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
