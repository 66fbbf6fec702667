"""python -m worker.answering: answer tasks with one checkpoint, for `muster eval` and `muster tasks filter`.

One line of `muster.questions.Questions` comes in on stdin, one line of `Answers` per task goes out on stdout, in order;
or a line that says what is wrong, before anything is generated. It generates and scores exactly as a worker does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from muster import telemetry
from muster.asking import refusal_line
from muster.errors import ConfigError, MusterError
from muster.model_files import context_of, load_tokenizer
from muster.profiles import PROFILES, profile_hash
from muster.prompts import completion_text, end_token, prompt_tokens
from muster.questions import Answers, Questions, Sampling
from muster.tasks import Task, verify
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def main() -> int:
    """Answer what stdin asks; the exit code."""
    telemetry.configure("answering", level="error")
    try:
        with _own_stdout() as results:
            try:
                for answers in serve(Questions.from_line(sys.stdin.readline())):
                    print(answers.to_line(), file=results, flush=True)
            except MusterError as error:
                print(refusal_line(error), file=results, flush=True)
                return error.exit_code
    except BrokenPipeError:  # nobody listens any more
        return 1
    return 0


def serve(questions: Questions) -> Iterator[Answers]:
    """Check that the questions can be asked, start an engine and ask them."""
    profile_hash(questions.sampling.profile)
    tokenizer = load_tokenizer(questions.model)
    tasks = questions.load()
    longest = longest_prompt(tokenizer, tasks, questions.sampling)
    check_context(questions.model, longest, questions.sampling.max_tokens)
    limits = EngineLimits(
        temperature=questions.sampling.temperature,
        max_prompt_tokens=longest,
        max_completion_tokens=questions.sampling.max_tokens,
        ranks=questions.ranks,
        cache_bytes=questions.cache_bytes,
    )
    engine = Engine(questions.model, PROFILES[questions.sampling.profile], limits)
    try:
        yield from Examination(engine, tokenizer, questions.sampling).answers(tasks, questions.first)
    finally:
        engine.close()


@dataclass(frozen=True)
class Examination:
    """An engine that is asked tasks."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    sampling: Sampling

    def answers(self, tasks: Sequence[Task], first: int = 0) -> Iterator[Answers]:
        """The answers to each task, in order; `first` is the number of the first. As many at a time as the engine
        decodes side by side, so that what was found by then is never much behind."""
        together = max(1, self.engine.limits.max_sequences // self.sampling.samples)
        for start in range(0, len(tasks), together):
            yield from self._ask(tasks[start : start + together], first + start)

    def _ask(self, tasks: Sequence[Task], first: int) -> Iterator[Answers]:
        samples = self.sampling.samples
        generations = self.engine.generate([request for task in tasks for request in self.requests(task)])
        for i, task in enumerate(tasks):
            yield self.score(first + i, task, generations[i * samples : (i + 1) * samples])

    def requests(self, task: Task) -> list[GenerationRequest]:
        """One request per sample."""
        draws = [self.sampling.draw(task, sample) for sample in range(self.sampling.samples)]
        prompts = {budget: prompt_tokens(self.tokenizer, task, budget) for _, budget in draws}
        return [GenerationRequest(prompts[budget], seed, self.sampling.max_tokens) for seed, budget in draws]

    def score(self, number: int, task: Task, generations: Sequence[Generation]) -> Answers:
        """What a task's answers are worth, by the rule that a run pays by."""
        texts = (completion_text(self.tokenizer, generation.tokens) for generation in generations)
        return Answers(
            task=number,
            right=sum(verify(task, text) > 0 for text in texts),
            finished=sum(generation.finish_reason == "stop" for generation in generations),
            tokens=sum(len(generation.tokens) for generation in generations),
        )


def longest_prompt(tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Task], sampling: Sampling) -> int:
    """Tokens of the longest prompt. Raises ConfigError where the tokenizer is for no chat model."""
    end_token(tokenizer)
    return max(len(prompt_tokens(tokenizer, task, budget)) for task in tasks for budget in set(sampling.budgets))


def check_context(model: Path, prompt: int, max_tokens: int) -> None:
    """Raise ConfigError where prompt and answer together are longer than the model's context, as far as its config.json
    says what that is."""
    context = context_of(model)
    if context is None or prompt + max_tokens <= context:
        return
    room = context - prompt
    raise ConfigError(
        f"a prompt of {prompt} tokens and an answer of up to {max_tokens} do not fit the model's context of {context}",
        hint=f"lower --max-tokens to {room} or less, and --budgets with it" if room > 0 else "choose shorter tasks",
    )


def _own_stdout() -> TextIO:
    """What stdout was, for results alone: whatever else prints there (libraries do) goes to stderr from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
