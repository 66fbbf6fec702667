"""Why work is rejected, explained to the person whose work it was."""

from __future__ import annotations

from typing import Final

from muster.protocol.messages import Reason, Verdict

EXPLANATIONS: Final[dict[Reason, str]] = {
    "malformed": "the file is not a rollout file, or breaks its limits",
    "data_missing": "storage did not give the file in time",
    "wrong_root": "the rows do not hash to the root on chain",
    "wrong_draw": "a row has another task, seed or budget than the draw gave it",
    "wrong_prompt": "a row's prompt is not the task's prompt under the run's template",
    "out_of_bounds": "a value is outside what is possible: a token id, a length, a log-probability",
    "wrong_termination": "a completion ends neither at the end token nor at its limit",
    "wrong_reward": "a reward is not what the task's verifier gives",
    "sampling_mismatch": "the tokens are not those that this model and this seed produce",
    "activation_mismatch": "the activation proofs are of other weights than this step's: stale, noised, quantised",
    "wrong_logprobs": "the log-probabilities are not those of this step's weights",
    "wrong_tool": "a tool's answer in a row is not what the tool gives",
    "wrong_span": "the parts of a completion that were sampled and given do not alternate, or the task has no tools",
    "wrong_grade": "a validator's grades of the private tests are not what the tests give",
}

ADVICE: Final[dict[Reason, str]] = {
    "data_missing": "check that the upload finished before the commitment: the receipt is in the worker's journal",
    "sampling_mismatch": "check that the engine runs the run's profile (dtype, temperature) and no other sampler",
    "activation_mismatch": "check the engine's dtype, and that its prefix cache is reset after weights are loaded",
    "wrong_logprobs": "check the engine's dtype and temperature",
}
"""What an honest operator should check, where there is something."""

POOLED: Final = (
    "; no single row shows it, but the rows of this node's last commitments together do: measured and threshold are "
    "powers of ten of the evidence. Run muster doctor --engine"
)
"""What is added where no row is named though the reason is one of rows (`muster.verification.pools`)."""

_OF_ROWS: Final[frozenset[Reason]] = frozenset({"sampling_mismatch", "activation_mismatch", "wrong_logprobs"})


def explain(verdict: Verdict) -> str:
    """Return what a rejection means."""
    assert verdict.reason is not None
    pooled = verdict.reason in _OF_ROWS and verdict.position is None
    return EXPLANATIONS[verdict.reason] + (POOLED if pooled else "")
