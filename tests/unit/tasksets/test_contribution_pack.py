"""The file that an environment travels as: one form, and nothing hostile gets through."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.chain.keys import Signer
from muster.constants import MICRO
from muster.environments.task import ChatMessage, Task
from muster.errors import CheckError, MalformedError, MismatchError
from muster.protocol.eip712 import UNSIGNED, recover_signer, sign_message, struct_of
from muster.protocol.hashes import content_hash
from muster.protocol.messages import EnvironmentClaim, EnvironmentDecision, SubmittedEnvironment
from muster.tasksets.contribution import LICENCES, MAX_TASKS, Contribution
from muster.tasksets.contribution_pack import (
    ANYWHERE,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_PACK_BYTES,
    listed_environments,
    read_pack,
    write_pack,
)
from testbed.paths import ROOT
from testbed.samples.contributions import AUTHOR, TASKS, contribution, task
from testbed.suite.examples import up_to

DATA = write_pack(contribution(), AUTHOR).data
OTHER = Signer.from_key("b2" * 32)
PUBLISHED = "0x4c09419488d7d76ecf02f61a00af0dcb403ef290b528709db8642863f8c7f680"
"""The pack's hash, which is its name in runs: no change of the code may change it."""

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
lines = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=30).filter(str.isprintable)
answers = st.recursive(
    st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).filter(lambda answer: answer not in ("", [], {}))


@st.composite
def contributions(draw: st.DrawFn) -> Contribution:
    thinking = draw(st.sampled_from(["tags", "none"]))
    names = draw(st.lists(texts.filter(bool), min_size=1, max_size=4, unique=True))
    tasks = tuple(
        Task(
            f"letters/{name}",
            (ChatMessage("user", draw(texts)),),
            {"answer": draw(answers), "oracle": draw(texts.filter(lambda text: text and "</think>" not in text))},
            draw(st.integers(-5, 5)),
            AUTHOR.address,
        )
        for name in names
    )
    weight = draw(st.integers(0, MICRO))
    return contribution(
        version=draw(st.integers(1, 10**6)),
        licence=draw(st.sampled_from(sorted(LICENCES))),
        credit=draw(lines),
        description=draw(lines),
        thinking=thinking,
        fuel=draw(st.integers(1, 10**10)),
        weights={"a": weight, "b": MICRO - weight},
        source=draw(texts.filter(bool)),
        readme=draw(texts),
        tasks=tasks,
    )


def test_pack_keeps_its_published_hash() -> None:
    assert content_hash(DATA) == read_pack(DATA).hash == PUBLISHED


@given(contributions())
@settings(max_examples=up_to(60))
def test_pack_round_trips(given_one: Contribution) -> None:
    pack = write_pack(given_one, AUTHOR)
    found = read_pack(pack.data)
    assert found == pack
    assert found.contribution == given_one
    assert write_pack(found.contribution, AUTHOR).data == pack.data
    assert (found.hash, recover_signer(ANYWHERE, found.claim)) == (content_hash(pack.data), AUTHOR.address)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
@settings(max_examples=up_to(300))
def test_no_byte_can_be_changed(place: int, change: int) -> None:
    data = bytearray(DATA)
    data[place] ^= change
    with pytest.raises(CheckError):
        read_pack(bytes(data))


@given(st.integers(0, len(DATA) - 1))
def test_no_byte_can_be_missing(length: int) -> None:
    with pytest.raises(CheckError):
        read_pack(DATA[:length])


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: MAGIC + data))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CheckError):
        read_pack(data)


# Hostile files with valid signatures


Change = Callable[[dict[str, Any], dict[str, bytes]], None]


def forged(change: Change, key: Signer = AUTHOR) -> bytes:
    """The good pack with its header and texts changed, the sizes and hashes following, and signed again."""
    end = DATA.index(b"\n", len(MAGIC))
    header = json.loads(DATA[len(MAGIC) : end])
    place, texts_of = end + 1, {}
    for name in ("scorer", "readme", "tasks"):
        size = header[name]["bytes"]
        texts_of[name], place = DATA[place : place + size], place + size
    before = dict(header["tasks"])
    change(header, texts_of)
    if header["tasks"] == before:
        for name, text in texts_of.items():
            header[name] = {"bytes": len(text), "hash": content_hash(text)}
    written = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    content = MAGIC + written + b"\n" + b"".join(texts_of.values())
    return content + _signature(header, content, key)


