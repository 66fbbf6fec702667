"""The static checks: honest work passes, and each adversary is named for the one thing it does wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.registry import default_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from muster.errors import ConfigError, UnreachableError
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span
from muster.tasksets.build import NewPart, write_task_set
from muster.verification.checks import LOGPROB_SLACK, ROW_CHECKS, CheckedRow, Finding, check_file
from muster.verification.rules import ModelFacts
from testbed.adversaries import claims
from testbed.samples.commitments import LIMIT, committed, drawn, honest_rows, rules, tokens_of

STOPPED, LIMITED = 4, 5
"""A row that ends by itself, and one that the limit ends."""


def inspect(rows: list[Rollout]) -> Finding | None:
    """As if the rows given had been committed to: what the adversary does is in the rows, not in the root."""
    return check_file(rows, committed(rows), drawn(), rules())


def with_row(at: int, /, **changes: object) -> list[Rollout]:
    rows = honest_rows()
    rows[at] = replace(rows[at], **changes)  # type: ignore[arg-type]
    return rows


def completion(position: int, tokens: np.ndarray) -> dict[str, object]:
    """A completion with everything else to match, so that only its end or its bounds are wrong."""
    row = honest_rows()[position]
    return {
        "completion_tokens": tokens.astype(np.int32),
        "spans": one_span(len(tokens)),
        "logprobs": np.full(len(tokens), -0.5, dtype=np.float32),
        "length_reward": row.length_reward,
    }


def edited(values: np.ndarray, place: int, value: float) -> np.ndarray:
    copy = values.copy()
    copy[place] = value
    return copy


def test_honest_work_passes() -> None:
    assert inspect(honest_rows()) is None


def test_too_few_rows() -> None:
    finding = inspect(honest_rows()[:-1])
    assert finding == Finding("malformed", None, 11, 12, detail="11 rows, a commitment has 12")


@pytest.mark.parametrize("name", ["run", "step", "position", "group", "sample"])
def test_a_row_that_says_it_is_another_one(name: str) -> None:
    row = honest_rows()[7]
    finding = inspect(with_row(7, **{name: getattr(row, name) + 1}))
    assert finding is not None
    assert (finding.reason, finding.position) == ("malformed", 7)


def test_rows_in_another_order() -> None:
    rows = honest_rows()
    rows[0], rows[1] = rows[1], rows[0]
    finding = inspect(rows)
    assert finding is not None
    assert (finding.reason, finding.position) == ("malformed", 0)


def test_swapped_data() -> None:
    """A file that is all right, and not the one that was committed to."""
    rows = honest_rows()
    finding = check_file(with_row(3, proof=b"other"), committed(rows), drawn(), rules())
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == ("wrong_root", None, True)


def test_the_root_binds_every_column() -> None:
    rows, changes = (
        honest_rows(),
        {
            "logprobs": honest_rows()[2].logprobs + np.float32(1e-6),
            "length_reward": -1,
            "spans": honest_rows()[2].spans + np.int32(1),
            "parts": honest_rows()[2].parts + 1,
            "fuel": 1,
        },
    )
    for name, value in changes.items():
        finding = check_file(with_row(2, **{name: value}), committed(rows), drawn(), rules())
        assert finding is not None
        assert finding.reason == "wrong_root"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (lambda row: {"task": (row.task + 1) % 64}, "another task"),
        (lambda row: {"seed": row.seed ^ 1}, "another seed"),
        (lambda row: {"budget": 8 if row.budget != 8 else 16}, "another budget"),
    ],
    ids=["task", "seed", "budget"],
)
def test_a_wrong_draw(changes: Callable[[Rollout], dict], what: str) -> None:
    rows = honest_rows()
    finding = inspect(with_row(6, **changes(rows[6])))
    assert finding is not None, what
    assert (finding.reason, finding.position) == ("wrong_draw", 6)


def test_another_prompt() -> None:
    row = honest_rows()[4]
    for prompt in (tokens_of("be clever! ").tolist() + row.prompt_tokens.tolist(), row.prompt_tokens[:-1], []):
        finding = inspect(with_row(4, prompt_tokens=np.asarray(prompt, dtype=np.int32)))
        assert finding is not None
        assert (finding.reason, finding.position) == ("wrong_prompt", 4)


def test_out_of_bounds() -> None:
    row, vocabulary = honest_rows()[LIMITED], rules().model.vocabulary
    cases = {
        "empty": completion(LIMITED, np.zeros(0)),
        "longer than the limit": completion(LIMITED, tokens_of("." * (LIMIT + 1))),
        "a token beyond the vocabulary": completion(LIMITED, edited(row.completion_tokens, 3, vocabulary)),
        "a negative token": completion(LIMITED, edited(row.completion_tokens, 3, -1)),
        "too few log-probabilities": {"logprobs": row.logprobs[:-1]},
        "not a number": {"logprobs": edited(row.logprobs, 0, np.nan)},
        "minus infinity": {"logprobs": edited(row.logprobs, 0, -np.inf)},
        "a probability above one": {"logprobs": edited(row.logprobs, 0, 2 * LOGPROB_SLACK)},
    }
    for what, changes in cases.items():
        finding = inspect(with_row(LIMITED, **changes))
        assert finding is not None, what
        assert (finding.reason, finding.position) == ("out_of_bounds", LIMITED), what


@pytest.mark.parametrize(
    "ends", [[LIMIT - 1], [LIMIT + 1], [], [3, 5, LIMIT], [3, 3, LIMIT], [3, LIMIT], [0, 2, LIMIT]]
)
def test_wrong_spans_of_a_task_without_tools(ends: list[int]) -> None:
    finding = inspect(with_row(LIMITED, spans=np.array(ends, np.int32)))
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == ("wrong_span", LIMITED, True)


def test_rounding_above_zero_is_no_lie() -> None:
    row = honest_rows()[LIMITED]
    assert inspect(with_row(LIMITED, logprobs=edited(row.logprobs, 0, LOGPROB_SLACK / 2))) is None


def test_wrong_termination() -> None:
    stopped, limited = honest_rows()[STOPPED], honest_rows()[LIMITED]
    end = stopped.completion_tokens[-1:]
    cases: dict[str, tuple[int, dict]] = {
        "truncated": (LIMITED, completion(LIMITED, limited.completion_tokens[:-3])),
        "truncated before the end token": (STOPPED, completion(STOPPED, stopped.completion_tokens[:-1])),
        "padded after the end token": (
            STOPPED,
            completion(STOPPED, np.concatenate([stopped.completion_tokens, tokens_of("..")])),
        ),
        "padded with end tokens": (STOPPED, completion(STOPPED, np.concatenate([stopped.completion_tokens, end]))),
        "says stop at the limit": (LIMITED, {"finish_reason": "stop"}),
        "says length at the end token": (STOPPED, {"finish_reason": "length"}),
    }
    for what, (position, changes) in cases.items():
        finding = inspect(with_row(position, **changes))
        assert finding is not None, what
        assert (finding.reason, finding.position) == ("wrong_termination", position), what


def test_inflated_rewards() -> None:
    finding = inspect(with_row(LIMITED, task_reward=1_000_000))
    assert finding is not None
    assert (finding.reason, finding.position, finding.measured, finding.threshold) == ("wrong_reward", 5, 1_000_000, 0)
    row = honest_rows()[STOPPED]
    finding = inspect(with_row(STOPPED, length_reward=0))
    assert finding is not None
    assert (finding.reason, finding.measured, finding.threshold) == ("wrong_reward", 0, row.length_reward)


@pytest.mark.parametrize(
    ("changes", "measured", "threshold"),
    [
        ({"parts": np.array([0], np.int64)}, None, None),
        ({"parts": np.array([1_000_000, 0], np.int64)}, None, None),
        ({"parts": np.array([], np.int64)}, None, None),
        ({"fuel": 1}, 1, 0),
    ],
    ids=["other parts", "a part too many", "no parts", "another fuel"],
)
def test_a_true_reward_with_other_parts_or_another_fuel(
    changes: dict[str, object], measured: float | None, threshold: float | None
) -> None:
    finding = inspect(with_row(STOPPED, **changes))
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == ("wrong_reward", STOPPED, True)
    assert (finding.measured, finding.threshold) == (measured, threshold)


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (claims.other_parts, "wrong_reward"),
        (claims.another_fuel, "wrong_reward"),
        (claims.spans_that_leave_tokens_out, "wrong_span"),
    ],
)
def test_an_adversary_that_claims_it_of_every_row(
    claim: Callable[[Sequence[Rollout]], list[Rollout]], reason: str
) -> None:
    honest, finding = honest_rows(), inspect(claim(honest_rows()))
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == (reason, 0, True)
    for position, row in enumerate(honest):
        finding = inspect([*honest[:position], *claim([row]), *honest[position + 1 :]])
        assert finding is not None
        assert (finding.reason, finding.position) == (reason, position)


def test_a_score_that_another_processor_could_have_come_to_is_not_judged() -> None:
    """A program that went to the end of its stack: how deep that is differs between processors."""

    class Unsure(Scorers):
        def score(self, manifest: EnvironmentManifest, task: Task, completion: str) -> Score:
            return replace(super().score(manifest, task, completion), unsure=True)

    unsure = replace(rules(), scorers=Unsure())
    rows = with_row(STOPPED, task_reward=0, parts=np.array([0], np.int64), fuel=7)
    assert check_file(rows, committed(rows), drawn(), unsure) is None
    rows = with_row(STOPPED, length_reward=0)
    finding = check_file(rows, committed(rows), drawn(), unsure)
    assert finding is not None
    assert (finding.reason, finding.position) == ("wrong_reward", STOPPED)


def test_what_accuses_comes_before_what_only_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool's result that another processor could have come to only rejects, although its check runs earlier."""

    def unsure(row: CheckedRow) -> Finding | None:
        return replace(row.finding("wrong_tool", "unsure"), accuse=False) if row.position == STOPPED else None

    monkeypatch.setitem(ROW_CHECKS, "wrong_tool", unsure)
    rows = honest_rows()
    last = len(rows) - 1
    finding = inspect(rows)
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == ("wrong_tool", STOPPED, False)
    rows = with_row(last, length_reward=rows[last].length_reward + 1)
    finding = inspect(rows)
    assert finding is not None
    assert (finding.reason, finding.position, finding.accuse) == ("wrong_reward", last, True)


