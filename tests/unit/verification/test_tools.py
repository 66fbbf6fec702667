"""Runs with tools: what their terms must name, and what a check does where machines may differ."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from adversary.__main__ import forged
from muster.clients.run_data import RunTasks, task_set_path
from muster.environments.tools.base import ToolResult
from muster.environments.tools.calculator import Calculator
from muster.environments.tools.manifest import TurnsManifest
from muster.environments.tools.registry import NO_TOOLS, tools_root
from muster.errors import ConfigError, MismatchError
from muster.models.init import ModelShape, make_model, save_model
from muster.protocol.draws import Draw, DrawSource, draw_pool, draw_unit
from muster.protocol.turns.conversation import Conversation, conversation_error
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span
from muster.tasksets.taskset import TaskSet
from muster.verification.bundles import make_member
from muster.verification.checks import CheckedRow, check_bounds, check_rows, check_turns
from muster.verification.evidence import ShownRows, VoidEvidenceError
from muster.verification.pool_evidence import ShownUnit, check_unit
from muster.verification.rules import CommittedWork, Rules
from testbed.adversaries.tool_code import CODE_ADVERSARIES, TALKS, code_rules, rows_by
from testbed.samples.tool_model import STOP_TEXT, TURNS, call_text, tool_rules, tool_tasks, tool_terms, tool_tokenizer
from worker.engine import Generation
from worker.rollouts import Assignment, make_requests, make_rollouts

NODE = "0x" + "aa" * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model with the tokenizer and the template of tools."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), tool_tokenizer()
    made = make_model(tokenizer, ModelShape(hidden=16, layers=1, heads=2, intermediate=16, context=1024), 0)
    save_model(made, tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    return tool_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def rules(model: Path, tasks: TaskSet) -> Iterator[Rules]:
    found = tool_rules(model, tasks, tool_terms(tasks))
    yield found
    found.scorers.close()


def test_terms_name_the_tools_of_their_task_set(rules: Rules, tasks: TaskSet) -> None:
    rules.check_tools()
    assert rules.terms.tools_root == tasks.document.tools_root == tools_root([TURNS]) != NO_TOOLS
    for root in (NO_TOOLS, bytes([7] * 32)):
        with pytest.raises(MismatchError, match="the run's terms name the tools 0x"):
            replace(rules, terms=replace(rules.terms, tools_root=root)).check_tools()


async def test_no_process_takes_a_task_set_with_other_tools_than_the_terms_name(
    rules: Rules, tasks: TaskSet, tmp_path: Path
) -> None:
    client = cast(Any, None)  # all of the task set is here
    shutil.copytree(tasks.folder, task_set_path(rules.terms, tmp_path))
    assert (await RunTasks.fetch(client, rules.terms, tmp_path)).task_set.root == tasks.root
    with pytest.raises(MismatchError, match="the run's terms name the tools 0x"):
        await RunTasks.fetch(client, replace(rules.terms, tools_root=NO_TOOLS), tmp_path)


def test_made_up_results_are_found_at_once(rules: Rules) -> None:
    turns = rules.turns(0)
    assert turns is not None
    talk = Conversation(forged(turns), [], 512)
    talk.add(turns.template.encode(call_text("6*8") + STOP_TEXT))
    assert talk.go_on()
    assert "42" in turns.template.decode(talk.spans[1])
    talk.add(turns.template.encode("42" + STOP_TEXT))
    tokens = np.array(talk.tokens, np.int32)
    error, unsure = conversation_error(turns, tokens, talk.ends.tolist(), talk.fuel, 512)
    assert (error, unsure) == ("what is given after turn 0 is not what its calls lead to", False)


def test_a_model_that_cannot_have_conversations_is_refused_before_any_work(rules: Rules) -> None:
    tokenizer = tool_tokenizer()
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|im_end|>", "")
    with pytest.raises(ConfigError, match="not fit for several turns"):
        replace(rules, tokenizer=tokenizer).check_tools()


def test_turns_without_tools_are_named_by_no_root(model: Path, tmp_path: Path) -> None:
    tasks = tool_tasks(tmp_path, TurnsManifest(()))
    assert tasks.document.tools_root == NO_TOOLS
    tool_rules(model, tasks, tool_terms(tasks)).check_tools()


def checked(rules: Rules) -> CheckedRow:
    """Return a true row of a conversation with one call."""
    rows, draw = talked(rules, 0, 1)
    return CheckedRow(rows[0], draw, rules)


def talked(rules: Rules, index: int, count: int | None = None) -> tuple[list[Rollout], Draw]:
    """Return true rows of a node's commitment, each a conversation with one call, and their draw."""
    assignment = Assignment(1, index, rules.draw(DrawSource(NODE, bytes(32), 0), index))
    requests, made = make_requests(assignment, rules)[:count], []
    for request in requests:
        talk = Conversation(request.turns, request.prompt_tokens.tolist(), request.max_tokens)
        for text in (call_text("12+34"), "46"):
            talk.add(rules.tokenizer(text + STOP_TEXT, add_special_tokens=False)["input_ids"])
            talk.go_on()
        fuel, tokens = np.array(talk.fuel, np.uint64), np.array(talk.tokens, np.int32)
        sampled = len(talk.spans[0]) + len(talk.spans[2])
        proof, logprobs = bytes(8 * sampled), np.full(sampled, -0.5, np.float32)
        made.append(Generation(tokens, logprobs, "stop", proof, talk.ends, fuel))
    return make_rollouts(assignment, rules, requests, made), assignment.draw


