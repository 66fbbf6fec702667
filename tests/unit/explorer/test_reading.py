"""A separate process reads files and returns rows as text, whatever the file holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from explorer import reading
from explorer.reading import ReadingProcess, find_tokenizer
from explorer.reading_process import FileReader
from explorer.rows import MAX_TEXT, ReadAnswer, ReadingSettings, ReadRequest, cut_text, decoded, read_row
from muster.clients.storage import ContentStore
from muster.environments.answers import THINK_END
from muster.errors import RefusedError, UnreachableError
from muster.models.files import tokenizer_hash
from muster.models.init import make_tokenizer
from muster.protocol.prompts import completion_text
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from testbed.samples.commitments import rules
from testbed.samples.texts import HOSTILE, LONG, ids_of, save_tokenizer, text_row, text_tokenizer
from testbed.waiting import until


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def files(tmp_path: Path) -> ContentStore:
    return ContentStore(f"file:{tmp_path / 'storage'}", "files")


def settings(files: ContentStore, tokenizer: Path | None) -> ReadingSettings:
    path = "" if tokenizer is None else str(tokenizer)
    return ReadingSettings(storage_url=files.url, tokenizer=path, rows=64, decoded_bytes=64 << 20)


@pytest.fixture
async def process(files: ContentStore, tokenizer_path: Path) -> AsyncIterator[ReadingProcess]:
    async with ReadingProcess(settings(files, tokenizer_path)).running() as running:
        yield running


async def keep(files: ContentStore, *rows: Rollout) -> str:
    return await files.put(write_rollouts(rows))


# Text


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_text_equals_the_scored_text(kind: str, tmp_path: Path) -> None:
    """Equal to what workers and validators score, by another library: invalid ids, gaps and split letters included."""
    tokenizer = make_tokenizer() if kind == "characters" else text_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    light = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    eos = tokenizer.eos_token_id
    assert isinstance(eos, int)
    rng = np.random.default_rng(1)
    samples = [rng.integers(-5, len(tokenizer) + 5, 40).tolist() for _ in range(200)]
    samples += [[], [len(tokenizer)], [-(1 << 31), (1 << 31) - 1], list(range(len(tokenizer)))]
    samples += [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (*HOSTILE, "a  b\n\tc ", THINK_END)]
    for tokens in samples:
        assert decoded(light, tokens) == completion_text(tokenizer, [*tokens, eos])


def test_thinking_and_answer_are_apart(tokenizer_path: Path) -> None:
    light = Tokenizer.from_file(str(tokenizer_path))

    def parts(row: Rollout, thinking: str = "tags") -> tuple[str | None, str]:
        read = read_row(light, row, 4, thinking)  # type: ignore[arg-type]
        return read.thinking and read.thinking.text, read.answer.text

    assert parts(text_row(0, "why", "42")) == ("why", "42")
    assert parts(text_row(0, "", "")) == ("", "")
    assert parts(text_row(0, f"a{THINK_END}b", "c")) == ("a", f"b{THINK_END}c")
    unended = text_row(0, completion_tokens=ids_of("never ends"), stop=False)
    assert parts(unended) == ("never ends", "")
    assert parts(text_row(0, "why", "42"), "none") == (None, f"why{THINK_END}42")


def test_only_the_ending_token_is_left_out(tokenizer_path: Path) -> None:
    light, eos = Tokenizer.from_file(str(tokenizer_path)), text_tokenizer().eos_token_id
    row = text_row(0, completion_tokens=[*ids_of("a"), eos, eos])
    assert read_row(light, row, 1, "none").answer.text == "a<|end|>"
    assert read_row(light, replace(row, finish_reason="length"), 1, "none").answer.text == "a<|end|><|end|>"


def test_long_text_is_cut_by_letters_and_says_how_long_it_was() -> None:
    text = cut_text("😀" * (MAX_TEXT + 1))
    assert (len(text.text), text.whole) == (MAX_TEXT, MAX_TEXT + 1)
    assert cut_text("a" * MAX_TEXT).text == "a" * MAX_TEXT


# The process


async def test_rows_are_read(process: ReadingProcess, files: ContentStore) -> None:
    rows = [text_row(0), text_row(1, "no idea", "0", task_reward=0, parts=np.array([0], np.int64)), text_row(2)]
    name = await keep(files, *rows)
    row = (await process.ask(name, 1)).row
    assert row is not None
    assert row.model_dump() == {
        "rows": 3,
        "group": 0,
        "sample": 1,
        "task": 7,
        "budget": 16,
        "tokens": len(rows[1].completion_tokens),
        "finish": "stop",
        "reward": 0,
        "length_reward": -12_500,
        "parts": [0],
        "prompt": {"text": "<|user|>What is 6 times 7?<|assistant|><think>", "whole": 46},
        "thinking": {"text": "no idea", "whole": 7},
        "answer": {"text": "0", "whole": 1},
        "pieces": [],
        "given": 0,
        "call_fuel": [],
        "special": ["<|assistant|>", "<|user|>"],
        "reference": None,
    }
    assert (await process.ask(name, 3)).failure == "no_row"
    assert (await process.ask(name, 0, thinks=False)).row.answer.text == f"hm{THINK_END}42"  # type: ignore[union-attr]


async def test_file_is_read_once_for_its_rows(files: ContentStore, tokenizer_path: Path) -> None:
    class Counted(RolloutReader):
        reads = 0

        async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
            self.reads += 1
            return await super().read(data, limits)

    name = await keep(files, text_row(0), text_row(1))
    async with Counted() as counted:
        reader = FileReader(settings(files, tokenizer_path), counted)
        first, second = (ReadRequest(id=0, file_hash=name, position=position) for position in (0, 1))
        answers = await asyncio.gather(reader.answer(first), reader.answer(second), reader.answer(first))
        assert [answer.row.sample for answer in answers if answer.row is not None] == [0, 1, 0]
        assert counted.reads == 1


async def test_hostile_text_comes_back_as_it_was_written(process: ReadingProcess, files: ContentStore) -> None:
    invalid = [*ids_of("before"), len(text_tokenizer()) + 7, -1, *ids_of("after")]
    line = text_row(9, completion_tokens=ids_of(LONG * 257), stop=False)
    rows = [text_row(i, text, text) for i, text in enumerate(HOSTILE)]
    name = await keep(files, *rows, text_row(8, completion_tokens=invalid, stop=False), line)
    for position, text in enumerate(HOSTILE):
        row = (await process.ask(name, position)).row
        assert row is not None
        assert (row.thinking and row.thinking.text, row.answer.text) == (text, text)
    answer = await process.ask(name, len(HOSTILE), thinks=False)
    assert answer.row is not None
    assert answer.row.answer.text == "before\ufffd\ufffdafter"
    megabyte = await process.ask(name, len(HOSTILE) + 1, thinks=False)
    assert megabyte.row is not None
    assert (megabyte.row.answer.whole, megabyte.row.tokens) == (257 * len(LONG), 257)
    assert megabyte.row.answer.text == "A" * MAX_TEXT


async def test_unreadable_file_says_why(process: ReadingProcess, files: ContentStore, tmp_path: Path) -> None:
    assert (await process.ask("0x" + "ab" * 32, 0)).failure == "missing"
    garbage = await files.put(b"no rollouts")
    answer = await process.ask(garbage, 0)
    assert (answer.failure, answer.row) == ("malformed", None)
    assert "not a rollout file" in answer.why
    many = await keep(files, *[text_row(i) for i in range(65)])
    assert (await process.ask(many, 0)).failure == "malformed"
    assert (await process.ask(await keep(files, text_row(0)), 0)).row is not None, "the process still answers"


async def test_a_file_that_is_damaged_in_storage_is_malformed(process: ReadingProcess, files: ContentStore) -> None:
    name = await keep(files, text_row(0))
    path = Path(files.url.removeprefix("file:")) / "files" / name[2:4] / name[2:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert (await process.ask(name, 0)).failure == "malformed"


async def test_without_a_tokenizer_files_are_not_shown(files: ContentStore, tmp_path: Path) -> None:
    name = await keep(files, text_row(0))
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    for path, why in ((None, "no tokenizer with the hash"), (broken, "cannot be loaded")):
        async with ReadingProcess(settings(files, path)).running() as process:
            answer = await process.ask(name, 0)
            assert answer.failure == "no_tokenizer"
            assert why in answer.why


async def test_a_process_that_is_killed_is_replaced(process: ReadingProcess, files: ContentStore) -> None:
    name = await keep(files, text_row(0))
    first = (await process.ask(name, 0), process.pid)[1]
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # keeps the request under way until the process dies
    asking = asyncio.create_task(process.ask(name, 0))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UnreachableError, match="has ended"):
        await asking
    assert (await process.ask(name, 0)).row is not None
    assert process.pid != first


async def test_process_ends_when_idle(
    process: ReadingProcess, files: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "IDLE_SECONDS", 0.05)
    name = await keep(files, text_row(0))
    await process.ask(name, 0)
    await until(lambda: process.pid is None, "the process has ended")
    assert (await process.ask(name, 0)).failure == ""


async def test_two_are_read_at_once_and_few_wait(process: ReadingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further requests get a 503."""
    under_way, gate = 0, asyncio.Event()
    most = 0

    async def exchange(_: object) -> ReadAnswer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await gate.wait()
        under_way -= 1
        return ReadAnswer(id=1)

    monkeypatch.setattr(process, "_exchange", exchange)
    asking = [asyncio.create_task(process.ask("0x", 0)) for _ in range(reading.READS_AT_ONCE + reading.MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(RefusedError) as caught:
        await process.ask("0x", 0)
    assert caught.value.status == 503
    gate.set()
    assert [answer.id for answer in await asyncio.gather(*asking)] == [1] * len(asking)
    assert most == reading.READS_AT_ONCE


@pytest.mark.parametrize(("process", "loads_views"), [("explorer", True), ("orchestrator", False)])
def test_process_imports_no_tokenizers_and_no_torch(process: str, *, loads_views: bool) -> None:
    import subprocess

    code = f"import sys, json, {process}.__main__; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"tokenizers", "transformers", "torch", "matplotlib"} & set(loaded)
    assert ("explorer.views" in loaded) == loads_views


# Where the tokenizer is


def test_a_tokenizer_counts_by_the_hash_of_the_terms(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "model"
    save_tokenizer(folder)
    terms = replace(rules().terms, tokenizer_hash=tokenizer_hash(folder))
    assert find_tokenizer(tmp_path / "run", terms) == folder / "tokenizer.json"
    assert find_tokenizer(folder, terms) == folder / "tokenizer.json"
    assert find_tokenizer(None, terms) is None
    (folder / "config.json").write_text("{}")  # every file except weights counts
    assert find_tokenizer(tmp_path / "run", terms) is None
    assert find_tokenizer(tmp_path / "elsewhere", terms) is None
