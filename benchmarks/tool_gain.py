"""Whether a tool helps a small model: trained and asked with it, against trained and asked without it.

Both arms begin with the model of `muster swarm demo --scenario tools` for a seed, and have the same tasks, prompts,
draws, recipe and updates. The arm without the tool is trained first; in each update the other one trains on as many
sampled tokens or up to a group fewer, of groups that teach something. Draws, engine, rows, advantages and updates are
the project's own; chain and other processes are left out, and work is always on the newest step. In the end each arm
answers every held-out task ANSWERS times, as a worker samples.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import report
from muster.authoring.tasks.families import family_of
from muster.authoring.tasks.generated import make_tasks
from muster.constants import MICRO
from muster.environments.scoring import Scorers
from muster.models.files import load_tokenizer
from muster.models.init import init_model, load_model, save_model
from muster.protocol.draws import DrawSource
from muster.protocol.prompts import completion_text
from muster.protocol.terms import WorkClass
from muster.protocol.turns.conversation import Conversations
from muster.rollouts.spans import last_turn
from muster.settings.schema import TrainerSettings
from muster.swarm.plan import LOCAL_TERMS
from muster.swarm.scenarios import TOOLS
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import ModelFacts, Rules
from testbed.samples.task_sets import SOURCE
from testbed.samples.terms import made_terms
from trainer.batches import FileRef, WorkFile, samples_of
from trainer.learner import Recipe
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.update import make_optimizer, update
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import Assignment, make_requests, make_rollouts

NODE: Final = "0x" + "aa" * 20
ANSWERS: Final = 4
"""To each held-out task."""
RESAMPLES: Final = 10_000
MOST_COMMITMENTS: Final = 128
"""For one update: an arm in which hardly anything is ever right is not sampled for ever."""


@dataclass
class Arm:
    """What an arm has come to."""

    shares: np.ndarray
    """float64 [held-out tasks]: of the answers to each, those that are right."""
    calls: float
    """Per answer."""
    tokens: list[int] = field(default_factory=list)
    """Sampled ones that each update trained on."""


def tasks_of(folder: Path, seed: int, held_out: int, *, tool: bool) -> TaskSet:
    """Write the scenario's tasks, with the tool or without it."""
    (name,) = TOOLS.families
    training, unseen = make_tasks(seed, families=(name,), levels=TOOLS.levels, train=TOOLS.train, held_out=held_out)[
        name
    ]
    environment = family_of(name).environment
    environment = environment if tool else replace(environment, turns=None)
    part, asked = (NewPart(name, environment, tasks, 1, [SOURCE]) for tasks in (training, unseen))
    return write_task_set(folder, [part], [asked])


@contextmanager
def opened(model: Path, tasks: TaskSet) -> Iterator[tuple[Rules, Engine]]:
    """Yield the rules of a run of these tasks, and an engine."""
    own = {"classes": (WorkClass(10_000, TOOLS.budgets),), "groups_per_commitment": TOOLS.groups_per_commitment}
    terms = made_terms({**LOCAL_TERMS, **own, **TOOLS.terms}, tasks)
    with Scorers() as scorers:
        facts = ModelFacts.read(model)
        rules = Rules(31337, NODE, 1, terms, tasks, scorers, load_tokenizer(model), facts)
        engine = Engine(model, CPU_FP32, EngineLimits.from_terms(terms))
        try:
            yield rules, engine
        finally:
            engine.close()


def train(model: Path, tasks: TaskSet, folder: Path, tokens: Sequence[int], seed: int) -> tuple[Arm, Arm]:
    """Train a model, in each update on so many tokens at most, and return what it answered before and after."""
    torch.set_num_threads(1)
    with opened(model, tasks) as (rules, engine):
        before = asked(rules, engine, seed)
        recipe = Recipe.from_settings(TrainerSettings(**TOOLS.trainer), rules.terms)
        policy = Policy(load_model(model), temperature=recipe.update.temperature)
        optimizer, counts = make_optimizer(policy, recipe.update), []
        for step, most in enumerate(tokens):
            samples = sampled(rules, engine, recipe, step, most, seed)
            counts.append(count(samples))
            if samples:
                update(policy, optimizer, samples, recipe.update, step=step + 1)
                save_model(policy.model, rules.tokenizer, folder)
                engine.load_weights(folder)
        after = asked(rules, engine, seed)
        after.tokens = counts
    return before, after


