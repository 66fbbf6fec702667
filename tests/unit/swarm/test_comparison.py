"""The comparison of the first model with the last: exact numbers and untrusted texts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from muster.clients.evaluation import ModelAnswer, TaskResult
from muster.environments.task import ChatMessage, Task
from muster.swarm.comparison import SHOWN_CHARACTERS, SHOWN_PIECES, SHOWN_TASKS, bounded, comparison_document
from muster.swarm.report import comparison_sentence, html, terminal_summary
from muster.swarm.summary import summarise
from testbed.runs.swarm_facts import facts

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m & [bold]"


def asked(number: int) -> Task:
    text = f"What is {number} + 1?"
    return Task(text, (ChatMessage("system", "Reply."), ChatMessage("user", text)), {"answer": str(number + 1)}, 1, "x")


def result(task: int, right: int, text: str) -> TaskResult:
    return TaskResult(task, right, finished=4, tokens=12, shown=(ModelAnswer(text, 3, True, right > 0),))


def document(count: int = 20) -> dict[str, Any]:
    tasks = [asked(i) for i in range(count)]
    before = [result(i, i % 2, HOSTILE if i == 0 else "it is 1") for i in range(count)]
    after = [result(i, 2 + i % 2 * 2, "2") for i in range(count)]
    return comparison_document({"additions": tasks}, before, after, samples=4, step=12)


def test_gain_is_the_mean_over_tasks_and_first_answers_are_shown() -> None:
    found = document()
    conversations = found.pop("conversations")
    # Differences of 2/4 and 3/4, ten of each: mean 0.625, deviation 0.125·√(20/19), t(19) = 2.0930.
    half = 2.09301 * 0.125 / 19**0.5
    gain = {
        "before": 0.125,
        "after": 0.75,
        "low": pytest.approx(0.625 - half, abs=1e-6),
        "high": pytest.approx(0.625 + half, abs=1e-6),
        "tasks": 20,
        "samples": 4,
        "gain": 0.625,
    }
    assert found == gain | {"step": 12, "parts": [{"name": "additions", **gain}]}
    assert len(conversations) == SHOWN_TASKS
    assert conversations[1] == {
        "asked": [{"role": "system", "text": "Reply."}, {"role": "user", "text": "What is 1 + 1?"}],
        "right_before": 1,
        "right_after": 4,
        "before": [{"text": "it is 1", "right": True, "pieces": []}],
        "after": [{"text": "2", "right": True, "pieces": []}],
    }


def test_every_part_has_its_gain_and_its_conversations() -> None:
    tasks = [asked(i) for i in range(32)]
    before = [result(i, 0, "no") for i in range(32)]
    after = [result(i, 1 if i < 12 else 4, "yes") for i in range(32)]
    parts = {"easy": tasks[:12], "few": tasks[12:18], "hard": tasks[18:]}
    found = comparison_document(parts, before, after, samples=4, step=3)
    assert [(one["name"], one["tasks"], one["before"], one["after"]) for one in found["parts"]] == [
        ("easy", 12, 0.0, 0.25),
        ("hard", 14, 0.0, 1.0),
    ], "six tasks are too few for an interval"
    assert (found["tasks"], found["after"]) == (32, (12 + 80) / 128)
    assert [one["asked"][1]["text"] for one in found["conversations"]] == [
        f"What is {i} + 1?" for i in (0, 1, 2, 3, 12, 13, 14, 15, 18, 19, 20, 21)
    ]
    assert comparison_sentence(found).endswith("easy: 0.0%, then 25.0%; hard: 0.0%, then 100.0%.")


def test_the_sentence_says_which_is_which() -> None:
    assert comparison_sentence(document()) == (
        "Of 4 sampled answers to each of 20 held-out tasks 12.5% were right before training and 75.0% after step 12: "
        "a gain of 0.625, 95 % interval over tasks 0.565 to 0.685."
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines, café 和", "two\nlines, café 和"),
        ("\x1b[31mred\x00\r\u202e\ud800", "\ufffd[31mred\ufffd\ufffd\ufffd\ufffd"),
        ("x" * SHOWN_CHARACTERS, "x" * SHOWN_CHARACTERS),
        ("x" * (SHOWN_CHARACTERS + 1), "x" * (SHOWN_CHARACTERS - 1) + "…"),
    ],
)
def test_text_is_bounded_and_has_no_control_characters(text: str, shown: str) -> None:
    assert bounded(text) == shown


def test_model_output_is_plain_text_in_the_report() -> None:
    given = replace(facts(), comparison=document())
    summary = summarise(given)
    page = html(summary, given)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd[31m &amp; [bold]" in page
    assert '<span class="said good">2</span>4 of 4 right' in page
    assert '<span class="said bad">&lt;script' in page
    assert "<b>user</b> What is 0 + 1?" in page
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal_summary(summary))
    assert comparison_sentence(summary["comparison"])[:80] in console.export_text()
    console.file.close()


def test_conversations_name_what_was_sampled_and_what_was_given() -> None:
    said = [("call", "<tool_call>1+1</tool_call>"), ("given", "<|im_end|>"), ("result", HOSTILE), ("said", "It is 2")]
    answer = ModelAnswer("It is 2", 3, True, True, (*said, *[("given", "more")] * SHOWN_PIECES))  # type: ignore[arg-type]
    results = [TaskResult(i, 1, finished=4, tokens=12, calls=1, shown=(answer,)) for i in range(20)]
    found = comparison_document({"x": [asked(i) for i in range(20)]}, results, results, samples=4, step=1)
    given = replace(facts(), comparison=found)
    page = html(summarise(given), given)
    cell = page[page.index("<b>Sampled: a call</b>") : page.index("1 of 4 right")]
    assert re.findall(r'<b>([^<]*)</b> <span class="is-(\w+)">', cell)[:4] == [
        ("Sampled: a call", "call"), ("Given: what the template writes", "given"), ("Given: a result", "result"),
        ("Sampled", "said"),
    ]  # fmt: skip
    assert cell.count("<b>") == SHOWN_PIECES
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd[31m" in cell
    assert "<script" not in page


def test_without_a_comparison_there_are_no_conversations() -> None:
    assert "Conversations" not in html(summarise(facts()), facts())


def test_the_report_says_how_long_each_stage_took() -> None:
    assert '<td class="">prepare</td><td class="n">10.0</td>' in html(summarise(facts()), facts())