def test_unscorable_task_is_worth_zero_for_every_node(tmp_path: Path) -> None:
    """The fault is the owner's: honest work on the task is accepted, and a claimed reward is not."""
    sorting = rules().task_set.manifest(0)
    made = write_task_set(tmp_path / "tasks", [NewPart("sort", sorting, [ask("sort 21", wrong="12")])])
    broken = replace(rules(), task_set=made)
    score = broken.score(0, tokens_of("</think>12"))
    assert (score.parts, score.fuel) == ((0,), 0)
    assert score.reason.startswith("the task is of no use: task 'sort 21' has 'wrong'")
    draw = replace(drawn(), groups=tuple(replace(group, task=0) for group in drawn().groups))
    rows = [
        replace(
            row,
            task=0,
            prompt_tokens=broken.prompt(0, row.budget),
            task_reward=0,
            parts=np.array([0], np.int64),
            fuel=0,
        )
        for row in honest_rows()
    ]
    assert check_file(rows, committed(rows), draw, broken) is None
    rows[STOPPED] = replace(rows[STOPPED], task_reward=1_000_000)
    finding = check_file(rows, committed(rows), draw, broken)
    assert finding is not None
    assert (finding.reason, finding.position) == ("wrong_reward", STOPPED)


def test_a_task_that_cannot_be_read_here_is_never_the_works_fault(tmp_path: Path) -> None:
    made = write_task_set(
        tmp_path / "tasks", [NewPart("s", rules().task_set.manifest(0), [ask("sort 21", answer="12")])]
    )
    (shard,) = (tmp_path / "tasks" / "shards").iterdir()
    for damage in (lambda: shard.write_bytes(b"damaged"), shard.unlink):
        damage()
        with pytest.raises(UnreachableError, match="task 0 cannot be read here: "):
            replace(rules(), task_set=made).score(0, tokens_of("</think>12"))


