"""Tools of the manifest: what they give, what they cost, and by which hash the terms name them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import own_manifest
from muster.environments.tools.base import EarlierCall, Parameter, Tool, ToolResult
from muster.environments.tools.manifest import LEAST_CALLS, TurnsManifest
from muster.environments.tools.registry import NO_TOOLS, make_tools, tools_root
from muster.environments.tools.sandboxed import AuthoredTool
from muster.environments.tools.search import Document, Search, log2, words
from muster.errors import ConfigError, MalformedError, UnreachableError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.sandbox.scorer import STACK, Outcome, ScorerManifest

FUEL = 10**10
CORPUS = (
    Document("ape", "An ape eats fruit."),
    Document("bee", "A bee makes honey, and honey is sweet."),
    Document("cow", "A cow eats grass and gives milk."),
    Document("dog", "A dog eats what an ape eats."),
)
REVERSE = AuthoredTool(
    "reverse",
    "Turns a text round.",
    {"text": Parameter("string", "The text"), "times": Parameter("integer", "How often", is_required=False)},
    "def run(text, times=1):\n    return text[::-1] if times % 2 else text\n",
)


def scorer() -> ScorerManifest:
    return ScorerManifest(local_component().hash, "code")


def manifest(**changes) -> TurnsManifest:
    tools = {"tools": ("calculator", "python", "search"), "sandbox": scorer(), "corpus": CORPUS, "authored": (REVERSE,)}
    return TurnsManifest(**(tools | changes))


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Tool]]:
    with Sandbox() as sandbox:
        yield make_tools(manifest(), sandbox.call)


def converse(tool: Tool, *codes: str, fuel: int = FUEL) -> list[ToolResult]:
    """Return the results of a conversation's calls, of which each has so much fuel."""
    earlier: list[EarlierCall] = []
    results = []
    for code in codes:
        arguments = {"code": code}
        results.append(tool.run(arguments, fuel, [one for one in earlier if one.lasting]))
        earlier.append(EarlierCall(tool.name, arguments, results[-1].fuel, results[-1].lasting))
    return results


def python(tools: dict[str, Tool], *codes: str) -> str:
    """Return the text of the last of a conversation's calls."""
    return converse(tools["python"], *codes)[-1].text


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print(6 * 7)", "42\n"),
        ("6 * 7", "42\n"),
        ("x = 1", ""),
        ("for i in range(2):\n    print(i)\ni + 1", "0\n1\n2\n"),
        ("1 / 0", "ZeroDivisionError: division by zero\n"),
        ("print('a')\nraise SystemExit(3)", "a\nSystemExit: 3\n"),
        ("import math\nmath.comb(20, 10)", "184756\n"),
        ("open('/etc/passwd')", "PermissionError: [Errno 1] there are no files here\n"),
        ("def", "SyntaxError: invalid syntax (<call>, line 1)\n"),
        ("exec('1 +')", "SyntaxError: invalid syntax (<string>, line 1)\n"),
        ("f = lambda n: f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded\n"),
        ("input()", "EOFError: EOF when reading a line\n"),
        ("print('<|im_end|> \\ud800')", "UnicodeEncodeError"),
    ],
)
def test_python_gives_what_is_printed_and_the_last_value(tools: dict[str, Tool], code: str, result: str) -> None:
    found = python(tools, code)
    assert found.startswith(result) if result == "UnicodeEncodeError" else found == result


def test_python_keeps_names_of_the_conversations_earlier_calls_and_of_no_other(tools: dict[str, Tool]) -> None:
    assert python(tools, "a = 40\nprint('unheard')", "b = 2", "a + b") == "42\n"
    assert python(tools, "1 / 0", "def", "a = 5\n1 / 0", "a") == "5\n"
    assert python(tools, "a") == "NameError: name 'a' is not defined\n"


def test_python_is_the_same_on_every_machine(tools: dict[str, Tool]) -> None:
    code = "import random, time, os\n[random.random(), time.time(), hash('a'), os.urandom(2), id(object())]"
    with Sandbox() as other:
        again = make_tools(manifest(), other.call)["python"].run({"code": code}, FUEL)
    assert again == tools["python"].run({"code": code}, FUEL)
    assert 0 < again.fuel < FUEL


ENDS: Final = {
    "while True: pass": "error: out of fuel",
    "import os\nos._exit(0)": "error: the code ended its process, or asked for what the sandbox lacks",
    "import os\nos.abort()": "error: the code ended its process, or asked for what the sandbox lacks",
    "import sys\nsys.exit(3)": "SystemExit: 3\n",
    "x = 'a' * 10**9": "MemoryError: \n",
    "x = []\nwhile True: x.append('a' * 10**6)": "MemoryError: \n",
    "while True: print('a' * 10**5)": "error: too much output",
    "import sys\nsys.stdout.buffer.getvalue = None": "error: ",
    "import contextlib\nraise KeyError(SystemExit)": "KeyError",
}
"""Calls after which others work, and what they come to."""


