r"""Benchmarks whose answers are numbers, expressions, letters and texts: GSM8K, MATH-500, AIME, GPQA, IFEval.

GSM8K's and GPQA's rules are those of lm-eval 0.4.13 (strict-match, which for GSM8K is its authors' own, and
flexible-extract); MATH-500's and AIME's are math-verify's defaults on the whole answer; IFEval's its authors'.
"""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from collections.abc import Callable
from typing import Final

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem, HubFiles, Rule, whole
from muster.authoring.tasks.formats import text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_code import RunReference
from muster.errors import MalformedError

GREEDY: Final = 0.01
"""Of benchmarks that are published greedily: the sampler draws, here nearly always the likeliest token."""
MATH_FUEL: Final = 50_000_000_000
"""Of one call: math-verify looks through whole answers here."""
MAX_ANSWER: Final = 4_000

# --- GSM8K

_STRICT: Final = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE: Final = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def normal_number(text: str) -> str:
    """Return a number as it is compared: what follows ####, without commas, dollar signs and a last full stop."""
    text = text.strip().replace(",", "").replace("$", "")
    return text.rpartition("#### ")[2].removesuffix(".").lower()


def strict_number(text: str, item: BenchmarkItem) -> str | None:
    """Return the first number after ####."""
    found = _STRICT.search(text)
    return normal_number(found[1]) if found else None


def flexible_number(text: str, item: BenchmarkItem) -> str | None:
    """Return the last thing that looks like a number, if only points and commas."""
    found = _FLEXIBLE.findall(text)
    return normal_number(found[-1][0] or found[-1][1]) if found else None