def _signature(header: dict[str, Any], content: bytes, key: Signer) -> bytes:
    fields = {name: header.get(name) for name in ("name", "version", "licence", "author")}
    claim = EnvironmentClaim.model_construct(**fields, content=content_hash(content), signature=UNSIGNED)
    try:
        return bytes.fromhex(sign_message(key, ANYWHERE, claim).signature[2:])
    except Exception:  # noqa: BLE001 - an unsignable pack must be refused before its signature is checked
        return bytes(65)


def test_the_forger_forges() -> None:
    """Otherwise the tests below could be refused for something else."""
    assert forged(lambda header, texts: None) == DATA
    assert read_pack(forged(lambda header, texts: header.update(version=2))).claim.version == 2


def put(name: str, value: Any) -> Change:
    return lambda header, texts: header.update({name: value})


def text(name: str, value: bytes) -> Change:
    return lambda header, texts: texts.update({name: value})


LINE = TASKS[0].to_line()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("licence", ""), "there is no licence"),
        (put("licence", "Proprietary"), "'Proprietary' is no licence that is known here"),
        (put("licence", "CC-BY-NC-4.0"), "no licence that is known here"),
        (put("name", "../../etc"), "the name is '../../etc'"),
        (put("name", 7), "not the environment's header: name: Input should be a valid string"),
        (put("version", 0), "the version is 0"),
        (put("version", True), "version: Input should be a valid integer"),
        (put("version", 1.0), "version: Input should be a valid integer"),
        (put("fuel", 10**12), "limits.fuel is 1000000000000"),
        (put("thinking", "maybe"), "option thinking of environment authored"),
        (put("weights", {"correct": 1}), "weights must add up to 1000000"),
        (put("weights", {"correct": "1000000"}), "weights.correct: Input should be a valid integer"),
        (put("weights", {f"p{i}": 10**5 for i in range(10)}), "weights: Value error, 10 members; at most 8"),
        (put("credit", "two\nlines"), "the credit must be one line"),
        (put("credit", ""), "the credit must be one line of 1 to 300"),
        (put("description", "x" * 301), "the description must be one line"),
        (put("author", "alice"), "the author is 'alice', no address"),
        (put("author", OTHER.address), "is not named as this environment's and this author's"),
        (put("path", "/etc/passwd"), "header is not in canonical form"),
        (put("tasks", {"bytes": 10**9, "hash": content_hash(b"")}), "tasks.bytes: Input should be less"),
        (put("tasks", {"bytes": -1, "hash": content_hash(b"")}), "tasks.bytes: Input should be greater"),
        (put("tasks", {"bytes": 1, "hash": content_hash(b""), "x": 1}), "header is not in canonical form"),
        (put("tasks", {"bytes": 10**6, "hash": content_hash(b"")}), "the environment ends within its tasks"),
        (text("tasks", b""), "a line that is no task|not JSON"),
        (text("tasks", LINE + b"\n" + LINE), "two tasks have one id"),
        (text("tasks", LINE + b"\n"), "not JSON"),
        (text("tasks", b"\n" * MAX_TASKS), "more than 10000 tasks"),
        (text("tasks", LINE.replace(b'"answer":3', b'"answer":null')), "has no answer"),
        (text("tasks", LINE.replace(b'"answer":3,', b"")), "has no answer"),
        (text("tasks", LINE.replace(b'"answer":3', b'"answer":[' + b"[" * 100 + b"]" * 101)), "nested deeper"),
        (text("tasks", LINE.replace(b"letters/", b"others/")), "is not named as this environment's"),
        (text("tasks", LINE.replace(b'"level":1', b'"level": 1')), "not in canonical form"),
        (text("scorer", b""), "the scorer has 0 bytes"),
        (text("scorer", b"x" * 65537), "the scorer has 65537 bytes"),
        (text("scorer", b"\xff"), "the scorer is no UTF-8"),
        (text("readme", b"x" * 65537), "the readme has 65537 bytes"),
    ],
)
def test_a_hostile_pack_is_refused_with_what_is_wrong(change: Change, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        read_pack(forged(change))


def test_a_text_with_another_hash_than_the_header_says_is_refused() -> None:
    place = DATA.index(b"def score")
    with pytest.raises(MismatchError, match=r"the scorer has the hash 0x[0-9a-f]{64}, the header says 0x"):
        read_pack(DATA[:place] + b"DEF" + DATA[place + 3 :])


def test_a_pack_that_somebody_else_has_signed_is_refused() -> None:
    with pytest.raises(MismatchError, match=f"names {AUTHOR.address} as its author, {OTHER.address} has signed it"):
        read_pack(forged(lambda header, texts: None, key=OTHER))


def test_a_header_in_another_form_is_refused() -> None:
    """The same content in two files would be two environments."""
    content = DATA[:-65].replace(b'"fuel":', b'"fuel": ')
    with pytest.raises(MalformedError, match="not in canonical form"):
        read_pack(content + _signature(json.loads(content[len(MAGIC) :].split(b"\n")[0]), content, AUTHOR))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "this is no environment"),
        (b"PK\x03\x04" + bytes(100), "this is no environment"),
        (MAGIC + b"{" * (2 * MAX_HEADER_BYTES), "no end within 16384 bytes"),
        (MAGIC + b"[" * 10_000 + b"\n", "Invalid JSON"),
        (MAGIC + b"NaN\n", "Input should be an object"),
        (MAGIC + b"x" * MAX_PACK_BYTES, "8388622 bytes; at most 8388608"),
        (DATA + b"x", "66 bytes follow the environment's tasks"),
    ],
)
def test_invalid_pack_is_refused_early(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        read_pack(data)


def test_a_pack_is_written_by_its_author_only_and_within_the_bound() -> None:
    with pytest.raises(MismatchError, match="this key is"):
        write_pack(contribution(), OTHER)
    large = tuple(task(str(i), "x" * 3_000_000, 1) for i in range(3))
    with pytest.raises(MalformedError, match="at most 8388543"):
        write_pack(contribution(tasks=large), AUTHOR)


def test_a_contribution_has_tasks_and_not_too_many() -> None:
    with pytest.raises(MalformedError, match="0 tasks"):
        contribution(tasks=())
    with pytest.raises(MalformedError, match="10001 tasks"):
        contribution(tasks=tuple(task(str(i), "q", 1) for i in range(MAX_TASKS + 1)))


def test_later_decision_says_what_is_listed() -> None:
    packs = [write_pack(contribution(version=version), AUTHOR) for version in (1, 2, 3)]
    submitted = [SubmittedEnvironment.of(pack, pack.contribution, run=7, tasks=3, size=9) for pack in packs]
    decisions = [
        EnvironmentDecision(run=7, environment=packs[n].hash, admitted=admitted, decided=decided, signature=UNSIGNED)
        for n, admitted, decided in ((0, False, 6), (0, True, 5), (1, False, 5), (1, True, 6))
    ]
    listed = listed_environments(submitted, decisions)
    assert [one.submitted for one in listed] == submitted
    assert [one.state for one in listed] == ["refused", "admitted", "waiting"]
    assert [one.decision for one in listed] == [decisions[0], decisions[3], None]


@pytest.mark.parametrize("model", [EnvironmentClaim, EnvironmentDecision])
def test_signed_struct_matches_the_protocol_page(model: Any) -> None:
    struct = struct_of(model)
    written = f"{struct.name}({','.join(f'{kind} {name}' for name, kind in struct.fields)})"
    assert f"    {written}\n" in (ROOT / "docs" / "understand" / "protocol.md").read_text(encoding="utf-8")
