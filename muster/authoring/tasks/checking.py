"""Check every task of a set through its environment, as `muster tasks check` does."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from muster.authoring.tasks.duplicates import exact_key
from muster.constants import MICRO
from muster.environments.answers import THINK_END, completion_of
from muster.environments.base import Environment, ScorerCall
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.scoring import score_by
from muster.environments.task import Task
from muster.errors import MalformedError, UnreachableError
from muster.tasksets.document import TaskSetPart
from muster.tasksets.taskset import TaskSet

MAX_EXAMPLES: Final = 20
LONG_ANSWER: Final = 32
"""Characters of an answer of several lines that no question holds by chance: a program."""
_SAID: Final = r"(?i:\b(?:answer|solution|result)\b[\s*:=]*(?:is|are)?[\s*:=]*|#### *|\\boxed *)[({\[$\"'`]*"
_ENDS: Final = r"(?![\w/^]|[.,]\d|\W{0,3}\s*(?:,|/|\||or\b|and\b|to\b))"
"""Around an answer that a text states: not one of several that it names."""

BAD_REFERENCE: Final = "the environment cannot score by its reference"
REFERENCE_FAILS: Final = "its reference answer does not score 1"
EMPTY_SCORES: Final = "an empty answer scores"
BAD_LINE: Final = "its line is no task"
IN_BOTH: Final = "held out, and trained on"
BAD_PROMPT: Final = "the model cannot read its prompt"
ANSWER_SHOWN: Final = "its prompt holds its answer"
CHEAP_PAYS: Final = "an answer that costs no thought pays"
CANNOT_TELL: Final = "this machine could not score it"


@dataclass
class PartReport:
    """What a part's tasks came to."""

    name: str
    environment: str
    tasks: int = 0
    without_answer: int = 0
    """Tasks whose reference holds no answer that could be tried."""
    sealed: int = 0
    """Tasks whose reference is sealed: check the set before it is sealed."""
    faults: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, fault and more about the first tasks that have one."""
    fuel: list[int] = field(default_factory=list)
    """Of scoring each reference answer."""
    tokens: list[int] = field(default_factory=list)
    """Of each prompt, where they were counted."""

    def blame(self, name: str, fault: str, more: str = "") -> None:
        self.faults[fault] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((name, fault, more[:200]))


def check_set(
    task_set: TaskSet,
    make_environment: Callable[[EnvironmentManifest], Environment],
    call_of: Callable[[EnvironmentManifest], ScorerCall],
    count_tokens: Callable[[EnvironmentManifest, Task], int] | None = None,
    progress: Callable[[int], None] = lambda _: None,
    attack: int = 0,
) -> list[PartReport]:
    """Score every reference answer, which must come to 1, and an empty one, which must come to 0.

    Return a report of each part, training parts first. `progress` gets the number of tasks done. attack: on how many
    tasks of each part cheap answers are tried. Raises
    MismatchError when a shard has another Merkle root than the document names, StorageError when one is absent.
    """
    # 1. Held-out problems that are trained on as well show in the reports of held-out parts.
    trained = {exact_key(task.text) for _, task in _readable(task_set)} if task_set.document.held_out else set()

    # 2. Each task through its environment.
    reports, done = [], 0
    for number, part in enumerate((*task_set.document.parts, *task_set.document.held_out)):
        environment = make_environment(part.environment)
        call = call_of(part.environment)
        report = PartReport(part.name, part.environment.name)
        tried: list[Task] = []
        for index in range(part.count):
            try:
                task = task_set.task_of(part, index)
            except MalformedError as error:
                report.blame(f"{part.name} {index}", BAD_LINE, str(error))
                continue
            if number >= len(task_set.document.parts) and exact_key(task.text) in trained:
                report.blame(task.id, IN_BOTH)
            if task.sealed is not None:
                report.sealed += 1
            else:
                _check_task(environment, task, call, report)
                if len(tried) < attack:
                    tried.append(task)
            if count_tokens is not None:
                try:
                    report.tokens.append(count_tokens(part.environment, task))
                except MalformedError as error:
                    report.blame(task.id, BAD_PROMPT, str(error))
            done += 1
            progress(done)
        for answer, excess in paying(environment, tried, call).items():
            report.blame(answer, CHEAP_PAYS, f"{excess:.3f} on average above the share of tasks whose answer it is")
        task_set.check_roots(part)
        report.tasks = part.count
        reports.append(report)
    return reports


def paying(environment: Environment, tasks: Sequence[Task], call: ScorerCall) -> dict[str, float]:
    """Return the cheap answers whose mean reward is above the share of tasks whose answer they are, and by how much.

    Partial credit counts. Each is tried as it is and in a box. One that is read as another answer, such as the last
    letter of a text, pays for the tasks of one reference: that share is right too. Raises UnreachableError.
    """
    earned: dict[str, float] = defaultdict(float)
    right: dict[str, Counter[str]] = defaultdict(Counter)
    """By cheap answer: how often it is right, and how often it earns all with each reference."""
    thinking = environment.manifest.options.get("thinking", "tags")
    for task in tasks:
        completion = environment.reference_completion(task)
        reference = None if completion is None else completion.removeprefix(THINK_END)
        for name, answer in cheap_answers(task):
            if THINK_END in answer:
                continue
            texts = (answer, f"\\boxed{{{answer}}}")
            scores = [score_by(environment, task, completion_of(text, thinking), call) for text in texts]
            best = max(score.reward(environment.manifest) for score in scores)
            earned[name] += best / MICRO
            right[name][""] += is_same(answer, reference)
            right[name][reference or ""] += reference is not None and best == MICRO
    found = {name: (total - max(right[name].values())) / len(tasks) for name, total in earned.items()}
    return {name: excess for name, excess in found.items() if excess > 0}


def summary(values: Iterable[int]) -> dict[str, int] | None:
    """Return smallest, median, 99th percentile and largest of some numbers; None of no numbers."""
    numbers = np.array(list(values), np.int64)
    if not len(numbers):
        return None
    low, median, high, top = np.percentile(numbers, [0, 50, 99, 100], method="higher")
    return {"least": int(low), "median": int(median), "p99": int(high), "most": int(top)}


def _check_task(environment: Environment, task: Task, call: ScorerCall, report: PartReport) -> None:
    manifest = environment.manifest
    try:
        environment.check(task)
    except MalformedError as error:
        report.blame(task.id, BAD_REFERENCE, str(error))
        return
    try:
        completion = environment.reference_completion(task)
        if completion is None:
            report.without_answer += 1
        else:
            score = score_by(environment, task, completion, call)
            report.fuel.append(score.fuel)
            if score.unsure:
                report.blame(task.id, CANNOT_TELL, _why(score, manifest))
            elif score.reward(manifest) != MICRO:
                report.blame(task.id, REFERENCE_FAILS, _why(score, manifest))
            if _holds(task.text, completion):
                report.blame(task.id, ANSWER_SHOWN, completion.removeprefix(THINK_END))
        score = score_by(environment, task, "", call)
        if score.reward(manifest) != 0:
            report.blame(task.id, EMPTY_SCORES, _why(score, manifest))
    except UnreachableError as error:
        report.blame(task.id, CANNOT_TELL, str(error))


def _holds(prompt: str, completion: str) -> bool:
    """Return whether a prompt says that something is the answer of a completion, or has a whole program of it."""
    answer = re.sub(r"^```\w*\n|\n```$|^\\boxed\{(.*)\}$", r"\1", completion.removeprefix(THINK_END).strip()).strip()
    if "\n" in answer and len(answer) >= LONG_ANSWER:
        return answer in prompt
    said = _SAID + (f"(?i:{re.escape(answer)})" if len(answer) > 1 else re.escape(answer)) + _ENDS
    return bool(answer) and re.search(said, prompt) is not None


def _why(score: Score, manifest: EnvironmentManifest) -> str:
    parts = ", ".join(f"{name} {part / MICRO:g}" for name, part in zip(manifest.parts, score.parts, strict=True))
    return f"{parts}; {score.reason}" if score.reason else parts


def _readable(task_set: TaskSet) -> Iterable[tuple[TaskSetPart, Task]]:
    for part in task_set.document.parts:
        for index in range(part.count):
            try:
                yield part, task_set.task_of(part, index)
            except MalformedError:
                continue  # named where the part is checked


FIXED: Final = (
    *("nan", "inf", "-inf", "None", "null", "True", "False", "yes", "no", "?", "N/A", "0", "1", "-1", "2", "0.0"),
    *("A", "B", "x", "x + C", "P", "[]", "{}", "[[]]", "()", "[0]", '""', "1e999999", "72e0", "0/1", "1+1", "oo"),
    *("Integral(x, x)", "\\int x\\,dx", "\\boxed{0} \\boxed{1}", "0 or 1", "1, 2, 3", "1 2 3", "4*6*1*1", "the"),
    *("```python\npass\n```", '{"a": 1}', "My answer is yes."),
)
"""Constants, what is no number, unevaluated forms, several answers in one."""
MOST_COPIED: Final = 6
"""Lines and numbers of a question that are tried, each from its end."""


def cheap_answers(task: Task) -> Iterator[tuple[str, str]]:
    """Yield what an answer is called, and the answer: the fixed ones, the question, its last lines and numbers."""
    question = task.messages[-1].content
    yield from ((f"the answer {answer!r}", answer) for answer in FIXED)
    yield "the question", question
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    yield from ((f"line {place} of the question from its end", line) for place, line in _last(lines))
    numbers = re.findall(r"-?\d(?:[\d.,]*\d)?", question)
    yield from ((f"number {place} of the question from its end", number) for place, number in _last(numbers))
    yield "the question as an integral", f"Integral({lines[-1][:200] if lines else ''})"


def is_same(answer: str, right: str | None) -> bool:
    """Return whether an answer is the reference's: one text but for case, brackets and spaces, or one value."""
    if right is None:
        return False
    ours, theirs = (re.sub(r"\\boxed|[\s{}()$]|(?<=\d),(?=\d{3})", "", text).casefold() for text in (answer, right))
    try:
        return ours == theirs or math.isclose(float(ours[:64]), float(theirs[:64]), rel_tol=1e-12)
    except ValueError:
        return False


def _last(values: list[str]) -> Iterator[tuple[int, str]]:
    return enumerate(reversed(values[-MOST_COPIED:]), 1)
