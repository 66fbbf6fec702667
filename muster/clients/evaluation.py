"""Describe an evaluation of a checkpoint: the request and its results.

`muster.clients.answering` starts the process that answers (`worker.answering`), sends it one line and reads one line
per task. An answer's budget and sampling seed follow from the task's text and the number of the sample, as in a run.
So two checkpoints that are compared have the same draws, and a task has the same answers in every set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from muster.environments.task import Task
from muster.errors import MismatchError, StorageError, UsageError
from muster.protocol.turns.pieces import PieceKind
from muster.settings.schema import MatmulSetting
from muster.tasksets.taskset import Scored, TaskSet

Part = Literal["held-out", "train"]

TAG: Final = "muster.questions.v1"
MAX_BUDGET: Final = (1 << 16) - 1
"""As in a run's terms."""


@dataclass(frozen=True)
class Sampling:
    """How every task is asked. Raises UsageError when that makes no sense."""

    samples: int
    """Answers to a task."""
    budgets: tuple[int, ...]
    """Thinking budgets in tokens, one of which is drawn for each answer."""
    max_tokens: int
    """Where an answer is cut off, EOS included."""
    temperature: float
    seed: int
    profile: str
    """Name of a verification profile: the model computes in its dtype."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"{self.samples} answers to a task", hint="give --samples 1 or more")
        if not self.budgets or not all(1 <= budget <= MAX_BUDGET for budget in self.budgets):
            raise UsageError(f"budgets {list(self.budgets)}", hint=f"give --budgets from 1 to {MAX_BUDGET} tokens")
        if self.max_tokens < max(self.budgets):
            raise UsageError(
                f"no answer can keep a budget of {max(self.budgets)} tokens when it is cut off at {self.max_tokens}",
                hint=f"raise --max-tokens to {max(self.budgets)} or more, or lower --budgets",
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(
                f"a temperature of {self.temperature:g}",
                hint="give --temperature above 0: at 0 every sample of a task would be the same",
            )

    def draw(self, task: Task, sample: int) -> tuple[int, int]:
        """Seed (0 ≤ seed < 2^63) and thinking budget of one answer."""
        text = f"{TAG}\0{self.seed}\0{sample}\0{task.text}"
        word = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest(), "big")
        return word & (1 << 63) - 1, self.budgets[(word >> 128) % len(self.budgets)]


@dataclass(frozen=True)
class EvalRequest:
    """Tasks for one checkpoint: of a set, or a file of prompts whose answers come back as texts and are not scored."""

    model: Path
    """Checkpoint folder."""
    tasks: Path
    """Folder of the task set, or the file of prompts: one task on each line, without its reference."""
    root: bytes
    """What the set's document, or the file, hashes to."""
    part: Part | Literal["prompts"]
    count: int
    """Tasks from the beginning of the part."""
    sampling: Sampling
    ranks: int = 1
    """Devices that the model is split over."""
    cache_bytes: int = 0
    """Size of the engine's key-value cache; 0 as in settings."""
    matmul: MatmulSetting = "auto"
    """How it multiplies bfloat16, as in settings."""
    first: int = 0
    """Tasks that are answered already."""
    show: int = 0
    """Answers to each task whose text comes back: the first ones, or all to a prompt."""

    def load(self) -> Sequence[Scored]:
        """Load the tasks of a set from `first` on, each with what scores it.

        Raises UsageError for prompts, which nothing scores, and as `TaskSet.open` and `TaskSet.task`.
        """
        if self.part == "prompts":
            raise UsageError(f"{self.tasks} holds prompts, which have no scores")
        return part_of(TaskSet.open(self.tasks, self.root), self.part)[self.first : self.count]

    def load_prompts(self) -> list[Task]:
        """Load all prompts of a file. Raises StorageError, and MismatchError or MalformedError for another file."""
        try:
            data = self.tasks.read_bytes()
        except OSError as error:
            raise StorageError(f"{self.tasks} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).digest() != self.root:
            raise MismatchError(f"{self.tasks} has changed since it was written")
        return [Task.from_line(line) for line in data.splitlines()][: self.count]


def request_line(request: EvalRequest) -> str:
    """Return a request as one line of ASCII, whatever bytes the names of the files are."""
    return json.dumps(asdict(request), default=lambda value: value.hex() if isinstance(value, bytes) else str(value))


def request_from_line(line: str) -> EvalRequest:
    document: dict[str, Any] = json.loads(line)
    sampling = TypeAdapter(Sampling).validate_python(document["sampling"])
    document |= {name: Path(document[name]) for name in ("model", "tasks")}
    document |= {"root": bytes.fromhex(document["root"]), "sampling": sampling}
    return EvalRequest(**document)


@dataclass(frozen=True)
class ModelAnswer:
    """One answer, as the model gave it: any text at all."""

    text: str
    """What is scored: its last turn."""
    tokens: int
    """What was sampled of it, EOS included."""
    finished: bool
    """Whether it ended before it was cut off."""
    right: bool = False
    pieces: tuple[tuple[PieceKind, str], ...] = ()
    """Its conversation, where it has several turns."""


@dataclass(frozen=True)
class TaskResult:
    task: int
    """Index into the part."""
    right: int
    """Right answers, of `Sampling.samples`; 0 for a prompt, whose answers are not scored."""
    finished: int
    """Answers that ended before they were cut off."""
    tokens: int
    """What was sampled of all answers together, EOS included."""
    unended: int = 0
    """Answers that were to think and never ended it."""
    calls: int = 0
    """Calls of all answers together that a tool, or an error, was the answer to."""
    shown: tuple[ModelAnswer, ...] = ()
    """The first `EvalRequest.show` answers."""


read_result: Final = TypeAdapter(TaskResult).validate_python
"""Read what `asdict` wrote."""


def part_of(task_set: TaskSet, part: Part) -> Sequence[Scored]:
    """Return the tasks of one half, in the set's order."""
    return task_set.held_out if part == "held-out" else task_set.train