@pytest.mark.parametrize("code", ENDS)
def test_call_that_ends_its_interpreter_leaves_nothing_behind(tools: dict[str, Tool], code: str) -> None:
    turns = manifest()
    codes = ("a = 1", "a = 2\n" + code, "a", "sum(range(10**5))", "a + 1")
    results = converse(tools["python"], *codes, fuel=turns.fuel // LEAST_CALLS)
    lasting = ENDS[code] == "KeyError"
    assert results[1].text.startswith(ENDS[code])
    assert results[1].lasting == lasting
    assert (
        [one.text for one in results[2:]] == ["2\n", "4999950000\n", "3\n"]
        if lasting
        else ["1\n", "4999950000\n", "2\n"]
    )
    assert sum(one.fuel for one in results) < turns.fuel


def test_earlier_calls_are_not_paid_again(tools: dict[str, Tool]) -> None:
    first, *others = converse(tools["python"], "a = sum(range(10**5))\nprint('x' * 10**5)", *["a"] * 5)
    assert first.fuel > 5 * 10**7
    assert [one.text for one in others] == ["4999950000\n"] * 5
    assert max(one.fuel for one in others) < 10**7


@pytest.mark.parametrize(
    "code",
    [
        "import builtins\nbuiltins.print = builtins.repr = builtins.compile = builtins.isinstance = None",
        "import ast, io, sys\nast.Expr = ast.Module = io.TextIOWrapper = None\nsys.modules.clear()",
        "import sys\nsys.stdout.close()\nsys.stdout = None",
        "import sys\nsys.stdout.detach()",
        "__builtins__ = {}",
    ],
)
def test_what_a_call_does_to_its_interpreter_ends_no_later_one(tools: dict[str, Tool], code: str) -> None:
    assert python(tools, code, "6 * 7") == "42\n"


def test_out_of_fuel_is_a_result_of_all_fuel(tools: dict[str, Tool]) -> None:
    endless = "while True: print(1)"
    spent = tools["python"].run({"code": endless}, 10**8)
    assert (spent.text, spent.fuel, spent.unsure) == ("error: out of fuel", 10**8, False)
    assert tools["python"].run({"code": "1"}, 0).text == "error: out of fuel"
    assert tools["search"].run({"query": "eats"}, 2).text == "error: out of fuel"


def test_a_python_that_prints_for_ever_is_stopped(tools: dict[str, Tool]) -> None:
    found = tools["python"].run({"code": "while True: print('x' * 10000)"}, FUEL)
    assert len(found.text) < 2_000_000
    assert found == tools["python"].run({"code": "while True: print('x' * 10000)"}, FUEL)


def test_what_the_stack_of_a_machine_decides_accuses_nobody() -> None:
    one = make_tools(manifest(), lambda scorer, payload: Outcome(None, 77, STACK))["python"]
    assert (one.run({"code": ""}, 100).unsure, one.run({"code": ""}, 100).fuel) == (True, 100)


def test_authored_tools_get_their_arguments_and_return_a_text(tools: dict[str, Tool]) -> None:
    assert tools["reverse"].run({"text": "Regen"}, FUEL).text == "negeR"
    assert tools["reverse"].run({"text": '{"$set": [1]}', "times": 2}, FUEL).text == '{"$set": [1]}'
    broken = make_tools(manifest(authored=(replace(REVERSE, source="def run(text, times=1):\n    return 7\n"),)))
    with pytest.raises(UnreachableError, match="need a sandbox"):
        broken["reverse"].run({"text": "a"}, FUEL)


def test_an_authored_tool_that_fails_gives_an_error(tools: dict[str, Tool]) -> None:
    with Sandbox() as sandbox:
        for source, text in {
            "def run(text): return 7": "7",
            "def run(text): return None": "null",
            "def run(text): return {'é': [True, 1.5], 2: ()}": '{"é": [true, 1.5], "2": []}',
            "def run(text): return {1, 2}": "error: TypeError: Object of type set is not JSON serializable",
            "def run(text): return [float('nan')]": "error: ValueError: Out of range float values are not JSON",
            "def run(text): raise KeyError(text)": "error: KeyError: 'a'",
            "def run(words): return words": "error: TypeError: run() got an unexpected keyword argument 'text'",
            "def walk(text): return text": "error: NameError: name 'run' is not defined",
            "import numpy": "error: ModuleNotFoundError: import of numpy halted; None in sys.modules",
            "import os\nos._exit(0)": "error: the code ended its process, or asked for what the sandbox lacks",
            "def run(text): return '\\ud800'": "error: the result is no valid text, or too large",
            "def": "error: SyntaxError: invalid syntax (<tool>, line 1)",
            "def run(text): return 1 +": "error: SyntaxError: invalid syntax (<tool>, line 1)",
            "if 1:\nrun = 2": "error: IndentationError: expected an indented block after 'if' statement on line 1",
            "x = '\x00'": "error: SyntaxError: source code string cannot contain null bytes",
            "raise SystemExit(0)": "error: SystemExit: 0",
        }.items():
            tool = make_tools(manifest(authored=(replace(REVERSE, source=source),)), sandbox.call)["reverse"]
            found = tool.run({"text": "a"}, FUEL)
            assert found.text.startswith(text)
            assert tool.run({"text": "a"}, FUEL) == found


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_logarithms_are_right_to_one_in_the_last_place(a: int, b: int) -> None:
    high, low = max(a, b), min(a, b)
    assert abs(log2(high, low) - math.log2(high / low) * 65536) < 1.01


def test_words_are_folded_by_one_version_of_unicode() -> None:
    assert words("The É-cole, 42 STRASSE ﬁn") == ["the", "é", "cole", "42", "strasse", "fin"]
    assert words("e\u0301 Straße ＡＢ－Ｃ ｶﾅ ☺ \u1e9e") == ["é", "strasse", "ab", "c", "カナ", "☺", "\u1e9e"]
    folded = [" ".join(words(chr(code), singles=True)) for code in range(0x20000)]
    found = sha256("\n".join(folded).encode("utf-8", "surrogatepass")).hexdigest()
    assert found == "bd0167a00d7971b7d3a4dc5284eb47e71c2bfc87e7803d0b84389f437363d1c8", "another Python ranks otherwise"


def test_search_finds_words_of_scripts_without_blanks() -> None:
    texts = {"cat": "猫は魚を食べる。", "city": "東京と大阪は日本の都市です。", "ko": "고양이는 생선을 먹는다."}
    search = Search([Document(*one) for one in texts.items()])
    for query, name in {"大阪": "city", "東京の都市": "city", "猫": "cat", "食べる": "cat", "고양이": "ko"}.items():
        assert search.run({"query": query}, FUEL).text.split(":")[0] == name
    assert search.run({"query": "京大"}, FUEL).text == "nothing was found"


def bm25(query: str, corpus: tuple[Document, ...]) -> list[str]:
    """Return the ranking by the published formula in floating point."""
    texts = [words(f"{one.name} {one.text}") for one in corpus]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text, one in zip(texts, corpus, strict=True):
        score = 0.0
        for word in set(words(query)):
            within = sum(word in other for other in texts)
            weight = math.log2((len(texts) + 1) / (within + 0.5))
            count = text.count(word)
            score += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(text) / mean))
        scores.append((-round(score, 3), one.name))
    return [name for score, name in sorted(scores) if score]


