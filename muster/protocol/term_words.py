"""The terms of a run in plain words: what each is, its unit, and its value as people read it. Pure.

One table, which the run's page, `muster run show --terms` and the comments of a terms file share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from muster.constants import BASIS_POINTS, MICRO
from muster.protocol.terms import NO_HASH, Terms, WorkClass
from muster.runtime.units import Duration, Tokens

Unit = Literal["MUST", "basis points", "seconds", "tokens", "hash", "millionths", ""]
"""Of a value as a terms file writes it; empty for a plain number."""

WORDS: Final[dict[str, tuple[Unit, str]]] = {
    "pay": ("MUST", "pay for one commitment of a class of weight 1"),
    "worker_stake": ("MUST", "what a worker locks while it takes part"),
    "validator_stake": ("MUST", "what a validator locks while it takes part"),
    "case_fee": ("MUST", "what opening a case costs; a conviction gives it back"),
    "jury_deposit": ("MUST", "what a juror deposits until its vote is revealed"),
    "slash_bps": ("basis points", "what a conviction takes of a stake"),
    "bounty_bps": ("basis points", "what the accuser gets of that; the rest is burned"),
    "group_size": ("", "answers to one task"),
    "groups_per_commitment": ("", "tasks in one commitment"),
    "commitments_per_hour": ("", "commitments of one worker in an hour, at most"),
    "async_level": ("", "steps that work may be behind the newest one when it is trained on"),
    "accepts_required": ("", "validators that must accept work before it is trained on"),
    "seal_quorum": ("", "validators that must seal an hour for its pay to mature sooner"),
    "min_step_interval": ("seconds", "time between two steps, at least"),
    "wage_bps": ("basis points", "wage of a validator for one counted look; 0: looks are unpaid"),
    "look_rows": ("", "rows that a look replays"),
    "commit_phase": ("seconds", "time in which jurors vote, hidden"),
    "reveal_phase": ("seconds", "time after that in which they reveal their votes"),
    "jury_seniority": ("seconds", "time that a validator must be registered before it judges and seals"),
    "temperature_micro": ("millionths", "temperature at which answers are sampled"),
    "max_prompt_tokens": ("tokens", "longest prompt"),
    "max_completion_tokens": ("tokens", "longest answer, with its thinking"),
    "task_count": ("", "tasks to train on"),
    "task_root": ("hash", "hash of the task set"),
    "model_hash": ("hash", "hash of the model that the run begins with"),
    "tokenizer_hash": ("hash", "hash of its tokenizer, the same at every step"),
    "profile": ("hash", "hash of the limits by which work is checked"),
    "tools_root": ("hash", "hash of the tools that answers may call"),
    "grade_tip": ("hash", "hash of the first master of the private tests"),
    "grade_epochs": ("", "epochs of the private tests"),
    "grade_epoch_steps": ("", "steps of one of these epochs"),
}
"""Unit and meaning of each term but the classes, by its name."""

_PARTS: Final = {10_000: "all", 7_500: "three quarters", 5_000: "half", 2_500: "a quarter", 2_000: "a fifth"}
_OF: Final = {"slash_bps": "the stake", "bounty_bps": "what a conviction takes", "wage_bps": "the pay"}


@dataclass(frozen=True)
class TermLine:
    """One term as people read it."""

    name: str
    """As a terms file spells it."""
    words: str
    value: str
    exact: str = ""
    """The whole of a value that is shortened; else empty."""


def term_lines(terms: Terms) -> Iterator[TermLine]:
    """Yield the terms in their order."""
    for field in fields(terms):
        if field.name == "classes":
            for number, one in enumerate(terms.classes):
                yield TermLine(f"class {number}", "pay of a class, and the thinking lengths drawn", class_text(one))
        else:
            value = getattr(terms, field.name)
            exact = "0x" + value.hex() if isinstance(value, bytes) else ""
            text = term_text(field.name, value)
            yield TermLine(field.name, WORDS[field.name][1], text, exact if "…" in text else "")


def term_text(name: str, value: Any) -> str:
    """Return the value of a term as people read it, with its unit; hashes by their ends."""
    match WORDS[name][0]:
        case "MUST":
            return str(Tokens(value))
        case "basis points":
            return f"{_PARTS.get(value, f'{100 * value / BASIS_POINTS:g} %')} of {_OF[name]}"
        case "seconds":
            return str(Duration(value))
        case "millionths":
            return f"{value / MICRO:g}"
        case "tokens":
            return f"{value:,} tokens"
        case "hash":
            return "none" if value == NO_HASH else short("0x" + value.hex())
    return f"{value:,}"


def class_text(one: WorkClass) -> str:
    """Return a class of work as people read it."""
    return f"{one.weight_bps / BASIS_POINTS:g} × pay for {', '.join(f'{each:,}' for each in one.budgets)} tokens"


def short(text: str) -> str:
    """Return the ends of a hash or an address."""
    return f"{text[:6]}…{text[-4:]}"
