"""What is found in a completion, and that hostile texts cost no more than their length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.answers import (
    MAX_ANSWER_CHARS,
    MAX_BOX_CHARS,
    after_thinking,
    balanced,
    exact_answer,
    last_box,
    last_code_block,
    last_number,
)
from muster.environments.letters import last_letter
from testbed.suite.cpu_time import cpu_at_most

HOSTILE = {
    "surrogates": "</think>\ud800\udfff\\boxed{\ud800}",
    "megabyte": "a" * 1_000_000,
    "digits": "</think>" + "9" * 1_000_000,
    "commas": "1" + "," * 1_000_000 + ".",
    "ends": "</think>" * 100_000,
    "opened": "\\boxed{" * 100_000,
    "nested": "\\boxed{" + "{" * 100_000 + "}" * 100_001,
    "backslashes": "\\boxed{" + "\\" * 1_000_000,
    "fences": "```\n" * 100_000,
    "backticks": "`" * 1_000_000,
    "letters": "A" * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "power": "</think>\\boxed{9**9**9**9}",
    "zero": "\x00" * 100_000,
    "spaces": "</think>" + " " * 1_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_read_in_linear_time(text: str) -> None:
    with cpu_at_most(5):
        for thinking in ("tags", "none"):
            exact_answer(text, thinking)
            after_thinking(text, thinking)
        last_box(text), last_number(text), last_code_block(text), last_letter(text, 26)


@given(st.text(max_size=300) | st.text(alphabet="</think> \n1", max_size=60))
def test_the_exact_answer_is_what_follows_the_only_end_of_the_thinking(text: str) -> None:
    for completion in (text, f"{text}</think>{text}", f"a</think>{text}"):
        _, *after = completion.split("</think>")
        ended_once = len(after) == 1 and len(after[0]) <= MAX_ANSWER_CHARS
        assert exact_answer(completion, "tags") == (after[0].strip(" \n") or None if ended_once else None)


def test_spaces_and_newlines_around_an_answer_are_forgiven_and_nothing_else_is() -> None:
    assert exact_answer("a</think> b c ", "tags") == "b c"
    assert exact_answer("\n b c\n", "none") == "b c"
    assert exact_answer("a</think>\tb", "tags") == "\tb"
    assert exact_answer("a</think> \n ", "tags") is None
    assert exact_answer("</think>" + "9" * MAX_ANSWER_CHARS, "tags") == "9" * MAX_ANSWER_CHARS
    assert exact_answer("</think> " + "9" * MAX_ANSWER_CHARS, "tags") is None


@given(st.text(max_size=300))
def test_everything_is_total(text: str) -> None:
    last_box(text), last_number(text), last_code_block(text), last_letter(text, 26), balanced(text)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{1}", "1"),
        ("\\boxed{1} or \\boxed{ 2 }", "2"),
        ("\\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
        ("\\boxed{a\\\\}", "a\\\\"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{1} then \\boxed{2", None),
        ("\\boxed{}", None),
        ("\\boxed{\\}", None),
        ("boxed{1}", None),
        ("\\boxed{" + "1" * MAX_BOX_CHARS + "}", "1" * MAX_BOX_CHARS),
        ("\\boxed{" + "1" * (MAX_BOX_CHARS + 1) + "}", None),
    ],
)
def test_the_last_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42.", "42"),
        ("#### 1,234", "1234"),
        ("$1,234.50 in all", "1234.50"),
        ("it is -7", "-7"),
        ("10-7", "7"),
        ("x = −3", "-3"),
        ("(-3)", "-3"),
        ("1.2.3", "2.3"),
        (".5", "0.5"),
        ("3, 4", "4"),
        ("a1,", "1"),
        ("١٢", None),
        ("none", None),
        ("", None),
        ("9" * 256, "9" * 256),
        ("9" * 257, None),
    ],
)
def test_the_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\na\n```\n```py\nb\n```\ntext", "b\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("```python\na\n```python\nb\n```", "b\n"),
        ("  ```Python\na\n  ```", "a\n"),
        ("```python\na", None),
        ("```cpp\nint main;\n```", None),
        ("`print(1)`", None),
        ("````\na\n````", None),
        ("", None),
    ],
)
def test_the_last_block_of_python(text: str, code: str | None) -> None:
    assert last_code_block(text) == code


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("The answer is (C).", "C"),
        ("A or B? It is **D**", "D"),
        ("I think A, as E is no choice", "A"),
        ("\\boxed{B} not C", "B"),
        ("\\boxed{(B)}", "B"),
        ("答案是B", "B"),
        ("A's", None),
        ("CAB", None),
        ("b", None),
        ("", None),
    ],
)
def test_the_last_letter(text: str, letter: str | None) -> None:
    assert last_letter(text, 4) == letter