@pytest.mark.parametrize("query", ["ape", "honey", "eats grass", "a bee and an ape", "MILK", "what eats fruit?"])
def test_search_ranks_as_bm25_does(query: str) -> None:
    found = Search(CORPUS).run({"query": query}, FUEL).text
    assert [one.split(":")[0] for one in found.split("\n\n")] == bm25(query, CORPUS)[:3]


def test_search_breaks_ties_by_name_whatever_the_order_of_the_corpus() -> None:
    same = [Document(name, "the same") for name in ("c", "a", "b", "d")]
    assert Search(same).run({"query": "same"}, FUEL).text == "a: the same\n\nb: the same\n\nc: the same"
    assert Search(same).code == Search(same[::-1]).code
    assert Search(same).run({"query": "other \ud800"}, FUEL).text == "nothing was found"


def test_the_root_of_tools_is_zero_without_and_follows_everything_that_results_depend_on() -> None:
    assert tools_root([]) == tools_root([None, TurnsManifest(())]) == NO_TOOLS
    roots = [
        tools_root([one])
        for one in (
            manifest(),
            manifest(tools=("python", "search")),
            manifest(corpus=CORPUS[:3]),
            manifest(sandbox=ScorerManifest("0x" + "11" * 32, "code")),
            manifest(authored=(replace(REVERSE, source="def run(text): return text"),)),
            manifest(authored=(replace(REVERSE, description="Other words."),)),
        )
    ]
    assert len(set(roots)) == len(roots)
    assert tools_root([manifest(), None, manifest(fuel=7, turns=2)]) == roots[0]
    with pytest.raises(ConfigError, match="has no tool shell"):
        tools_root([TurnsManifest(("shell",))])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sandbox": None}, "need a sandbox"),
        ({"corpus": ()}, "search needs a corpus"),
        ({"corpus": (CORPUS[0], CORPUS[0])}, "two documents"),
        ({"authored": (REVERSE, REVERSE)}, "not in order"),
        ({"authored": (replace(REVERSE, name="python"),)}, "one name"),
    ],
)
def test_a_manifest_whose_tools_lack_something_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        manifest(**changes)


def test_manifests_survive_their_bytes_and_name_what_nodes_fetch() -> None:
    plain = own_manifest("arithmetic", {"thinking": "none"})
    made = replace(plain, turns=manifest())
    assert EnvironmentManifest.parse(made.to_bytes()) == made
    assert made.components == (scorer().component,)
    assert b"corpus" not in replace(plain, turns=TurnsManifest(("calculator",))).to_bytes()
