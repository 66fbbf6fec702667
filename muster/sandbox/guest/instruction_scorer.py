r"""Whether a text follows IFEval's instructions that can be checked (Zhou et al., 2023, table 1).

Written from the published description. Where the published scorer asks a library, the same library is asked here:

- *word*: a run of letters, digits and underscores (`\w+`).
- *sentence*: what nltk's Punkt takes for one (`english.py`).
- *capital word*: a word of nltk's word tokenizer that `isupper`.
- *English*, and any other language: what langdetect takes for it, with one seed (`languages.py`).

*Strict* looks at the text as it is. *Loose* follows when one of eight variants does: with or without the first line,
the last line, and all asterisks. An empty text follows nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import english
import languages

LEAST_LETTERS = 25
"""Of a text that is rewarded, unless a short answer is asked for. One that stands for a syllable counts as three."""
OF_ALL = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
"""What a line that is left out could hide."""
ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def followed(payload: dict[str, Any]) -> dict[str, Any]:
    """Return {"followed": [bool, …]} for `text`, `instructions` ([[id, arguments], …]), `mode` and `scoring`.

    With the scoring "reward" nothing is followed by a text that says nothing. Its language is that of all of it, with
    letters, and its JSON is what the standard allows.
    """
    text, instructions = payload["text"], payload["instructions"]
    reward = payload["scoring"] == "reward"
    if reward and _letters(text) < LEAST_LETTERS and "detectable_format:constrained_response" not in dict(instructions):
        return {"followed": [False] * len(instructions)}
    variants = [text] if payload["mode"] == "strict" else _variants(text)
    variants = [variant for variant in variants if variant.strip()]
    checks = CHECKS | STRICTER if reward else CHECKS
    return {
        "followed": [
            any(checks[name](variant, **arguments) for variant in ([text] if reward and name in OF_ALL else variants))
            for name, arguments in instructions
        ]
    }


def _letters(text: str) -> int:
    return sum(3 if letter > "\u2e7f" else 1 for letter in text if letter.isalpha())


def _variants(text: str) -> list[str]:
    lines = text.split("\n")
    cuts = [
        text,
        "\n".join(lines[1:]).strip(),
        "\n".join(lines[:-1]).strip(),
        "\n".join(lines[1:-1]).strip(),
    ]
    return cuts + [cut.replace("*", "") for cut in cuts]


def _compare(count: int, relation: str, wanted: int) -> bool:
    return count < wanted if relation == "less than" else count >= wanted


# Keywords


def existence(text: str, keywords: list[str]) -> bool:
    """Return whether every keyword occurs, in any case, also within a word."""
    low = text.lower()
    return all(keyword.lower() in low for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """Return whether the keyword occurs that often, in any case, occurrences not overlapping."""
    return _compare(text.lower().count(keyword.lower()), relation, frequency)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    """Return whether no word occurs between word borders, in any case."""
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """Return whether the letter occurs that often, in any case."""
    return _compare(text.lower().count(letter.lower()), let_relation, let_frequency)


# Lengths


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compare(len(english.sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Count paragraphs between `***`; only the first and the last may be empty, and then do not count."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    if not all(parts[1:-1]):
        return False
    return sum(map(bool, parts)) == num_paragraphs


def number_words(text: str, num_words: int, relation: str) -> bool:
    return _compare(len(re.findall(r"\w+", text)), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Count paragraphs between two newlines; empty ones keep their number but do not count."""
    parts = text.split("\n\n")
    count = sum(1 for part in parts if part.strip())
    if count != num_paragraphs or not 1 <= nth_paragraph <= count or not parts[nth_paragraph - 1].strip():
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return re.split("[.,?!'\"]", word, maxsplit=1)[0].lower() == first_word.lower()


# Content


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """Return whether at least so many texts stand in square brackets, each within a line."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """Return whether the marker occurs, in any case; `P.S.` and `P.P.S` may have spaces after their points."""
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = patterns.get(postscript_marker) or re.escape(postscript_marker.lower())
    return re.search(pattern, text.lower()) is not None


# Format


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Return whether exactly so many lines begin with `-`, or with one `*` and then something else."""
    return len(re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)) + len(re.findall(r"^\s*-.*$", text, re.MULTILINE)) == (
        num_bullets
    )


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in ANSWERS)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """Return whether at least so many texts, empty ones not counted, stand between single or double asterisks."""
    single = re.findall(r"\*([^\n*]*)\*", text)
    double = re.findall(r"\*\*([^\n*]*)\*\*", text)
    return sum(1 for part in single + double if part.strip()) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Return whether there are at least so many headings: the splitter and a number, with at most one space between."""
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """Return whether all of it is JSON, a fence of backticks around it not counted."""
    return _json(text) is not _NO_JSON


def strict_json(text: str) -> bool:
    """Return whether it is a JSON object or array that holds anything, without NaN, Infinity and a key twice."""
    found = _json(text, parse_constant=_refuse, object_pairs_hook=_once)
    return isinstance(found, (dict, list)) and bool(found)


_NO_JSON = object()


def _json(text: str, **options: Any) -> Any:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        return json.loads(body.removesuffix("```").strip(), **options)
    except (ValueError, RecursionError):
        return _NO_JSON


def _refuse(name: str) -> None:
    raise ValueError(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return found


def title(text: str) -> bool:
    """Return whether a line has something between `<<` and `>>`."""
    return any(match.strip("<>").strip() for match in re.findall(r"<<[^\n]+>>", text))


# Combinations


def two_responses(text: str) -> bool:
    """Return whether two different texts stand between `******`; only the first and the last part may be empty."""
    parts = [part.strip() for part in text.split("******")]
    if not all(parts[1:-1]):
        return False
    given = [part for part in parts if part]
    return len(given) == 2 and given[0] != given[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


# Start and end, case, punctuation


def end_checker(text: str, end_phrase: str) -> bool:
    """Return whether the text ends with the phrase, in any case; quotation marks around it do not count."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    body = text.strip()
    return len(body) > 1 and body[0] == body[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _compare(sum(word.isupper() for word in english.words(text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and languages.is_in(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and languages.is_in(text, "en")


def response_language(text: str, language: str) -> bool:
    return languages.is_in(text, language)


def no_comma(text: str) -> bool:
    return "," not in text


CHECKS: dict[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "combination:repeat_prompt": repeat_prompt,
    "combination:two_responses": two_responses,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:json_format": json_format,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:title": title,
    "keywords:existence": existence,
    "keywords:forbidden_words": forbidden_words,
    "keywords:frequency": frequency,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_words": number_words,
    "punctuation:no_comma": no_comma,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
}

STRICTER: dict[str, Callable[..., bool]] = {"detectable_format:json_format": strict_json}
"""What is checked otherwise for a reward than as published."""
