"""Finds the letter that an answer to a multiple-choice question names.

A letter counts where it is the only candidate, or where it stands in one sentence with a word of choosing and every
other letter of that sentence is denied. Letters in formulas, of names ("vitamin C") and articles are no candidates.

Like `answers.py`: one pass, no regular expressions, ASCII's letters and digits. Changing any list changes rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from muster.environments.answers import last_box


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_SMALL: Final = frozenset(LETTERS.lower())
_ALPHA: Final = _SMALL | frozenset(LETTERS)
_WORD: Final = _ALPHA | frozenset("0123456789_")
_ENDS: Final = ".!?\n\u3002\uff01\uff1f"
_LOOKED_AT: Final = 1 << 14
"""Last characters of an answer in which its letter is looked for."""
_WIDE: Final = "\u3002\uff01\uff1f"
_HEADING: Final = 4
"""Words of a line that heads the next one."""
_APOSTROPHES: Final = frozenset("'\u2019")
_OPERATORS: Final = frozenset(
    "=+^/|~\u00b1\u00d7\u00f7\u2208\u2229\u222a\u2260\u2264\u2265\u2248\u2282\u2286\u2212\u22c5\u00b7<>"
)
_ARROWS: Final = ("=>", "->", "-->", "==>")
_MATHS: Final = ("\\text", "\\textbf", "\\mathrm", "\\mathbf", "\\mathsf", "\\textit", "\\rm", "\\bf")

_FUNCTIONS: Final = _words("P Pr E N f g h n p sin cos tan log ln exp det tr dim rank max min gcd var Var cov Cov deg")
_NAMERS: Final = _words(
    "vitamin vitamins hepatitis type grade class group set sets point points angle angles side sides figure fig table"
    " vertex vertices event events plan appendix section part column row line matrix variable team person train city"
    " town car urn bag box jar circle triangle city node state player machine bus runner sample"
)
"""Words whose letter names something else than a choice."""
_CHOOSE: Final = _words(
    "answer answers choose chose chosen choosing select selected selecting pick picked picking correct right final"
    " best solution conclude conclusion favour favor decide decided response vote guess"
)
_FOLLOW: Final = _words(
    "so thus therefore hence it's that's leaves leaving must true matches fits accordingly consequently"
)
"""Weaker words: they count where no sentence has a stronger one."""
_CONCLUDES: Final = _words("so thus therefore hence")
"""Words that begin another sentence, wherever they stand."""
_PAIRS: Final = frozenset(
    {("option", "is"), ("choice", "is"), ("choice", "would"), ("go", "with"), ("going", "with"), ("opt", "for")}
    | {("opting", "for"), ("settle", "on"), ("settling", "on"), ("i'd", "say"), ("would", "say"), ("lean", "towards")}
)
"""Two words in a row that choose."""
_WEAK_PAIRS: Final = frozenset({("it", "is"), ("that", "is"), ("this", "is"), ("it", "must"), ("points", "to")})
_STATEMENTS: Final = _words(
    "is was are or and nor because since as but seems fits matches follows works holds does doesn't isn't wasn't"
    " can't cannot can would wouldn't must says gives also fails fail contradicts looks makes describes applies"
    " remains"
)
"""What follows a letter A or I that is no article."""
_AFTER_I: Final = _words("is or and nor because since")
_DENIED_BEFORE: Final = _words(
    "not isn't wasn't aren't neither nor unlike except excluding excludes exclude eliminate eliminates eliminated"
    " eliminating reject rejected rejecting discard discarded without can't cannot never discount dismiss dismissed"
    " ruled rules rule ruling instead rather"
)
_DENIED_AFTER: Final = _words(
    "wrong incorrect false isn't wasn't not cannot can't doesn't don't fails fail contradicts eliminated rejected"
    " impossible untrue neither invalid excluded aren't ruled mistaken never inconsistent irrelevant distractor"
    " distractors tempting trap"
)
_LINKS: Final = _words(
    "or and nor both option options choice choices answer answers of than be it the either out choose pick select"
)
"""Words between a denial and its letter, or between two letters that share one."""
_CHANGES: Final = _words("but so because since while whereas therefore thus hence which")
"""Words that begin another statement of a sentence."""
_JOINS: Final = frozenset(("or", "and", "nor"))
_LINKED: Final = 9
"""Words before and after a letter in which a denial is looked for."""
_UNREAL: Final = _words("if were unless suppose assuming had")


class _Token(NamedTuple):
    """A word, or a letter that may be a choice."""

    text: str
    candidate: bool


def last_letter(text: str, choices: int) -> str | None:
    """Return the capital letter that an answer names, one of the first `choices` of the alphabet; None for none.

    One in the last box is taken first.
    """
    letters = frozenset(LETTERS[:choices])
    boxed = letter_in(last_box(text) or "")
    if boxed in letters:
        return boxed
    text = text[-_LOOKED_AT:]
    sentences = _sentences(text, letters)
    named = [_candidates(sentence) for sentence, _ in sentences]
    every = {letter for found in named for letter in found}
    if len(every) < 2:
        return next(iter(every), None)
    chosen, weakly = (
        [
            next(iter(found))
            for (sentence, asks), found in zip(sentences, named, strict=True)
            if len(found) == 1 and not asks and _chooses(sentence, words, pairs)
        ]
        for words, pairs in ((_CHOOSE, _PAIRS), (_FOLLOW, _WEAK_PAIRS))
    )
    if chosen:
        return chosen[-1]
    if weakly:
        return weakly[-1] if len(set(weakly)) == 1 else None
    return _heading(text, letters)


def letter_in(box: str) -> str:
    r"""Return the content of a box without what may stand around a letter: braces, brackets, `\text`, a full stop."""
    box = box.strip(" \n")
    for _ in range(4):
        name, brace, inner = box.partition("{")
        if brace and inner.endswith("}") and (not name.strip() or name.strip() in _MATHS):
            box = inner[:-1]
        box = box.strip(" ().")
    return box


def _chooses(sentence: Sequence[_Token], words: frozenset[str], pairs: frozenset[tuple[str, str]]) -> bool:
    """Return whether a sentence has one of the words or pairs, and supposes nothing."""
    said = [token.text.lower() for token in sentence if not token.candidate]
    found = not words.isdisjoint(said) or not pairs.isdisjoint(pairwise(said))
    return found and _UNREAL.isdisjoint(said)


def _heading(text: str, letters: frozenset[str]) -> str | None:
    """Return the letter that an answer begins with, if a mark or the line's end follows and no other line has one."""
    heads = [bare[0] for line in text.split("\n") if (bare := line.lstrip(" *_#([{$\"'`")) and _heads(bare, letters)]
    begins = text.lstrip(" \n*_#([{$\"'`")
    return heads[0] if len(heads) == 1 and _heads(begins, letters) else None


