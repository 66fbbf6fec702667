r"""Rows in the schemas of the nine published benchmarks, made up here: for tests, and to compare scorers on."""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import base64
import json
import pickle
import zlib
from typing import Any, Final

Row = dict[str, Any]

GSM8K: Final[list[Row]] = [
    {"question": question, "answer": f"{working}\n#### {answer}"}
    for question, working, answer in (
        (
            "Tom has 3 boxes with 6 pens each and gives 4 pens away. How many pens does he keep?",
            "3*6=<<3*6=18>>18 pens, and 18-4=<<18-4=14>>14.",
            "14",
        ),
        ("A hall has 24 rows of 50 seats. How many seats are there?", "24*50=<<24*50=1200>>1200", "1,200"),
        ("A bank account of 35 dollars pays a bill of 42 dollars. What is left on it?", "35-42=-7", "-7"),
        ("Lena walks 2.5 km to school and back. How far does she walk?", "2*2.5=<<2*2.5=5>>5", "5"),
        (
            "A tank of 70000 litres is emptied by a tenth. How much is left?",
            "70000-7000=<<70000-7000=63000>>63000",
            "63,000",
        ),
        ("Half of a rope of 9 metres is cut off. How long is the rest?", "9/2=4.5", "4.5"),
        ("Nobody of 8 guests eats cake. How many pieces are eaten?", "8*0=0", "0"),
        ("A book of 360 pages is read in 12 days. How many pages a day?", "360/12=30", "30"),
    )
]

MATH500: Final[list[Row]] = [
    {
        "problem": problem,
        "solution": f"It is $\\boxed{{{answer}}}$.",
        "answer": answer,
        "subject": subject,
        "level": level,
        "unique_id": f"test/{subject.lower()}/{i}.json",
    }
    for i, (problem, answer, subject, level) in enumerate(
        (
            ("What is half of three?", "\\frac{3}{2}", "Prealgebra", 1),
            ("Give the roots of $x^2=7$ that are positive.", "\\sqrt{7}", "Algebra", 2),
            ("Where does $y=3x$ meet $x=2$?", "(2,6)", "Algebra", 3),
            ("Which $x$ are at least 1 and below 4?", "[1,4)", "Algebra", 2),
            ("What is the area of a circle of radius 3?", "9\\pi", "Geometry", 2),
            ("Expand $(x+2)^2$.", "x^2+4x+4", "Algebra", 1),
            ("How many are $10^3+24$?", "1024", "Number Theory", 1),
            ("What is $\\cos 60^\\circ$?", "\\frac{1}{2}", "Precalculus", 2),
            ("Name the even primes.", "2", "Number Theory", 1),
            ("What is $|3-8i|$ squared?", "73", "Intermediate Algebra", 3),
            ("How likely is a six?", "\\frac{1}{6}", "Counting & Probability", 1),
            ("Write $3+4i$ doubled.", "6+8i", "Precalculus", 4),
        )
    )
]

AIME: Final[list[Row]] = [
    {"id": i, "problem": problem, "solution": "", "answer": answer}
    for i, (problem, answer) in enumerate(
        (
            ("Find the remainder when $7^{2024}$ is divided by $1000$.", "401"),
            ("Count the lattice points within a distance of $5$ from the origin.", "081"),
            ("Find the sum of the divisors of $120$ that are odd.", "24"),
            ("How many subsets of nine elements have none in common with a given one of nine?", "001"),
            ("Let $m$ and $n$ be coprime with $m/n = 0.\\overline{36}$. Find $m+n$.", "15"),
            ("Find the number of ordered triples with product $1000$.", "100"),
        )
    )
]

GPQA: Final[list[Row]] = [
    {
        "Question": question,
        "Correct Answer": right,
        "Incorrect Answer 1": one,
        "Incorrect Answer 2": two,
        "Incorrect Answer 3": three,
        "Record ID": f"rec{i:03}",
    }
    for i, (question, right, one, two, three) in enumerate(
        (
            ("Which particle carries the strong force?", "The gluon", "The photon", "The W boson", "The graviton"),
            (
                "How does the period of a pendulum change on the Moon?",
                "It grows by 2.46",
                "It shrinks by 2.46",
                "It stays",
                "It grows by 6.05",
            ),
            ("What is the order of the symmetric group of five letters?", "120", "60", "24", "720"),
            ("Which base pairs with adenine in RNA?", "Uracil", "Thymine", "Guanine", "Cytosine"),
            ("What is the hybridisation of carbon in ethyne?", "sp", "sp2", "sp3", "dsp2"),
            ("Which quantity is conserved in every collision?", "Momentum.", "Kinetic energy.", "Heat.", "Speed."),
            ("Which star is nearest to the Sun?", "Proxima Centauri", "Sirius", "Barnard's Star", "Vega"),
            ("What is the pH of a solution with ten nanomoles of protons a litre?", "8", "6", "10", "7"),
        )
    )
]

