"""Check a contributed environment, as its author does before it is submitted and the owner before it is admitted.

All scoring goes through the sandbox. *Pure* means: the same parts and the same fuel in another process and in another
order, and the same parts under settings of the guest that a function of task and completion cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.authoring.tasks.checking import summary
from muster.authoring.tasks.duplicates import NEAR, Benchmarks, Signatures, clusters, exact_key
from muster.constants import MICRO
from muster.environments.answers import completion_of
from muster.environments.authored import Authored
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.scoring import score_by
from muster.environments.task import Task
from muster.errors import ConfigError
from muster.sandbox.client import Sandbox
from muster.sandbox.scorer import Outcome
from muster.tasksets.contribution import Contribution

UNLIKE: Final = (1, 2)
"""Settings of the guest besides its own."""
NONSENSE: Final = "I have no idea."
"""An answer that nothing asks for."""
ORACLE: Final = "the oracle"
EMPTY: Final = ("nothing", "an empty answer")
"""Labels of completions: without even an end of the thinking, and with one."""
MAX_CHECK_FUEL: Final = 2_000_000_000_000
"""Of scoring everything once, which is done four times: minutes of a core, however many tasks there are. Usual scorers
take a hundredth of it for the most tasks that there may be."""
MAX_FAULTS: Final = 100
"""Faults that are kept of one check; the rest are counted."""

CountTokens = Callable[[EnvironmentManifest, Task], int]


@dataclass
class CheckResult:
    """What one check came to."""

    name: str
    about: str
    """What was checked, or why it was not."""
    skipped: bool = False
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    """Of the first faults: the task's id (empty: the whole environment), what is wrong, and what to do."""
    count: int = 0
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether nothing is wrong, as far as it was checked."""
        return self.count == 0

    def blame(self, task: str, fault: str, hint: str) -> None:
        self.count += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append((task, fault[:300], hint))


@dataclass(frozen=True)
class CheckOptions:
    """What is known of the run that the environment is for."""

    count_tokens: CountTokens | None = None
    max_prompt_tokens: int = 0
    """Most tokens of a prompt; 0: they are only counted."""
    benchmarks: Benchmarks | None = None
    known: Sequence[Task] = ()
    """Tasks that a run has already: the environment's must not be like them."""
    cache: Path | None = None
    """Folder of compiled components."""


def check_contribution(
    contribution: Contribution,
    component: str,
    options: CheckOptions = CheckOptions(),
    progress: Callable[[int], None] = lambda _: None,
) -> list[CheckResult]:
    """Return the result of each check. `progress` is called with the number of tasks done.

    Raises UnreachableError when this machine cannot score, CheckError when the component is not here.
    """
    manifest = contribution.manifest(component)
    about = f"{contribution.licence}, {len(contribution.tasks)} tasks by {contribution.credit}"
    results = [CheckResult("licence", about)]
    with Sandbox(cache=options.cache) as sandbox, Sandbox(cache=options.cache) as other:
        results += _ScoreChecks(Authored(manifest), contribution.tasks).run(sandbox, other, progress)
    results.append(_tokens(manifest, contribution.tasks, options))
    results.append(_likeness(contribution.tasks, options.known))
    results.append(_benchmarks(contribution.tasks, options.benchmarks))
    return results


# --- What the scorer says


Scoring = Callable[[Task, str], Score]
"""Scores a completion of a task."""


def _scoring(sandbox: Sandbox, environment: Authored, settings: int = 0) -> Scoring:
    """Return what scores in a sandbox, under some settings of the guest."""

    def call(payload: Any) -> Outcome:
        assert environment.manifest.scorer is not None
        return sandbox.call(environment.manifest.scorer, {**payload, "settings": settings} if settings else payload)

    return lambda task, completion: score_by(environment, task, completion, call)


