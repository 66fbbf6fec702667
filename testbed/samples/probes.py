"""Specs of probes for tests."""

from __future__ import annotations

from pathlib import Path
from random import Random

from muster.verification.probes import EngineOptions, ProbeRequest, ProbeSpec
from muster.verification.profiles import CPU_FP32, Profile


def small_spec(
    model: Path, profile: Profile = CPU_FP32, calls: tuple[int, ...] = (4, 2), engine: EngineOptions | None = None
) -> ProbeSpec:
    """Return a spec with so many requests in each call: prompts of 8 to 24 tokens, up to 16 tokens each."""
    random = Random(0)

    def request() -> ProbeRequest:
        prompt = [random.randrange(20, 100) for _ in range(random.randint(8, 24))]
        return ProbeRequest(prompt_tokens=prompt, seed=random.getrandbits(63), max_tokens=16)

    requests = [[request() for _ in range(count)] for count in calls]
    return ProbeSpec(
        model=model, profile=profile.name, temperature=1.0, calls=requests, engine=engine or EngineOptions()
    )
