"""What scoring withstands, agrees with and costs, against the targets of real work.

    python benchmarks/environments.py [--json] [--quick] [--only escapes …] [--gsm8k FILE]

The whole takes two hours on two cores, --quick some ten minutes, with fewer scorings, pairs and tasks, and without
`validate`: each figure says how many. `math_agreement`, `code_reference`, `eval_agreement` and `validate` fetch pinned
packages from the package index into cache/bench; `eval_agreement` compares with scorers that `make bench-peers`
installs. Exits with 3 when a target is missed.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.report import MOST_LISTED, Figure, figure, none
from benchmarks.scoring import (
    agreement,
    determinism,
    humaneval,
    large_set,
    math_pairs,
    score_rate,
    scored_validation,
)
from muster.runtime import telemetry
from testbed.escapes import runner
from testbed.paths import ROOT
from testbed.runs import private_tests
from testbed.samples.graded_run import forgeries

CACHE: Final = ROOT / "cache" / "bench"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    host_rounds: int
    """Of each completion that needs no component, in each of the four processes."""
    call_rounds: int
    cases: int
    """One in so many completions is scored."""
    pairs: int
    hacks: int
    """Problems that each hack is tried on."""
    problems: int
    """One in so many problems has its reference run."""
    tasks: int
    runs: int
    calls: int
    """Scorings of one run of the slowest kind; ten times as many of the others, and 2,000 times of the fastest."""
    commitments: int
    """Generated and validated, of each environment, two minutes of a core each; 0 leaves it out."""
    completions: int
    """One in so many fixed completions is also scored by published scorers."""
    gsm8k: Path | None = None


FULL: Final = Size(450, 8, 1, 5500, 4, 1, large_set.ROWS, 5, 40, 3, 1)
QUICK: Final = Size(16, 1, 2, 150, 1, 4, 20_000, 3, 6, 0, 10)


def measure_escapes(size: Size) -> list[Figure]:
    """Count the gains of attacks on both walls."""
    inner, (outer, failed) = runner.attack_component(), runner.attack_process()
    return [_escapes("escapes", inner), _escapes("escapes_outer", outer, controls_failed=failed)]


def _escapes(name: str, found: runner.Report, **more: object) -> Figure:
    counts = {"kinds": len(found.tried), "longest_s": round(found.seconds, 2), "tried": found.tried}
    return none(name, found.escapes, **counts, **more)


def measure_determinism(size: Size) -> list[Figure]:
    """Count scores that differ from the first of their kind."""
    counts = determinism.measure(size.host_rounds, size.call_rounds, size.cases)
    more = {
        "scorings": counts["total"],
        "by_environment": counts["by_environment"],
        "which": counts["which"][:MOST_LISTED],
    }
    return [none("determinism", counts["different"], "of scorings", **more)]


def measure_math(size: Size) -> list[Figure]:
    """Compare the component with math-verify run natively."""
    agreed = math_pairs.compare(math_pairs.pairs(size.pairs, size.gsm8k), CACHE)
    more = {name: agreed[name] for name in ("pairs", "judged", "agree", "equal")}
    more |= {name: agreed[name][:MOST_LISTED] for name in ("differ", "late")}
    share = agreed["agree"] / max(1, agreed["judged"])
    return [figure("math_agreement", share, target=0.999, unit="of pairs", **more)]


def measure_code(size: Size) -> list[Figure]:
    """Run HumanEval's references, empty bodies and hacks."""
    tasks = humaneval.problems(CACHE)
    some = tasks[:: size.problems]
    passed = humaneval.references(some)
    tried = list(humaneval.hacks(tasks, size.hacks))
    rewarded = [[name, problem] for name, problem, score in tried if score.parts != (0,)]
    failing = sorted({task.id for task in some} - set(passed["references"]))
    right = len(passed["references"])
    counts = {"passed": right, "problems": len(some), "converted": len(tasks), "failing": failing}
    return [
        figure("code_reference", right / len(some), target=1.0, unit="of references", **counts),
        none("code_empty", passed["empty"], problems=len(some)),
        none("code_hacks", rewarded, hacks=len(humaneval.HACKS), tries=len(tried)),
    ]


