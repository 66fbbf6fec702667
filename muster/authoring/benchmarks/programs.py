"""Benchmarks whose answers are functions in Python: HumanEval and MBPP, read as `tasks.sources_code` reads them."""

from __future__ import annotations

from typing import Final

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem, HubFiles, Rule
from muster.authoring.tasks.formats import text_of
from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_code import MBPP_OPTIONAL, RunReference, humaneval_of, mbpp_of
from muster.environments.answers import last_code_block
from muster.errors import MalformedError

FENCE: Final = "```"


def fenced(code: str) -> str:
    """Return a program as the environment finds it."""
    return f"{FENCE}python\n{code}\n{FENCE}\n"


def program(text: str, item: BenchmarkItem) -> str:
    """Return the last block of Python, one that never ends where no other is, or all of the text."""
    return fenced(last_code_block(text) or last_code_block(f"{text}\n{FENCE}") or text)


# --- HumanEval


def _humaneval(row: Row, _: int, run_reference: RunReference) -> BenchmarkItem:
    prompt, reference = humaneval_of(row, run_reference)
    return BenchmarkItem(text_of(row, "task_id", 200), prompt, reference)


def completed(text: str, item: BenchmarkItem) -> str:
    """Return the program; one that begins with spaces goes on where the prompt ends."""
    code = last_code_block(text) or last_code_block(f"{text}\n{FENCE}") or text
    return fenced(item.question + code if code.strip("\n")[:1].isspace() else code)


# --- MBPP

TEST_HALF: Final = range(11, 511)
"""The task numbers that are published as the test half; others are examples and training."""
OUTSIDE_TEST: Final = "not of the test half, tasks 11 to 510"


def _mbpp(row: Row, _: int, run_reference: RunReference) -> BenchmarkItem:
    number = row["task_id"]
    if type(number) is not int or number not in TEST_HALF:
        raise MalformedError(OUTSIDE_TEST)
    question, tests, reference = mbpp_of(row, run_reference)
    return BenchmarkItem(f"mbpp/{number}", question, reference, {"tests": "\n".join(tests)})


BENCHMARKS: Final = (
    Benchmark(
        "humaneval",
        ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
        _humaneval,
        (Rule("passed", "code", {"tuples": "distinct"}, completed),),
        "Complete this Python function. Answer with the whole function in one block of Python.\n\n"
        "```python\n{question}\n```",
        20,
        0.2,
        1024,
        HubFiles("openai/openai_humaneval", ("openai_humaneval/test-00000-of-00001.parquet",)),
        ks=(1, 10, 100),
        size=164,
    ),
    Benchmark(
        "mbpp",
        ("task_id", "code", "test_list"),
        _mbpp,
        (Rule("passed", "code", {"tuples": "distinct"}, program),),
        "{question}\n\nAnswer with one block of Python. It must pass these tests:\n\n```python\n{tests}\n```",
        20,
        0.2,
        1024,
        HubFiles("google-research-datasets/mbpp", ("full/test-00000-of-00001.parquet",)),
        MBPP_OPTIONAL,
        (1, 10, 100),
        outside=OUTSIDE_TEST,
        size=len(TEST_HALF),
    ),
)