class _ScoreChecks:
    """The checks that follow from scoring every task's completions."""

    def __init__(self, environment: Authored, tasks: Sequence[Task]) -> None:
        assert environment.manifest.scorer is not None
        self._environment = environment
        self._manifest = environment.manifest
        self._limit = environment.manifest.scorer.fuel
        self._tasks = tasks
        self._used: list[int] = []
        self.oracle = CheckResult("oracle", "every task's oracle scores 1")
        self.empty = CheckResult("empty", "an empty answer scores 0, and nonsense less than 1")
        self.fuel = CheckResult("fuel", f"no score takes more than half of {self._limit}")
        settings = f"{len(tasks)} tasks in another process and order, and under {len(UNLIKE)} other settings"
        self.purity = CheckResult("purity", settings)

    def run(self, sandbox: Sandbox, other: Sandbox, progress: Callable[[int], None]) -> list[CheckResult]:
        """Score all completions, in this order here and in the opposite one in the other sandbox's process."""
        first = _scoring(sandbox, self._environment)
        unlike = [_scoring(sandbox, self._environment, settings) for settings in UNLIKE]
        seen: list[list[Score]] = []
        for i, task in enumerate(self._tasks):
            scores = []
            for label, completion in _completions(self._environment, self._tasks, i):
                score = first(task, completion)
                self._judge(task, label, score)
                if score.unsure:
                    self.purity.blame(task.id, f"{label}: its calls are too deep", "score without so deep a recursion")
                self._compare_settings(task, label, completion, score, unlike)
                scores.append(score)
            seen.append(scores)
            progress(i + 1)
            if sum(self._used) > MAX_CHECK_FUEL:
                fault = f"checking stopped after {i + 1} of {len(self._tasks)} tasks, at {MAX_CHECK_FUEL} of fuel"
                self.fuel.blame("", fault, "make the scorer cheaper, or submit fewer tasks")
                break
        self._compare_processes(seen, _scoring(other, self._environment))
        self.fuel.figures = {"fuel": summary(self._used), "limit": self._limit}
        return [self.oracle, self.empty, self.fuel, self.purity]

    def _judge(self, task: Task, label: str, score: Score) -> None:
        """Hold a score against what a completion of its label must score, and may take."""
        reward, named = score.reward(self._manifest), zip(self._manifest.parts, score.parts, strict=True)
        scored = ", ".join(f"{name} {part / MICRO:g}" for name, part in named)
        scored += f"; {score.reason}" if score.reason else ""
        if label == ORACLE and reward != MICRO:
            self.oracle.blame(task.id, f"its oracle scores {scored}", "correct its answer, its oracle or the scorer")
        if label in EMPTY and reward != 0:
            self.empty.blame(task.id, f"an empty answer scores {scored}", "return 0 for it in the scorer")
        if label == "nonsense" and reward == MICRO:
            self.empty.blame(task.id, f"the answer {NONSENSE!r} scores {scored}", "does the scorer look at the answer?")
        if 2 * score.fuel > self._limit:
            hint = "make the scorer cheaper, or raise limits.fuel"
            self.fuel.blame(task.id, f"{label}: scoring it takes {score.fuel} of {self._limit}", hint)
        self._used.append(score.fuel)

    def _compare_settings(
        self, task: Task, label: str, completion: str, score: Score, unlike: Sequence[Scoring]
    ) -> None:
        for scored in unlike:
            found = scored(task, completion)
            if found.parts != score.parts:
                fault = f"{label}: scores {score.parts}, and {found.parts} under other settings"
                hint = "the scorer must not use id(), hash(), a clock or chance, nor the order of a set: sort it"
                self.purity.blame(task.id, fault, hint)
                return

    def _compare_processes(self, seen: Sequence[Sequence[Score]], second: Scoring) -> None:
        """Score everything once more, the last one first."""
        hint = "this is a fault of the sandbox: report it with the environment"
        for i in reversed(range(len(seen))):
            labelled = list(_completions(self._environment, self._tasks, i))
            for before, (label, completion) in reversed(list(zip(seen[i], labelled, strict=True))):
                after = second(self._tasks[i], completion)
                if (before.parts, before.fuel) != (after.parts, after.fuel):
                    both = f"{before.parts} for fuel {before.fuel}, in another process {after.parts} for {after.fuel}"
                    self.purity.blame(self._tasks[i].id, f"{label}: {both}", hint)


def _completions(environment: Authored, tasks: Sequence[Task], i: int) -> Iterator[tuple[str, str]]:
    """Yield labelled completions of a task: right, empty, nonsense, and mutants of right ones."""
    thinking = environment.manifest.options["thinking"]
    answer = str(tasks[i].reference["oracle"])
    elsewhere = str(tasks[(i + 1) % len(tasks)].reference["oracle"])
    yield ORACLE, environment.reference_completion(tasks[i])
    yield EMPTY[0], ""
    for label, text in (
        (EMPTY[1], ""),
        ("nonsense", NONSENSE),
        ("half of the oracle", answer[: len(answer) // 2]),
        ("the oracle twice", f"{answer} {answer}"),
        ("the oracle's words backwards", " ".join(answer.split()[::-1])),
        ("another task's oracle", elsewhere),
        ("the oracle among other words", f"{answer}\nalpha beta gamma delta epsilon {elsewhere} zeta"),
    ):
        yield label, completion_of(text, thinking)


# --- What the tasks are


def _tokens(manifest: EnvironmentManifest, tasks: Iterable[Task], options: CheckOptions) -> CheckResult:
    if options.count_tokens is None:
        return CheckResult("tokens", "not counted: give the run's tokenizer", skipped=True)
    result = CheckResult("tokens", f"no prompt has more than {options.max_prompt_tokens or 'any number of'} tokens")
    counts = []
    for task in tasks:
        try:
            counts.append(options.count_tokens(manifest, task))
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is a program: it may fail at a task in any way
            result.blame(
                task.id, f"the tokenizer's template fails: {type(error).__name__}: {error}", "change its messages"
            )
            continue
        if 0 < options.max_prompt_tokens < counts[-1]:
            result.blame(
                task.id, f"its prompt has {counts[-1]} tokens", f"at most {options.max_prompt_tokens} fit the run"
            )
    result.figures = {"prompt_tokens": summary(counts)}
    return result


def _likeness(tasks: Sequence[Task], known: Sequence[Task]) -> CheckResult:
    """Find tasks that are nearly equal to an earlier one, or to one that the run has."""
    result = CheckResult("duplicates", f"no two tasks are alike, nor like one of the run's {len(known)}")
    signatures = Signatures()
    for task in (*known, *tasks):
        signatures.add(task.text)
    keys = [exact_key(task.text) for task in (*known, *tasks)]
    firsts: dict[bytes, int] = {}
    leaders = clusters(signatures.matrix(), NEAR)
    for i, key in enumerate(keys):
        first = min(firsts.setdefault(key, i), int(leaders[i]))
        if i >= len(known) and first != i:
            other = (*known, *tasks)[first].id
            result.blame(tasks[i - len(known)].id, f"it is nearly equal to {other[:80]!r}", "leave one of them out")
    return result


def _benchmarks(tasks: Iterable[Task], benchmarks: Benchmarks | None) -> CheckResult:
    if benchmarks is None:
        return CheckResult("benchmarks", "not compared: give benchmarks with --against", skipped=True)
    about = f"no task shares thirteen words in a row with a benchmark ({len(benchmarks)} hashes)"
    result = CheckResult("benchmarks", about)
    for task in tasks:
        if benchmarks.found_in(task.text):
            result.blame(task.id, "it shares thirteen words in a row with a benchmark", "leave it out")
    return result
