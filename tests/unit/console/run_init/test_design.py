"""The design of a run from its owner's choices: exact values, refusals, and settings that load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.console.run_init.choices import (
    NEW_CONTEXT,
    RunChoices,
    known_context,
    make_choices,
    merged,
    read_choices,
    write_choices,
)
from muster.console.run_init.design import (
    FAUCET,
    OwnerKeys,
    RunDesign,
    RunParts,
    cautions,
    design_of,
    keys_of,
    terms_of,
    wages_of,
)
from muster.console.run_init.files import SERVICES, owner_settings, settings_text
from muster.console.run_init.table import economics, sentences
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, TOKEN
from muster.errors import ConfigError, UsageError
from muster.models.init import CONTEXT
from muster.protocol.term_bounds import bounds
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.settings.recipes import RECIPES
from muster.settings.sources import load_settings

KEYS = OwnerKeys(*(f"0x{number:040x}" for number in (1, 2, 3)))
PUBLIC = RunChoices(network="base-sepolia", host="run.example.org")


NOTHING = RunParts()


def decided(choices: RunChoices) -> RunDesign:
    return design_of(choices, known_context(choices))


def terms(choices: RunChoices, parts: RunParts = NOTHING) -> Any:
    return terms_of(decided(choices), parts)


def admitter(choices: RunChoices) -> str:
    return keys_of(decided(choices), KEYS).admitter


def test_a_public_run_has_the_numbers_of_the_economics() -> None:
    design = decided(PUBLIC)
    agreed = terms_of(design, RunParts())
    assert economics(design, agreed) == {
        "pay": TOKEN // 4,
        "worker_day": 360 * TOKEN,
        "worker_stake": 1_000 * TOKEN,
        "validator_stake": 1_000 * TOKEN,
        "cover": 1_600,
        "cover_hours": 26.67,
        "conviction_takes": 500 * TOKEN,
        "conviction_burns": 400 * TOKEN,
        "bounty": 100 * TOKEN,
        "cheating_loses_from": 1_600,
        "case_fee": 10 * TOKEN,
        "jury_deposit": 10 * TOKEN,
        "step_files": [8, 16],
        "step_cost": [2 * TOKEN, 4 * TOKEN],
        "escrow": 4_000 * TOKEN,
        "escrow_steps": [1_000, 2_000],
        "escrow_seconds": 60_000,
        "wages": 500 * TOKEN,
        "look_cost": pytest.approx(1 / 24),
        "look_wage": 0.0625,
        "wages_share": 0.125,
        "least_rate": pytest.approx(3.125, abs=0.001),
        "reserved_sealed": 375 * TOKEN,
        "reserved_unsealed": 1_095 * TOKEN,
    }
    said = sentences(design, agreed)
    assert said["worker earns"].endswith("at full speed, 60 an hour, 360 MUST a day")
    assert said["conviction"] == "takes 500 MUST, 400 MUST of it for good, and all pay that is not settled"
    assert said["cheating"] == "loses from one conviction in 1,600 false commitments on"
    assert said["step"] == "costs 2 MUST (8 files whose groups all have a signal) to 4 MUST (16 files)"
    assert said["escrow"] == (
        "4,000 MUST: 1,000 steps at least, which take 16 hours 40 minutes or longer; "
        "2,000 where every group has a signal"
    )
    assert said["looks"] == (
        "2 at each commitment, of 12 of 128 rows: one costs its validator 4.2% of the pay and brings 6.2%, together "
        "12.5% beside the pay; one of 4 validators earns something from 3.1 commitments an hour on; 2 friends look "
        "alone at 17% of the work, with one validator more at 10%"
    )
    assert cautions(agreed) == []


def test_owner_chooses_how_much_is_looked_at_and_for_what() -> None:
    design = decided(merged(PUBLIC, RunChoices(accepts_required=1, look_rows=24, wage_bps=500)))
    agreed = terms_of(design, RunParts())
    assert (agreed.accepts_required, agreed.look_rows, agreed.wage_bps) == (1, 24, 500)
    assert cautions(agreed) == [
        "a look costs its validator more than its wage: a higher --wage-bps, or fewer --look-rows"
    ]
    said = sentences(design, agreed)["looks"]
    assert "one of 4 validators earns something never; one validator looks alone at 25% of the work" in said
    assert wages_of(agreed, 4_000 * TOKEN) == 200 * TOKEN
    small = terms(merged(PUBLIC, RunChoices(group_size=4, groups_per_commitment=2)))
    assert (small.positions, small.look_rows) == (8, 8), "a look replays no more rows than there are"
    assert [terms(one).wage_bps for one in (PUBLIC, RunChoices())] == [625, 1_250], "of 128 rows, and of 64"
    assert (small.wage_bps, cautions(small)[1:]) == (5_000, [])


def test_stake_fee_and_deposit_follow_from_the_pay() -> None:
    agreed = terms(merged(PUBLIC, RunChoices(pay="1", commitments_per_hour=10)))
    assert (agreed.worker_stake, agreed.case_fee, agreed.jury_deposit) == (700 * TOKEN, 40 * TOKEN, 40 * TOKEN)
    assert agreed.cover_of(0) == 280 >= 26 * 10
    slow = terms(merged(PUBLIC, RunChoices(pay="1", commitments_per_hour=1)))
    assert (slow.worker_stake, slow.case_fee) == (70 * TOKEN, slow.burned), "no fee is above what a conviction burns"
    assert slow.burned == 28 * TOKEN


def test_chosen_stake_is_reported_with_what_it_covers() -> None:
    agreed = terms(merged(PUBLIC, RunChoices(stake="100")))
    assert (agreed.worker_stake, agreed.validator_stake) == (100 * TOKEN, 100 * TOKEN)
    (said,) = cautions(agreed)
    assert said.startswith("the stake covers 2.7 hours of a worker at full speed")
    dear = terms(merged(PUBLIC, RunChoices(stake="10001")))
    assert cautions(dear) == [
        "joining takes more than a day: the faucet gives 10,000 MUST a day, and the stake is more"
    ]
    assert dear.worker_stake > FAUCET


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stake": "2"}, r"the term pay is 0\.25 MUST and must be 0\.0+1 MUST to 0\.2 MUST"),
        ({"group_size": 4_096, "groups_per_commitment": 2}, "the term groups_per_commitment is 2 and must be 1 to 1"),
        ({"budgets": (100,), "max_completion_tokens": 99}, "a thinking budget of 100 tokens cannot be met"),
        ({"budgets": (60_000,)}, "128 rollouts of 121,024 tokens may take 235 MiB; a commitment's file has at most 64"),
    ],
)
def test_terms_beyond_contract_or_file_limits_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        terms(merged(PUBLIC, make_choices(changed)))
    assert refused.value.hint


def test_lengths_must_fit_the_models_context() -> None:
    assert NEW_CONTEXT == CONTEXT, "of a model that is made here"
    long = merged(PUBLIC, RunChoices(budgets=(200, 240)))
    parts = RunParts(context=512, longest_prompt=30)
    assert terms(long, parts).max_prompt_tokens == 30, "as long as the longest prompt"
    assert terms(long, parts).max_completion_tokens == 480
    with pytest.raises(ConfigError, match="prompts of up to 33 tokens and completions of up to 480 do not fit"):
        terms(long, replace(parts, longest_prompt=33))


def test_a_public_run_needs_a_host_that_others_reach() -> None:
    with pytest.raises(UsageError, match="nodes must reach the orchestrator"):
        decided(RunChoices(network="base-sepolia"))
    with pytest.raises(UsageError, match=r"--host: write a name such as run\.example\.org"):
        make_choices({"host": "http://run.example.org:8600"})


def test_validators_option_sets_the_admitter() -> None:
    assert admitter(PUBLIC) == ZERO_ADDRESS
    assert admitter(merged(PUBLIC, RunChoices(validators="owner"))) == KEYS.owner
    somebody = "0x" + "ab" * 20
    assert admitter(merged(PUBLIC, RunChoices(validators=somebody))).lower() == somebody
    with pytest.raises(UsageError, match="--validators: write open, owner, or an address"):
        make_choices({"validators": "friends"})


def test_a_model_that_is_none_is_answered_by_the_forms_that_work() -> None:
    said = "--model: smollm2-135m is no folder, and no name of a model: write new, a checkpoint folder, or OWNER/NAME"
    with pytest.raises(UsageError, match=said):
        make_choices({"model": "smollm2-135m"})


def test_a_model_that_others_have_made_is_trained_in_smaller_steps_unless_the_recipe_says() -> None:
    new, fetched = decided(PUBLIC), decided(merged(PUBLIC, RunChoices(model="owner/name")))
    assert (new.learning_rate, fetched.learning_rate) == (None, 4e-5)
    assert (new.tasks, new.budgets, new.levels) == ("sort", (8, 12, 16), (3, 4, 5, 6))
    assert (fetched.tasks, fetched.budgets, fetched.levels) == ("sums,stories", (512, 1024, 2048), (9, 12, 15))
    assert fetched.max_completion_tokens == 4_096
    recipe = decided(merged(PUBLIC, RunChoices(model="owner/name", recipe="intellect2")))
    assert (recipe.learning_rate, recipe.batch_groups, recipe.most_files) == (None, 256, 64)
    with pytest.raises(UsageError, match="a batch of 100,000 groups takes 12,500 commitments"):
        decided(merged(PUBLIC, RunChoices(batch_groups=100_000)))


def test_a_local_run_keeps_a_pace_that_its_workers_can_keep() -> None:
    design = decided(RunChoices())
    assert (design.batch_groups, design.group_size, design.groups_per_commitment, design.most_files) == (16, 8, 8, 4)
    assert design.min_step_interval == 18, "two files a step, of 255 an hour from each of two workers"
    assert decided(RunChoices(local_workers=4)).min_step_interval == 9


# --- Every choice

amounts = st.decimals("0.01", "5000", places=2).map(str)
answers = st.fixed_dictionaries(
    {"network": st.sampled_from(["local", "base-sepolia"]), "host": st.just("a.example")},
    optional={
        "title": st.text(max_size=80),
        "about": st.text(max_size=300),
        "model": st.sampled_from(["new", "somebody/model"]),
        "budgets": st.lists(st.integers(1, 65_535), min_size=1, max_size=14).map(tuple),
        "max_prompt_tokens": st.integers(1, 1 << 20),
        "max_completion_tokens": st.integers(1, 1 << 20),
        "recipe": st.sampled_from(sorted(RECIPES)),
        "batch_groups": st.integers(1, 5_000),
        "group_size": st.integers(2, 4_096),
        "groups_per_commitment": st.integers(1, 4_096),
        "commitments_per_hour": st.integers(1, 255),
        "pay": amounts,
        "stake": amounts,
        "steps": st.integers(0, 10**7),
        "validators": st.sampled_from(["open", "owner", "0x" + "cd" * 20]),
        "learning_rate": st.floats(1e-9, 0.5),
        "local_workers": st.integers(1, 64),
        "accepts_required": st.integers(1, 255),
        "look_rows": st.integers(1, 4_096),
        "wage_bps": st.integers(0, 5_000),
    },
)


@given(answers)
def test_terms_are_within_the_contracts_bounds_or_refused_with_a_reason(chosen: dict[str, Any]) -> None:
    try:
        design = decided(make_choices(chosen))
        agreed = terms_of(design, RunParts())
    except (ConfigError, UsageError) as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.hint, refused
        return
    assert design.chain_id in (CHAIN_ANVIL, CHAIN_BASE_SEPOLIA)
    assert all(bound.holds for bound in bounds(agreed, local=design.is_local))
    it = economics(design, agreed)
    assert it["cover"] * it["pay"] <= it["conviction_burns"]
    assert it["bounty"] >= it["pay"], "hiding a false commitment gains nothing"
    assert it["jury_deposit"] >= 4 * it["pay"]
    assert it["escrow_steps"][0] == design.steps


@given(answers)
def test_settings_files_load_and_say_what_was_chosen(tmp_path_factory: Any, chosen: dict[str, Any]) -> None:
    folder = tmp_path_factory.getbasetemp()
    choices = make_choices(chosen)
    try:
        design = decided(choices)
    except UsageError:
        return
    read = {}
    for name in SERVICES:
        path = folder / f"{name}.toml"
        path.write_text(
            settings_text(name, owner_settings(design, name, 7, folder / "model", folder)), encoding="utf-8"
        )
        read[name] = load_settings(path)
    orchestrator, weights, explorer, trainer = (read[name] for name in SERVICES)
    assert {settings.run for settings in read.values()} == {7}
    assert {settings.chain.chain_id for settings in read.values()} == {design.chain_id}
    assert {settings.chain.addresses for settings in read.values()} == {folder / "addresses.json"}
    assert (orchestrator.orchestrator.title, orchestrator.orchestrator.about) == (design.title, design.about)
    assert orchestrator.orchestrator.batch_groups == trainer.trainer.batch_groups == design.batch_groups
    assert orchestrator.shardcast.relays == [design.weights_url]
    assert weights.shardcast.port == design.ports[2]
    assert orchestrator.orchestrator.explorer_url == design.explorer_url == f"http://{design.host}:{design.ports[3]}"
    assert (explorer.explorer.port, explorer.orchestrator.url) == (design.ports[3], design.orchestrator_url)
    assert (explorer.explorer.state_dir, explorer.keys.keystore) == (folder / ".muster" / "explorer", None)
    assert trainer.trainer.model == folder / "model"
    assert weights.shardcast.dir == trainer.shardcast.dir == folder / "weights"
    assert trainer.orchestrator.url == design.orchestrator_url
    assert trainer.keys.keystore == folder / "keys" / "trainer.json"


def test_choices_are_kept_in_a_file_that_people_may_edit(tmp_path: Path) -> None:
    path = tmp_path / "choices.toml"
    assert read_choices(path) == RunChoices()
    chosen = make_choices({"title": "  two\nlines ", "about": 'a "quoted"\ttab', "budgets": (4, 8), "pay": "0.5"})
    assert chosen.title == "two lines"
    write_choices(path, chosen)
    assert read_choices(path) == chosen
    assert merged(chosen, RunChoices(pay="1")) == chosen.model_copy(update={"pay": "1"})
    for text, said in (
        ("pay = 1", "pay: Input should be a valid string"),
        ('pay = "1,5"', "pay: an amount in tokens is needed"),
        ("nothing = 1", "nothing: Extra inputs are not permitted"),
        ("=", "is not TOML"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_choices(path)
