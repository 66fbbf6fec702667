"""A model as the options of a command: what typer reads, what the model refuses, and what the function gets."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field, field_validator
from typer.testing import CliRunner

from muster.console.command import command
from muster.console.options import Day, Numbers, Request
from muster.console.session import Session


class Trip(Request):
    """What is typed of a journey."""

    place: Annotated[str, typer.Argument()]
    """Where to go."""
    people: int = Field(default=2, ge=1, le=9)
    """Who goes along."""
    halts: Numbers | None = None
    """Where to stop."""
    day: Day | None = None
    """When it begins."""
    tent_size: Annotated[Annotated[int, Field(ge=2)] | None, typer.Option("--tent")] = None
    """How many sleep in it."""
    by: Literal["foot", "boat"] = "foot"
    """How to travel."""
    maps: tuple[Path, ...] = ()
    """Maps to take."""
    guide: Annotated[bool, typer.Option("--guide/--no-guide")] = True
    """Whether a guide comes along."""

    @field_validator("place")
    @classmethod
    def _exists(cls, value: str) -> str:
        if value == "Atlantis":
            raise ValueError("it has sunk")
        return value


BOAT_TRIP = Trip(place="Ithaca", people=5, by="boat")
app = typer.Typer(rich_markup_mode=None)
seen: list[Trip] = []


@command(app, "go")
def go(session: Session, trip: Trip, slowly: bool = False) -> None:
    """Go there."""
    seen.append(trip)


@command(app, "sail")
def sail(session: Session, trip: Trip = BOAT_TRIP) -> None:
    """Go there by boat."""
    seen.append(trip)


def type_(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


def test_fields_are_options_with_their_docstrings_as_help() -> None:
    code, text = type_("go", "--help")
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert code == 0
    assert lines >= {
        "--people <int range> Who goes along. [default: 2; 1<=x<=9]",
        "--halts <str> Where to stop.",
        "--day <str> When it begins.",
        "--tent <int range> How many sleep in it. [x>=2]",
        "--by <foot|boat> How to travel. [default: foot]",
        "--guide / --no-guide Whether a guide comes along. [default: guide]",
        "place <str> Where to go. [required]",
    }


def test_line_becomes_one_validated_model() -> None:
    words = "Rome --halts 3,4 --day 2026-08-01 --tent 3 --maps a --maps b --no-guide --by boat"
    assert type_("go", *words.split())[0] == 0
    assert seen.pop() == Trip(
        place="Rome",
        halts=(3, 4),
        day=date(2026, 8, 1),
        tent_size=3,
        by="boat",
        maps=(Path("a"), Path("b")),
        guide=False,
    )


def test_instance_as_default_sets_the_defaults_of_its_command() -> None:
    assert type_("sail", "--people", "7")[0] == 0
    assert seen.pop() == Trip(place="Ithaca", people=7, by="boat")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Atlantis", "error: PLACE: it has sunk\n  next: root go --help"),
        ("Rome --day soon", "error: --day: Invalid isoformat string: 'soon'\n  next: root go --help"),
        ("Rome --halts 3,x", "error: '3,x' is no list of numbers\n  next: write it like 8,12,16"),
        ("Rome --people 10", "Invalid value for '--people': Input should be less than or equal to 9"),
    ],
)
def test_invalid_values_are_refused_by_option(words: str, reason: str) -> None:
    code, text = type_("go", *words.split())
    assert (code, reason in text) == (2, True), text
    assert not seen


def test_given_names_the_options_that_differ_from_their_defaults() -> None:
    trip = Trip(place="Rome", tent_size=2, guide=False, people=2)
    assert trip.given(*Trip.model_fields) == ["PLACE", "--tent", "--guide"]
    assert trip.given("by", "people") == []
