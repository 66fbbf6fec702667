"""Compare a swarm's first and last model on tasks that were never trained on.

Both answer every held-out task several times, sampled as workers sample, with the same seeds
(`muster.clients.evaluation`). A model's text is untrusted: it is bounded here and escaped where it is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from muster.authoring.evaluation.pass_at_k import FEWEST_TASKS, paired_gain
from muster.clients.answering import ask
from muster.clients.evaluation import EvalRequest, ModelAnswer, Sampling, TaskResult
from muster.environments.task import Task
from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.protocol.turns.pieces import PIECE_NAMES
from muster.swarm.plan import SwarmRequest
from muster.tasksets.taskset import TaskSet

SHOWN_TASKS: Final = 12
SHOWN_ANSWERS: Final = 3
"""Conversations in the report, and how often the model answers in each."""

SHOWN_CHARACTERS: Final = 400
"""Longest text of one answer, or of one piece of a conversation, in the report."""
SHOWN_PIECES: Final = 24
"""Of one conversation in the report, the first ones."""


async def compare(request: SwarmRequest, step: int) -> dict[str, Any]:
    """Ask the first model and the one of `step`; return what the report shows. Raises as `muster.clients.answering`."""
    task_set = await asyncio.to_thread(TaskSet.open, request.local.tasks)
    first, last = eval_requests(request, task_set.root, len(task_set.held_out), step)
    before, after = await asyncio.gather(_answers(first), _answers(last))  # one thread each: the machine is idle
    held_out = iter(task for _, task in task_set.held_out)
    parts = {part.name: list(islice(held_out, part.count)) for part in task_set.document.held_out}
    return comparison_document(parts, before, after, samples=request.scenario.answers, step=step)


def eval_requests(request: SwarmRequest, root: bytes, tasks: int, step: int) -> tuple[EvalRequest, EvalRequest]:
    """Return what is asked of the first model, and the same of the one of `step`."""
    scenario = request.scenario
    sampling = Sampling(
        samples=scenario.answers,
        budgets=scenario.budgets,
        max_tokens=scenario.terms.get("max_completion_tokens", LOCAL_DEFAULTS["max_completion_tokens"]),
        temperature=1.0,  # the run's own: LOCAL_DEFAULTS
        seed=request.seed,
        profile=scenario.profile,
    )
    first, last = (
        EvalRequest(model, request.local.tasks, root, "held-out", tasks, sampling, show=SHOWN_ANSWERS)
        for model in (request.local.model, request.local.model_of(step))
    )
    return first, last


async def _answers(request: EvalRequest) -> list[TaskResult]:
    async with aclosing(ask(request)) as results:
        return [result async for result in results]


def comparison_document(
    parts: Mapping[str, Sequence[Task]],
    before: Sequence[TaskResult],
    after: Sequence[TaskResult],
    *,
    samples: int,
    step: int,
) -> dict[str, Any]:
    """Return the gain with its interval, in all and by part, and each part's first conversations with both models.

    `parts`: the held-out tasks of each part by its name, in the order of the results. A part with fewer than
    FEWEST_TASKS has no separate gain.
    """
    shown = []
    gains = []
    start = 0
    for name, tasks in parts.items():
        old, new = before[start : start + len(tasks)], after[start : start + len(tasks)]
        start += len(tasks)
        shown += _conversations(tasks, old, new)[: max(1, SHOWN_TASKS // len(parts))]
        if len(tasks) >= FEWEST_TASKS:
            gains.append({"name": name, **_gain(old, new, samples)})
    return _gain(before, after, samples) | {"step": step, "parts": gains, "conversations": shown}


def _gain(before: Sequence[TaskResult], after: Sequence[TaskResult], samples: int) -> dict[str, Any]:
    gain = paired_gain([one.right for one in before], [one.right for one in after], samples)
    return asdict(gain) | {"gain": gain.value}


def _conversations(
    tasks: Sequence[Task], before: Sequence[TaskResult], after: Sequence[TaskResult]
) -> list[dict[str, Any]]:
    return [
        {
            "asked": [{"role": message.role, "text": bounded(message.content)} for message in task.messages],
            "right_before": old.right,
            "right_after": new.right,
            "before": [_shown(answer) for answer in old.shown],
            "after": [_shown(answer) for answer in new.shown],
        }
        for task, old, new in zip(tasks, before, after, strict=True)
    ]


def _shown(answer: ModelAnswer) -> dict[str, Any]:
    pieces = [
        {"kind": kind, "name": PIECE_NAMES[kind], "text": bounded(text)} for kind, text in answer.pieces[:SHOWN_PIECES]
    ]
    return {"text": bounded(answer.text), "right": answer.right, "pieces": pieces}


def bounded(text: str) -> str:
    """Return a text of at most SHOWN_CHARACTERS; what cannot be printed, but for line ends, is replaced."""
    cut = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in cut)
