"""What cannot work is refused at the start, with what to change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muster.errors import ConfigError
from muster.protocol.terms import Terms, check_context
from muster.protocol.terms_file import PUBLIC_DEFAULTS, fit_context
from muster.settings.schema import TrainerSettings
from muster.swarm import plan
from testbed.samples.terms import terms_of
from trainer.service import check_terms


def terms(**changes: object) -> Terms:
    return terms_of(**{**plan.LOCAL_TERMS, **changes})


def test_the_demos_own_settings_are_fit() -> None:
    local = terms()
    files = plan.GROUPS_PER_BATCH // local.groups_per_commitment
    check_terms(local, TrainerSettings(batch_groups=plan.GROUPS_PER_BATCH, max_files=files))
    check_context(local, 512)


def test_a_batch_that_can_never_fill_is_refused_with_the_numbers_that_would() -> None:
    with pytest.raises(ConfigError, match="a batch of 33 groups can never fill: 4 files hold 32") as caught:
        check_terms(terms(groups_per_commitment=8), TrainerSettings(batch_groups=33, max_files=4))
    assert caught.value.hint == "set trainer.max_files to 5 or more, or trainer.batch_groups to 32 or fewer"


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="groups have one sample"):
        check_terms(SimpleNamespace(group_size=1), TrainerSettings())  # type: ignore[arg-type]


def test_more_optimiser_steps_than_rollouts_are_refused() -> None:
    options = TrainerSettings(batch_groups=1, max_files=1, optimiser_steps=1000)
    with pytest.raises(ConfigError, match="cannot be cut into 1000 optimiser steps"):
        check_terms(terms(), options)


def test_rollouts_beyond_the_context_are_refused() -> None:
    local = terms()
    longest = local.max_prompt_tokens + local.max_completion_tokens
    check_context(local, longest)
    check_context(local, None)
    completion = f"completions of up to {local.max_completion_tokens}"
    with pytest.raises(ConfigError, match=f"up to {local.max_prompt_tokens} tokens and {completion} do not fit"):
        check_context(local, longest - 1)


def test_terms_to_start_from_fit_the_models_context() -> None:
    assert fit_context(PUBLIC_DEFAULTS, None) == fit_context(PUBLIC_DEFAULTS, 5120) == PUBLIC_DEFAULTS
    fitted = fit_context(PUBLIC_DEFAULTS, 5119)
    assert (fitted["max_prompt_tokens"], fitted["max_completion_tokens"]) == (1023, 4096)
    small = fit_context(PUBLIC_DEFAULTS, 512)
    assert (small["max_prompt_tokens"], small["max_completion_tokens"]) == (102, 410)
    assert {name for name in small if small[name] != PUBLIC_DEFAULTS[name]} == {
        "max_prompt_tokens",
        "max_completion_tokens",
    }


def test_a_budget_that_no_completion_can_reach_is_refused() -> None:
    local = terms(max_completion_tokens=15)  # the largest of the demo's budgets is 16
    with pytest.raises(ConfigError, match="a thinking budget of 16 tokens cannot be met: generation stops at 15"):
        check_context(local, 512)
