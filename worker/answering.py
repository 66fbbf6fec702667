"""python -m worker.answering: answer tasks with one checkpoint, for `muster eval` and `muster tasks filter`.

One line of `muster.clients.evaluation.EvalRequest` comes in on stdin. One line of `TaskResult` per task goes out on
stdout, in order; or a line with the error, before anything is generated. It generates and scores exactly as a worker
does, whole conversations where an environment has turns. For prompts, texts go out and nothing is scored.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import numpy as np

from muster.clients.answering import refusal_line
from muster.clients.evaluation import EvalRequest, ModelAnswer, Sampling, TaskResult, request_from_line
from muster.constants import MICRO
from muster.environments.answers import THINK_END
from muster.environments.scoring import Scorers
from muster.errors import ConfigError, MusterError
from muster.models.files import context_of, load_tokenizer
from muster.models.numerics import device_kind
from muster.protocol.prompts import completion_text, end_token, prompt_tokens, tokens_text
from muster.protocol.turns.conversation import Conversations
from muster.protocol.turns.pieces import pieces_of
from muster.rollouts.spans import last_turn, sampled_length
from muster.runtime import telemetry
from muster.tasksets.taskset import COMPONENTS_NAME, Scored
from muster.verification.profiles import PROFILES, profile_hash
from muster.verification.rules import ModelFacts
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CPU_SEQUENCES: Final = 32
"""Completions that a CPU decodes side by side: more take no less time together, and are kept only when all are done."""


def main() -> int:
    """Answer the request on stdin; return the exit code."""
    telemetry.configure("answering", level="error")
    try:
        with _own_stdout() as results:
            try:
                request = request_from_line(sys.stdin.readline())
                for answers in serve_prompts(request) if request.part == "prompts" else serve(request):
                    print(json.dumps(asdict(answers)), file=results, flush=True)
            except MusterError as error:
                print(refusal_line(error), file=results, flush=True)
                return error.exit_code
    except BrokenPipeError:  # the reader has ended
        return 1
    return 0


def serve(request: EvalRequest) -> Iterator[TaskResult]:
    """Check that the request can be answered, start an engine and yield the results."""
    tasks = request.load()
    with Scorers(request.tasks / COMPONENTS_NAME) as scorers:
        stops = ModelFacts.read(request.model).stop_tokens
        asking = Conversations(load_tokenizer(request.model), scorers, stops)
        with _engine(request, longest_prompt(asking, tasks, request.sampling)) as engine:
            yield from EvalSession(engine, asking, request.sampling, request.show).answers(tasks, request.first)


def serve_prompts(request: EvalRequest) -> Iterator[TaskResult]:
    """Check that the prompts can be answered, start an engine and yield the completions.

    Prompts go to the engine in the same batches wherever an earlier process stopped, and nothing is cached between
    batches: so the completions are those of a process that was never interrupted.
    """
    tokenizer, sampling, tasks = load_tokenizer(request.model), request.sampling, request.load_prompts()
    end_token(tokenizer)
    prompts = [prompt_tokens(tokenizer, task, sampling.max_tokens, thinks=False) for task in tasks]
    with _engine(request, max(map(len, prompts))) as engine:
        together = max(
            1, (CPU_SEQUENCES if device_kind() == "cpu" else engine.limits.max_sequences) // sampling.samples
        )
        for start in range(request.first // together * together, len(tasks), together):
            engine.forget()
            batch = range(start, min(start + together, len(tasks)))
            found = engine.generate(
                [
                    GenerationRequest(prompts[i], sampling.draw(tasks[i], sample)[0], sampling.max_tokens)
                    for i in batch
                    for sample in range(sampling.samples)
                ]
            )
            for i in batch:
                own = found[(i - start) * sampling.samples :][: sampling.samples]
                if i >= request.first:
                    answers = tuple(_answer(tokenizer, engine, one) for one in own)
                    finished, tokens = sum(one.finished for one in answers), sum(one.tokens for one in answers)
                    yield TaskResult(i, 0, finished, tokens, shown=answers)


def _answer(tokenizer: PreTrainedTokenizerBase, engine: Engine, generation: Generation) -> ModelAnswer:
    return ModelAnswer(
        text=completion_text(tokenizer, generation.tokens, engine.stop_tokens),
        tokens=len(generation.tokens),
        finished=generation.finish_reason == "stop",
    )


@contextmanager
def _engine(request: EvalRequest, longest: int) -> Iterator[Engine]:
    """Start an engine for prompts of up to `longest` tokens; close it with the block. Raises ConfigError."""
    sampling = request.sampling
    profile_hash(sampling.profile)
    check_context(request.model, longest, sampling.max_tokens)
    limits = EngineLimits(
        temperature=sampling.temperature,
        max_prompt_tokens=longest,
        max_completion_tokens=sampling.max_tokens,
        ranks=request.ranks,
        cache_bytes=request.cache_bytes,
        matmul=request.matmul,
    )
    engine = Engine(request.model, PROFILES[sampling.profile], limits)
    try:
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True)
class EvalSession:
    """Answers tasks with one engine."""

    engine: Engine
    asking: Conversations
    sampling: Sampling
    show: int = 0
    """Answers to each task whose text is part of its result."""

    def answers(self, tasks: Sequence[Scored], first: int = 0) -> Iterator[TaskResult]:
        """Yield the result of each task, in order; `first` is the number of the first.

        As many tasks at a time as the engine decodes side by side, so that results come while it works.
        """
        samples = self.sampling.samples
        together = max(1, self.engine.limits.max_sequences // samples)
        for start in range(0, len(tasks), together):
            part = tasks[start : start + together]
            generations = self.engine.generate([request for task in part for request in self.requests(task)])
            for i, task in enumerate(part):
                yield self.score(first + start + i, task, generations[i * samples : (i + 1) * samples])

    def requests(self, scored: Scored) -> list[GenerationRequest]:
        """Make one request per sample."""
        draws = [self.sampling.draw(scored[1], sample) for sample in range(self.sampling.samples)]
        prompts = {budget: self.asking.prompt(scored, budget) for _, budget in draws}
        limit, turns = self.sampling.max_tokens, self.asking.rules(scored[0])
        return [GenerationRequest(prompts[budget], seed, limit, turns) for seed, budget in draws]

    def score(self, number: int, scored: Scored, generations: Sequence[Generation]) -> TaskResult:
        """Score the last turns of a task's answers, by the rule that a run pays by."""
        manifest, task = scored
        tokenizer, stops = self.asking.tokenizer, self.asking.stop_tokens
        texts = [completion_text(tokenizer, last_turn(one.tokens, one.spans), stops) for one in generations]
        scores = [self.asking.scorers.score(manifest, task, text).reward(manifest) for text in texts]
        right = [score == MICRO for score in scores]
        return TaskResult(
            task=number,
            right=sum(right),
            finished=sum(generation.finish_reason == "stop" for generation in generations),
            tokens=sum(sampled_length(generation.spans) for generation in generations),
            unended=sum(THINK_END not in text for text in texts) if manifest.thinks else 0,
            calls=sum(len(generation.call_fuel) for generation in generations),
            shown=tuple(map(self._shown, generations[: self.show], texts, right)),
        )

    def _shown(self, generation: Generation, text: str, right: bool) -> ModelAnswer:
        answer = ModelAnswer(text, sampled_length(generation.spans), generation.finish_reason == "stop", right)
        if len(generation.spans) == 1:
            return answer
        tokens = generation.tokens[:-1] if generation.finish_reason == "stop" else generation.tokens
        spans = np.split(tokens, generation.spans[:-1])
        tokenizer = self.asking.tokenizer
        pieces = pieces_of(spans, partial(tokens_text, tokenizer), tokenizer.get_vocab().get)
        return replace(answer, pieces=tuple(pieces))


def longest_prompt(asking: Conversations, tasks: Sequence[Scored], sampling: Sampling) -> int:
    """Return the tokens of the longest prompt. Raises ConfigError where the tokenizer is for no chat model."""
    end_token(asking.tokenizer)
    return max(len(asking.prompt(scored, budget)) for scored in tasks for budget in set(sampling.budgets))


def check_context(model: Path, prompt: int, max_tokens: int) -> None:
    """Raise ConfigError where prompt and answer together exceed the context that the model's config.json states."""
    context = context_of(model)
    if context is None or prompt + max_tokens <= context:
        return
    room = context - prompt
    raise ConfigError(
        f"a prompt of {prompt} tokens and an answer of up to {max_tokens} do not fit the model's context of {context}",
        hint=f"lower --max-tokens to {room} or less, and --budgets with it" if room > 0 else "choose shorter tasks",
    )


def _own_stdout() -> TextIO:
    """Return stdout for results alone: what libraries print goes to stderr from now on."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
