"""The questions to an owner: their defaults, and the handling of invalid answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from muster.console.run_init.choices import RunChoices
from muster.console.run_init.design import design_of
from muster.console.run_init.questions import QUESTIONS, ask_all
from testbed.samples.models import DEMO, write_model


def answering(answers: Mapping[str, list[str]]) -> tuple[Callable[[str, str], str], list[tuple[str, str]]]:
    """A person who types these lines at questions that begin so, and Enter at others; what was asked, with defaults."""
    left = {name: list(lines) for name, lines in answers.items()}
    asked: list[tuple[str, str]] = []

    def ask(text: str, default: str) -> str:
        asked.append((text, default))
        lines = next((lines for name, lines in left.items() if text.startswith(name) and lines), None)
        return default if lines is None else lines.pop(0)

    return ask, asked


def test_enter_key_selects_the_local_defaults() -> None:
    ask, asked = answering({})
    messages: list[str] = []
    chosen = ask_all(RunChoices(), ask, messages.append)
    assert asked == [
        ("Network (local, base-sepolia)", "local"),
        ("Model", "new"),
        ("Tasks", "sort"),
        ("Title", "A new model learns sort"),
        ("What it trains, and why", ""),
        ("Thinking budgets", "8,12,16"),
        ("Who may validate", "open"),
        ("Pay for a commitment, in MUST", "0.05"),
        ("Steps that the escrow should pay for", "1000"),
    ]
    assert len(messages) == len(asked), "one line of explanation per question"
    assert messages[-1] == "a step costs 0.1 MUST to 0.2 MUST; more can be added at any time"
    assert (chosen.network, chosen.budgets, chosen.pay, chosen.steps) == ("local", (8, 12, 16), "0.05", 1000)
    assert ask_all(chosen, ask, messages.append) == chosen
    assert len(asked) == len(messages) == 9, "each question is asked once"


def test_defaults_follow_from_what_was_answered_before() -> None:
    ask, asked = answering({"Network": ["base-sepolia"], "Model": ["owner/name"], "Host": ["run.example.org"]})
    chosen = ask_all(RunChoices(title="Sums"), ask, lambda _: None)
    assert "Title" not in dict(asked), "an option said it"
    assert ("Tasks", "sums,stories") in asked
    assert ("Thinking budgets", "512,1024,2048") in asked
    assert ("Pay for a commitment, in MUST", "0.25") in asked
    assert (chosen.host, chosen.title) == ("run.example.org", "Sums")


@pytest.mark.parametrize(
    ("model", "tasks", "title"),
    [
        ("owner/name", None, "name learns sums and stories"),
        ("new", "sort", "A new model learns sort"),
        (f"{Path(__file__).parent}/", "/tasks/" + "x" * 90, "run_init learns " + "x" * 64),
    ],
)
def test_a_run_without_a_title_is_called_after_its_model_and_tasks(model: str, tasks: str | None, title: str) -> None:
    assert design_of(RunChoices(model=model, tasks=tasks), None).title == title


def test_answers_that_cannot_be_are_explained_and_asked_for_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = write_model(tmp_path_factory.mktemp("model"), DEMO)
    ask, asked = answering(
        {
            "Network": ["mainnet", "base-sepolia"],
            "Title": ["x" * 81, "Digits"],
            "Model": [str(model)],
            "Thinking budgets": ["8,a", "300", "8,12"],
            "Who": ["friends", "owner"],
            "Pay": ["1,5", "0", "0.5"],
            "Steps": ["many", "12"],
            "Host": ["", "http://x", "x.example"],
        }
    )
    messages: list[str] = []
    chosen = ask_all(RunChoices(), ask, messages.append)
    assert chosen == RunChoices(
        network="base-sepolia",
        title="Digits",
        about="",
        model=str(model),
        tasks="sums,stories",
        budgets=(8, 12),
        validators="owner",
        pay="0.5",
        steps=12,
        host="x.example",
    )
    refused = [line.removeprefix("invalid value: ") for line in messages if line.startswith("invalid value: ")]
    assert len(refused) == len(asked) - len(QUESTIONS) == 10
    assert refused[3].startswith(
        "prompts of up to 1 tokens and completions of up to 600 do not fit the model's context"
    )
    assert refused[4] == "--validators: write open, owner, or an address that keeps the list"
    assert refused[7] == "--steps: Input should be a valid integer, unable to parse string as an integer"
