"""Settings: precedence, unknown names, provenance, masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.errors import ConfigError
from muster.settings.recipes import RECIPES
from muster.settings.schema import Settings, TrainerSettings
from muster.settings.sources import GONE, RENAMED, known_keys, load_settings, mask, read_settings, value_of
from muster.shardcast.retention import StepRetention
from muster.verification.profiles import BF16, profile_hash
from trainer.advantages import AdvantageTerms
from trainer.learner import Recipe
from trainer.loss import LossTerms
from trainer.update import UpdateTerms


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("MUSTER_"):
            monkeypatch.delenv(name)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "muster.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("url", ["https://example.org/muster", "https://example.org/?run=1", "https://example.org//"])
def test_an_orchestrator_stands_at_the_top_of_a_host(url: str) -> None:
    with pytest.raises(ConfigError, match="without a path"):
        load_settings(None, {"orchestrator.url": url})


@pytest.mark.parametrize(("was", "now"), RENAMED.items())
def test_setting_of_an_earlier_version_is_refused_with_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, now: str
) -> None:
    section, _, name = was.partition(".")
    path = write(tmp_path, f"[{section}]\n{name} = 1\n")
    with pytest.raises(ConfigError, match=rf"the setting {was} \(from {path}\) is now called {now}"):
        load_settings(path)
    assert now in known_keys()
    monkeypatch.setenv(variable := f"MUSTER_{section}__{name}".upper(), "1")
    with pytest.raises(ConfigError, match=rf"\(from {variable}\) is now called {now}"):
        load_settings()


@pytest.mark.parametrize(("was", "hint"), GONE.items())
def test_setting_that_is_gone_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, hint: str
) -> None:
    section, _, name = was.partition(".")
    path = write(tmp_path, f"[{section}]\n{name} = 1\n")
    with pytest.raises(ConfigError, match=rf"^the setting {was} \(from {path}\) is gone") as refused:
        load_settings(path)
    assert (refused.value.hint, was in known_keys()) == (hint, False)
    monkeypatch.setenv(variable := f"MUSTER_{section}__{name}".upper(), "1")
    with pytest.raises(ConfigError, match=rf"\(from {variable}\) is gone"):
        load_settings()


def test_defaults_need_no_file() -> None:
    assert load_settings() == Settings()


def test_precedence_is_flag_environment_file_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "[chain]\nchain_id = 1\nconfirmations = 1\npoll_seconds = 1\n")
    monkeypatch.setenv("MUSTER_CHAIN__CHAIN_ID", "2")
    monkeypatch.setenv("MUSTER_CHAIN__CONFIRMATIONS", "2")
    loaded = read_settings(path, {"chain": {"chain_id": 3}})
    chain = loaded.settings.chain
    assert (chain.chain_id, chain.confirmations, chain.poll_seconds, chain.timeout_seconds) == (3, 2, 1.0, 30.0)
    keys = ("chain.chain_id", "chain.confirmations", "chain.poll_seconds", "chain.timeout_seconds")
    assert [loaded.source(key) for key in keys] == ["flag", "MUSTER_CHAIN__CONFIRMATIONS", str(path), "default"]


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "[keys]\nkeystore = '~/.muster/keys/worker-1.json'\n")
    monkeypatch.setenv("HOME", "/home/of-hers")
    assert load_settings(path).keys.keystore == Path("/home/of-hers/.muster/keys/worker-1.json")
    path = write(tmp_path, "[trainer]\nmodel = '~no-such-user/model'\n")
    with pytest.raises(ConfigError, match=r"trainer\.model .* cannot expand ~no-such-user: no such user"):
        load_settings(path)


PATHS = """
[chain]
addresses = 'addresses.json'
[keys]
keystore = '../keys/a.json'
password_file = '/etc/muster/password'
[orchestrator]
database_url = 'sqlite:///state/a.db?timeout=3'
storage_url = 'file:kept'
[log]
file = 'a.log'
"""


@pytest.mark.parametrize("elsewhere", [True, False])
def test_paths_of_a_file_begin_at_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    path = write(folder, PATHS)
    monkeypatch.chdir(tmp_path if elsewhere else folder)
    monkeypatch.setenv("MUSTER_WORKER__STATE_DIR", "from-here")
    for given in (path, path.relative_to(Path.cwd())):
        settings = load_settings(given, {"trainer.model": "from-here"})
        beside = given.parent
        assert settings.chain.addresses == beside / "addresses.json"
        assert settings.keys.keystore == beside / "../keys/a.json"
        assert settings.keys.password_file == Path("/etc/muster/password")
        assert settings.log.file == beside / "a.log"
        assert settings.orchestrator.database_url == f"sqlite:///{beside / 'state/a.db'}?timeout=3"
        assert settings.orchestrator.storage_url == f"file:{beside / 'kept'}"
        # What the file leaves out is beside it too, so that its commands work from everywhere.
        assert settings.validator.state_dir == beside / ".muster/validator"
        assert settings.shardcast.dir == beside / ".muster/weights"
        # What is given here begins here.
        assert settings.worker.state_dir == Path("from-here")
        assert settings.trainer.model == Path("from-here")


@pytest.mark.parametrize(
    ("key", "url", "expected"),
    [
        ("database_url", "sqlite:////var/a.db", None),
        ("database_url", "sqlite://", None),
        ("database_url", "sqlite:///:memory:", None),
        ("database_url", "sqlite:///file:a.db?uri=true", None),
        ("database_url", "sqlite+pysqlite:///a.db", "sqlite+pysqlite:///{}/a.db"),
        ("database_url", "postgresql://host/muster", None),
        ("storage_url", "file:/var/kept", None),
        ("storage_url", "file:///var/kept", "file:/var/kept"),
        ("storage_url", "file://kept", "file:{}/kept"),
        ("storage_url", "file:", None),
        ("storage_url", "s3://bucket/prefix", None),
    ],
)
def test_urls_of_a_file_that_hold_a_path_begin_at_its_folder(tmp_path: Path, key: str, url: str, expected: str) -> None:
    path = write(tmp_path, f"[orchestrator]\n{key} = '{url}'\n")
    assert getattr(load_settings(path).orchestrator, key) == (expected or url).format(tmp_path)


def test_without_a_file_paths_begin_at_the_current_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().worker.state_dir == Path(".muster/worker")
    assert load_settings().orchestrator.storage_url == "file:.muster/storage"


def test_every_path_of_the_settings_is_looked_after(tmp_path: Path) -> None:
    """A new setting that holds a path follows the rule, or this says so."""
    settings = load_settings(write(tmp_path, ""))
    for key, info in known_keys().items():
        value = value_of(settings, key)
        if "Path" in str(info.annotation) and value is not None:
            assert isinstance(value, Path), key
            assert value.is_relative_to(tmp_path), key


def test_top_level_run_from_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "run = 2\n")
    assert load_settings(path).run == 2
    monkeypatch.setenv("MUSTER_RUN", "3")
    assert load_settings(path).run == 3
    assert load_settings(path, {"run": 4}).run == 4
    assert load_settings(path, {"chain.chain_id": 5}).chain.chain_id == 5


def test_lists_from_the_environment_are_comma_separated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SHARDCAST__RELAYS", "http://a:1, http://b:2")
    assert load_settings().shardcast.relays == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("[chain]\nrcp_url = 'x'\n", "chain.rcp_url", "did you mean chain.rpc_url?"),
        ("[chian]\nrpc_url = 'x'\n", "chian.rpc_url", "did you mean chain.rpc_url?"),
        ("[surprise]\n", "surprise", "muster config show lists all settings"),
        ("rum = 1\n", "rum", "did you mean run?"),
        ("chain = 1\n", "chain", None),
    ],
)
def test_unknown_names_in_the_file_are_refused(tmp_path: Path, text: str, key: str, hint: str | None) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    assert str(caught.value) == f"unknown setting {key} (from {path})"
    assert hint is None or caught.value.hint == hint


def test_unknown_names_in_the_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CHAIN__RPC_ULR", "http://x")
    with pytest.raises(ConfigError, match=r"unknown setting chain\.rpc_ulr \(from MUSTER_CHAIN__RPC_ULR\)") as caught:
        load_settings()
    assert caught.value.hint == "did you mean chain.rpc_url?"


def test_one_underscore_where_two_are_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CHAIN_RPC_URL", "http://x")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert caught.value.hint == "set MUSTER_CHAIN__RPC_URL instead"


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"from flag"):
        load_settings(None, {"chain": {"nothing": 1}})


def test_a_bad_value_names_key_value_source_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ORCHESTRATOR__PORT", "99999")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value) == (
        "setting orchestrator.port = '99999' (from MUSTER_ORCHESTRATOR__PORT): "
        "Input should be less than or equal to 65535"
    )
    assert caught.value.exit_code == 78


def test_a_missing_or_broken_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no settings file"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_settings(write(tmp_path, "= 3"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "bytes.toml")


def test_every_setting_is_documented_and_reachable() -> None:
    for key, info in known_keys().items():
        value_of(Settings(), key)
        assert info.description, f"{key} has no description"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://me:pw@host:1/v2/abcdefghijklmnopqrstuvwxyz?key=1", "https://…@host:1/v2/…?…"),
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("postgresql+asyncpg://me:pw@host/db", "postgresql+asyncpg://…@host/db"),
        ("postgresql://me:p/w?@host/db?a=b", "postgresql://…@host/db?…"),
        ("sqlite:///.muster/orchestrator.db", "sqlite:///.muster/orchestrator.db"),
        (["http://a:b@c"], "[http://…@c]"),
        (3, "3"),
        (None, ""),
    ],
)
def test_mask_hides_secrets_in_urls(value: object, shown: str) -> None:
    assert mask(value) == shown


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_is_a_set_of_settings_that_can_be_loaded(recipe: str, tmp_path: Path) -> None:
    loaded = read_settings(write(tmp_path, f"[trainer]\nrecipe = '{recipe}'\n"))
    assert {key: getattr(loaded.settings.trainer, key) for key in RECIPES[recipe]} == RECIPES[recipe]
    assert {loaded.source(f"trainer.{key}") for key in RECIPES[recipe]} <= {f"recipe {recipe}"}


def test_a_recipe_stands_behind_what_is_set_and_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "[trainer]\nrecipe = 'intellect2'\ndelta = 5.0\n")
    monkeypatch.setenv("MUSTER_TRAINER__WARMUP_STEPS", "7")
    loaded = read_settings(path)
    trainer = loaded.settings.trainer
    assert (trainer.delta, trainer.warmup_steps, trainer.learning_rate, trainer.batch_wait_seconds) == (
        5.0,
        7,
        3e-7,
        600,
    )
    keys = ("delta", "warmup_steps", "learning_rate", "batch_wait_seconds")
    assert [loaded.source(f"trainer.{key}") for key in keys] == [
        str(path),
        "MUSTER_TRAINER__WARMUP_STEPS",
        "recipe intellect2",
        "default",
    ]


def test_a_bound_of_the_ratio_below_its_clip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"delta must be above 1 \+ epsilon_high"):
        load_settings(write(tmp_path, "[trainer]\nepsilon_high = 0.5\ndelta = 1.4\n"))


@pytest.mark.parametrize(
    ("low", "high"),
    [("5.0", "0.5"), ("0.5", "0"), ("0", "5.0"), ("1.0", "5.0"), ("0.5", "1.0"), ("1.5", "5.0"), ("0.5", "0.6")],
)
def test_bounds_of_a_ratio_mask_that_do_not_enclose_one_are_refused(tmp_path: Path, low: str, high: str) -> None:
    message = f"mask_ratio_low {float(low):g} must be below 1 and mask_ratio_high {float(high):g} above 1, or both 0"
    with pytest.raises(ConfigError, match=message):
        load_settings(write(tmp_path, f"[trainer]\nmask_ratio_low = {low}\nmask_ratio_high = {high}\n"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mask_ratio_low", "-0.5"),
        ("mask_ratio_high", "nan"),
        ("mask_ratio_high", "inf"),
        ("mask_probability_difference", "-0.1"),
        ("mask_probability_difference", "1.0"),
        ("mask_probability_difference", "nan"),
    ],
)
def test_bounds_of_masks_that_are_no_bounds_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_settings(write(tmp_path, f"[trainer]\n{key} = {value}\n"))


@pytest.mark.parametrize("mask", ["mask_ratio_low = 0.5\nmask_ratio_high = 5.0", "mask_probability_difference = 0.3"])
def test_a_mask_of_tokens_is_refused_where_the_ratio_is_a_sequences(tmp_path: Path, mask: str) -> None:
    with pytest.raises(ConfigError, match='mask_probability_difference need ratio = "token"'):
        load_settings(write(tmp_path, f"[trainer]\nrecipe = 'gspo'\n{mask}\n"))


def test_a_recipes_mask_can_be_switched_off(tmp_path: Path) -> None:
    text = "[trainer]\nrecipe = 'icepop'\nmask_ratio_low = 0\nmask_ratio_high = 0\n"
    loss = Recipe.from_settings(load_settings(write(tmp_path, text)).trainer, run_terms(temperature=1.0)).update.loss
    assert (loss.mask_ratio_low, loss.mask_ratio_high, loss.weighs_by_claims) == (None, None, False)


def test_an_unknown_recipe_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'muster', 'intellect2', 'grpo', 'dr_grpo', 'dapo', 'gspo', 'icepop' or 'prob_mask'"
    ):
        load_settings(write(tmp_path, "[trainer]\nrecipe = 'intellect3'\n"))


PUBLISHED: dict[str, tuple[UpdateTerms, AdvantageTerms]] = {
    "muster": (
        UpdateTerms(
            learning_rate=3e-4,
            warmup_steps=10,
            betas=(0.9, 0.99),
            weight_decay=0.01,
            gradient_clip=0.1,
            optimiser_steps=1,
            loss=LossTerms(epsilon=0.2, epsilon_high=None, delta=4.0, ratio="token", normaliser="tokens"),
        ),
        AdvantageTerms(length_weight=0.5, length_unit="budget", scale_by_std=True, add_rewards_first=False),
    ),
    "intellect2": (
        UpdateTerms(
            learning_rate=3e-7,
            warmup_steps=25,
            betas=(0.9, 0.99),
            weight_decay=0.01,
            gradient_clip=0.1,
            optimiser_steps=8,
            old_logprobs="recomputed",
            loss=LossTerms(
                epsilon=0.2,
                epsilon_high=None,
                delta=4.0,
                normaliser="constant",
                entropy_coefficient=1e-4,
                kl_coefficient=1e-3,
            ),
        ),
        AdvantageTerms(length_weight=3e-4, length_unit="token", scale_by_std=True, add_rewards_first=True),
    ),
    "grpo": (
        UpdateTerms(loss=LossTerms(epsilon=0.2, delta=None, normaliser="rollouts", kl_coefficient=0.04)),
        AdvantageTerms(length_weight=0.0),
    ),
    "dr_grpo": (
        UpdateTerms(loss=LossTerms(epsilon=0.2, delta=None, normaliser="constant")),
        AdvantageTerms(length_weight=0.0, scale_by_std=False),
    ),
    "dapo": (
        UpdateTerms(loss=LossTerms(epsilon=0.2, epsilon_high=0.28, delta=None, normaliser="tokens")),
        AdvantageTerms(length_weight=0.0),
    ),
    "gspo": (
        UpdateTerms(
            optimiser_steps=4,
            old_logprobs="recomputed",
            loss=LossTerms(epsilon=3e-4, epsilon_high=4e-4, delta=None, ratio="sequence", normaliser="rollouts"),
        ),
        AdvantageTerms(length_weight=0.0),
    ),
    "icepop": (
        UpdateTerms(
            old_logprobs="recomputed",
            loss=LossTerms(
                epsilon=0.2,
                delta=None,
                normaliser="rollouts",
                mask_ratio_low=0.5,
                mask_ratio_high=5.0,
                kl_coefficient=0.0,
            ),
        ),
        AdvantageTerms(length_weight=0.0),
    ),
    "prob_mask": (
        UpdateTerms(
            old_logprobs="recomputed",
            loss=LossTerms(epsilon=0.2, delta=None, normaliser="tokens", mask_probability_difference=0.3),
        ),
        AdvantageTerms(length_weight=0.0),
    ),
}
"""What the trainer must come to compute by each recipe, by the sources that muster/settings/recipes.py names."""


def run_terms(*, temperature: float) -> Any:
    """Return the part of a run's terms that a recipe reads."""
    profile = profile_hash(BF16.name)
    return SimpleNamespace(temperature=temperature, max_completion_tokens=32, async_level=2, profile=profile)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_recipe_is_what_its_source_says(recipe: str) -> None:
    terms: Any = SimpleNamespace(
        temperature=0.7, max_completion_tokens=32, async_level=2, profile=profile_hash(BF16.name)
    )
    made = Recipe.from_settings(TrainerSettings.model_validate({"recipe": recipe}), terms)
    update, advantages = PUBLISHED[recipe]
    assert made == Recipe(replace(update, temperature=0.7, max_completion=32, profile=BF16.name), advantages, 2)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    for value in ("nan", "inf"):
        with pytest.raises(ConfigError, match="mismatch_bound"):
            read_settings(write(tmp_path, f"[trainer]\nmismatch_bound = {value}\n"))


