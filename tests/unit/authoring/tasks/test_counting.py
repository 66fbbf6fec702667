"""Prompts are counted as workers render them, and terms under which one would be cut are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.authoring.tasks.counting import longest_prompt, token_counter
from muster.authoring.terms import check_tasks
from muster.errors import ConfigError, MalformedError, MismatchError
from muster.protocol.prompts import prompt_tokens
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import Conversations
from muster.verification.rules import Rules
from testbed.adversaries.tool_code import code_rules

SLOTS = range(20)


def with_room(terms: Terms, tokens: int) -> Terms:
    return replace(terms, max_prompt_tokens=tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def rules(folder: Path) -> Iterator[Rules]:
    """A run with tools that run code, a corpus and an author's tool."""
    made = code_rules(folder)
    yield made
    made.scorers.close()


def test_the_count_is_the_workers_prompt_with_all_tools(rules: Rules, folder: Path) -> None:
    count, rules = token_counter(folder / "model", (8,)), replace(rules, terms=with_room(rules.terms, 1024))
    for slot in SLOTS:
        manifest, task = rules.task_set.manifest(slot), rules.task(slot)
        prompt = rules.prompt(slot, 8)
        assert count(manifest, task) == len(prompt)
        assert "Doubles." in rules.tokenizer.decode(prompt)
        assert len(prompt) > 2 * len(prompt_tokens(rules.tokenizer, task, 8, thinks=False))


def test_without_budgets_the_longest_that_a_draw_can_have_is_announced(rules: Rules, folder: Path) -> None:
    manifest = replace(rules.task_set.manifest(0), turns=None, options={"thinking": "tags"})
    one, several, most = (token_counter(folder / "model", budgets) for budgets in ((8,), (8, 16384, 12), ()))
    task = rules.task(0)
    assert one(manifest, task) < several(manifest, task)
    assert several(manifest, task) <= most(manifest, task)


def test_terms_that_would_cut_a_prompt_are_refused(rules: Rules, folder: Path) -> None:
    model, tasks = folder / "model", folder / "tasks"
    longest = longest_prompt(rules.task_set, model, rules.terms.classes[0].budgets)
    check_tasks(with_room(rules.terms, longest), model, tasks)
    with pytest.raises(ConfigError, match=f"the longest prompt has {longest} tokens") as refused:
        check_tasks(with_room(rules.terms, longest - 1), model, tasks)
    assert refused.value.hint.startswith(f"max_prompt_tokens = {longest} ")
    with pytest.raises(MismatchError, match="has the root 0x"):
        check_tasks(replace(rules.terms, task_root=bytes(32)), model, tasks)


def test_a_prompt_beyond_the_embedding_is_named(rules: Rules) -> None:
    small = replace(rules, model=replace(rules.model, vocabulary=10))
    assert small.prompt(0, 8).tolist() == [rules.tokenizer.eos_token_id], "workers are given the end token"
    asking = Conversations(rules.tokenizer, rules.scorers, rules.model.stop_tokens, 10)
    with pytest.raises(MalformedError, match="one beyond the model's 10"):
        asking.prompt((rules.task_set.manifest(0), rules.task(0)), 8)