def _heads(line: str, letters: frozenset[str]) -> bool:
    return line[:1] in letters and line[1:2] in (*",.:;)]}*$", "")


def _candidates(sentence: Sequence[_Token]) -> set[str]:
    """Return the letters of a sentence that are not denied."""
    return {token.text for place, token in enumerate(sentence) if token.candidate and not _is_denied(sentence, place)}


def _is_denied(sentence: Sequence[_Token], place: int) -> bool:
    """Return whether a word denies a letter, alone or with those that "or" and "and" link to it."""
    for token in reversed(sentence[max(0, place - _LINKED) : place]):
        if not token.candidate and (word := token.text.lower()) not in _LINKS:
            if word in _DENIED_BEFORE:
                return True
            break
    linked = True
    for token in sentence[place + 1 : place + 1 + _LINKED]:
        word = token.text.lower()
        linked = linked and (token.candidate or word in _JOINS)
        if not linked and (token.candidate or word in _CHANGES):
            return False
        if word in _DENIED_AFTER:
            return True
    return False


def _sentences(text: str, letters: frozenset[str]) -> list[tuple[list[_Token], bool]]:
    """Return the words of each sentence, and whether it asks."""
    found: list[tuple[list[_Token], bool]] = []
    sentence: list[_Token] = []
    place = 0
    while place < len(text):
        character = text[place]
        if character in _ENDS:
            if sentence and not _goes_on(text, place, sentence):
                found.append((sentence, character in "?\uff1f"))
                sentence = []
        elif character in _WORD:
            end = place + 1
            while end < len(text) and (
                text[end] in _WORD or (text[end] in _APOSTROPHES and text[end + 1 : end + 2] in _SMALL)
            ):
                end += 1
            word = text[place:end].replace("\u2019", "'")
            if word.lower() in _CONCLUDES and sentence:
                found.append((sentence, False))
                sentence = []
            sentence.append(_Token(word, word in letters and _is_choice(text, place, sentence)))
            place = end - 1
        place += 1
    return [*found, (sentence, False)]


