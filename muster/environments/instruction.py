"""Instructions that can be checked, as in IFEval: the checks run in the component, with the libraries IFEval asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from muster.constants import MICRO
from muster.environments.answers import MAX_TEXT_CHARS, after_thinking
from muster.environments.base import ScorerCall
from muster.environments.manifest import Score
from muster.environments.options import THINKING, OneOf, Option, OptionsEnvironment, failed, only
from muster.environments.task import Task
from muster.errors import MalformedError

MAX_INSTRUCTIONS: Final = 16
LEAST_LINE: Final = 16
"""Characters of a line of the question that an answer may repeat, and letters that it must add then."""
RELATIONS: Final = ("less than", "at least")

INSTRUCTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "change_case:capital_word_frequency": {"capital_frequency": "count", "capital_relation": "relation"},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "combination:repeat_prompt": {"prompt_to_repeat": "text"},
    "combination:two_responses": {},
    "detectable_content:number_placeholders": {"num_placeholders": "count"},
    "detectable_content:postscript": {"postscript_marker": "text"},
    "detectable_format:constrained_response": {},
    "detectable_format:json_format": {},
    "detectable_format:multiple_sections": {"num_sections": "count", "section_spliter": "text"},
    "detectable_format:number_bullet_lists": {"num_bullets": "count"},
    "detectable_format:number_highlighted_sections": {"num_highlights": "count"},
    "detectable_format:title": {},
    "keywords:existence": {"keywords": "texts"},
    "keywords:forbidden_words": {"forbidden_words": "texts"},
    "keywords:frequency": {"frequency": "count", "keyword": "text", "relation": "relation"},
    "keywords:letter_frequency": {"let_frequency": "count", "let_relation": "relation", "letter": "text"},
    "language:response_language": {"language": "language"},
    "length_constraints:nth_paragraph_first_word": {
        "first_word": "text",
        "nth_paragraph": "count",
        "num_paragraphs": "count",
    },
    "length_constraints:number_paragraphs": {"num_paragraphs": "count"},
    "length_constraints:number_sentences": {"num_sentences": "count", "relation": "relation"},
    "length_constraints:number_words": {"num_words": "count", "relation": "relation"},
    "punctuation:no_comma": {},
    "startend:end_checker": {"end_phrase": "text"},
    "startend:quotation": {},
}
"""IFEval's names, and what each is told."""

LANGUAGES: Final = frozenset(
    (
        *("ar", "bg", "bn", "de", "en", "es", "fa", "fi", "fr", "gu", "he", "hi", "it", "ja", "kn"),
        *("ko", "ml", "mr", "ne", "pa", "pl", "pt", "ru", "sw", "ta", "te", "th", "uk", "ur", "vi"),
    )
)
"""Those that IFEval asks for, as langdetect names them."""


class Instruction(OptionsEnvironment):
    """Prompts with instructions. Reference: `{"instructions": [{"id": name, "kwargs": {…}}, …]}`.

    Option `mode`: "strict" looks at the text as it is, "loose" forgives a first or last line and asterisks. Option
    `scoring`: "published" follows IFEval's own scorer, "reward" gives nothing for a text that says nothing. Option
    `partial`: score the fraction of instructions followed instead of all or nothing.
    """

    NAME: ClassVar[str] = "instruction"
    VERSION: ClassVar[int] = 2
    PARTS: ClassVar[tuple[str, ...]] = ("followed",)
    FUNCTION: ClassVar[str] = "instruction"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "mode": OneOf(("strict", "loose")),
        "scoring": OneOf(("reward", "published")),
        "partial": OneOf((False, True)),
        "thinking": THINKING,
    }

    def check(self, task: Task) -> None:
        """Raise MalformedError unless every instruction is known and told what it needs, and nothing else."""
        only(task.reference, ("instructions",), task.id)
        instructions = task.reference.get("instructions")
        if not isinstance(instructions, list) or not 1 <= len(instructions) <= MAX_INSTRUCTIONS:
            raise MalformedError(f"task {task.id[:80]!r} has no list of 1 to {MAX_INSTRUCTIONS} instructions")
        for instruction in instructions:
            match instruction:
                case {"id": str(name), "kwargs": dict(arguments), **rest} if not rest:
                    _check_instruction(name, arguments, task.id[:80])
                case _:
                    raise MalformedError(f"task {task.id[:80]!r} has an instruction that is not an id and kwargs")

    def score(self, task: Task, completion: str, call: ScorerCall) -> Score:
        """Return 1 when all instructions are followed, else 0, or the fraction rounded down."""
        text = after_thinking(completion, self._thinking)
        if text is None or not text.strip():
            return failed("no answer")
        if len(text) > MAX_TEXT_CHARS:
            return failed(f"an answer over {MAX_TEXT_CHARS} characters")
        if self._options["scoring"] == "reward" and _only_repeats(text, task.text):
            return failed("no more than the question")
        wanted = [[instruction["id"], instruction["kwargs"]] for instruction in task.reference["instructions"]]
        how = {name: self._options[name] for name in ("mode", "scoring")}
        outcome = call({"instructions": wanted, "text": text, **how})
        match outcome.value:
            case {"followed": list(followed)} if len(followed) == len(wanted):
                count = sum(one is True for one in followed)
                if count == len(wanted):
                    return Score((MICRO,), outcome.fuel)
                first = next(name for (name, _), one in zip(wanted, followed, strict=True) if one is not True)
                share = MICRO * count // len(wanted) if self._options["partial"] else 0
                return Score((share,), outcome.fuel, f"not {first}")
        return failed(f"stopped: {outcome.stopped}"[:200], outcome.fuel)

    def reference_completion(self, task: Task) -> None:
        """Return None: instructions hold no answer."""
        return


def _only_repeats(text: str, question: str) -> bool:
    """Return whether a text is a part of the question, or little besides its lines."""
    rest = text
    for line in question.splitlines():
        rest = rest.replace(line, "") if len(line) >= LEAST_LINE else rest
    return text.strip() in question or (rest != text and sum(map(str.isalpha, rest)) < LEAST_LINE)


def _check_instruction(name: str, arguments: Mapping[str, Any], task: str) -> None:
    if name not in INSTRUCTIONS:
        raise MalformedError(f"task {task!r} has an unknown instruction {name[:80]!r}")
    kinds = INSTRUCTIONS[name]
    if set(arguments) != set(kinds):
        raise MalformedError(f"instruction {name} of task {task!r} needs {', '.join(kinds) or 'no arguments'}")
    for key, kind in kinds.items():
        value = arguments[key]
        match kind:
            case "count":
                right = type(value) is int and 0 <= value <= 1_000_000
            case "relation":
                right = value in RELATIONS
            case "language":
                right = isinstance(value, str) and value in LANGUAGES
            case "text":
                right = isinstance(value, str) and bool(value)
            case _:
                right = isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)
        if not right:
            raise MalformedError(f"instruction {name} of task {task!r} has {key} = {str(value)[:40]!r}: not a {kind}")
