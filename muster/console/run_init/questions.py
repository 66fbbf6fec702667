"""Ask an owner for what was not said: one question each, with a line that explains it and a default. Pure.

`ask` is how a question reaches a person: it gets the text and the default, and returns what was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.console.run_init.choices import (
    FAMILY_NAMES,
    NETWORKS,
    NEW_MODEL,
    OPEN,
    OWNER,
    RunChoices,
    known_context,
    make_choices,
    merged,
)
from muster.console.run_init.design import OwnerKeys, RunDesign, RunParts, costs_of, design_of, terms_of
from muster.errors import MusterError
from muster.runtime.units import Tokens, decimal_amount

Ask = Callable[[str, str], str]
Tell = Callable[[str], None]

EXAMPLE_HOST: Final = "run.example.org"
"""Stands in for the host where something is computed before that is known."""
EXAMPLE_KEYS: Final = OwnerKeys(*(f"0x{number:040x}" for number in (1, 2, 3)))
"""Stands in for the keys."""


@dataclass(frozen=True)
class Question:
    """One question: which choice it is about, and how it is put."""

    name: str
    text: str
    explained: Callable[[RunChoices], str]
    wanted: Callable[[RunChoices], bool] = lambda _: True
    """Whether it is asked, of what is known so far."""


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _says(text: str) -> Callable[[RunChoices], str]:
    return lambda _: text


def _cost_of_a_step(choices: RunChoices) -> str:
    design = _design(choices)
    costs = costs_of(design, terms_of(design, RunParts(context=known_context(choices))))
    return f"a step costs {Tokens(costs.step)} to {Tokens(costs.most_step)}; more can be added at any time"


def _design(choices: RunChoices) -> RunDesign:
    return design_of(merged(choices, RunChoices(host=choices.host or EXAMPLE_HOST)), known_context(choices))


QUESTIONS: Final[Sequence[Question]] = (
    Question(
        "network",
        f"Network ({', '.join(NETWORKS)})",
        _says("local: a chain on this machine, to try the run; base-sepolia: a public test network for strangers"),
    ),
    Question(
        "model",
        "Model",
        _says(f"{NEW_MODEL}: a small one is made here in a minute; or OWNER/NAME on the hub, or a checkpoint folder"),
    ),
    Question(
        "tasks",
        "Tasks",
        _says(f"a folder (muster tasks make, import, filter), or kinds of made tasks: {', '.join(FAMILY_NAMES)}"),
    ),
    Question("title", "Title", _says("what the run is called on its page, in 80 letters")),
    Question("about", "What it trains, and why", _says('text for its page; --about "$(cat FILE)" takes a longer one')),
    Question(
        "budgets",
        "Thinking budgets",
        _says("in tokens; one is drawn for each task, and an answer is cut off at twice the largest"),
    ),
    Question(
        "validators",
        "Who may validate",
        _says(f"{OPEN}: any operator with a stake; {OWNER}: those that you admit; or the address of the list's keeper"),
    ),
    Question("pay", "Pay for a commitment, in MUST", _says("the same for each; stake, fee and deposit follow from it")),
    Question("steps", "Steps that the escrow should pay for", _cost_of_a_step),
    Question(
        "host",
        "Host name or address of this machine",
        _says(f"where nodes reach orchestrator and weights, for example {EXAMPLE_HOST}"),
        wanted=lambda choices: choices.network not in (None, "local"),
    ),
)


def ask_all(choices: RunChoices, ask: Ask, tell: Tell) -> RunChoices:
    """Ask for every choice that was not made yet; what cannot be is explained and asked for again."""
    for question in QUESTIONS:
        if getattr(choices, question.name) is None and question.wanted(choices):
            choices = _ask_one(question, choices, ask, tell)
    return choices


def _ask_one(question: Question, choices: RunChoices, ask: Ask, tell: Tell) -> RunChoices:
    tell(question.explained(choices))
    default = default_of(question.name, choices)
    while True:
        typed = ask(question.text, default).strip()
        try:
            answered = merged(choices, make_choices({question.name: typed}))
            terms_of(_design(answered), RunParts(context=known_context(answered)))
        except MusterError as error:
            tell(f"invalid value: {error}")
            continue
        return answered


def default_of(name: str, choices: RunChoices) -> str:
    """Return what holds where nothing is answered, given what is known: as a person would type it."""
    if name == "host":
        return ""
    value = getattr(_design(choices), name)
    return decimal_amount(value) if name == "pay" else _text(value)
