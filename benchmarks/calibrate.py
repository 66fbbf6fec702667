"""How far off honest work is: the distributions behind the limits in `muster.verification.profiles`.

    python benchmarks/calibrate.py [--json] [--write] [--tokens 100000]

Honest work of vLLM is measured by the transformers forward of `validator.replay` over a grid: every profile (and with
it the dtype), trained and random models of several sizes, two temperatures, calls of 1 to 256 requests, the prefix
cache cold, warm and off, prompts prefilled in chunks and preempted. Not one rollout may be rejected, and a limit that
accuses must be at least twice as far out as the worst of them. --write puts tables and plots into
docs/verification.md. Takes some twenty minutes on two cores; --tokens makes it shorter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.page import DOCS, rewrite, small, table
from benchmarks.testbed.adversaries.lab import bare_rows, tempered
from muster.models.files import load_tokenizer
from muster.models.init import ModelShape, init_model, make_model, make_tokenizer, save_model
from muster.protocol.prompts import prompt_tokens
from muster.tasks import TaskSet, make_task_set
from muster.verification.profiles import PROFILES, STATISTICS, Profile
from validator.replay import Measurement, Replayer, judge
from worker.engine import Engine, EngineLimits, GenerationRequest

WORDS = {
    "gap_mean": "mean gap to the sampled tokens",
    "gap_worst": "largest gap to a sampled token",
    "activation": "distance of the activation proof",
    "logprob_rms": "mean difference of the log-probabilities",
    "logprob_worst": "largest difference of a log-probability",
    "logprob_drift": "signed difference of the log-probabilities",
}
TRAINED = "trained 0.34M"
SHAPES = {"random 0.34M": ModelShape(), "random 20M": ModelShape(hidden=512, layers=6, heads=8, intermediate=1536)}
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
TOKENS = 100_000
"""Honest tokens over the whole grid, at least."""
CHILD_SECONDS = 7200
GROUP = 4
LONG = 300
"""Tokens before a prompt that make it long: more than two blocks of vLLM's cache."""


@dataclass(frozen=True)
class Model:
    """A model of the grid at one temperature."""

    name: str
    temperature: float = 1.0
    max_tokens: int = 96

    @property
    def title(self) -> str:
        return self.name if self.temperature == 1 else f"{self.name} at {self.temperature:g}"


MODELS = (Model(TRAINED, max_tokens=32), Model(TRAINED, 0.6, max_tokens=32), *map(Model, SHAPES))


@dataclass(frozen=True)
class Cell:
    """One way to run an engine."""

    name: str
    engine: str
    """A key of ENGINES."""
    requests: int
    """Of one call."""
    prefix: int = 0
    """Tokens that the prompts of a call have in common."""
    calls: int = 1
    """How often the same requests are made: from the second time on the cache is warm."""


CELLS = (
    Cell("256 at once", "cached", 256),
    Cell("8 at once", "cached", 8),
    Cell("one at a time", "cached", 1),
    Cell("long prompts, cache cold and warm", "cached", 32, prefix=LONG, calls=2),
    Cell("long prompts, no cache, in chunks, preempted", "tight", 48, prefix=LONG),
)
ENGINES: dict[str, dict[str, Any]] = {
    "cached": {},
    "tight": {"prefix_caching": False, "max_sequences": 24, "max_batched_tokens": 96, "cache_blocks": 40},
}


# --- Honest work


def make_models(folder: Path) -> TaskSet:
    """Make the demo's trained model, and larger ones with random weights, each in a folder of its name."""
    task_set = make_task_set(0)
    init_model(folder / TRAINED, task_set, seed=0)
    tokenizer = make_tokenizer()
    for name, shape in SHAPES.items():
        save_model(make_model(tokenizer, shape, seed=2), tokenizer, folder / name)
    return task_set


