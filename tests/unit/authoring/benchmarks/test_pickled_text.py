"""LiveCodeBench's packed tests: one pickled text is read, and every other pickle is refused unexecuted."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.benchmarks import pickled_text
from muster.authoring.benchmarks.definitions import BenchmarkItem
from muster.authoring.benchmarks.livecodebench import LIVECODEBENCH, MAX_VALUES
from muster.authoring.benchmarks.pickled_text import read_tests, unpacked
from muster.errors import MalformedError

TESTS = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


class Runs:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@given(st.text(st.characters(codec="utf-8")), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_text_of_any_protocol_comes_back(text: str, protocol: int) -> None:
    assert pickled_text.pickled_text(pickle.dumps(text, protocol)) == text


def test_tests_are_json_or_json_packed() -> None:
    text = json.dumps(TESTS)
    assert read_tests(text) == read_tests(packed(pickle.dumps(text))) == TESTS


def test_a_pickle_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Runs(tmp_path / "ran"), protocol)
        with pytest.raises(MalformedError, match="only one text is admitted"):
            unpacked(packed(data))
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)  # noqa: S301 - the control: it does run
    assert (tmp_path / "ran").exists()


HOSTILE = {
    "a global": b"cos\nsystem\n.",
    "a global by the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a reduction": b"cos\nsystem\n(S'true'\ntR.",
    "an instance": b"(S'true'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'true'\no.",
    "a build": b"\x80\x04\x8c\x01a}b.",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"Pa\n.",
    "a list": pickle.dumps([1]),
    "a number": pickle.dumps(7),
    "bytes": pickle.dumps(b"[]"),
    "an old string": b"S'[]'\n.",
    "two texts": b"\x8c\x02[]\x8c\x02[].",
    "a text that is taken back": b"\x8c\x02[]0\x8c\x02{}.",
    "a text that is doubled": b"\x8c\x02[]2.",
    "a note without a text": b"\x80\x04\x94.",
    "a note that is read": b"\x80\x04\x8c\x02[]\x94h\x00.",
    "nothing": b"\x80\x04.",
    "no end": b"\x80\x04\x8c\x02[]",
    "a pickle in a pickle": pickle.dumps(pickle.dumps("[]")),
    "a second pickle behind it": pickle.dumps("[]") + pickle.dumps("[]"),
    "a length that is a lie": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f[].",
    "half a surrogate pair": b"\x80\x04\x8c\x03\xed\xa0\x80.",
    "a memo bomb": b"\x80\x04" + b"(" * 100_000 + b".",
    "a doubling list": b"\x80\x04]" + b"\x94h\x00\x85" * 5000 + b".",
    "an endless number": b"L" + b"9" * 100_000 + b"L\n.",
    "no opcode": b"\x00",
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_anything_but_one_text_is_refused(kind: str) -> None:
    with pytest.raises(MalformedError):
        read_tests(packed(HOSTILE[kind]))


def test_oversized_text_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_text, "MAX_TEXT_BYTES", 1 << 20)
    assert len(unpacked(packed(pickle.dumps("x" * 1_000_000)))) == 1_000_000
    with pytest.raises(MalformedError, match="unpack to more than 1048576 bytes"):
        unpacked(packed(pickle.dumps("x" * (1 << 20))))
    # Of two nested layers, only the outer one is decompressed.
    bomb = zlib.compress(zlib.compress(b"\0" * 200_000_000))
    with pytest.raises(MalformedError):
        unpacked(base64.b64encode(bomb).decode())


@pytest.mark.parametrize("repeated", [b"\x80\x04", b"\x95" + b"\0" * 8, b"\x94", b"q\0", b"r\xff\xff\xff\x7f", b"p0\n"])
def test_no_opcode_is_read_without_end(repeated: bytes) -> None:
    """A hundred of them are as little admitted as millions, which a few kilobytes hold and which take minutes."""
    text = b"\x8c\x02[]"
    data = repeated * 100 + text if repeated[0] in b"\x80\x95" else text + repeated * 100
    with pytest.raises(MalformedError, match="a pickle without an end"):
        unpacked(packed(data + b"."))
    few = repeated * 3 + text if repeated[0] in b"\x80\x95" else text + repeated * 3
    assert unpacked(packed(few + b".")) == "[]"


def test_tests_hold_a_bounded_number_of_values() -> None:
    """Thousands of empty objects are a few bytes packed, and take sixty-four each."""
    most = pickled_text.MAX_VALUES // 2
    for bomb in ("{}", "[]", "0", '{"a":"b"}', '"a"'):
        text = "[" + ",".join([bomb] * (2 * most + 1)) + "]"
        with pytest.raises(MalformedError, match=f"more than {2 * most} values"):
            read_tests(packed(pickle.dumps(text)))
    test = {"input": '[{,"\\' * most, "output": "", "testtype": "stdin"}
    assert read_tests(json.dumps([test] * 3)) == [test] * 3


def test_function_arguments_hold_a_bounded_number_of_values() -> None:
    def converted(text: str, output: str = "0") -> BenchmarkItem:
        row = {"question_content": "?", "starter_code": "", "metadata": '{"func_name": "f"}', "private_test_cases": []}
        tests = [{"input": text, "output": output}]
        return LIVECODEBENCH.convert({**row, "public_test_cases": tests}, 1, lambda *_: [])

    assert converted("[1, 2]\n3").reference["tests"] == [{"input": [[1, 2], 3], "output": 0}]
    bomb = ",".join(["[]"] * (MAX_VALUES // 2))
    for text, output in ((f"[{bomb}]", "[]"), ("0", f"[{bomb},0]"), ("\n" * (MAX_VALUES + 1), "0")):
        with pytest.raises(MalformedError, match=f"more than {MAX_VALUES} values"):
            converted(text, output)


def test_counting_values_takes_time_once() -> None:
    for text in ('["' + '\\"' * 2_000_000, "[" + '"' * 2_000_001, "[" + "\\" * 2_000_000):
        with pytest.raises(MalformedError, match="no JSON"):
            read_tests(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be decompressed|cut off"),
        ("not base64!", "neither JSON nor base64"),
        ("é", "neither JSON nor base64"),
        (base64.b64encode(b"plain").decode(), "cannot be decompressed"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-3]).decode(), "cut off"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]")) + b"more").decode(), "followed by something"),
        (packed(pickle.dumps("{")), "no JSON"),
        (packed(pickle.dumps('{"input": 1}')), "no list of objects"),
        ("[1, 2]", "no list of objects"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_tests_that_are_none_say_why(text: str, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        read_tests(text)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused_or_be_a_text(data: bytes) -> None:
    try:
        text = pickled_text.pickled_text(data)
    except MalformedError:
        return
    assert pickle.Unpickler(io.BytesIO(data)).load() == text  # noqa: S301 - it is one text
