r"""Fixed completions of the rows in `published_rows`: right, wrong, malformed and on the border, to compare scorers on.

The same ones on every machine. A completion of a program also has the bare program: HumanEval's own scorer takes that.
"""

# ruff: noqa: E501 - a program is a line

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from benchmarks.scoring.math_pairs import pairs

LEAST: Final = 200
"""Completions of each benchmark."""


@dataclass(frozen=True)
class FixedCompletion:
    """A completion of one item."""

    item: int
    text: str
    code: str = ""
    """The bare program, where the benchmark is of programs."""


NUMBER_FORMS: Final = (
    "Let me see. 2 + 3 = 5.\n#### {n}",
    "#### {n}",
    "####{n}",
    "The answer is {n}.",
    "So it is ${n}.",
    "{n}",
    "It is {n}, not 7.",
    "#### {n} pens\nThat took 3 steps.",
    "#### {n}\n#### 99",
    "We get **{n}**!",
    "\\boxed{{{n}}}",
    "#### ${n}",
    "#### {n}.",
    "#### {n}.00",
    "From 12 to {n}...",
    "#### -{n}",
    "#### {n}%",
    "First 1, then {n}-2.",
    "<think>Perhaps 3.</think>#### {n}",
    "#### x = {n}",
    "Answer: {n} ,",
    "#### {n}\n\nI hope that helps, and so on ...",
)

LETTER_FORMS: Final = (
    "The answer is ({x}).",
    "The answer is {x}.",
    "The answer is ({x})",
    "The answer is {x}",
    "Answer: {x}",
    "({x})",
    "{x}",
    "I think ({x}), not (A).",
    "(A) is wrong. The answer is ({x}).",
    "The answer is **({x})**.",
    "the answer is ({x}).",
    "The answer is ( {x} ).",
    "The answer is ({y}).",
    "The answer is {choice}.",
    "It must be {choice}",
    "It must be {CHOICE}!",
    "The choice: {x}",
    "The answer is ({x}). The answer is ({x}) indeed.",
    "The answer is ({x}), since (I) would be a roman one.",
    "<think>The answer is (C).</think>The answer is ({x}).",
    "None of them.",
    "The answer is \\boxed{{{x}}}.",
    "The answer is ({x}) because of the rest\nand so on.",
    "Option {x}) it is: {x}",
)

EXPRESSION_FORMS: Final = (
    "So it is $\\boxed{{{a}}}$.",
    "The answer is ${a}$.",
    "\\boxed{{{a}}} and not \\boxed{{7}}",
    "First \\boxed{{7}}, or rather \\boxed{{{a}}}.",
    "{a}",
    "\\[{a}\\]",
    "Final answer: ${a}$. I hope it is correct.",
    "$x = {a}$",
    "\\boxed{{\\text{{{a}}}}}",
    "<think>7</think>$\\boxed{{{a}}}$",
    "\\boxed{{{a}",
    "\\boxed{{}}",
    "",
    "no idea",
    "$\\boxed{{ {a} }}$, that is all",
    "\\fbox{{{a}}}",
    "it equals {a}.",
    "The result is **{a}**",
)

TEXTS: Final = (
    "Waves and salt. The sea is wide and the waves rise again.",
    "waves. salt. sea.",
    "THE SEA IS WIDE. THE WAVES RISE.",
    "Write about the sea. Waves come in and salt stays behind.",
    '"The sea, the salt, the wave and a wave. That is all."',
    "Dear [name], the sea is [adjective].\n\nP.S. Bring salt.",
    "P. S. The sea",
    "* one wave\n* two waves\n* three waves",
    "- one\n- two\n- three\n- four",
    "*salt* and *sea* and **wave**",
    "<<The sea>>\nWaves rise.",
    '{"sea": "salt", "wave": [1, 2]}',
    '```json\n{"sea": 1}\n```',
    "SECTION 1\nThe sea\nSECTION 2\nThe salt",
    "SECTION1 the sea SECTION 2 the wave, wave",
    "First answer about the sea.\n******\nSecond answer about the sea.",
    "Same.\n******\nSame.",
    "The sea.\n***\nThe salt.",
    "The sea.\n***\n\n***\nThe salt.",
    "The sea begins.\n\nWaves end.",
    "The sea begins.\n\nWaves end.\n\nAnd more.",
    "My answer is yes.",
    "My answer is maybe. Or not.",
    "A ship may sail. A shipwreck cannot.",
    "One. Two. Three.",
    "One! Two? Three",
    "Dr. Sea met Mr. Salt at 5 p.m. on Monday. They sailed.",
    "It was 3.5 metres high. It fell... and then rose. Then it ended.",
    "The sea is wide. That is all.",
    "The sea is wide. That is all",
    "NASA and the USA saw the SEA of NATO",
    "I saw A SEA-GULL and AN OSPREY",
    "",
    "   ",
    "Sure, here it is:\nwaves rise and salt stays.\nHope that helps, friend!",
    "*Sure:*\nthe sea\n*bye, now*",
    "s s s s s",
    "S S S S",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
    "[a] [b] [c]",
    "[a\nb]",
    "**Highlight** and *another* and *third*",
    "Über das Meer: Wellen und Salz.",
    "the waves, the wave; a WAVE",
)

