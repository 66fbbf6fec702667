"""Finds the letter that an answer to a multiple-choice question names.

A letter counts where it is the only candidate, or where it stands in one clause with a word of choosing and every other
letter of that clause is denied. Letters in formulas, of names ("vitamin C") and articles are no candidates.

Every repetition of these patterns that could meet itself is bounded, so an answer takes time by its length. Changing
any pattern changes rewards.
"""

from __future__ import annotations

import re
from typing import Final

from muster.environments.answers import LETTERS, last_box

_LOOKED_AT: Final = 1 << 14
"""Last characters of an answer in which its letter is looked for."""
_AROUND: Final = re.compile(r"\s*(?:\\(?:text(?:bf|it)?|math(?:rm|bf|sf)|rm|bf)\s*)?\{(.*)\}\s*", re.DOTALL)
"""A group of TeX's around the whole of a box."""

_POINTED_AT: Final = re.compile(
    r"</?[a-z]{1,16}>|(?:(?<=[A-Za-z]{3})|(?<![^\n])) ?(?:[-=]{1,3}>|=)|(?<=\bans)\."
    r"|(?:(?<=answer|choice|option)|(?<=:))[\s:*_#]{0,8}\n",
    re.ASCII | re.IGNORECASE,
)
"""Marks, and ends of headings, behind which an answer stands."""
_OPERATOR: Final = (
    r"(?:[=+^/|~<>\u00b1\u00d7\u00f7\u2208\u2229\u222a\u2260\u2264\u2265\u2248\u2282\u2286\u2212\u22c5\u00b7]"
    r"|\\(?!text|math|rm|bf|box)[a-z]+)"
)
_NAMERS: Final = (
    r"vitamins?|hepatitis|types?|grade|class|groups?|sets?|points?|angles?|sides?|figures?|fig|tables?|vertex|vertices"
    r"|events?|plan|appendix|section|part|columns?|rows?|lines?|matri\w+|variables?|teams?|persons?|trains?|cars?|urns?"
    r"|bag|box|jar|circles?|city|nodes?|state|players?|machines?|bus|samples?|theorem|let|where|here"
)
"""Words whose letters name something else than a choice."""
_VERBS: Final = (
    r"is|was|are|or|and|nor|because|since|as|but|it|the|seems|fits|matches|follows|works|holds|does\w*|isn|wasn|can\w*"
    r"|would|must|says|gives|also|fails?|contradicts|looks|makes|describes|applies|remains|over|rather|instead|not|has"
    r"|ignores|survives"
)
"""What follows an A that begins a sentence and is no article."""
_NO_CHOICE: Final = re.compile(
    rf"{_OPERATOR}[ ({{$]*[A-Z]\b|\b[A-Z](?:[ }}$]|\)(?! ?\$\\))*(?={_OPERATOR}|[-*]\w)|\w[-*][A-Z]\b|[0-9°] ?[A-Z]\b"
    r"|\b(?:[A-Za-z]|Pr|[Vv]ar|[Cc]ov|sin|cos|tan|log|ln|exp|det|tr|dim|rank|max|min|gcd|deg)\([^()\n]{0,40}\)"
    rf"|(?i:\b(?:{_NAMERS})) [A-Z]\b(?:(?:,|,? and|,? or) [A-Z]\b){{0,8}}|\b[A-Z] (?:stands for|denotes|represents)\b"
    rf"|\bI (?!or\b|and\b|nor\b|because\b)(?=[a-z])|(?<![a-z0-9,;] )\bA (?!(?:{_VERBS})\b)(?=[a-z])",
    re.ASCII,
)
"""Letters in formulas, units, of names, and articles."""
_ENDS: Final = ".!?;\n\u3002\uff01\uff1f"
_TOKEN: Final = re.compile(rf"\w+(?:['\u2019]\w+)*|\.(?![0-9])|[{_ENDS[1:]}]", re.ASCII)