def make_requests(tokenizer, tasks: TaskSet, count: int, max_tokens: int, random: Random, prefix: int = 0):
    """Real prompts, four samples each, after `prefix` tokens that they have in common."""
    before = np.random.default_rng(random.getrandbits(32)).integers(20, 100, prefix).astype(np.int32)
    prompts = [
        np.concatenate([before, prompt_tokens(tokenizer, random.choice(tasks.train), random.choice((8, 12, 16)))])
        for _ in range(-(-count // GROUP))
    ]
    return [GenerationRequest(prompts[i // GROUP], random.getrandbits(63), max_tokens) for i in range(count)]


def run_weights(profile: Profile, name: str, folder: Path, tokens: int) -> list[dict[str, Any]]:
    """Measure every cell of the grid for one profile and one model, `tokens` tokens at each temperature.

    Returns names, tokens, verdicts, and the values of every statistic.
    """
    path, models = folder / name, [model for model in MODELS if model.name == name]
    limits = EngineLimits(1.0, 400, max(model.max_tokens for model in models), cache_bytes=128 << 20)
    # All engines are kept to the end: vLLM takes what they share along with the first that goes.
    engines = {key: Engine(path, profile, replace(limits, **options)) for key, options in ENGINES.items()}
    return [cell for model in models for cell in run_model(profile, model, path, engines, tokens)]


def run_model(
    profile: Profile, model: Model, path: Path, engines: dict[str, Engine], tokens: int
) -> Iterator[dict[str, Any]]:
    """Measure every cell for one model at one temperature, each until it has its share of the tokens."""
    tasks, tokenizer = make_task_set(0), load_tokenizer(path)
    random, replayer = Random(f"{profile.name} {model.title}"), Replayer(path, profile, model.temperature)
    for cell in CELLS:
        counted, found, engine = 0, list[Measurement](), engines[cell.engine]
        while counted < tokens / len(CELLS):
            requests = make_requests(tokenizer, tasks, cell.requests, model.max_tokens, random, cell.prefix)
            for _ in range(cell.calls):
                with tempered(engine, model.temperature):
                    rows = bare_rows(requests, engine.generate(requests))
                counted += sum(len(row.completion_tokens) for row in rows)
                found += replayer.replay(rows)
        findings = [finding for one in found if (finding := judge([one], profile))]
        yield {
            "profile": profile.name,
            "model": model.title,
            "cell": cell.name,
            "tokens": counted,
            "rejected": len(findings),
            "accused": sum(finding.accuse for finding in findings),
            "values": {s: [float(f"{getattr(one, s):.4g}") for one in found] for s in STATISTICS},
        }


def calibrate(tokens: int, save: Path | None = None) -> list[dict[str, Any]]:
    """Measure the whole grid, each profile and model in a process of its own.

    What is measured is saved at once: a run that is ended keeps it.
    """
    share = -(-tokens // (len(PROFILES) * len(MODELS)))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder))
        for profile in PROFILES:
            for name in (TRAINED, *SHAPES):
                command = [sys.executable, __file__, "--child", profile, name, folder, "--tokens", str(share)]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=CHILD_SECONDS)
                found += json.loads(done.stdout)
                if save:
                    save.write_text(json.dumps(found), encoding="utf-8")
                counted = sum(cell["tokens"] for cell in found)
                print(f"{profile}, {name}: {counted:,} tokens so far", file=sys.stderr)
    return found


# --- What it comes to


@dataclass(frozen=True)
class Margin:
    """One statistic of one profile over the whole grid."""

    profile: Profile
    statistic: str
    quantiles: tuple[float, ...]

    @property
    def worst(self) -> float:
        return self.quantiles[-1]

    @property
    def times(self) -> float:
        """Return how many times as far out as the worst honest value the accusing limit is."""
        return getattr(self.profile, self.statistic).accuse / max(self.worst, 1e-12)


def margins(cells: Sequence[dict[str, Any]]) -> list[Margin]:
    found = []
    for profile in PROFILES.values():
        for statistic in STATISTICS:
            values = honest_values(cells, profile, statistic)
            if len(values):
                quantiles = np.quantile(values, QUANTILES, method="higher")
                found.append(Margin(profile, statistic, tuple(map(float, quantiles))))
    return found


def honest_values(cells: Sequence[dict[str, Any]], profile: Profile, statistic: str) -> np.ndarray:
    mine = [cell["values"][statistic] for cell in cells if cell["profile"] == profile.name]
    return np.concatenate([np.zeros(0), *mine])


def figures(runs: int, *, write: bool = False, tokens: int = TOKENS, save: Path | None = None) -> list[report.Figure]:
    """Return the figures over all runs together, since the worst counts; with `write`, rewrite the page too."""
    cells = [cell for _ in range(runs) for cell in calibrate(tokens, save)]
    if write:
        write_page(cells)
    return figures_of(cells)


def figures_of(cells: Sequence[dict[str, Any]]) -> list[report.Figure]:
    rejected, rollouts = sum(cell["rejected"] for cell in cells), count_rollouts(cells)
    tokens = sum(cell["tokens"] for cell in cells)
    found = [
        report.figure(
            "false_accusations",
            [rejected],
            ratio=rejected,
            target=0,
            at_most=True,
            unit="rejected honest rollouts",
            rollouts=rollouts,
            upper_bound_95=None if rejected else rule_of_three(rollouts),
        ),
        report.figure("honest_tokens", [tokens], ratio=tokens, target=TOKENS, unit="tokens"),
    ]
    for one in margins(cells):
        limit = getattr(one.profile, one.statistic).accuse
        name = f"{one.profile.name}: {one.statistic}"
        unit = "worst honest value"
        found.append(report.figure(name, [one.worst], limit=[limit], ratio=one.times, target=2.0, unit=unit))
    return found


def count_rollouts(cells: Sequence[dict[str, Any]]) -> int:
    return sum(len(cell["values"]["activation"]) for cell in cells)


def rule_of_three(count: int) -> float:
    """Upper bound, at 95%, of the rate of something that did not happen in `count` independent tries."""
    return 3 / count


# --- The page


def write_page(cells: Sequence[dict[str, Any]]) -> None:
    for profile in PROFILES.values():
        plot_path(profile).write_text(plot(cells, profile), encoding="utf-8")
    rewrite(DOCS / "verification.md", "calibration", page(cells))


def page(cells: Sequence[dict[str, Any]]) -> str:
    """Write the part of docs/verification.md: counts, quantiles, margins, the worst of every cell, and its plots."""
    tokens, rollouts = sum(cell["tokens"] for cell in cells), count_rollouts(cells)
    rejected, accused = (sum(cell[name] for cell in cells) for name in ("rejected", "accused"))
    text = [f"{tokens:,} honest tokens in {rollouts:,} rollouts; rejected {rejected}, accused {accused}."]
    if not rejected:
        text[0] += (
            f" So the rate of false rejections is below {rule_of_three(rollouts):.1e} per rollout (three over "
            f"{rollouts:,}) with 95% confidence, for machines, models and settings like those of the grid: its "
            "rollouts share one machine, and the bound says nothing about another kind of processor."
        )
    for profile in PROFILES.values():
        mine = [one for one in margins(cells) if one.profile is profile]
        if not mine:
            continue
        heads = ("honest", *("worst" if q == 1 else f"{q:.1%}" for q in QUANTILES), "rejects", "accuses", "margin")
        lines = []
        for one in mine:
            limit = getattr(profile, one.statistic)
            times = "∞" if one.worst == 0 else f"{one.times:.1f} ×"
            numbers = (*map(small, one.quantiles), small(limit.reject), small(limit.accuse), times)
            lines.append((WORDS[one.statistic], *numbers))
        own = [cell for cell in cells if cell["profile"] == profile.name]
        worst = [
            (
                f"{cell['model']}, {cell['cell']}",
                f"{len(cell['values']['activation']):,}",
                f"{cell['tokens']:,}",
                *(small(max(cell["values"][s])) for s in STATISTICS),
            )
            for cell in own
        ]
        text += [
            f"### {profile.name}",
            table(heads, lines),
            f"![Honest distributions under {profile.name}]({plot_path(profile).name})",
            "The worst rollout of each cell of the grid:",
            table(("cell", "rollouts", "tokens", *(s.replace("_", " ") for s in STATISTICS)), worst),
        ]
    return "\n\n".join(text)


def plot_path(profile: Profile) -> Path:
    return DOCS / f"verification-{profile.name}.svg"


def plot(cells: Sequence[dict[str, Any]], profile: Profile) -> str:
    """For each statistic the share of honest rollouts beyond a value, with both limits, as an SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from muster.plots.charts import BAD, GOOD, GRID, QUIET, STYLE, svg_text

    with rc_context(STYLE):
        drawing = Figure(figsize=(9.6, 7.2), layout="constrained", facecolor="white")
        for axes, statistic in zip(drawing.subplots(3, 2).flat, STATISTICS, strict=True):
            values, limit = honest_values(cells, profile, statistic), getattr(profile, statistic)
            floor = limit.reject * 1e-4
            shares = np.geomspace(1, 1 / max(1, len(values)), 80)
            points = np.maximum(np.quantile(values, 1 - shares, method="higher"), floor)
            axes.plot(points, shares, color=GOOD, linewidth=1.6, label="honest")
            axes.axvline(limit.reject, color=QUIET, linestyle="--", linewidth=1.2, label="rejects")
            axes.axvline(limit.accuse, color=BAD, linestyle="--", linewidth=1.2, label="accuses")
            axes.set(xscale="log", yscale="log", xlim=(floor, limit.accuse * 3), ylabel="share beyond")
            axes.grid(color=GRID, linewidth=0.6)
            axes.set_title(WORDS[statistic], loc="left", fontsize=10, fontweight="bold")
        drawing.axes[0].legend(frameon=False, fontsize=8)
        return svg_text(drawing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", action="store_true", help="rewrite tables and plots in docs/verification.md")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="honest tokens over the whole grid")
    parser.add_argument("--save", type=Path, help="file for every measured number, as JSON")
    parser.add_argument("--child", nargs=3, metavar=("PROFILE", "MODEL", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        profile, name, folder = options.child
        print(json.dumps(run_weights(PROFILES[profile], name, Path(folder), options.tokens)))
        return 0
    found = figures(1, write=options.write, tokens=options.tokens, save=options.save)
    return report.show(found, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