def with_row(row: CheckedRow, **changes) -> CheckedRow:
    rollout: Rollout = replace(row.rollout, **changes)
    return replace(row, rollout=rollout)


def test_a_true_conversation_passes_and_spans_that_do_not_alternate_are_named(rules: Rules) -> None:
    row = checked(rules)
    assert check_bounds(row) is check_turns(row) is None
    spans = row.rollout.spans
    for wrong in (spans[:2], spans[1:], spans[::-1], spans + np.int32(1), np.array([0, *spans, 9], np.int32)):
        finding = check_bounds(with_row(row, spans=wrong))
        assert finding is not None
        assert finding.reason == "wrong_span"


@pytest.mark.parametrize("unsure", [False, True])
def test_a_result_that_machines_may_differ_in_rejects_and_accuses_nobody(
    rules: Rules, unsure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = checked(rules)
    monkeypatch.setattr(Calculator, "run", lambda *_: ToolResult("47", 1, unsure))
    finding = check_turns(row)
    assert finding is not None
    assert (finding.reason, finding.accuse) == ("wrong_tool", not unsure)


def test_an_unanswered_call_is_a_lie_even_in_one_span(rules: Rules) -> None:
    row = checked(rules)
    first = int(row.rollout.spans[0])
    cut = with_row(
        row,
        completion_tokens=row.rollout.completion_tokens[:first],
        logprobs=row.rollout.logprobs[:first],
        spans=one_span(first),
        call_fuel=row.rollout.call_fuel[:0],
    )
    assert check_bounds(cut) is None
    finding = check_turns(cut)
    assert finding is not None
    assert (finding.reason, finding.detail) == ("wrong_tool", "the conversation ends though turn 0 has calls")


def test_a_jury_checks_the_conversations_of_a_pool_and_counts_their_sampled_tokens(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows make a unit of so many sampled tokens, where one would do if given ones counted."""
    terms, made = rules.terms, [talked(rules, index) for index in range(2)]

    def shown(index: int, change: Callable[[Rollout], Rollout] = lambda row: row) -> tuple[ShownRows, bytes]:
        rows, draw = [change(row) for row in made[index][0]], made[index][1]
        work = CommittedWork(rules.run, 1, NODE, index, rollout_tree(rows).root, hour=0, block=10)
        places = [positions[index][place] for other, place in counted if other == index]
        member = make_member(rules, work, rows, places)
        return ShownRows(work, draw, rules, [rows[place] for place in places], member.proofs, member.tasks), bytes(32)

    positions = [draw_pool(block_hash=bytes(32), node=NODE, index=index, terms=terms) for index in range(2)]
    counted = draw_unit(block_hash=bytes(32), node=NODE, first=0, last=1, terms=terms)[:2]
    first, second = (made[index][0][positions[index][place]] for index, place in counted)
    assert len(first.logprobs) < len(first.completion_tokens) - 8
    monkeypatch.setattr("muster.verification.pools.UNIT_TOKENS", len(first.logprobs) + 1)
    unit, indices = ShownUnit(1, 0, 1, 20, []), sorted({index for index, _ in counted})
    rows = check_unit(unit, [shown(index) for index in indices], bytes(32))
    assert sorted(row.seed for row in rows) == sorted([first.seed, second.seed])

    def forged(row: Rollout) -> Rollout:
        tokens = row.completion_tokens.copy()
        tokens[row.spans[0] + 4] += 1
        return replace(row, completion_tokens=tokens)

    with pytest.raises(VoidEvidenceError, match="fails a static check: wrong_tool"):
        check_unit(unit, [shown(index, forged) for index in indices], bytes(32))
    monkeypatch.setattr("muster.verification.pools.UNIT_TOKENS", len(first.logprobs))
    with pytest.raises(VoidEvidenceError, match="2 rows are shown of step 1, and 1 count"):
        check_unit(unit, [shown(index) for index in indices], bytes(32))


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rules]:
    found = code_rules(tmp_path_factory.mktemp("code"))
    yield found
    found.scorers.close()


def test_conversations_with_code_and_a_corpus_pass(code: Rules) -> None:
    code.check_tools()
    rows, draw = rows_by(code)
    assert [check_rows([row], draw, code) for row in rows] == [None] * len(TALKS)
    texts = [code.tokenizer.decode(row.completion_tokens) for row in rows]
    for text, result in zip(
        texts, ("\n42\n", "ape: An ape eats fruit.", "NameError: name 'a' is not defined"), strict=True
    ):
        assert result in text


@pytest.mark.parametrize("name", CODE_ADVERSARIES)
def test_a_lie_about_what_a_tool_runs_by_is_caught_in_each_row(name: str, code: Rules) -> None:
    honest, draw = rows_by(code)
    rows, _ = rows_by(code, CODE_ADVERSARIES[name])
    changed = [
        a for a, b in zip(rows, honest, strict=True) if a.completion_tokens.tolist() != b.completion_tokens.tolist()
    ]
    assert changed
    for row in changed:
        finding = check_rows([row], draw, code)
        assert finding is not None
        assert (finding.reason, finding.position, finding.accuse) == ("wrong_tool", row.position, True)
