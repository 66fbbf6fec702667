"""The letter that an answer names, in the forms that people and models write, and in prose.

A line of vectors/choice_answers.txt has x, or - where no letter is to be read, and an answer in which {x} is the letter
that it names and {y}, {z} and {w} are others.
"""

from __future__ import annotations

from collections import Counter

import pytest

from muster.environments.letters import last_letter
from testbed.paths import VECTORS
from testbed.suite.cpu_time import cpu_at_most
from tests.unit.environments.letter_prose import answers

LETTERS = "ABCDE"
FORMS = [line.split("\t", 1) for line in (VECTORS / "choice_answers.txt").read_text(encoding="utf-8").splitlines()]


def test_letter_is_read_in_every_form_that_names_one_and_in_no_other() -> None:
    wrong, count = [], 0
    for kind, form in FORMS:
        for turn in range(len(LETTERS)):
            x, y, z, w, _ = LETTERS[turn:] + LETTERS[:turn]
            answer = form.replace("\\n", "\n").format(x=x, y=y, z=z, w=w)
            found, named = last_letter(answer, len(LETTERS)), x if kind == "x" else None
            wrong += [(answer, named, found)] if found != named else []
            count += 1
    assert wrong == []
    assert count >= 700


@pytest.mark.parametrize("seed", range(5))
def test_letter_of_prose_is_read_and_never_another(seed: int) -> None:
    found = Counter()
    for answer, letter in answers(200, seed):
        read = last_letter(answer, 4)
        assert read in (letter, None), answer
        found[read == letter] += 1
    assert found[True] >= 190


@pytest.mark.parametrize(
    "part", ["A ", "A or ", "not ", "not A ", "if a ", "f(", ": ", "=A ", "set A, ", "A is a b c ", "<a"]
)
def test_long_answers_are_read_in_linear_time(part: str) -> None:
    with cpu_at_most(1):
        last_letter(part * (1 << 15), 26)