PROGRAM_FORMS: Final = (
    "```python\n{code}\n```",
    "Here it is:\n\n```python\n{code}\n```\n\nIt works.",
    "```\n{code}\n```",
    "First:\n```python\nraise ValueError\n```\nBetter:\n```python\n{code}\n```",
)


def fixed_completions(name: str, rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> list[FixedCompletion]:
    """Return at least LEAST completions of a benchmark's rows; `items` are what became of them, in order."""
    make = {
        "gsm8k": _numbers,
        "math500": _expressions,
        "aime24": _expressions,
        "gpqa_diamond": _letters,
        "ifeval": _texts,
        "humaneval": _functions,
        "mbpp": _functions,
        "livecodebench": _programs,
    }[name]
    found = list(dict.fromkeys(make(rows, items)))
    assert len(found) >= LEAST, (name, len(found))
    return found


def _numbers(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, row in enumerate(rows):
        gold = row["answer"].rpartition("#### ")[2]
        for j, form in enumerate(NUMBER_FORMS):
            yield FixedCompletion(i, form.format(n=gold))
            if j % 2:
                yield FixedCompletion(i, form.format(n=gold.replace(",", "")))
            yield FixedCompletion(i, form.format(n=f"{gold}1"))


def _letters(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, item in enumerate(items):
        for j, form in enumerate(LETTER_FORMS):
            for letter in ("ABCD"[j % 4], "ABCD"[(j + i) % 4]):
                choice = item.aids[letter]
                yield FixedCompletion(i, form.format(x=letter, y=letter.lower(), choice=choice, CHOICE=choice.upper()))


def _expressions(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    random = Random(1)
    others = [pair[1] for pair in pairs(60, seed=3)]
    for i, row in enumerate(rows):
        gold = str(row["answer"])
        for form in EXPRESSION_FORMS:
            yield FixedCompletion(i, form.format(a=gold))
            yield FixedCompletion(i, form.format(a=random.choice(others)))
        for other in (
            f"{gold}.0",
            f"{gold}+0",
            f"-{gold}",
            f"{gold}\\text{{ cm}}",
            f"{gold}, 7",
            f"\\frac{{{gold}}}{{1}}",
        ):
            yield FixedCompletion(i, f"$\\boxed{{{other}}}$")


def _texts(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i in range(len(rows)):
        for text in TEXTS:
            yield FixedCompletion(i, text)


WRAPPED: Final = (
    "{code}",
    "{code}\n\nprint('checked')",
    "import math\n{code}",
    "{code}\n    ",
    "# a comment\n{code}",
    "{code}\n\nif __name__ == '__main__':\n    pass",
)
"""Ways in which a right function stays right."""


def broken(code: str, entry: str) -> Iterator[str]:
    """Yield a function's code with faults."""
    yield f"def {entry}(*given):\n    return None"
    yield f"def {entry}(*given):\n    return given[0] if given else 0"
    yield f"def {entry}(*given):\n    return 4"
    yield f"def {entry}(*given):\n    return (4, 5)"
    yield f"def {entry}(*given):\n    return []"
    yield f"def {entry}(*given):\n    raise AssertionError"
    yield f"def {entry}(*given):\n    import sys\n    sys.exit(0)"
    yield f"def other_{entry}(*given):\n    return 4"
    yield f"{code}\n{entry} = 3"
    yield f"{code}\n\nassert {entry} is None"
    yield code + "\n)"
    yield code.replace("return", "return not")
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    found = first_(*given)\n    return tuple(found) if isinstance(found, list) else found"
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    found = first_(*given)\n    return list(found) if isinstance(found, tuple) else found"
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    found = first_(*given)\n    return float(found) if isinstance(found, int) else found"
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    found = first_(*given)\n    return found + 1e-9 if isinstance(found, float) else found"
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    found = first_(*given)\n    return str(found)"
    yield f"{code}\n\nfirst_ = {entry}\n\ndef {entry}(*given):\n    print('working')\n    return first_(*given)"
    yield f"from functools import cache\n{code}\n{entry} = lambda *given, first_={entry}: first_(*given)"
    yield ""
    yield "I cannot write that."


def _functions(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, row in enumerate(rows):
        if "entry_point" in row:
            solution, entry = row["prompt"] + row["canonical_solution"], row["entry_point"]
            yield FixedCompletion(i, f"```python\n{row['canonical_solution']}\n```", row["canonical_solution"])
        else:
            solution = row["code"]
            entry = solution.rpartition("\ndef ")[2].removeprefix("def ").partition("(")[0]
        for j, code in enumerate((*(one.replace("{code}", solution) for one in WRAPPED), *broken(solution, entry))):
            form = PROGRAM_FORMS[j % len(PROGRAM_FORMS)]
            yield FixedCompletion(i, form.replace("{code}", code), "\n" + code)


SOLUTIONS: Final = {
    "sum_line": "print(sum(map(int, input().split())))",
    "rows": "n = int(input())\nfor i in range(1, n + 1):\n    print(i)",
    "pairs": "a, b = input().split()\nprint(b, a)",
    "mean": "a, b = map(float, input().split())\nprint((a + b) / 2)",
    "word": "w = input().strip()\nprint('YES' if w == w[::-1] else 'NO')",
    "doubled": "class Solution:\n    def doubled(self, nums: List[int]) -> List[int]:\n        return [2 * n for n in nums]",
    "addTwo": "class Solution:\n    def addTwo(self, a: int, b: int) -> int:\n        return a + b",
    "squares": "class Solution:\n    def squares(self, nums: List[int]) -> List[List[int]]:\n        return [[n, n * n] for n in nums]",
}
"""Programs that solve LiveCodeBench's rows."""

STDIN_FAULTS: Final = (
    "{code}\nprint()",
    "{code}\nprint('x')",
    "import sys\n{code}\nsys.exit(0)",
    "def main():\n{indented}\n\nmain()",
    "def main():\n{indented}\n\nif __name__ == '__main__':\n    main()",
    "import sys\ninput = lambda: sys.stdin.readline()\n{code}",
    "import sys\nlines_ = iter(sys.stdin.read().split('\\n'))\ninput = lambda: next(lines_)\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(' ', *a, '  ')\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(*(f'{x}.0' if str(x).isdigit() else x for x in a))\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_('  '.join(map(str, a)))\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(*a, sep='\\n')\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(*(str(x).lower() for x in a))\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(*(f'+{x}' for x in a))\n{code}",
    "from builtins import print as write_\ndef print(*a, **k):\n    write_(*(f'{float(x):.6e}' if str(x).replace('.', '').isdigit() else x for x in a))\n{code}",
    "write_ = print\ndef print(*a, **k):\n    write_(*a)\n{code}",
    "count = 0\ndef more():\n    global count\n    count += 1\nmore()\n{code}",
    "{code}\nraise SystemExit(1)",
    "read = []\ntry:\n    while True:\n        read.append(input())\nexcept EOFError:\n    pass\ninput = lambda: read.pop(0)\n{code}",
    "lines = open(0).read().split('\\n')\ninput = lambda: lines.pop(0)\n{code}",
    "import sys\nlines = [x for x in sys.stdin]\ninput = lambda: lines.pop(0)\n{code}",
    "import sys\nlines = sys.stdin.readlines()\ninput = lambda: lines.pop(0)\n{code}",
    "import sys\nlines = sys.stdin.buffer.read().decode().split('\\n')\ninput = lambda: lines.pop(0)\n{code}",
    "raise ValueError",
    "print(6)",
    "print('YES')",
    "while_ = 1 +",
    "",
    "pass",
    "from math import *\n{code}",
    "print(gcd(12, 18))",
)

METHOD_FAULTS: Final = (
    "{code}\n\nprint('loaded')",
    "{code}\n\nclass Other:\n    pass",
    "import math\n{code}",
    "{code}\n        return 7",
    "class Solution:\n    def {entry}(self, *given):\n        return None",
    "class Solution:\n    def {entry}(self, *given):\n        return given[0]",
    "class Solution:\n    def other(self, *given):\n        return 3",
    "class Solution:\n    def {entry}(self, *given):\n        raise ValueError",
    "{code}\n\nplain_ = Solution.{entry}\nSolution.{entry} = lambda self, *given: tuple(plain_(self, *given))",
    "{code}\n\nplain_ = Solution.{entry}\nSolution.{entry} = lambda self, *given: [tuple(one) for one in plain_(self, *given)]",
    "{code}\n\nplain_ = Solution.{entry}\nSolution.{entry} = lambda self, *given: float(plain_(self, *given))",
    "{code}\n\nplain_ = Solution.{entry}\nSolution.{entry} = lambda self, *given: str(plain_(self, *given))",
    "def {entry}(*given):\n    return 3",
    "class Solution:\n    def {entry}(self, given)\n        return given",
    "{code}\n\nplain_ = Solution.{entry}\nSolution.{entry} = lambda self, *given: sorted(plain_(self, *given), reverse=True)",
    "",
    "pass",
)

FENCES: Final = (
    "```python\n{code}\n```",
    "So:\n```python\n{code}\n```\nDone.",
    "```\n{code}\n```",
    "```python\nprint(1)\n```\nNo:\n```python\n{code}\n```",
    "```python\n{code}\n```\n```python\nprint(1)\n```",
    "```python\n{code}",
    "{code}",
    "```python\n{code}\n```\nOne more fence:\n```",
)


def _programs(rows: Sequence[dict[str, Any]], items: Sequence[Any]) -> Iterator[FixedCompletion]:
    for i, row in enumerate(rows):
        name = row["question_id"]
        code, faults = SOLUTIONS[name], METHOD_FAULTS if row["starter_code"] else STDIN_FAULTS
        for form in FENCES:
            yield FixedCompletion(i, form.replace("{code}", code))
        indented = "\n".join(f"    {line}" for line in code.split("\n"))
        for fault in faults:
            text = fault.replace("{indented}", indented).replace("{code}", code).replace("{entry}", name)
            yield FixedCompletion(i, f"```python\n{text}\n```")
