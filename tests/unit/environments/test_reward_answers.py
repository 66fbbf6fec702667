"""Right answers earn the reward however they are written, and answers that only look right do not.

A line of vectors/reward_answers.jsonl is an environment, its options, a reference, an answer, and whether it is right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from muster.constants import MICRO
from muster.environments.base import Environment, ScorerCall
from muster.environments.task import ask
from testbed.paths import VECTORS

PAIRS = [json.loads(line) for line in (VECTORS / "reward_answers.jsonl").read_text().splitlines()]
CHOICES = 4


@pytest.mark.parametrize("name", ["arithmetic", "choice", "math"])
def test_pairs_that_people_found_are_judged_right(
    name: str, environment_of: Callable[..., Environment], scorer_call: Callable[..., ScorerCall]
) -> None:
    pairs, wrong = [pair for pair in PAIRS if pair[0] == name], []
    assert len(pairs) > 40
    for _, options, gold, answer, right in pairs:
        reference = {"answer": gold} | ({"choices": CHOICES} if name == "choice" else {})
        environment = environment_of(name, **{"thinking": "none", **options})
        parts = environment.score(replace(ask("?"), reference=reference), answer, scorer_call("math_verify")).parts
        wrong += [(options, gold, answer)] if (parts != (0,)) != right else []
    assert wrong == []


@pytest.mark.parametrize(
    ("instruction", "arguments", "text", "mode", "followed"),
    [
        ("language:response_language", {"language": "de"}, "1234567890", "strict", False),
        ("language:response_language", {"language": "de"}, "This is an English line.\n1234", "loose", False),
        ("language:response_language", {"language": "de"}, "Das ist ein ganz gewöhnlicher Satz.", "loose", True),
        ("punctuation:no_comma", {}, "1", "strict", False),
        ("punctuation:no_comma", {}, "ok", "loose", False),
        ("punctuation:no_comma", {}, "Do it.", "strict", False),
        ("punctuation:no_comma", {}, "```python\npass\n```", "strict", False),
        ("punctuation:no_comma", {}, "This is a text without such a mark.", "strict", True),
        ("detectable_format:constrained_response", {}, "My answer is yes.", "strict", True),
        ("change_case:english_lowercase", {}, "1", "strict", False),
        ("detectable_format:json_format", {}, '{"a": NaN}', "strict", False),
        ("detectable_format:json_format", {}, '{"a": Infinity}', "strict", False),
        ("detectable_format:json_format", {}, '{"a": 1, "a": 2}', "strict", False),
        ("detectable_format:json_format", {}, "1", "strict", False),
        ("detectable_format:json_format", {}, "{}", "strict", False),
        ("detectable_format:json_format", {}, '{"a": 1}', "strict", False),
        ("detectable_format:json_format", {}, '```json\n{"title": "A letter to the moon"}\n```', "strict", True),
    ],
)
def test_a_text_that_says_nothing_follows_no_instruction(
    instruction: str,
    arguments: dict[str, str],
    text: str,
    mode: str,
    followed: bool,
    environment_of: Callable[..., Environment],
    scorer_call: Callable[..., ScorerCall],
) -> None:
    task = ask("Do it.", instructions=[{"id": instruction, "kwargs": arguments}])
    environment = environment_of("instruction", thinking="none", mode=mode)
    assert environment.score(task, text, scorer_call("instruction")).parts == (MICRO if followed else 0,)
