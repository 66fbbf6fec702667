"""The ragged batch of benchmarks/ragged.py as accepted work: rollouts as workers send them, under terms they fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import ragged
from muster.models.files import model_hash, tokenizer_hash
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout, one_span
from muster.swarm import plan

GROUPS_PER_FILE = 8
PROOF_BYTES = 8
"""A token's."""
NODE = "0x" + "11" * 20


def terms_of(model: Path) -> Terms:
    """Return the terms of a run of this model whose commitments are files of this batch."""
    terms = Terms(
        **plan.LOCAL_TERMS,
        trainer=NODE,
        storage_key=NODE,
        task_count=1,
        task_root=bytes(32),
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
    )
    return replace(
        terms,
        group_size=ragged.GROUP_SIZE,
        groups_per_commitment=GROUPS_PER_FILE,
        max_prompt_tokens=ragged.PROMPT_LENGTHS[1],
        max_completion_tokens=ragged.LONGEST,
    )


def rollouts_by_file(file: Path) -> list[list[Rollout]]:
    """Return the batch's rollouts, one list for each file, with proofs of random bytes."""
    batch = ragged.RaggedBatch.load(file)
    size, random = int(batch.group_size), np.random.default_rng(0)
    per_file = size * GROUPS_PER_FILE
    rows = batch.rollouts()
    return [
        [
            Rollout(
                run=1,
                step=0,
                position=position,
                group=position // size,
                sample=position % size,
                task=position // size,
                seed=position,
                budget=ragged.MEDIAN_LENGTH,
                prompt_tokens=prompt,
                completion_tokens=completion,
                spans=one_span(len(completion)),
                logprobs=logprobs,
                task_reward=1_000_000 if advantage > 0 else 0,
                parts=np.array([1_000_000 if advantage > 0 else 0], np.int64),
                fuel=0,
                length_reward=0,
                finish_reason="stop",
                proof=random.bytes(PROOF_BYTES * len(completion)),
            )
            for position, (prompt, completion, logprobs, advantage) in enumerate(rows[start : start + per_file])
        ]
        for start in range(0, len(rows), per_file)
    ]