_ASKED: Final[dict[str, Row]] = {
    "change_case:capital_word_frequency": {"capital_frequency": 3, "capital_relation": "at least"},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "combination:repeat_prompt": {"prompt_to_repeat": "Write about the sea."},
    "combination:two_responses": {},
    "detectable_content:number_placeholders": {"num_placeholders": 2},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:constrained_response": {},
    "detectable_format:json_format": {},
    "detectable_format:multiple_sections": {"num_sections": 2, "section_spliter": "SECTION"},
    "detectable_format:number_bullet_lists": {"num_bullets": 3},
    "detectable_format:number_highlighted_sections": {"num_highlights": 2},
    "detectable_format:title": {},
    "keywords:existence": {"keywords": ["sea", "salt"]},
    "keywords:forbidden_words": {"forbidden_words": ["ship", "sail"]},
    "keywords:frequency": {"frequency": 2, "keyword": "wave", "relation": "at least"},
    "keywords:letter_frequency": {"let_frequency": 5, "let_relation": "at least", "letter": "s"},
    "length_constraints:nth_paragraph_first_word": {"first_word": "waves", "nth_paragraph": 2, "num_paragraphs": 2},
    "length_constraints:number_paragraphs": {"num_paragraphs": 2},
    "length_constraints:number_sentences": {"num_sentences": 3, "relation": "at least"},
    "length_constraints:number_words": {"num_words": 20, "relation": "less than"},
    "punctuation:no_comma": {},
    "startend:end_checker": {"end_phrase": "That is all."},
    "startend:quotation": {},
    "language:response_language": {"language": "de"},
}

_NAMES: Final = sorted({name for kwargs in _ASKED.values() for name in kwargs})


def _filled(kwargs: Row) -> Row:
    """Return arguments as published files have them: every name, None where it is not meant."""
    return {name: kwargs.get(name) for name in _NAMES}


IFEVAL: Final[list[Row]] = [
    {
        "key": 1000 + i,
        "prompt": "Write about the sea.",
        "instruction_id_list": list(names),
        "kwargs": [_filled(_ASKED[name]) for name in names],
    }
    for i, names in enumerate(
        (
            *((name,) for name in _ASKED),
            ("punctuation:no_comma", "length_constraints:number_words"),
            ("keywords:existence", "keywords:frequency", "startend:end_checker"),
        )
    )
]

HUMANEVAL: Final[list[Row]] = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'from typing import List\n\n\ndef above(numbers: List[float], low: float) -> List[float]:\n    """Return the numbers above low."""\n',
        "canonical_solution": "    return [one for one in numbers if one > low]\n",
        "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1.0, 2.0, 3.0], 1.5) == [2.0, 3.0]\n    assert candidate([], 0) == []\n",
        "entry_point": "above",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def half(number: float) -> float:\n    """Return half of a number."""\n',
        "canonical_solution": "    return number / 2\n",
        "test": "def check(candidate):\n    assert abs(candidate(3.0) - 1.5) < 1e-6\n    assert abs(candidate(-7.0) + 3.5) < 1e-6\n",
        "entry_point": "half",
    },
]

MBPP: Final[list[Row]] = [
    {
        "task_id": 11 + i,
        "text": text,
        "code": code,
        "test_list": tests,
        "test_setup_code": setup,
        "challenge_test_list": [],
    }
    for i, (text, code, tests, setup) in enumerate(
        (
            (
                "Write a function to double a number.",
                "def double(n):\n    return 2 * n",
                ["assert double(2) == 4", "assert double(-3) == -6", "assert double(0) == 0"],
                "",
            ),
            (
                "Write a function to find the elements that two tuples share.",
                "def shared(a, b):\n    return tuple(set(a) & set(b))",
                [
                    "assert set(shared((3, 4, 5), (5, 7, 4))) == set((4, 5))",
                    "assert set(shared((1,), (2,))) == set(())",
                ],
                "",
            ),
            (
                "Write a function to sort the words of a sentence.",
                "def ordered(text):\n    return ' '.join(sorted(text.split()))",
                ["assert ordered('b a c') == 'a b c'", "assert ordered('') == ''"],
                "",
            ),
            (
                "Write a function to count vowels.",
                "def vowels(text):\n    return sum(c in 'aeiou' for c in text.lower())",
                ["assert vowels('Audio') == 4", "assert vowels('xyz') == 0"],
                "",
            ),
            (
                "Write a function to return the largest and the smallest of a list.",
                "def ends(numbers):\n    return max(numbers), min(numbers)",
                ["assert ends([3, 1, 2]) == (3, 1)", "assert ends([5]) == (5, 5)"],
                "",
            ),
            (
                "Write a function to make a square matrix of zeros.",
                "def zeros(n):\n    return [[0] * n for _ in range(n)]",
                ["assert zeros(2) == [[0, 0], [0, 0]]", "assert zeros(0) == []"],
                "",
            ),
            (
                "Write a function to add up the values of a linked list.",
                "class Node:\n    def __init__(self, value, after=None):\n        self.value, self.after = value, after\ndef total(node):\n    return 0 if node is None else node.value + total(node.after)",
                ["assert total(head) == 6", "assert total(None) == 0"],
                "head = Node(1, Node(2, Node(3)))",
            ),
            (
                "Write a function to find the mean of a list.",
                "def mean(numbers):\n    return sum(numbers) / len(numbers)",
                ["assert mean([1, 2]) == 1.5", "assert mean([4]) == 4"],
                "",
            ),
        )
    )
]


