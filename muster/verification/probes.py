"""A probe: rows that a node's engine generates and a replay judges, outside of any run. The files that carry it.

`python -m worker.probe SPEC ROWS` generates what a spec asks for and writes a rollout file;
`python -m validator.measure SPEC ROWS CELL` replays that file and writes every token's errors
(`muster.verification.measured`). Their caller (`muster doctor --engine`, `muster model check`, a calibration) writes
the spec and reads the cell; the two may run on different machines.

A spec is JSON. A relative `model` of a spec begins at the folder of the spec's own file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from muster.errors import MismatchError
from muster.protocol.draws import DrawSource
from muster.protocol.messages import Many, Message, UInt32
from muster.rollouts.parquet import FileLimits, read_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime.documents import parse_json
from muster.runtime.files import read_bounded, write_durably
from muster.runtime.process import run_tool
from muster.settings.schema import MatmulSetting
from muster.verification.profiles import PROFILES
from muster.verification.rules import Rules

MAX_FILE_BYTES: Final = 256 << 20
"""Largest spec, report or file of rows that is read."""

MAX_TOKENS: Final = 1 << 20
"""Longest prompt or completion, in tokens."""

MAX_ROWS: Final = FileLimits().rows
"""Most requests of a spec, all calls together."""

NO_NODE: Final = "0x" + "00" * 20
"""The node that a probe's rows are drawn for: no key has this address, so the rows cannot be committed."""

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
M = TypeVar("M", bound=Message)


