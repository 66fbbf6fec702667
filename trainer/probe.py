"""python -m trainer.probe SPEC ROWS REPORT: compute the rows of a probe as the trainer does, and as transformers does.

The reference is transformers' own model on each row alone, in the spec's dtype. Needs no run, no chain and no key.
`muster.verification.probes` has spec and report. Ends with 0 whatever was found, or with a code of `muster.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from muster.models.init import load_model
from muster.models.matmul import choose_matmul
from muster.models.numerics import pin_numerics
from muster.rollouts.schema import Rollout
from muster.verification.bundles import finite
from muster.verification.probes import AgreedRow, AgreementReport, ProbeSpec, check_probe_rows, run_comparison
from muster.verification.profiles import PROFILES
from trainer.packing import Sample, collate
from trainer.policy import Policy


@torch.no_grad()
def compare(spec: ProbeSpec, rows: Sequence[Rollout]) -> AgreementReport:
    """Return how far engine and trainer are from transformers' model. Raises MismatchError for rows of another spec."""
    pin_numerics()
    dtype, matmul = getattr(torch, PROFILES[spec.profile].dtype), choose_matmul(spec.matmul)
    model = load_model(spec.model, dtype, matmul).eval()
    check_probe_rows(rows, spec, model.config.vocab_size)
    samples = [Sample.from_rollout(row, 0.0) for row in rows]
    # 1. The reference, before the trainer's attention takes the place of the model's own.
    references = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt, sample.completion])).long()[None]
        logits = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1].float() / spec.temperature
        chosen = logits.log_softmax(-1).gather(1, torch.from_numpy(sample.completion).long()[:, None])
        references.append(chosen[:, 0].numpy())
    # 2. The trainer: each row alone, then all in one.
    policy = Policy(model, temperature=spec.temperature, wide=matmul == "float32")
    weights = [1.0] * len(samples)
    alone = [policy(collate(samples, weights, [place]))[0].numpy() for place in range(len(samples))]
    packed = policy(collate(samples, weights, range(len(samples))))[0].numpy()
    parts = np.split(packed, np.cumsum([sample.completion_length for sample in samples])[:-1])
    found = zip(rows, samples, references, alone, parts, strict=True)
    return AgreementReport(
        rows=[
            AgreedRow(
                position=row.position,
                length=sample.length,
                engine=_largest(sample.logprobs, reference),
                alone=_largest(own, reference),
                packed=_largest(part, reference),
            )
            for row, sample, reference, own, part in found
        ]
    )


def _largest(values: np.ndarray, reference: np.ndarray) -> float:
    found = finite(float(np.abs(values - reference).max()))
    assert found is not None, "a row has a completion"
    return found


def _report(spec: ProbeSpec, rows: Sequence[Rollout]) -> bytes:
    return compare(spec, rows).model_dump_json().encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and write the report; return the exit code."""
    return run_comparison("trainer.probe", "compare a probe's rows", _report, arguments)


if __name__ == "__main__":
    sys.exit(main())
