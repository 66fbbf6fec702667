"""What the rows of a commitment are judged by: the run's terms, tasks, tokenizer and scorers, and its draws.

Pure but for a cache of prompts and tasks, and for the sandbox that scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.contracts.runs import WorkCommitted
from muster.environments.manifest import Score
from muster.environments.scoring import Scorers, worthless
from muster.environments.task import Task
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError, StorageError, UnreachableError
from muster.protocol.draws import Draw, DrawSource, draw_of
from muster.protocol.masters import epoch_of
from muster.protocol.prompts import completion_text, end_token, prompt_text
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import Conversations, TurnRules
from muster.tasksets.grades import UNSURE_FUEL, RowGrade
from muster.tasksets.sealing import open_task
from muster.tasksets.taskset import TaskSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CACHED_PROMPTS: Final = 1 << 14
_CACHED_TASKS: Final = 8


@dataclass(frozen=True)
class CommittedWork:
    """One commitment as its event on chain states it."""

    run: int
    step: int
    node: str
    index: int
    root: bytes
    hour: int
    block: int
    """Number of the block that holds it."""

    @classmethod
    def of(cls, event: WorkCommitted) -> CommittedWork:
        return cls(event.run, event.step, event.node, event.index, event.root, event.hour, event.at.block)


@dataclass(frozen=True)
class ModelFacts:
    """What a check needs to know of the model: from the config.json of any checkpoint of the run."""

    vocabulary: int
    """Token ids are below this: the size of the embedding."""
    stop_tokens: frozenset[int]
    """Ids that end a completion."""

    @classmethod
    def read(cls, model_dir: Path) -> ModelFacts:
        """Read them from a checkpoint folder: config.json, and end tokens of generation_config.json too.

        Raises ConfigError when it is none, or names no end token, or one that is no token.
        """
        more = model_dir / "generation_config.json"
        found: list[Any] = []
        try:
            config = json.loads((model_dir / "config.json").read_bytes())
            for one in (config, json.loads(more.read_bytes()) if more.exists() else {}):
                stop = one.get("eos_token_id")
                found.extend(stop if isinstance(stop, list) else [] if stop is None else [stop])
            vocabulary = int(config["vocab_size"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{model_dir / 'config.json'} names no vocab_size or eos_token_id: {error}") from error
        if not found or not all(type(one) is int and 0 <= one < vocabulary for one in found):
            raise ConfigError(f"an eos_token_id of {str(sorted(map(str, found)))[:200]} in {model_dir}")
        return cls(vocabulary, frozenset(found))


@dataclass(frozen=True)
class Rules:
    """What the rows of a run are judged by: its terms, tasks and tokenizer, and where it lives."""

    chain_id: int
    runs: str
    """Address of the Runs contract."""
    run: int
    terms: Terms
    task_set: TaskSet
    scorers: Scorers
    tokenizer: PreTrainedTokenizerBase
    model: ModelFacts
    shown: Mapping[int, Task | None] | None = None
    """Tasks by slot, if evidence brings its own; no others are looked up then. None: the task is unusable."""
    _prompts: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tasks: dict[int, Task] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last tasks that were read: the rows of a group ask for the same one."""
    _epochs: dict[int, Rules] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The rules of later epochs, once they were asked for."""

    @cached_property
    def _asking(self) -> Conversations:
        return Conversations(self.tokenizer, self.scorers, self.model.stop_tokens, self.model.vocabulary)

    def at(self, step: int) -> Rules:
        """Return the rules as slots mean tasks at a step: in a run with private tests its epoch decides."""
        epoch = max(1, epoch_of(self.terms.grade_series, step))
        if epoch == self.task_set.epoch:
            return self
        if epoch not in self._epochs:
            self._epochs[epoch] = replace(self, task_set=self.task_set.at(epoch))
        return self._epochs[epoch]

    def is_sealed(self, slot: int) -> bool:
        """Return whether the reference of a drawn task is sealed: its rows are graded by the trainer."""
        return bool(self.task_set.part(slot).sealed)

    def task(self, slot: int) -> Task:
        """Return a drawn task.

        Raises MalformedError for an unusable task: its line is no task, or the chat template refuses its messages.
        Raises UnreachableError when it cannot be read here: that is never the work's fault.
        """
        task = self._tasks.get(slot)
        if task is None:
            try:
                task = self.task_set.task(slot) if self.shown is None else self.shown[slot]
            except (MismatchError, StorageError) as error:
                raise UnreachableError(f"task {slot} cannot be read here: {error}", hint=error.hint) from error
            if task is None:
                raise MalformedError(f"task {slot} is of no use, as the set has it")
            turns, thinks = self.turns(slot), self.task_set.manifest(slot).thinks
            prompt_text(self.tokenizer, task, 1, thinks=thinks, tools=[] if turns is None else turns.template.functions)
            if len(self._tasks) >= _CACHED_TASKS:
                self._tasks.clear()
            self._tasks[slot] = task
        return task

    def turns(self, slot: int) -> TurnRules | None:
        """Return how conversations about a drawn task go on; None where a completion is one turn.

        Raises ConfigError where the model or this version cannot have several turns.
        """
        return self._asking.rules(self.task_set.manifest(slot))

    def check_tools(self) -> None:
        """Check that the terms name the tools of the task set, and that the model can have its conversations.

        Raises MismatchError, and ConfigError where the model or this version cannot have several turns.
        """
        document = self.task_set.document
        document.check_tools(self.terms.tools_root)
        for part in (*document.parts, *document.held_out):
            self._asking.rules(part.environment)

    def score(self, slot: int, completion: np.ndarray) -> Score:
        """Score a completion's last turn, by its tokens and the environment of a drawn task: 0 for an unusable task.

        Raises UnreachableError when that cannot be done here, and as `make_environment`.
        """
        manifest = self.task_set.manifest(slot)
        try:
            task = self.task(slot)
        except MalformedError as error:
            return worthless(manifest, error)
        try:
            text = completion_text(self.tokenizer, completion, self.model.stop_tokens)
            return self.scorers.score(manifest, task, text)
        except CheckError as error:
            raise UnreachableError(f"task {slot} cannot be scored here: {error}", hint=error.hint) from error

    def grade(self, slot: int, position: int, completion: np.ndarray, master: bytes) -> RowGrade:
        """Grade a completion's tokens by the sealed reference of a drawn task.

        A task that is of no use is void, and so is a reference that does not open or that its environment cannot score
        by: everybody grades it 0. Raises UnreachableError when this machine cannot run the scorer, and as
        `make_environment`.
        """
        part = self.task_set.part(slot)
        try:
            task = open_task(self.task(slot), master, part.name)
            if task is None:
                return RowGrade(position, 0)
            self.scorers.environment(part.environment).check(task)
        except MalformedError:
            return RowGrade(position, 0)
        text = completion_text(self.tokenizer, completion, self.model.stop_tokens)
        try:
            score = self.scorers.score(part.environment, task, text)
        except CheckError as error:
            raise UnreachableError(f"task {slot} cannot be scored here: {error}", hint=error.hint) from error
        if score.unsure:
            return RowGrade(position, 0, (), UNSURE_FUEL)
        return RowGrade(position, score.reward(part.environment), score.parts, score.fuel)

    def prompt(self, slot: int, budget: int) -> np.ndarray:
        """Return the prompt's tokens, int32. They are cached, since a group's samples share them.

        Of a prompt that is too long for the terms it is the end; of a task that is of no use, or that spells a token
        which the model has no embedding for, the end token alone. So no task can stop those who are drawn it.
        """
        key = (slot, budget)
        if key not in self._prompts:
            if len(self._prompts) >= _CACHED_PROMPTS:
                self._prompts.clear()
            self._prompts[key] = self._prompt(slot, budget)[-self.terms.max_prompt_tokens :]
        return self._prompts[key]

    def _prompt(self, slot: int, budget: int) -> np.ndarray:
        with suppress(MalformedError):
            return self._asking.prompt((self.task_set.manifest(slot), self.task(slot)), budget)
        return np.array([end_token(self.tokenizer)], np.int32)

    def draw(self, source: DrawSource, index: int) -> Draw:
        """Draw what the rows of a node's commitment must be, at whatever step it is made."""
        return draw_of(source, index, self.terms, chain_id=self.chain_id, runs=self.runs, run=self.run)