_TURNS: Final = "but|so|because|since|while|whereas|which|however"
"""Words that begin another clause."""
_WORDS: Final = (
    rf"(?: (?!(?:{_TURNS}|as|therefore|thus|hence|correct\w*|right|best|answer|others?|rest)\b)[a-z0-9'_]+){{0,8}}?"
)
_LINKS: Final = (
    r"(?: (?:or|and|both|the|options?|choices?|answers?|of|than|be|it|is|either|out|choose|pick|select|think|believe"
    r"|that|to))*"
)
_LIST: Final = r" [A-Z](?: (?:or |and |nor )?(?:option |choice )?[A-Z]){0,5}\b"
_DENIED: Final = re.compile(
    r"\b(?:not|no|neither|nor|\w+n't|cannot|never|unlike|contrary|except|without|instead of|rather|over|than"
    rf"|(?:exclud|eliminat|reject|discard|dismiss|discount|rul|cross)\w*){_LINKS}{_LIST}(?: but\b)?"
    rf"|\b(?:if|unless|suppos\w+|assum\w+|had|some|someone|many|(?<!the )others|may|might|tempt\w+"
    rf"|initially|originally|mistake|who|(?:first|wrong) (?:answer|choice|guess|thought)){_WORDS}{_LIST}"
    rf"|(?<! is){_LIST}(?: no|{_WORDS} (?:(?:not|\w+n't|cannot|never)(?!{_LINKS} [A-Z]\b)|(?<!the )only|no sense"
    r"|at first|neither|too|out|off|negative|trap|partial\w*|partly|almost|nearly|impossible|irrelevant|misses|opposite"
    r"|un(?:likely|true|supported|related)|in(?:correct|accurate|valid|complete|consistent|appropriate|sufficient)"
    r"|wrong|false|ruled|(?:fail|contradict|eliminat|reject|exclud|ignor|mix|tempt|distract|confus|lack|violat|overlook"
    r"|neglect|mistake|overst)\w*))\b"
)
"""Letters that are denied, or named by others: in clauses as `_clauses` gives them."""
_CHOOSE: Final = re.compile(
    r"\b(?:ans|answers?(?! choice)|choos\w+|chose\w*|select\w*|pick\w*|conclu\w+|favou?r\w*|decid\w+|decision|votes?"
    r"|guess|my choice|go(?:ing)? (?:for|with)|opt\w* for|settl\w+ (?:on|for)|i'd say|i would say|lean\w* towards?)\b"
)
_PRAISE: Final = re.compile(
    r"\b(?:correct\w*|right(?! angle| triangle| side| hand)|best|(?:option|choice) (?:is|would))\b"
)
_FOLLOW: Final = re.compile(
    r"\b(?:so|thus|therefore|hence|consequently|accordingly|it's|that's|leav\w+|left|must|true$|match\w*|fits?|works"
    r"|holds|points? to|(?:it|that|this|which) is|it is|makes|mark|tick|circle|what|solution|response|agrees"
    r"|corresponds|consistent|accurate|arrive|end up|in (?:sum|short)|summary|overall|result|finally|ultimately"
    r"|remains|survives|only [A-Z]|the only|then$|has to be)\b"
)
"""Weaker words, as those of praise: they count where no clause has a stronger one, and all name one letter."""
_UNREAL: Final = re.compile(r"\b(?:if|were|unless|suppos\w+|assum\w+|had|might|partial\w*|partly|almost|different)\b")
_RETRACTED: Final = re.compile(r"\b(?:wait (?:no|that|actually|it)|sorry|oops|scratch that|on reflection|my mistake)\b")
"""Words behind which no earlier choice counts."""


def last_letter(text: str, choices: int) -> str | None:
    """Return the capital letter that an answer names, one of the first `choices` of the alphabet; None for none.

    One in the last box is taken first.
    """
    letters = frozenset(LETTERS[:choices])
    boxed = letter_in(last_box(text) or "")
    if boxed in letters:
        return boxed
    clauses = [(clause, set(re.findall(r"[A-Z]", clause))) for clause in _clauses(text[-_LOOKED_AT:], letters)]
    every = set().union(*(found for _, found in clauses))
    if len(every) < 2:
        return next(iter(every), None)
    retracted = [place for place, (clause, _) in enumerate(clauses) if _RETRACTED.search(clause)]
    for words in (_CHOOSE, _PRAISE, _FOLLOW):
        chosen = [
            next(iter(found))
            for clause, found in clauses[max(retracted, default=0) :]
            if len(found) == 1 and words.search(clause) and not _UNREAL.search(clause)
        ]
        if chosen:
            return chosen[-1] if words is _CHOOSE or len(set(chosen)) == 1 else None
    return None


def letter_in(box: str) -> str:
    r"""Return the content of a box without what may stand around a letter: braces, brackets, `\text`, a full stop."""
    for _ in range(4):
        group = _AROUND.fullmatch(box)
        box = (group[1] if group else box).strip(" \n().")
    return box


def _clauses(text: str, letters: frozenset[str]) -> list[str]:
    """Return the clauses of all sentences that do not ask, in small letters but for those that may be a choice."""
    text = _NO_CHOICE.sub(" ", _POINTED_AT.sub(" : ", text))
    plain = ""
    for token in _TOKEN.findall(text):
        word = token if token in letters else token.lower().replace("\u2019", "'")
        plain += token if token in _ENDS else f" {word}"
    sentences = re.findall(rf"([^{_ENDS}]+)([{_ENDS}]?)", plain)
    cleared = [_DENIED.sub(" ", sentence) for sentence, end in sentences if end not in ("?", "\uff1f")]
    return [clause for sentence in cleared for clause in re.split(rf" (?=(?:{_TURNS})\b)", sentence)]