def measure_agreement(size: Size) -> list[Figure]:
    """Compare our scores of published benchmarks with the published scorers'."""
    comparisons = agreement.compare(CACHE, every=size.completions)
    equal, scores = sum(one.equal for one in comparisons), sum(one.scores for one in comparisons)
    counts = {
        one.benchmark: {
            **{name: getattr(one, name) for name in ("completions", "scores", "equal", "right")},
            "differ": len(one.differ),
        }
        for one in comparisons
    }
    differ = [{"benchmark": one.benchmark, **difference} for one in comparisons for difference in one.differ]
    more = {"scores": scores, "equal": equal, "benchmarks": counts, "differ": differ[:MOST_LISTED]}
    return [figure("eval_agreement", equal / scores, target=1.0, unit="of scores", **more)]


def measure_rate(size: Size) -> list[Figure]:
    """Measure how many completions a core scores, and how long an instance takes to start."""
    n = size.calls
    with score_rate.Rates() as rates:
        *kinds, starts = report.alternate(
            size.runs,
            lambda: rates.fast(2000 * n),
            lambda: rates.math(10 * n),
            lambda: rates.code(n),
            lambda: rates.start(20 * n),
        )
    figures = []
    for name, target, measured in zip(("fast", "math", "code"), (20_000, 15, 10), kinds, strict=True):
        cpu = [one.per_cpu_second for one in measured]
        elapsed = round(statistics.median(one.per_second for one in measured), 1)
        more = {"unit": "scorings per second of a core", "per_second_elapsed": elapsed}
        figures.append(figure(f"score_rate_{name}", cpu, target=target, **more))
    return [*figures, figure("score_start", starts, target=5.0, unit="ms of a core", at_most=True)]


def measure_large_set(size: Size) -> list[Figure]:
    """Measure the cost of a large task set for a worker."""
    costs = _large_set(size.tasks)
    most = {"at_most": True, "tasks": costs.rows}
    return [
        figure("large_set_start", costs.start_s, target=0.5, unit="s", **most),
        figure("large_set_memory", costs.bytes / 1024**2, target=100, unit="MiB", **most),
        figure("large_set_proof", costs.proof_bytes / 1024, target=1.5, unit="KiB", **most),
    ]


def measure_import(size: Size) -> list[Figure]:
    """Measure how fast a file becomes a task set."""
    costs = _large_set(size.tasks)
    more = {"tasks": costs.rows, "per_cpu_second": costs.import_rate_per_cpu_second}
    return [figure("import_rate", costs.import_rate, target=5000, unit="tasks per second", **more)]


def measure_validate(size: Size) -> list[Figure]:
    """Measure all that a validator does with a commitment, scoring included, against generating it."""
    names = scored_validation.TASKS_OF if size.commitments else ()
    return [report.apart(scored_validation.measure, name, CACHE, size.commitments) for name in names]


def measure_private(size: Size) -> list[Figure]:
    """Play a run with private tests until its masters are shown; and forge what its trainer says."""
    telemetry.configure("private tests", level="error")
    with tempfile.TemporaryDirectory() as folder:
        outcome = private_tests.play(Path(folder))
    searched: dict[str, Any] = {"searched_bytes": outcome.searched_bytes, "control_found": outcome.control_found}
    grades = outcome.report
    graded = {"grades": grades.grades, "rewards_trained_on": outcome.trained, "void": grades.void}
    share = grades.reproduced / max(1, grades.grades)
    forged = {name: asyncio.run(run.check(1)).lies for name, run in forgeries().items()}
    return [
        none("private_bytes_found", outcome.test_bytes_found, **searched),
        figure("grades_reproduced", share, target=1.0, unit="of grades", **graded),
        figure("forgeries_named", sum(map(bool, forged.values())), target=5, unit="of five", lies=forged),
    ]


@cache
def _large_set(rows: int) -> large_set.Costs:
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


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything, in under three minutes")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="these alone")
    parser.add_argument("--gsm8k", type=Path, help="GSM8K's test file, for more pairs of math_agreement")
    options = parser.parse_args()
    size = replace(QUICK if options.quick else FULL, gsm8k=options.gsm8k)
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
