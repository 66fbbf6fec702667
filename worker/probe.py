"""python -m worker.probe SPEC ROWS: generate what a probe's spec asks for with the real engine; write a rollout file.

Needs no run, no chain and no key. `muster.verification.probes` has the spec, and what becomes of the file.
Ends with 0, or with a code of `muster.errors`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime.files import write_durably
from muster.runtime.process import run_tool
from muster.verification.probes import ProbeSpec, read_spec
from muster.verification.profiles import PROFILES
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows


def generate(spec: ProbeSpec) -> list[Rollout]:
    """Return a row for each request, in order. Raises as `Engine` does."""
    engine = Engine(spec.model, PROFILES[spec.profile], limits_of(spec))
    try:
        rows: list[Rollout] = []
        for call in spec.calls:
            requests = [
                GenerationRequest(np.array(one.prompt_tokens, dtype=np.int32), one.seed, one.max_tokens) for one in call
            ]
            rows += bare_rows(requests, engine.generate(requests), first=len(rows))
        return rows
    finally:
        if engine.limits.ranks > 1:  # a single process frees everything by ending, which is faster
            engine.close()


def limits_of(spec: ProbeSpec) -> EngineLimits:
    """Return the engine's limits: the spec's options, its lengths those of the longest request unless it says."""
    prompt, completion = spec.longest
    options = spec.engine.model_dump()
    options["max_prompt_tokens"] = options["max_prompt_tokens"] or prompt
    options["max_completion_tokens"] = options["max_completion_tokens"] or completion
    return EngineLimits(temperature=spec.temperature, matmul=spec.matmul, **options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate and write the file; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m worker.probe", description="generate the rows of a probe")
    parser.add_argument("spec", type=Path, metavar="SPEC", help="what to generate (JSON)")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="rollout file to write")
    options = parser.parse_args(arguments)
    return run_tool(lambda: write_durably(options.rows, write_rollouts(generate(read_spec(options.spec)))))


if __name__ == "__main__":
    sys.exit(main())
