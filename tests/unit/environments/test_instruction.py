"""IFEval's instructions: each is followed by a text that follows it, and not by one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.constants import MICRO
from muster.environments.base import Environment, ScorerCall
from muster.environments.instruction import INSTRUCTIONS, LANGUAGES
from muster.environments.manifest import Score
from muster.environments.task import Task, ask
from muster.errors import MalformedError
from testbed.suite.cpu_time import SCORER_SECONDS, cpu_at_most

AT_LEAST, LESS = "at least", "less than"
PUBLISHED: Any = {"scoring": "published"}
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": AT_LEAST},
        ["THE end, FULL stop", "WELL-KNOWN I", "I'LL go"],
        ["THE end", "The End", "NASA/ESA"],
    ),
    (
        "change_case:english_capital",
        {},
        ["ALL OF IT, 1.", "THE SEA IS WIDE."],
        ["Not all", "123", "É", "DAS MEER IST WEIT."],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["all of it, 1.", "the waves rise."],
        ["Not all", "...", "das meer ist weit und die wellen steigen."],
    ),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it. "}, ["say it. Done", " Say it."], ["I say it."]),
    (
        "combination:two_responses",
        {},
        ["one\n******\ntwo", "******one******two******"],
        ["one", "a******a", "a******b******c", "a************b"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[a] and [b]"], ["[a]", "[a\n] [b"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["end\np.s. more", "P. S. x"], ["ps more"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S x", "p. p. s x"], ["P.S. x"]),
    ("detectable_format:constrained_response", {}, ["My answer is yes.", "So: My answer is maybe."], ["yes."]),
    ("detectable_format:json_format", {}, ['{"a": [1]}', "```json\n[1]\n```", "3"], ["{a: 1}", "x [1]"]),
    (
        "detectable_format:multiple_sections",
        {"num_sections": 2, "section_spliter": "Section"},
        ["Section 1\na\nSection 2\nb"],
        ["Section 1", "Section A Section B"],
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n* b", "- a\n * b"], ["* a", "* a\n- b\n- c"]),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**bold** *it*"],
        ["*a*", "** **"],
    ),
    ("detectable_format:title", {}, ["<<poem>>\ntext"], ["<poem>", "<< >>", "<<a\nb>>"]),
    ("keywords:existence", {"keywords": ["sun", "Moon"]}, ["Sunny moon"], ["sun"]),
    ("keywords:forbidden_words", {"forbidden_words": ["sun"]}, ["sunny"], ["the SUN."]),
    ("keywords:frequency", {"frequency": 2, "keyword": "sun", "relation": AT_LEAST}, ["Sun sun"], ["sun"]),
    ("keywords:frequency", {"frequency": 2, "keyword": "sun", "relation": LESS}, ["sun"], ["Sun sun"]),
    ("keywords:letter_frequency", {"let_frequency": 2, "let_relation": AT_LEAST, "letter": "a"}, ["Aha"], ["ah"]),
    (
        "language:response_language",
        {"language": "de"},
        ["Das Meer ist weit.", "123"],
        ["The sea is wide.", "Das Meer ist weit. The sea is wide and it is deep."],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"first_word": "Then", "nth_paragraph": 2, "num_paragraphs": 2},
        ["one\n\nthen, two", 'a\n\n"Then" b'],
        ["then\n\none", "one\n\nthen\n\nthree", "then"],
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb", "***a***b***"], ["a", "a******b"]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": AT_LEAST},
        [
            "One. Two.",
            "waves. salt.",
            "What? Yes",
            'He said "no!" Then left.',
            "1. Go. 2. Stay.",
            "Mr. Hu left. He ran",
        ],
        ["One.", "Dr. Who came", "We saw J. S. Bach", "Wait... what"],
    ),
    ("length_constraints:number_words", {"num_words": 3, "relation": LESS}, ["two words"], ["now three words"]),
    ("punctuation:no_comma", {}, ["none"], ["one, two"]),
    ("startend:end_checker", {"end_phrase": "The end."}, ["It is the END.", 'x "the end."'], ["The end. Or not"]),
    ("startend:quotation", {}, ['"all of it"', ' "a" and "b" '], ['"', '"open', "none"]),
]


def one(name: str, **arguments: Any) -> Task:
    return ask("do", instructions=[{"id": name, "kwargs": arguments}])


@pytest.fixture(scope="module")
def call(scorer_call: Callable[..., ScorerCall]) -> ScorerCall:
    return scorer_call("instruction", fuel=5_000_000_000)


def test_every_instruction_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES, ids=[name for name, *_ in CASES])
def test_an_instruction_is_followed_or_not(
    environment_of: Callable[..., Environment],
    call: ScorerCall,
    name: str,
    arguments: dict[str, Any],
    right: list[str],
    wrong: list[str],
) -> None:
    environment, task = environment_of("instruction", **PUBLISHED), one(name, **arguments)
    environment.check(task)
    scores = {text: environment.score(task, f"hm</think>{text}", call).parts[0] for text in right + wrong}
    assert scores == {**dict.fromkeys(right, MICRO), **dict.fromkeys(wrong, 0)}
    assert environment.score(task, "</think> \n", call) == Score((0,), 0, "no answer")
    assert environment.reference_completion(task) is None


def test_loose_forgives_a_line_and_asterisks(environment_of: Callable[..., Environment], call: ScorerCall) -> None:
    task = one("startend:end_checker", end_phrase="The end.")
    for text in ("**The end.**", "The end.\nHope it helps!", "Sure:\nThe end."):
        assert environment_of("instruction", **PUBLISHED, mode="loose").score(task, f"</think>{text}", call).parts == (
            MICRO,
        )
    assert environment_of("instruction", **PUBLISHED).score(task, "</think>The end.\nHope it helps!", call).parts == (
        0,
    )


SEAS = {
    "ar": "البحر واسع والأمواج ترتفع",
    "es": "El mar es grande y las olas suben.",
    "fi": "Meri on leveä ja aallot nousevat.",
    "fr": "La mer est grande et les vagues montent.",
    "hi": "समुद्र चौड़ा है।",
    "ja": "海は広い。波が来る。",
    "ru": "Море широкое, и волны поднимаются.",
    "sw": "Bahari ni pana na mawimbi yanapanda.",
    "vi": "Biển rộng và sóng dâng.",
}


def test_language_is_distinguished_from_all_others(
    environment_of: Callable[..., Environment], call: ScorerCall
) -> None:
    environment = environment_of("instruction", **PUBLISHED)
    for language, text in SEAS.items():
        followed = {
            other
            for other in sorted(LANGUAGES)
            if environment.score(one("language:response_language", language=other), f"</think>{text}", call).parts[0]
        }
        assert followed == {language}


def test_short_texts_are_in_the_language_that_the_seed_draws(
    environment_of: Callable[..., Environment], call: ScorerCall
) -> None:
    # langdetect 1.0.9 with the seed 0; without one it takes each of these for English every other time.
    english = ["it one he", "her sun", "to in no", "me too"]
    others = ["bed do she", "hot her red", "he in", "to me"]
    environment, task = environment_of("instruction", **PUBLISHED), one("change_case:english_lowercase")
    scores = {text: environment.score(task, f"</think>{text}", call).parts[0] for text in english + others}
    assert scores == {**dict.fromkeys(english, MICRO), **dict.fromkeys(others, 0)}


def test_all_or_the_fraction(environment_of: Callable[..., Environment], call: ScorerCall) -> None:
    names = ("punctuation:no_comma", "change_case:english_lowercase", "startend:quotation")
    task = ask("do", instructions=[{"id": name, "kwargs": {}} for name in names])
    strict = environment_of("instruction", **PUBLISHED).score(task, "</think>all of it is small", call)
    assert (strict.parts, strict.reason) == ((0,), "not startend:quotation")
    assert environment_of("instruction", **PUBLISHED, partial=True).score(
        task, "</think>all of it is small", call
    ).parts == (666_666,)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "*" * 200_000, "a.\n" * 80_000, "\n " * 100_000, "<<" * 100_000, "\ud800"]
)
def test_hostile_texts_end(environment_of: Callable[..., Environment], call: ScorerCall, text: str) -> None:
    every = [{"id": name, "kwargs": arguments} for name, arguments, *_ in CASES]
    for instructions in (every[:16], every[16:]):
        environment = environment_of("instruction", **PUBLISHED, mode="loose")
        with cpu_at_most(SCORER_SECONDS):
            environment.score(ask("do", instructions=instructions), f"</think>{text}", call)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("language:response_language", {"language": "xx"}),
        ("language:response_language", {"language": ["de"]}),
        ("startend:unknown", {}),
        ("punctuation:no_comma", {"x": 1}),
        ("keywords:existence", {"keywords": []}),
        ("keywords:existence", {"keywords": "sun"}),
        ("keywords:frequency", {"frequency": 2, "keyword": "sun", "relation": "about"}),
        ("detectable_content:number_placeholders", {"num_placeholders": True}),
        ("detectable_content:number_placeholders", {"num_placeholders": None}),
    ],
)
def test_instructions_that_cannot_be_checked_are_refused(
    environment_of: Callable[..., Environment], name: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(MalformedError):
        environment_of("instruction", **PUBLISHED).check(one(name, **arguments))
