"""The door's second room: engine, replay and trainer measured on a model, row by row, against transformers' own model.

Rows go from two tokens to the longest that is asked for, on both sides of every length that the configuration names.
Each is generated alone and among all others. What was found is kept beside the model, under its hash.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from pydantic import Field, FiniteFloat

from muster.authoring.models.door import PROBE, check_checkpoint, read_config
from muster.authoring.probe_process import TRAINER, VALIDATOR, WORKER, run_probe
from muster.constants import MAX_FILE_BYTES
from muster.environments.answers import THINK_END
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError
from muster.models.files import context_of, dtype_of, load_tokenizer, model_hash, vocabulary_of
from muster.protocol.messages import Many, Message
from muster.protocol.prompts import chat_template, render
from muster.protocol.turns.conversation import turn_rules
from muster.rollouts.parquet import read_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime.documents import parse_json
from muster.runtime.files import write_durably
from muster.verification.judging import Measurement, judge, measurements
from muster.verification.measured import read_cell
from muster.verification.probes import (
    AgreementReport,
    EngineOptions,
    ProbeRequest,
    ProbeSpec,
    read_agreement,
    write_document,
)
from muster.verification.profiles import PROFILES, profile_for
from muster.verification.rules import ModelFacts

COMPLETION: Final = 12
"""Tokens that are generated of a row, or fewer."""
LENGTHS: Final = (2, 3, 5, 9, 17, 33, 65)
"""Rows that are always measured, in tokens."""
LONGEST: Final = 512
"""Where nothing else is said, in tokens."""
LIMITS: Final = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of two honest ways to compute one log-probability, in nats, by the run's dtype."""


class MeasuredRow(Message):
    """Largest differences of a row's log-probabilities, in nats."""

    length: int
    """Prompt and completion, in tokens."""
    engine: FiniteFloat
    """The engine's from transformers' model, alone and among others."""
    neighbour: FiniteFloat
    """The engine's among others from its own alone; 0 where it chose other tokens."""
    trainer: FiniteFloat
    """The trainer's from transformers' model, alone and packed."""
    rejected: str
    """Why a validator would reject the row; empty where it would not."""


class ModelCheck(Message):
    """What was found of a model."""

    model_hash: Annotated[str, Field(pattern="[0-9a-f]{64}")]
    profile: str
    limit: FiniteFloat
    rows: Annotated[Many[MeasuredRow], Field(min_length=1)]

    @property
    def fault(self) -> str:
        """Return why no run may train the model; "" where one may."""
        for row in self.rows:
            if row.rejected:
                return f"an honest row of {row.length} tokens is rejected: {row.rejected}"
            for what in ("engine", "neighbour", "trainer"):
                if (value := getattr(row, what)) > self.limit:
                    return f"{what} differs by {value:.3g} nats at {row.length} tokens; at most {self.limit:g} is noise"
        return ""


async def measure(model: Path, longest: int = LONGEST, note: Callable[[str], None] = print) -> ModelCheck:
    """Measure a model and keep what was found beside it. Raises ConfigError, and as the processes end."""
    check_checkpoint(model)
    spec = spec_of(model, longest)
    with tempfile.TemporaryDirectory(prefix="muster-model-") as name:
        paths = [Path(name) / file for file in ("spec.json", "rows.parquet", "replay.npz", "trainer.json")]
        write_document(spec, paths[0])
        note(f"generating {len(spec.requests)} rows of up to {sum(spec.longest)} tokens with the engine")
        await run_probe(WORKER, *paths[:2])
        note("replaying them as a validator does")
        await run_probe(VALIDATOR, *paths[:3])
        note("computing them as a trainer does")
        await run_probe(TRAINER, *paths[:2], paths[3])
        made = read_rollouts(paths[1].read_bytes())
        replayed = measurements(read_cell(paths[2]), PROFILES[spec.profile])
        found = assess(model_hash(model).hex(), spec, made, replayed, read_agreement(paths[3]))
    write_durably(place_of(model), found.model_dump_json(indent=1).encode())
    return found