def _goes_on(text: str, place: int, sentence: Sequence[_Token]) -> bool:
    """Return whether a sentence goes on behind a mark that may end it: a decimal point, or a heading's end of line."""
    if text[place] != "\n":
        return text[place + 1 : place + 2] in _WORD and text[place] not in _WIDE
    heads = len(sentence) <= _HEADING and _chooses(sentence, _CHOOSE, _PAIRS)
    colon = text[max(0, place - _HEADING * 4) : place].rstrip(" *_\n\r").endswith(":")
    return (heads or colon) and not any(token.candidate for token in sentence)


def _is_choice(text: str, place: int, before: Sequence[_Token]) -> bool:
    """Return whether a letter that stands alone may be a choice: part of no formula or name, and no article."""
    after = text[place + 1 : place + 40]
    if after[:1] in _APOSTROPHES or after[:1] in ("(", "%", "\u00b0"):
        return False
    if before and before[-1].text.lower() in _NAMERS and text[place - 1 : place] == " ":
        return False
    verbs = _STATEMENTS if text[place] == "A" else _AFTER_I
    if text[place] in "AI" and after[:1] == " " and after[1:2] in _SMALL and _first_word(after) not in verbs:
        return False
    if _is_unit(text[max(0, place - 2) : place]):
        return False
    return not (_is_operand(text[max(0, place - 40) : place], after) or _is_argument(text, place, before))


def _is_unit(before: str) -> bool:
    """Return whether a number or a degree sign stands before a letter: 5 A, 20 °C."""
    return before[-1:] == "\u00b0" or (before[-1:] == " " and before[:1] in tuple("0123456789\u00b0"))


def _first_word(text: str) -> str:
    words = text.replace("\u2019", "'").split(maxsplit=1)
    return words[0].strip(".,;:!?") if words else ""


def _is_operand(before: str, after: str) -> bool:
    """Return whether an operator stands beside a letter. `word = B` names one."""
    right = after.lstrip(" )}$")
    if (right[:1] in _OPERATORS and not right.startswith(_ARROWS)) or _is_minus(after) or _is_times(after):
        return True
    left = before.rstrip(" ({$")
    for arrow in _ARROWS:
        left = left.removesuffix(arrow).rstrip(" ")
    if left[-1:] not in _OPERATORS:
        return left.endswith(("-", "*")) and left[-2:-1] in _WORD and not before.endswith(" ")
    name = left.rstrip("= ")
    return not (left.endswith("=") and len(name) > 2 and _ALPHA.issuperset(name[-3:]))


def _is_minus(after: str) -> bool:
    bare = after.lstrip(" ")
    return bare[:1] in ("-", "\u2013") and (bare[1:].lstrip(" ")[:1] or " ") in "0123456789"


def _is_times(after: str) -> bool:
    return after[:1] == "*" and after[1:2] in _WORD


def _is_argument(text: str, place: int, before: Sequence[_Token]) -> bool:
    """Return whether a letter is in the brackets of a function."""
    return (
        text[place - 1 : place] == "("
        and text[place - 2 : place - 1] in _WORD
        and bool(before)
        and (before[-1].text in _FUNCTIONS or len(before[-1].text) == 1)
    )
