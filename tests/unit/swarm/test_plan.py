"""The plan of a local swarm: valid settings, distinct names and ports, no secret on a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.tasks.generated import make_task_set
from muster.clients.evaluation import Sampling
from muster.constants import CHAIN_ANVIL, MICRO
from muster.errors import ConfigError, UsageError
from muster.protocol.term_bounds import check_bounds
from muster.protocol.terms import Terms, WorkClass
from muster.protocol.terms_file import LOCAL_DEFAULTS
from muster.settings.sources import load_settings
from muster.settings.toml import to_toml, toml_value
from muster.swarm.comparison import eval_requests
from muster.swarm.launch import operator_of
from muster.swarm.plan import (
    ESCROW,
    GROUPS_PER_BATCH,
    LOCAL_TERMS,
    Ports,
    SwarmRequest,
    local_terms,
    model_process,
    settings_of,
)
from muster.swarm.scenarios import DIGITS, LANGUAGE, LAZY, SCENARIOS, Scenario, own_scenario
from muster.swarm.stage import (
    MARKER,
    SERVICES,
    fresh_folder,
    keep_logs,
    make_keys,
    make_tasks,
    write_settings,
)
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import profile_hash
from testbed.samples.terms import terms_of
from trainer.checkpoint import CheckpointStore


@pytest.fixture
def request_(tmp_path: Path) -> SwarmRequest:
    return SwarmRequest(tmp_path / "swarm", Ports(1, 2, 3, 4, 5), seed=7, steps=45)


def names(request: SwarmRequest) -> list[str]:
    return [*SERVICES, "trainer", *(node.name for node in request.local.nodes)]


def test_plan_names_every_node(request_: SwarmRequest) -> None:
    assert [(node.name, node.role, node.honest) for node in request_.local.nodes] == [
        *((f"validator-{i}", "validator", True) for i in (1, 2, 3, 4)),
        ("worker-1", "worker", True),
        ("worker-2", "worker", True),
        ("cheater", "worker", False),
    ]
    two = SwarmRequest(request_.folder, request_.ports, steps=1, workers=1, cheaters=2)
    assert [node.name for node in two.local.nodes][-3:] == ["worker-1", "cheater-1", "cheater-2"]


def test_every_settings_file_loads_and_matches_the_plan(request_: SwarmRequest) -> None:
    write_settings(request_, 3, names(request_))
    for name in names(request_):
        settings = load_settings(request_.local.config(name))
        assert (settings.run, settings.name) == (3, name)
        assert settings.chain.rpc_url == "http://127.0.0.1:1"
        assert settings.orchestrator.url == "http://127.0.0.1:2"
        assert settings.keys.raw_key_file == (None if name == "explorer" else request_.local.key(name))
    trainer = load_settings(request_.local.config("trainer"))
    assert trainer.trainer.max_steps == 45
    orchestrator = load_settings(request_.local.config("orchestrator"))
    assert orchestrator.shardcast.relays == ["http://127.0.0.1:4", "http://127.0.0.1:3"]
    assert orchestrator.orchestrator.explorer_url == "http://127.0.0.1:5"
    explorer = load_settings(request_.local.config("explorer")).explorer
    assert (explorer.port, explorer.state_dir) == (5, request_.local.state("explorer"))
    worker = load_settings(request_.local.config("worker-1")).shardcast
    assert (worker.share, worker.port, worker.relays) == (True, 0, [])
    assert trainer.shardcast.dir == load_settings(request_.local.config("origin")).shardcast.dir


def test_explorer_is_ready_by_its_answer_and_no_swarm_ends_with_it(request_: SwarmRequest) -> None:
    explorer, orchestrator = request_.local.process("explorer"), request_.local.process("orchestrator")
    assert explorer.command[-3:] == ("explorer", "--config", str(request_.local.config("explorer")))
    assert (explorer.ready_url, explorer.essential, orchestrator.essential) == (
        "http://127.0.0.1:5/readyz",
        False,
        True,
    )


def test_processes_share_no_state_and_no_logs(request_: SwarmRequest) -> None:
    local = request_.local
    paths = [path for name in names(request_) for path in (local.state(name), local.log(name), local.output(name))]
    assert len(set(paths)) == len(paths)


def test_keys_are_separate_files_and_on_no_command_line(request_: SwarmRequest) -> None:
    keys = make_keys(request_)
    local = request_.local
    signing = {*names(request_), *(operator_of(node.name) for node in request_.local.nodes)} - {"explorer"}
    assert {"owner", *signing} == set(keys)
    for name in keys:
        assert local.key(name).stat().st_mode & 0o777 == 0o600
    secrets = [local.key(name).read_text().strip() for name in keys]
    assert len(set(secrets)) == len(keys)
    for name in names(request_):
        spec = request_.local.process(name)
        said = " ".join([*spec.command, *spec.environment, *spec.environment.values()])
        assert not any(secret in said for secret in secrets)


def test_only_a_swarms_own_folder_is_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    fresh_folder(folder)
    (folder / "old").touch()
    fresh_folder(folder)
    assert [path.name for path in folder.iterdir()] == [MARKER]
    assert folder.stat().st_mode & 0o777 == 0o700
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter").touch()
    with pytest.raises(UsageError, match="holds something that no swarm made"):
        fresh_folder(precious)
    assert (precious / "letter").exists()


def agreed_on(chosen: Mapping[str, Any]) -> Terms:
    return terms_of(**chosen)


def test_the_terms_are_those_of_the_issue() -> None:
    agreed = agreed_on(LOCAL_TERMS)
    assert (agreed.async_level, agreed.positions, agreed.slash_bps, agreed.bounty_bps) == (2, 128, 5_000, 2_000)


@pytest.mark.parametrize(("workers", "interval"), [(1, 36), (2, 18), (3, 12), (64, 1)])
def test_a_swarm_that_lasts_never_runs_out_of_commitments_or_pay(
    request_: SwarmRequest, workers: int, interval: int
) -> None:
    """A node may make 255 commitments an hour; the plan leaves a fifth of the total unused."""
    lasting = replace(request_, lasting=True, workers=workers)
    chosen = local_terms(lasting)
    assert (chosen["groups_per_commitment"], chosen["min_step_interval"]) == (32, interval)
    trainer = settings_of(lasting, "trainer", 1)
    assert trainer["trainer.max_files"] == GROUPS_PER_BATCH // 32 == 2
    an_hour = 3600 / interval * 2
    assert an_hour <= 0.8 * workers * chosen["commitments_per_hour"]
    assert an_hour * 24 * 30 * chosen["pay"] < ESCROW or workers > 5, "a month"
    assert agreed_on(chosen).cover_of(0) == 40_000 >= 73 * chosen["commitments_per_hour"], (
        "the cover lasts for unsealed hours"
    )
    assert settings_of(lasting, "orchestrator", 1)["orchestrator.demand_batches"] == 1
    assert trainer["shardcast.kept_hours"] == 6
    assert "shardcast.whole_every" not in trainer


def test_a_demo_is_short_and_keeps_every_step(request_: SwarmRequest) -> None:
    assert local_terms(request_) == {**LOCAL_TERMS, "groups_per_commitment": 16}
    assert {name: LOCAL_TERMS[name] for name in LOCAL_DEFAULTS} == LOCAL_DEFAULTS
    trainer = settings_of(request_, "trainer", 1)
    assert (trainer["trainer.max_files"], trainer["shardcast.whole_every"]) == (4, 1)


def test_a_swarm_of_language_fetches_its_model_and_fits_its_tasks(request_: SwarmRequest, tmp_path: Path) -> None:
    language = replace(request_, scenario=LANGUAGE)
    chosen = local_terms(language)
    assert (chosen["group_size"], chosen["groups_per_commitment"], chosen["max_completion_tokens"]) == (8, 8, 16)
    assert (chosen["commit_phase"], chosen["reveal_phase"]) == (300, 300), "a replay takes a busy machine a minute"
    assert chosen["profile"] == profile_hash("bf16-projection-v3")
    assert chosen["classes"] == (WorkClass(10_000, (4,)),)
    trainer = settings_of(language, "trainer", 1)
    assert (trainer["trainer.batch_groups"], trainer["trainer.max_files"]) == (16, 2)
    assert (trainer["trainer.learning_rate"], trainer["trainer.length_weight"]) == (6e-5, 0.0)
    orchestrator = settings_of(language, "orchestrator", 1)
    assert (orchestrator["orchestrator.batch_groups"], orchestrator["orchestrator.demand_batches"]) == (16, 1)
    assert settings_of(language, "validator-1", 1)["validator.stagger_seconds"] == 30
    assert model_process(language).command[-3:] == ("fetch", LANGUAGE.fetched_model, str(language.local.model))
    path = tmp_path / "trainer.toml"
    path.write_text(to_toml(trainer))
    assert load_settings(path).trainer.learning_rate == 6e-5, "the trainer accepts every setting"


def test_the_models_that_are_compared_are_the_first_one_and_the_trainers(request_: SwarmRequest) -> None:
    language = replace(request_, scenario=LANGUAGE, seed=5)
    first, last = eval_requests(language, bytes(32), 48, 12)
    assert (first.model, first.count, first.part, first.show) == (language.local.model, 48, "held-out", 3)
    assert replace(first, model=last.model) == last, "both get the same tasks and seeds"
    assert first.sampling == Sampling(16, (4,), 16, 1.0, 5, "bf16-projection-v3")
    steps = CheckpointStore(language.local.state("trainer") / "steps")
    assert last.model == steps.model_dir(12), "where the trainer keeps it"
    agreed = local_terms(language)
    assert agreed["temperature_micro"] == MICRO
    assert agreed["max_completion_tokens"] == first.sampling.max_tokens


def checkpoint(folder: Path, dtype: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": dtype, "max_position_embeddings": 512}))
    return folder


def test_a_swarm_trains_an_owners_tasks_and_model_in_small_batches(request_: SwarmRequest, tmp_path: Path) -> None:
    tasks, model = tmp_path / "mine", checkpoint(tmp_path / "model", "bfloat16")
    make_task_set(1, folder=tasks, train=20, held_out=5)
    own = replace(request_, scenario=own_scenario(DIGITS, tasks, str(model), (24, 48), None, None))
    chosen = local_terms(own)
    assert (chosen["group_size"], chosen["groups_per_commitment"]) == (8, 4)
    assert (chosen["max_prompt_tokens"], chosen["max_completion_tokens"]) == (256, 96)
    assert chosen["classes"] == (WorkClass(10_000, (24, 48)),)
    assert chosen["profile"] == profile_hash("bf16-projection-v3")
    assert model_process(own).command[-3:] == ("fetch", str(model), str(own.local.model))
    trainer = settings_of(own, "trainer", 1)
    assert (trainer["trainer.batch_groups"], trainer["trainer.max_files"], trainer["trainer.eval_tasks"]) == (16, 4, 64)
    own.folder.mkdir()
    assert make_tasks(own).root == TaskSet.open(tasks).root == TaskSet.open(own.local.tasks).root
    kept_up = replace(own, lasting=True)
    assert (kept_up.groups_per_commitment, kept_up.files_per_batch) == (16, 1), "a batch is never less than a file"


def test_model_is_made_when_owner_brings_only_tasks(request_: SwarmRequest, tmp_path: Path) -> None:
    own = replace(request_, scenario=own_scenario(DIGITS, tmp_path / "mine", None, None, 100, 40))
    assert model_process(own).command[4:6] == ("model", "init")
    assert local_terms(own)["profile"] == profile_hash("cpu-fp32-projection-v3")
    assert (local_terms(own)["max_prompt_tokens"], local_terms(own)["max_completion_tokens"]) == (100, 40)
    assert own.scenario.budgets == DIGITS.budgets


def test_language_scenario_takes_another_model_from_a_folder_or_the_hub(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", "float32")
    scenario = own_scenario(LANGUAGE, None, str(model), None, None, None)
    assert scenario == replace(LANGUAGE, fetched_model=str(model), profile="cpu-fp32-projection-v3")
    scenario = own_scenario(LANGUAGE, None, "owner/name", None, None, None)
    assert scenario == replace(LANGUAGE, fetched_model="owner/name"), "what is of the hub counts as bfloat16"
    assert own_scenario(DIGITS, None, "owner/name", None, None, None).profile == LANGUAGE.profile


def test_contradictory_owner_choices_are_refused(tmp_path: Path) -> None:
    assert own_scenario(DIGITS, None, None, None, None, None) is DIGITS
    with pytest.raises(UsageError, match="these lengths are for your own tasks or model"):
        own_scenario(DIGITS, None, None, None, 100, None)
    with pytest.raises(UsageError, match="is no folder, and no name of a model"):
        own_scenario(LANGUAGE, None, "smollm2-135m", None, None, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        own_scenario(DIGITS, None, str(tmp_path), None, None, None)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_every_scenario_has_tasks_enough_and_prompts_that_fit(scenario: Scenario, tmp_path: Path) -> None:
    task_set = make_task_set(
        0,
        folder=tmp_path / "tasks",
        families=scenario.families,
        levels=scenario.levels,
        train=scenario.train,
        held_out=scenario.held_out,
    )
    kinds = len(scenario.families)
    assert (len(task_set.train), len(task_set.held_out)) == (kinds * scenario.train, kinds * scenario.held_out)
    assert max(len(task.text) for _, task in task_set.train) <= scenario.terms.get("max_prompt_tokens", 64)
    assert scenario.groups_per_batch % scenario.groups_per_commitment == 0


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
@pytest.mark.parametrize("lasting", [False, True])
def test_every_scenario_pays_looks_and_has_terms_that_the_chain_takes(
    request_: SwarmRequest, scenario: Scenario, lasting: bool
) -> None:
    terms = terms_of(**local_terms(replace(request_, scenario=scenario, lasting=lasting)))
    check_bounds(terms, CHAIN_ANVIL)
    assert (terms.accepts_required, terms.wage_bps, terms.look_rows) == (2, 625, 12)


def test_lazy_scenario_has_one_lazy_validator_and_no_cheater(request_: SwarmRequest) -> None:
    request = replace(request_, scenario=LAZY, cheaters=LAZY.cheaters)
    assert [(one.name, one.honest) for one in request.local.nodes] == [
        *((f"validator-{i}", True) for i in (1, 2, 3)),
        ("lazy", False),
        *((f"worker-{i}", True) for i in (1, 2)),
    ]
    assert "adversary.lazy" in request.local.process("lazy").command
    write_settings(request, 3, names(request))
    lazy = load_settings(request.local.config("lazy"))
    assert lazy.validator.state_dir == request.local.state("lazy")


def test_toml_keeps_its_values(tmp_path: Path) -> None:
    values = {"run": 2, "name": 'a "b"\\c', "log.file": tmp_path / "x", "shardcast.relays": ["http://a", "http://b"]}
    path = tmp_path / "muster.toml"
    path.write_text(to_toml(values))
    settings = load_settings(path)
    assert (settings.run, settings.name, settings.log.file) == (2, 'a "b"\\c', tmp_path / "x")
    assert settings.shardcast.relays == ["http://a", "http://b"]
    with pytest.raises(TypeError):
        toml_value(object())
    path.write_text(to_toml({"chain.nothing": 1}))
    with pytest.raises(ConfigError, match=r"unknown setting chain\.nothing"):
        load_settings(path)


def test_lasting_swarm_drops_old_weights_and_demo_keeps_all(
    request_: SwarmRequest,
) -> None:
    write_settings(request_, 3, names(request_))
    demo = load_settings(request_.local.config("trainer")).shardcast
    assert (demo.kept_hours, demo.whole_every) == (168, 1)
    write_settings(replace(request_, lasting=True), 3, ["trainer"])
    lasting = load_settings(request_.local.config("trainer")).shardcast
    assert (lasting.kept_hours, lasting.whole_every) == (6, 16)


def test_interrupted_swarm_keeps_logs_and_settings(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    fresh_folder(folder)
    kept = {"worker-1/log.jsonl", "worker-1/output.log", "worker-1/muster.toml"}
    for name in (
        *kept,
        "worker-1/state/weights/model.safetensors",
        "worker-1/state/log.jsonl",
        "tasks/taskset.json",
        "tasks/shards/0x00",
        "keys/w",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    keep_logs(folder)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {*kept, MARKER}
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["worker-1"]
    (tmp_path / "letter").write_text("dear")
    keep_logs(tmp_path)
    assert (tmp_path / "letter").read_text() == "dear", "only a swarm's folder is cleared"