def abilities(model: Path) -> dict[str, str]:
    """Return what a checkpoint's chat template is fit for: several turns, in which style of calls, and thinking."""
    tokenizer, stops = load_tokenizer(model), ModelFacts.read(model).stop_tokens
    try:
        found = turn_rules(tokenizer, TurnsManifest(("calculator",)), stops, thinks=True).template
        turns = f"yes, calls in {found.rules.style}{', one a turn' if found.one_call else ''}"
    except ConfigError as error:
        turns = f"no: {error}"
    asked = [{"role": "user", "content": PROBE.messages[-1].content}]
    shown, hidden = (render(tokenizer, asked, thinks=thinks, thinking_budget=COMPLETION) for thinks in (True, False))
    template = chat_template(tokenizer)
    thinking = "yes" if shown != hidden or THINK_END in template + shown else "no: prompts ask for it in words"
    return {"turns": turns, "thinking": "yes, by a budget" if "thinking_budget" in template else thinking}


def place_of(model: Path) -> Path:
    """Return where it is kept what was measured of a model."""
    return model.absolute().with_name(f"{model.absolute().name}.measured.json")


def read_measured(model: Path) -> ModelCheck | None:
    """Return what was measured of just these weights; None where nothing was. Raises MalformedError."""
    path = place_of(model)
    if not path.is_file():
        return None
    hint = f"muster model check {model}"
    found = parse_json(ModelCheck, path.read_bytes(), f"a measurement of a model in {path}", MAX_FILE_BYTES, hint)
    return found if found.model_hash == model_hash(model).hex() else None


def spec_of(model: Path, longest: int) -> ProbeSpec:
    """Return rows of every length of `lengths_of`, each in a call of its own and then all in one."""
    draw, size = random.Random("muster model check"), vocabulary_of(model)
    requests = []
    for length in lengths_of(read_config(model), min(longest, context_of(model) or longest)):
        tokens = min(COMPLETION, length - 1)
        prompt = [draw.randrange(size) for _ in range(length - tokens)]
        requests.append(ProbeRequest(prompt_tokens=prompt, seed=draw.getrandbits(63), max_tokens=tokens))
    return ProbeSpec(
        model=model.resolve(),
        profile=profile_for(dtype_of(model)),
        temperature=1.0,
        calls=[*([one] for one in requests), requests],
        engine=EngineOptions(prefix_caching=False),
    )


def lengths_of(config: object, longest: int) -> list[int]:
    """Return the lengths to try, up to `longest`: some, and those around each number that may be a threshold.

    config: as config.json has it; each of its whole numbers may be one.
    """
    numbers = {int(word) for word in re.findall(r"(?<![\w.])\d{1,9}(?![\w.])", json.dumps(config))}
    near = {number + away for number in numbers for away in (-1, 0, 1)}
    return sorted({length for length in (*LENGTHS, *near, longest) if 2 <= length <= longest})


def assess(
    digest: str, spec: ProbeSpec, made: Sequence[Rollout], replay: Sequence[Measurement], trainer: AgreementReport
) -> ModelCheck:
    """Bring together what three processes say of the rows. Pure. made: the rows that the engine made, by position."""
    count, profile = len(spec.calls) - 1, PROFILES[spec.profile]
    rows = []
    for place in range(count):
        pair = trainer.rows[place], trainer.rows[count + place]
        finding = judge([replay[place]], profile) or judge([replay[count + place]], profile)
        alone, among = made[place], made[count + place]
        same = np.array_equal(alone.completion_tokens, among.completion_tokens)
        rows.append(
            MeasuredRow(
                length=pair[0].length,
                engine=max(one.engine for one in pair),
                neighbour=float(np.abs(alone.logprobs - among.logprobs).max()) if same else 0.0,
                trainer=max(value for one in pair for value in (one.alone, one.packed)),
                rejected="" if finding is None else f"{finding.reason}, {finding.measured:.4g}",
            )
        )
    return ModelCheck(model_hash=digest, profile=spec.profile, limit=LIMITS[profile.dtype], rows=rows)