def _gsm8k(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    answer = text_of(row, "answer")
    if "#### " not in answer:
        raise MalformedError("no answer after ####")
    gold = normal_number(answer)
    if not gold or len(gold) > 200:
        raise MalformedError("no answer after ####")
    return BenchmarkItem(f"gsm8k/{number}", text_of(row, "question"), {"answer": gold})


def _exact(name: str, environment: str, extract: Callable[[str, BenchmarkItem], str | None]) -> Rule:
    """Return a rule by which the text that is found is the reference."""
    return Rule(name, environment, {"answer": "exact"}, extract)


# --- Expressions

MATH: Final = Rule(
    "math_verify",
    "math",
    {"answer": "text", "gold": "latex", "scoring": "published"},
    whole,
    fuel=MATH_FUEL,
)
MATH_PROMPT: Final = "{question}\n\nReason step by step, and put the final answer in \\boxed{}."


def _math500(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    name = row.get("unique_id")
    answer = text_of(row, "answer", MAX_ANSWER).strip()
    return BenchmarkItem(
        name if isinstance(name, str) and name else f"math500/{number}", text_of(row, "problem"), {"answer": answer}
    )


def _aime(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    answer = row["answer"]
    answer = str(answer).strip() if isinstance(answer, int | str) and not isinstance(answer, bool) else ""
    if not (answer.isascii() and answer.isdigit() and int(answer) <= 999):
        raise MalformedError("its answer is no whole number from 0 to 999")
    name = row.get("id", row.get("ID"))
    known = isinstance(name, int | str) and not isinstance(name, bool) and str(name).strip()
    return BenchmarkItem(
        f"aime/{name}" if known else f"aime/{number}", text_of(row, "problem"), {"answer": str(int(answer))}
    )


def _aime_of(year: str, hub: HubFiles) -> Benchmark:
    return Benchmark(
        f"aime{year}", ("problem", "answer"), _aime, (MATH,), MATH_PROMPT, 32, 0.6, 32_768, hub, ("id", "ID"), size=30
    )


# --- GPQA

LETTERS: Final = "ABCD"
WRONG: Final = tuple(f"Incorrect Answer {i}" for i in (1, 2, 3))

_ANSWER_IS: Final = re.compile("(?<=The answer is )(.*)(?=.)")
_IN_BRACKETS: Final = re.compile(r"(\([A-Z]\))")
_AFTER_COLON: Final = re.compile(r":[\s]*([ABCD])")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def strict_letter(text: str, item: BenchmarkItem) -> str | None:
    """Return what follows the first "The answer is ", but for the character after it."""
    found = _ANSWER_IS.search(text)
    return _letter(found[1]) if found else None


def flexible_letter(text: str, item: BenchmarkItem) -> str | None:
    """Return the last letter in brackets, else the last choice that is written out, else the last letter after a colon.

    A choice is looked for without its punctuation, in any case.
    """
    found: list[str] = _IN_BRACKETS.findall(text)
    if not found:
        choices = {_words_alone(item.aids[letter]): letter for letter in LETTERS}
        known = re.compile("|".join(sorted(map(re.escape, choices), key=len, reverse=True)))
        found = [choices.get(one.strip(), str(one)) for one in known.findall(_words_alone(text))]
    if not found or not found[-1]:
        found = _AFTER_COLON.findall(text)
    return _letter(found[-1]) if found else None


def _letter(text: str) -> str | None:
    """Return an answer as it is compared: without punctuation, and in one case. Spaces within brackets make it none."""
    bare = text.strip().translate(_PUNCTUATION).upper()
    return bare if bare and bare == bare.strip() else None


def _words_alone(text: str) -> str:
    return "".join(one for one in text.strip().lower() if not unicodedata.category(one).startswith("P"))


def _gpqa(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    # 1. The choices. Their order depends on the record's name alone.
    name = text_of(row, "Record ID", 200).strip()
    choices = [text_of(row, column).strip() for column in ("Correct Answer", *WRONG)]
    if len(set(choices)) < len(choices):
        raise MalformedError("two of its choices are one")
    order = sorted(range(4), key=lambda i: hashlib.sha256(f"muster.gpqa.v1\0{name}\0{i}".encode()).digest())

    # 2. The question with them.
    shown = {letter: choices[i] for letter, i in zip(LETTERS, order, strict=True)}
    return BenchmarkItem(
        f"gpqa/{name}",
        text_of(row, "Question").strip(),
        {"answer": LETTERS[order.index(0)], "choices": 4},
        {"choices": "\n".join(f"({letter}) {choice}" for letter, choice in shown.items())},
        shown,
    )


# --- IFEval


def _ifeval(row: Row, number: int, _: RunReference) -> BenchmarkItem:
    names, given = row["instruction_id_list"], row["kwargs"]
    if not isinstance(names, list) or not isinstance(given, list) or len(names) != len(given) or not names:
        raise MalformedError("instruction_id_list and kwargs do not pair")
    if not all(isinstance(one, dict) for one in given):
        raise MalformedError("kwargs are no objects")
    # Published files fill in None for what an instruction does not take.
    instructions = [
        {"id": str(name), "kwargs": {key: value for key, value in one.items() if value is not None}}
        for name, one in zip(names, given, strict=True)
    ]
    key = row["key"]
    return BenchmarkItem(
        f"ifeval/{key if isinstance(key, int | str) else number}",
        text_of(row, "prompt"),
        {"instructions": instructions},
        units=len(instructions),
    )


def _instruction_rule(mode: str) -> Rule:
    return Rule(mode, "instruction", {"mode": mode, "scoring": "published", "partial": True}, whole, counts_units=True)


BENCHMARKS: Final = (
    Benchmark(
        "gsm8k",
        ("question", "answer"),
        _gsm8k,
        (_exact("strict", "arithmetic", strict_number), _exact("flexible", "arithmetic", flexible_number)),
        "{question}\n\nReason step by step. End with a line that has #### and then the final number alone.",
        1,
        GREEDY,
        1024,
        HubFiles("openai/gsm8k", ("main/test-00000-of-00001.parquet",)),
        size=1319,
    ),
    Benchmark(
        "math500",
        ("problem", "answer"),
        _math500,
        (MATH,),
        MATH_PROMPT,
        4,
        0.6,
        32_768,
        HubFiles("HuggingFaceH4/MATH-500", ("test.jsonl",)),
        ("unique_id",),
        size=500,
    ),
    _aime_of("24", HubFiles("HuggingFaceH4/aime_2024", ("data/train-00000-of-00001.parquet",))),
    _aime_of("25", HubFiles("math-ai/aime25", ("test.jsonl",))),
    Benchmark(
        "gpqa_diamond",
        ("Question", "Correct Answer", *WRONG, "Record ID"),
        _gpqa,
        (_exact("flexible", "choice", flexible_letter), _exact("strict", "choice", strict_letter)),
        "{question}\n\n{choices}\n\nReason step by step. End with this sentence, X being a letter: The answer is (X).",
        8,
        0.6,
        32_768,
        HubFiles("Idavidrein/gpqa", ("gpqa_diamond.csv",)),
        size=198,
    ),
    Benchmark(
        "ifeval",
        ("key", "prompt", "instruction_id_list", "kwargs"),
        _ifeval,
        (_instruction_rule("strict"), _instruction_rule("loose")),
        "{question}",
        1,
        GREEDY,
        1280,
        HubFiles("google/IFEval", ("ifeval_input_data.jsonl",)),
        size=541,
    ),
)