class ProbeRequest(Message):
    """One completion that is asked for."""

    prompt_tokens: Annotated[Many[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class EngineOptions(Message):
    """How the engine is set up; each means what the field of this name means in `worker.engine.EngineLimits`.

    A length of 0 is that of the longest request. A run's own lengths make the engine a worker's.
    """

    max_prompt_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    max_completion_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    max_sequences: Annotated[int, Field(ge=1, le=1 << 16)] = 256
    max_batched_tokens: Annotated[int, Field(ge=1, le=1 << 24)] = 8192
    cache_bytes: Annotated[int, Field(ge=0, lt=1 << 50)] = 0
    cache_blocks: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    prefix_caching: bool = True
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    threads: Annotated[int, Field(ge=1, le=1024)] = 1


class ProbeSpec(Message):
    """What to generate, with which model and engine, and how to judge it."""

    model: Path
    """Checkpoint folder."""
    profile: str
    """Name of the verification profile."""
    temperature: Annotated[FiniteFloat, Field(gt=0, le=1 << 12)]
    calls: Annotated[Many[Many[ProbeRequest]], Field(min_length=1, max_length=MAX_ROWS)]
    """Requests by call of the engine: those of one call are generated side by side, the calls one after the other."""
    engine: EngineOptions = EngineOptions()
    arithmetic: str = ""
    """Of the replay, as another machine would compute: its name in `muster.models.arithmetic`."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads of the replay."""
    matmul: MatmulSetting = "auto"
    """How engine and replay multiply bfloat16."""

    @model_validator(mode="after")
    def _check(self) -> ProbeSpec:
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r} is none of {', '.join(PROFILES)}")
        if not all(self.calls) or len(self.requests) > MAX_ROWS:
            raise ValueError(f"1 to {MAX_ROWS} requests are read, and at least one in each call")
        longest = self.longest
        for limit, needed in zip(
            (self.engine.max_prompt_tokens, self.engine.max_completion_tokens), longest, strict=True
        ):
            if 0 < limit < needed:
                raise ValueError(f"a request of {needed} tokens where the engine takes {limit}")
        return self

    @property
    def requests(self) -> list[ProbeRequest]:
        """Return the requests of all calls, in order: the positions of the rows."""
        return [request for call in self.calls for request in call]

    @property
    def longest(self) -> tuple[int, int]:
        """Return the length of the longest prompt and of the longest completion, in tokens."""
        prompts = max(len(request.prompt_tokens) for request in self.requests)
        return prompts, max(request.max_tokens for request in self.requests)


def run_requests(rules: Rules, *, entropy: bytes, count: int) -> list[ProbeRequest]:
    """Return requests as the run draws them by a step's entropy, of its first work class, for NO_NODE."""
    source = DrawSource(NO_NODE, entropy, 0)
    requests: list[ProbeRequest] = []
    while len(requests) < count:
        index = len(requests) // rules.terms.positions
        draw = rules.draw(source, index)
        for position, seed in enumerate(draw.seeds):
            group = draw.groups[position // rules.terms.group_size]
            prompt = rules.prompt(group.task, group.budget).tolist()
            requests.append(ProbeRequest(prompt_tokens=prompt, seed=seed, max_tokens=rules.terms.max_completion_tokens))
    return requests[:count]


def check_probe_rows(rows: Sequence[Rollout], spec: ProbeSpec, vocabulary: int) -> None:
    """Check that the rows answer the spec's requests and can be replayed. Raises MismatchError.

    The replay relies on it: tokens beyond the vocabulary would end it.
    """
    if len(rows) != len(spec.requests):
        raise MismatchError(f"{len(rows)} rows for {len(spec.requests)} requests", hint="run worker.probe again")
    for position, (row, request) in enumerate(zip(rows, spec.requests, strict=True)):
        same = np.array_equal(row.prompt_tokens, request.prompt_tokens)
        if row.position != position or row.seed != request.seed or not same:
            raise MismatchError(f"row {position} is not of the spec's request", hint="run worker.probe again")
        tokens = np.concatenate([row.prompt_tokens, row.completion_tokens])
        if not 1 <= len(row.completion_tokens) <= request.max_tokens or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise MismatchError(
                f"row {position} has {len(row.completion_tokens)} completion tokens, the largest id {tokens.max()}, "
                f"where 1 to {request.max_tokens} below {vocabulary} are asked for"
            )


class AgreedRow(Message):
    """How far one row's log-probabilities are, at most, from those of transformers' model on the row alone, in nats."""

    position: UInt32
    length: Annotated[int, Field(ge=2, le=2 * MAX_TOKENS)]
    """Prompt and completion, in tokens."""
    engine: FiniteFloat
    """What the engine claims."""
    alone: FiniteFloat
    """What the trainer computes of the row alone."""
    packed: FiniteFloat
    """What the trainer computes of it between all other rows of the probe."""


class AgreementReport(Message):
    """What `python -m trainer.probe` found."""

    rows: Many[AgreedRow]


def read_spec(path: Path) -> ProbeSpec:
    """Read a spec, its model's folder resolved. Raises MalformedError."""
    spec = _read(path, ProbeSpec)
    return spec.model_copy(update={"model": path.resolve().parent / spec.model})


def read_agreement(path: Path) -> AgreementReport:
    """Read what the trainer's probe found. Raises MalformedError."""
    return _read(path, AgreementReport)


def write_document(document: Message, path: Path) -> None:
    """Write a spec: a file under this name is there as a whole or not at all. Raises StorageError."""
    write_durably(path, document.model_dump_json().encode())


def run_comparison(
    module: str,
    purpose: str,
    compare: Callable[[ProbeSpec, Sequence[Rollout]], bytes],
    arguments: Sequence[str] | None = None,
) -> int:
    """Read SPEC and ROWS of a command line, compare the rows, write REPORT; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=purpose)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="what was asked for (JSON)")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="rollout file that worker.probe wrote")
    parser.add_argument("report", type=Path, metavar="REPORT", help="file to write")
    options = parser.parse_args(arguments)

    def run() -> None:
        data = read_bounded(options.rows, MAX_FILE_BYTES, hint="run worker.probe first")
        write_durably(options.report, compare(read_spec(options.spec), read_rollouts(data)))

    return run_tool(run)


def _read(path: Path, kind: type[M]) -> M:
    data = read_bounded(path, MAX_FILE_BYTES)
    return parse_json(kind, data, f"a {kind.__name__} in {path}", MAX_FILE_BYTES)
