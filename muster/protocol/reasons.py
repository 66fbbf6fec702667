"""The reasons to reject work: one table, which every other module reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Reason = Literal[
    "malformed",
    "data_missing",
    "wrong_root",
    "wrong_draw",
    "wrong_prompt",
    "out_of_bounds",
    "wrong_termination",
    "wrong_reward",
    "sampling_mismatch",
    "activation_mismatch",
    "wrong_logprobs",
    "wrong_tool",
    "wrong_span",
]
"""Why a commitment is rejected. Changing the order breaks every run (`muster.protocol.kinds`): a new one is last."""


@dataclass(frozen=True)
class ReasonRow:
    """What is known of a reason. Statistics are named with words for people."""

    means: str
    """For the person whose work it was."""
    shown_by: Literal["storage", "file", "rows", "replay"]
    """What a case is judged by: whether the storage has the file, the whole file, rows alone, their replay."""
    advice: str = ""
    """What an honest operator should check, where there is something."""
    of_row: Mapping[str, str] = field(default_factory=dict)
    """Statistics of a row (`muster.verification.statistics`) that reject above the profile's limits, as judged."""
    of_unit: Mapping[str, str] = field(default_factory=dict)
    """Means over a unit of a pool (`muster.verification.pools`) that lean above the profile's limits."""
    beyond: Mapping[str, str] = field(default_factory=dict)
    """Numbers of rows of a unit that a single token rejects: it leans where there is one."""


REASONS: Final[dict[Reason, ReasonRow]] = {
    "malformed": ReasonRow("the file is not a rollout file, or breaks its limits", "file"),
    "data_missing": ReasonRow(
        "storage did not give the file in time",
        "storage",
        "check that the upload finished before the commitment: the receipt is in the worker's journal",
    ),
    "wrong_root": ReasonRow("the rows do not hash to the root on chain", "file"),
    "wrong_draw": ReasonRow("a row has another task, seed or budget than the draw gave it", "rows"),
    "wrong_prompt": ReasonRow("a row's prompt is not the task's prompt under the run's template", "rows"),
    "out_of_bounds": ReasonRow("a value is outside what is possible: a token id, a length, a log-probability", "rows"),
    "wrong_termination": ReasonRow("a completion ends neither at the end token nor at its limit", "rows"),
    "wrong_reward": ReasonRow("a reward is not what the task's verifier gives", "rows"),
    "sampling_mismatch": ReasonRow(
        "the tokens are not those that this model and this seed produce",
        "replay",
        "check that the engine runs the run's profile (dtype, temperature) and no other sampler",
        of_row={
            "gap_mean": "mean gap to the sampled tokens, in expected errors",
            "gap_worst": "gap to the sampled token, in expected errors",
        },
        of_unit={"gap_mean": "mean gap to the sampled tokens"},
        beyond={"gaps_beyond": "rows that the largest gap rejects"},
    ),
    "activation_mismatch": ReasonRow(
        "the activation proofs are of other weights than this step's: stale, noised, quantised",
        "replay",
        "check the engine's dtype, and that its prefix cache is reset after weights are loaded",
        of_row={"activation": "distance of the activation proof"},
        of_unit={"activation": "distance of the activation proofs"},
    ),
    "wrong_logprobs": ReasonRow(
        "the log-probabilities are not those of this step's weights",
        "replay",
        "check the engine's dtype and temperature",
        of_row={
            "logprob_rms": "mean difference of the log-probabilities, in expected errors",
            "logprob_worst": "difference of a log-probability, in expected errors",
            "logprob_drift": "signed sum of the log-probabilities' differences, in standard deviations",
        },
        of_unit={
            "logprob_rms": "mean difference of the log-probabilities",
            "logprob_mean": "signed mean difference of the log-probabilities",
        },
        beyond={"logprobs_beyond": "rows that the largest difference of a log-probability rejects"},
    ),
    "wrong_tool": ReasonRow("a tool's answer in a row is not what the tool gives", "rows"),
    "wrong_span": ReasonRow(
        "the parts of a completion that were sampled and given do not alternate, or the task has no tools", "rows"
    ),
}
"""In the order of `Reason`."""

ROW_STATISTICS: Final[dict[str, tuple[Reason, str]]] = {
    name: (one, words) for one, row in REASONS.items() for name, words in row.of_row.items()
}
"""By statistic of a row, in the order in which they are judged: what it is a reason for, and its name for people."""

UNIT_STATISTICS: Final[dict[str, tuple[Reason, str]]] = {
    name: (one, words)
    for column in ("of_unit", "beyond")
    for one, row in REASONS.items()
    for name, words in getattr(row, column).items()
}
"""The same by statistic of a unit."""

POOLED: Final = (
    "; no single row shows it, but the rows of this node's last commitments together do: measured and threshold are "
    "powers of ten of the evidence. Run muster doctor --engine"
)
"""What is added where no row is named though the reason is one of rows (`muster.verification.pools`)."""


def explain(reason: Reason, position: int | None) -> str:
    """Return what a rejection means. `position`: the row that it names."""
    row = REASONS[reason]
    return row.means + (POOLED if row.shown_by == "replay" and position is None else "")


Why = Literal[
    "uncalled", "late", "incomplete", "unread", "unlinked", "refuted", "false", "voided", "barred", "unfunded"
]
"""Why a look is not counted. "late": its places were taken, or its link was out. "incomplete": without finite numbers
for each drawn row. "unread": it replayed nothing, a static finding. "refuted": a rejection without a case, of no row or
of one that the checks find true. "false": its numbers are not those of the rows. "unfunded": the owner's money did not
reach."""