def test_defaults_in_code_equal_the_defaults_of_settings() -> None:
    shardcast, trainer = Settings().shardcast, Settings().trainer
    assert StepRetention(shardcast.whole_every, shardcast.kept_hours) == StepRetention()
    terms: Any = SimpleNamespace(
        temperature=1.0, max_completion_tokens=32, async_level=2, profile=profile_hash(BF16.name)
    )
    recipe = Recipe.from_settings(trainer, terms)
    assert recipe.update == UpdateTerms(temperature=1.0, max_completion=32, profile=BF16.name)
    assert recipe.advantages == AdvantageTerms()


@pytest.mark.parametrize("place", ["file", "flag", "environment"])
def test_a_home_folder_in_a_url_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("HOME", "/home/anne")
    chosen = {"storage_url": "file:~/files", "database_url": "sqlite:///~/muster.db"}
    path = tmp_path / "muster.toml"
    lines = [f'{name} = "{url}"' for name, url in chosen.items()]
    path.write_text("\n".join(["[orchestrator]", *lines]) if place == "file" else "")
    if place == "environment":
        for name, url in chosen.items():
            monkeypatch.setenv(f"MUSTER_ORCHESTRATOR__{name.upper()}", url)
    found = load_settings(path, {"orchestrator": chosen} if place == "flag" else None).orchestrator
    assert (found.storage_url, found.database_url) == ("file:/home/anne/files", "sqlite:////home/anne/muster.db")


def test_a_tilde_elsewhere_in_a_url_is_no_home_folder() -> None:
    for url in ("file:/srv/~/files", "file:a~b", "s3://bucket/~/x", "postgresql://anne@host/~x"):
        assert load_settings(None, {"orchestrator": {"storage_url": url}}).orchestrator.storage_url == url