def sampled(rules: Rules, engine: Engine, recipe: Recipe, step: int, tokens: int, seed: int) -> list[Sample]:
    """Work until there are this many sampled tokens in groups that teach something; drop the groups beyond that."""
    found: list[Sample] = []
    source, size = DrawSource(NODE, (seed << 64 | step).to_bytes(32, "big"), 0), rules.terms.group_size
    for index in range(MOST_COMMITMENTS):
        job = Assignment(step, index, rules.draw(source, index))
        requests = make_requests(job, rules)
        rows = make_rollouts(job, rules, requests, engine.generate(requests))
        found += samples_of([WorkFile(FileRef(step, NODE, index, "", ""), tuple(rows))], recipe.advantages)
        if count(found) >= tokens:
            break
    while count(found) > tokens:
        del found[-size:]
    return found


def count(samples: Sequence[Sample]) -> int:
    return sum(sample.completion_length for sample in samples)


def asked(rules: Rules, engine: Engine, seed: int) -> Arm:
    """Let the engine's model answer all held-out tasks."""
    limit, (budget,) = rules.terms.max_completion_tokens, rules.terms.classes[0].budgets
    begun = Conversations(rules.tokenizer, rules.scorers)
    tasks = [one for one in rules.task_set.held_out for _ in range(ANSWERS)]
    talks = [begun.begin(scored, budget, limit) for scored in tasks]
    seeds = np.random.default_rng(seed).integers(0, 1 << 62, len(talks)).tolist()
    requests = [
        GenerationRequest(np.array(talk.prompt, np.int32), one, limit, talk.rules)
        for talk, one in zip(talks, seeds, strict=True)
    ]
    made = engine.generate(requests)
    right = [
        rules.scorers.score(
            manifest, task, completion_text(rules.tokenizer, last_turn(one.tokens, one.spans), rules.model.stop_tokens)
        ).reward(manifest)
        / MICRO
        for (manifest, task), one in zip(tasks, made, strict=True)
    ]
    shares = np.array(right).reshape(-1, ANSWERS).mean(axis=1)
    return Arm(shares, statistics.mean(len(one.call_fuel) for one in made))


def lower_bound(differences: np.ndarray, seed: int = 0) -> float:
    """Return the lower end of the 95 % interval of a mean of paired differences, by bootstrap over tasks."""
    drawn = np.random.default_rng(seed).integers(0, len(differences), (RESAMPLES, len(differences)))
    return float(np.quantile(differences[drawn].mean(axis=1), 0.025))


def one_seed(seed: int, updates: int, tokens: int, held_out: int) -> dict[str, Any]:
    """Train both arms and compare them."""
    with tempfile.TemporaryDirectory(prefix="muster-gain-") as scratch:
        folder = Path(scratch)
        sets = {tool: tasks_of(folder / f"tasks-{tool}", seed, held_out, tool=tool) for tool in (True, False)}
        model = folder / "model"
        init_model(model, sets[True], seed=seed, budgets=TOOLS.budgets)
        alone, unaided = train(model, sets[False], folder / "alone", [tokens] * updates, seed)
        first, used = train(model, sets[True], folder / "used", unaided.tokens, seed)
    differences = used.shares - unaided.shares
    return {
        "seed": seed,
        "gain": round(float(differences.mean()), 4),
        "lower": round(lower_bound(differences), 4),
        "with": [round(float(one.shares.mean()), 4) for one in (first, used)],
        "without": [round(float(one.shares.mean()), 4) for one in (alone, unaided)],
        "calls": [round(one.calls, 3) for one in (first, used)],
        "tokens": [sum(one.tokens) for one in (used, unaided)],
    }


def gain(options: Any) -> list[report.Figure]:
    """Return the figure of all seeds: its ratio is the least of their lower bounds."""
    found = []
    for seed in options.seeds:
        found.append(report.apart(one_seed, seed, options.updates, options.update_tokens, options.held_out))
        print(f"tool_gain: {found[-1]}", file=sys.stderr)
    least = min(one["lower"] for one in found)
    about = {"held_out": options.held_out, "answers": ANSWERS, "updates": options.updates, "seeds": found}
    return [
        report.figure(
            "tool_gain",
            [one["gain"] for one in found],
            ratio=least,
            target=0,
            unit="held-out score, with the tool less without; the ratio is the least lower bound",
            **about,
        )
    ]