def packed(tests: list[Row]) -> str:
    """Return tests as LiveCodeBench packs private ones."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def _program(name: str, content: str, platform: str, day: str, cases: list[tuple[str, str]]) -> Row:
    tests = [{"input": given, "output": wanted, "testtype": "stdin"} for given, wanted in cases]
    return {
        "question_title": name,
        "question_content": content,
        "platform": platform,
        "question_id": name,
        "contest_id": "1",
        "contest_date": f"{day}T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(tests[1:]),
        "metadata": "{}",
    }


def _method(name: str, content: str, day: str, starter: str, cases: list[tuple[str, str]]) -> Row:
    tests = [{"input": given, "output": wanted, "testtype": "functional"} for given, wanted in cases]
    return {
        "question_title": name,
        "question_content": content,
        "platform": "leetcode",
        "question_id": name,
        "contest_id": "2",
        "contest_date": f"{day}T00:00:00",
        "starter_code": starter,
        "difficulty": "easy",
        "public_test_cases": json.dumps(tests[:1]),
        "private_test_cases": packed(tests[1:]),
        "metadata": json.dumps({"func_name": name}),
    }


LIVECODEBENCH: Final[list[Row]] = [
    _program(
        "sum_line",
        "Read a line of numbers and print their sum.",
        "atcoder",
        "2024-05-11",
        [("1 2 3\n", "6\n"), ("-1 1\n", "0\n"), ("10\n", "10\n")],
    ),
    _program(
        "rows",
        "Read n and print the numbers from 1 to n, each on a line.",
        "codeforces",
        "2024-08-03",
        [("3\n", "1\n2\n3\n"), ("1\n", "1\n")],
    ),
    _program(
        "pairs",
        "Read two numbers and print them in the other order.",
        "atcoder",
        "2024-09-14",
        [("1 2\n", "2 1\n"), ("7 5\n", "5 7\n")],
    ),
    _program(
        "mean",
        "Read two numbers and print their mean.",
        "atcoder",
        "2025-01-25",
        [("1 2\n", "1.5\n"), ("2 2\n", "2.0\n")],
    ),
    _program(
        "word",
        "Read a word and print YES if it is one backwards too, else NO.",
        "codeforces",
        "2025-02-09",
        [("anna\n", "YES\n"), ("ann\n", "NO\n")],
    ),
    _method(
        "doubled",
        "Return the list with every number doubled.",
        "2024-06-01",
        "class Solution:\n    def doubled(self, nums: List[int]) -> List[int]:\n        ",
        [("[1, 2]", "[2, 4]"), ("[]", "[]"), ("[-3]", "[-6]")],
    ),
    _method(
        "addTwo",
        "Return the sum of two numbers.",
        "2024-10-05",
        "class Solution:\n    def addTwo(self, a: int, b: int) -> int:\n        ",
        [("1\n2", "3"), ("-5\n5", "0")],
    ),
    _method(
        "squares",
        "Return the pairs of each number and its square.",
        "2025-03-01",
        "class Solution:\n    def squares(self, nums: List[int]) -> List[List[int]]:\n        ",
        [("[2, 3]", "[[2, 4], [3, 9]]"), ("[]", "[]")],
    ),
]

ROWS: Final[dict[str, list[Row]]] = {
    "gsm8k": GSM8K,
    "math500": MATH500,
    "aime24": AIME,
    "aime25": AIME,
    "gpqa_diamond": GPQA,
    "ifeval": IFEVAL,
    "livecodebench": LIVECODEBENCH,
    "humaneval": HUMANEVAL,
    "mbpp": MBPP,
}
"""Rows of each benchmark, by its name."""