def test_a_scorer_that_is_not_here_is_never_the_works_fault(tmp_path: Path) -> None:
    manifest = default_manifest("code", "0x" + "5c" * 32)
    task = ask("Print 1.", kind="stdin", tests=[{"input": "", "output": "1"}])
    made = write_task_set(tmp_path / "tasks", [NewPart("code", manifest, [task])])
    with pytest.raises(UnreachableError, match="task 0 cannot be scored here: "):
        replace(rules(), task_set=made).score(0, tokens_of("</think>```\nprint(1)\n```"))


def test_an_answer_that_only_looks_right_is_worth_nothing() -> None:
    """The answer without its `</think>`: a verifier that searched the text would pay for it."""
    answer = rules().task(honest_rows()[STOPPED].task).reference["answer"]
    tokens = tokens_of(answer + "." * (LIMIT - len(answer)))
    finding = inspect(with_row(LIMITED, **completion(LIMITED, tokens), task_reward=1_000_000))
    assert finding is not None
    assert finding.reason == "wrong_reward"


def test_the_first_check_decides_and_then_the_first_row() -> None:
    rows = honest_rows()
    rows[1] = replace(rows[1], task_reward=1_000_000)
    rows[9] = replace(rows[9], finish_reason="stop")
    rows[11] = replace(rows[11], finish_reason="stop")
    finding = inspect(rows)
    assert finding is not None
    assert (finding.reason, finding.position) == ("wrong_termination", 9)


def test_model_facts_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 100, "eos_token_id": [3, 4]}')
    assert ModelFacts.read(tmp_path) == ModelFacts(100, frozenset({3, 4}))
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    with pytest.raises(ConfigError, match="eos_token_id"):
        ModelFacts.read(tmp_path)
