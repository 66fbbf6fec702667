"""The learner on disk: equal batches give equal bytes, a run resumes bit for bit, and damage is detected."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from transformers import GPT2Config, GPT2LMHeadModel

from muster.environments.scoring import Scorers
from muster.environments.task import ask
from muster.errors import ConfigError, MismatchError, StorageError, UnreachableError
from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import load_model, make_tokenizer, save_model
from muster.models.numerics import numerics_pinned, pin_numerics
from muster.settings.schema import Matmul, Settings, TrainerSettings
from muster.tasksets.build import NewPart, write_task_set
from testbed.samples.models import unpin_numerics, write_model
from testbed.samples.task_sets import generated
from testbed.samples.trainer import NarrowRanks, batch_of, learner_at, terms_of
from trainer.advantages import AdvantageTerms
from trainer.batches import samples_of
from trainer.checkpoint import CheckpointMetadata
from trainer.distributed import Ranks
from trainer.learner import Learner, Recipe
from trainer.model_replica import Replica
from trainer.packing import Sample, collate
from trainer.service import StepHandoff, Trainer
from trainer.update import UpdateTerms


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("initial"))


def take(learner: Learner, step: int) -> None:
    """One step, until it is on disk."""
    learner.train_step(*batch_of(step), {})
    learner.written()


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Of the published form, which is float32 here."""
    learner.written()
    return load_file(learner.checkpoints.model_dir(learner.step) / "model.safetensors")


def test_the_trainer_computes_in_float32_whatever_was_set(initial: Path) -> None:
    unpin_numerics()
    try:
        Replica(initial, UpdateTerms(), Ranks())
        assert numerics_pinned()
    finally:
        pin_numerics()


def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(initial: Path, tmp_path: Path):
    straight = learner_at(initial, tmp_path / "a")
    before = weights(straight)
    for step in range(3):
        straight.train_step(*batch_of(step), {})
    for step in range(3):
        resumed = learner_at(initial, tmp_path / "b")
        assert resumed.step == step
        take(resumed, step)
    assert straight.metadata.files == resumed.metadata.files
    there, here = weights(straight), weights(resumed)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)
    assert any(not torch.equal(there[name], before[name]) for name in there)
    assert model_hash(straight.checkpoints.model_dir(3)) == model_hash(resumed.checkpoints.model_dir(3))
    assert tokenizer_hash(resumed.checkpoints.model_dir(3)) == tokenizer_hash(initial)


@pytest.mark.parametrize(("begun", "later"), [("float32", "native"), ("native", "float32")])
def test_a_resumed_run_multiplies_as_it_began(
    begun: Matmul, later: Matmul, initial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed run keeps its way to multiply, although `auto` would choose the other here."""
    monkeypatch.setattr("muster.models.matmul.lacks_bfloat16", lambda: later == "float32")
    straight, other = (
        learner_at(initial, tmp_path / way, lora_rank=2, ranks=NarrowRanks(), matmul=way) for way in (begun, later)
    )
    for step in range(2):
        straight.train_step(*batch_of(step), {})
        other.train_step(*batch_of(step), {})
    take(learner_at(initial, tmp_path / "resumed", lora_rank=2, ranks=NarrowRanks(), matmul=begun), 0)
    with capture_logs() as lines:
        resumed = learner_at(initial, tmp_path / "resumed", lora_rank=2, ranks=NarrowRanks(), matmul="auto")
    expected = {"event": "the run multiplies bfloat16 as it began", "matmul": begun, "here": later}
    assert [line for line in lines if line.items() >= expected.items()]
    take(resumed, 1)
    assert resumed.checkpoints.read(2).matmul == resumed.recipe.update.matmul == begun
    there, here = weights(straight), weights(resumed)
    assert all(torch.equal(there[name], here[name]) for name in there)
    assert any(not torch.equal(there[name], value) for name, value in weights(other).items())


def test_written_step_is_exact_while_training_continues(initial: Path, tmp_path: Path):
    """Training does not wait for the disk. Each written step has the same bits as in a run that waits."""
    waiting, hurrying = learner_at(initial, tmp_path / "a"), learner_at(initial, tmp_path / "b")
    kept = {}
    for step in range(4):
        take(waiting, step)
        kept[step + 1] = weights(waiting)
    for step in range(4):
        hurrying.train_step(*batch_of(step), {})
    hurrying.close()
    for step in (3, 4):
        model = load_file(hurrying.checkpoints.model_dir(step) / "model.safetensors")
        assert all(torch.equal(value, model[name]) for name, value in kept[step].items())
    shutil.rmtree(tmp_path / "b" / "000004")
    resumed = learner_at(initial, tmp_path / "b")
    take(resumed, 3)
    assert all(torch.equal(value, kept[4][name]) for name, value in weights(resumed).items())


def test_a_renewed_step_has_the_same_bits_and_training_goes_on_as_if_it_were_not_there(initial: Path, tmp_path: Path):
    learner = learner_at(initial, tmp_path)
    take(learner, 0)
    before, used = weights(learner), dict(learner.metadata.used)
    published = (learner.checkpoints.model_dir(learner.step) / "model.safetensors").read_bytes()
    metadata = learner.republish({"completions/unended_thinking": 1.0})
    assert metadata.metrics == {"completions/unended_thinking": 1.0}
    learner.written()
    assert (metadata.step, metadata.files, dict(metadata.used)) == (2, (), used)
    assert metadata.updates == 1
    assert (learner.checkpoints.model_dir(learner.step) / "model.safetensors").read_bytes() == published
    resumed = learner_at(initial, tmp_path)
    assert (resumed.step, resumed.metadata.updates) == (2, 1)
    assert all(torch.equal(value, before[name]) for name, value in weights(resumed).items())
    take(learner, 2)
    folder = tmp_path / "000003" / "model"
    there = load_file(folder / "model.safetensors")
    take(resumed, 2)
    assert all(torch.equal(value, there[name]) for name, value in weights(resumed).items())


def test_a_step_written_halfway_is_not_there(initial: Path, tmp_path: Path):
    learner = learner_at(initial, tmp_path)
    take(learner, 0)
    learner.checkpoints.path(1).rename(tmp_path / ".writing-000001")
    assert learner_at(initial, tmp_path).step == 0
    assert not (tmp_path / ".writing-000001").exists()


def test_while_a_score_is_taken_the_other_ranks_hear_of_it_and_it_can_be_left(
    initial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("muster.models.greedy.BATCH_SIZE", 2)
    learner = learner_at(initial, tmp_path)
    tasks = generated(1, levels=(3,), train=1, held_out=6).held_out
    scorers = Scorers()
    heard: list[int] = []
    monkeypatch.setattr(learner.replica, "heartbeat", lambda: heard.append(len(heard)))
    assert (learner.evaluate(tasks, scorers, [4], 3)["held_out/tasks"], heard) == (6.0, []), "once a minute is enough"
    monkeypatch.setattr("trainer.learner.HEARTBEAT_SECONDS", 0.0)
    scored = learner.evaluate(tasks, scorers, [4], 3)
    assert (scored["held_out/tasks"], len(heard)) == (6.0, 9), "three batches, three tokens each"
    monkeypatch.setattr(learner.replica, "heartbeat", learner.cancel_evaluation)
    with pytest.raises(CancelledError):
        learner.evaluate(tasks[:2], scorers, [4], 3)


async def test_a_score_that_cannot_be_taken_does_not_stop_training(
    initial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A held-out task without an answer is worth 0; of one that has no prompt, or without a scorer, there is none."""
    learner = learner_at(initial, tmp_path)
    manifest = generated(1, levels=(3,), train=1, held_out=6).held_out[0][0]
    mute = write_task_set(
        tmp_path / "mute",
        [NewPart("p", manifest, [ask("sort 21", answer="12")])],
        [NewPart("p", manifest, [ask("sort 43", wrong="34")])],
    )
    broken = write_task_set(
        tmp_path / "broken",
        [NewPart("p", manifest, [ask("sort 21", answer="12")])],
        [NewPart("p", manifest, [b'{"id":"no task"}'])],
    )
    settings = Settings.model_validate({"trainer": {"state_dir": tmp_path / "state", "model": initial}})
    trainer = Trainer(settings, cast(Any, None), cast(Any, None), terms_of(initial), Ranks())
    trainer._scorers = Scorers()  # noqa: SLF001 - `run` makes them
    for tasks, scored in ((mute, True), (broken, False)):
        handoff = StepHandoff()
        await trainer._score(learner, tasks, handoff)  # noqa: SLF001
        scores = handoff.score.result()
        assert (scores[0]["held_out/reward"] if scores else None) == (0.0 if scored else None)
    monkeypatch.setattr(trainer._scorers, "score", failing)  # noqa: SLF001
    handoff = StepHandoff()
    await trainer._score(learner, mute, handoff)  # noqa: SLF001
    assert handoff.score.result() is None
    assert learner.replica.model.training, "as it was before"


def failing(*_: object) -> None:
    raise UnreachableError("no scorer")


def test_used_files_are_remembered_as_long_as_they_could_come_again(initial: Path, tmp_path: Path):
    learner = learner_at(initial, tmp_path)
    for step in range(4):
        metadata = learner.train_step(*batch_of(step), {})
    assert metadata.used == {f"0x{step:064x}": step for step in (2, 3)}
    assert metadata.batch == (f"0x{3:064x}",)


def test_a_closed_batch_is_found_again_for_its_step_only(initial: Path, tmp_path: Path):
    checkpoints = learner_at(initial, tmp_path).checkpoints
    batch, _ = batch_of(0)
    checkpoints.close_batch(batch)
    assert checkpoints.closed_batch(0) == batch
    assert checkpoints.closed_batch(1) is None
    checkpoints.drop_batch(0)
    assert checkpoints.closed_batch(0) is None


def test_a_closed_batch_that_cannot_be_read_says_what_to_do(initial: Path, tmp_path: Path):
    checkpoints = learner_at(initial, tmp_path).checkpoints
    checkpoints.close_batch(batch_of(0)[0])
    path = tmp_path / "batches" / "000000.json"
    for text in (path.read_text()[:-5], "[]", '{"step": 0}'):
        path.write_text(text)
        with pytest.raises(StorageError, match=r"000000\.json cannot be read") as caught:
            checkpoints.closed_batch(0)
        assert "delete it" in caught.value.hint


@pytest.mark.parametrize("part", ["state/__0_0.distcp", "model/model.safetensors", "model/config.json"])
def test_every_file_of_a_step_is_checked(initial: Path, tmp_path: Path, part: str):
    learner_at(initial, tmp_path).written()
    path = tmp_path / "000000" / part
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(MismatchError, match=f"{part} is not what was written") as caught:
        learner_at(initial, tmp_path)
    assert "000000" in caught.value.hint


def test_a_parameter_that_never_has_a_gradient_is_resumed_with_the_others(
    initial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A part of a model that text does not reach has no moments."""

    def with_spare(*arguments: Any, **words: Any) -> Any:
        model = load_model(*arguments, **words)
        model.model.register_parameter("spare", torch.nn.Parameter(torch.ones(2)))
        return model

    monkeypatch.setattr("trainer.model_replica.load_model", with_spare)
    terms = Recipe.from_settings(TrainerSettings(learning_rate=1e-2, warmup_steps=1), terms_of(initial)).update
    first, second = (Replica(initial, terms, Ranks()) for _ in range(2))
    samples = samples_of(batch_of(0)[1], AdvantageTerms())
    first.update(samples, 1)
    first.save(tmp_path / "state").result()
    second.load(tmp_path / "state", moments=True)
    for replica in (first, second):
        assert not replica.update(samples, 2).skipped
    there, here = (dict(replica.policy.named_parameters()) for replica in (first, second))
    assert torch.equal(here["model.model.spare"], torch.ones(2))
    assert all(torch.equal(there[name], here[name]) for name in there)


def test_a_changed_note_is_noticed(initial: Path, tmp_path: Path):
    take(learner_at(initial, tmp_path), 0)
    path = tmp_path / "000001" / "note.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {"used": {}}))
    with pytest.raises(MismatchError, match=r"note\.json is not what was written"):
        learner_at(initial, tmp_path)
    path.write_text(json.dumps(dict(reversed(metadata.items()))))  # the same said in another order
    assert learner_at(initial, tmp_path).step == 1


def test_an_update_that_is_not_finite_keeps_its_evidence_and_the_weights(initial: Path, tmp_path: Path):
    learner = learner_at(initial, tmp_path)
    before = weights(learner)
    batch, files = batch_of(0)
    # No rollout that is read can do this, a broken machine can: the first token's embedding is not a number.
    embedding = learner.replica.model.get_input_embeddings()
    broken = embedding.register_forward_hook(
        lambda _, ids, states: states.masked_fill(ids[0][..., None] == 0, torch.nan)
    )
    metadata = learner.train_step(batch, files, {})
    broken.remove()
    assert metadata.metrics["skipped"] == 1.0
    kept = json.loads((tmp_path / "skipped" / "000000.json").read_text())
    assert kept["batch"] == json.loads(batch.to_json())
    assert kept["grad_norm"] == "nan"
    assert kept["suspects"] == [{"file": files[0].ref.file_hash, "position": row} for row in range(4)]
    after = weights(learner)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("rank", [0, 2])
def test_weights_that_are_not_finite_are_not_written(initial: Path, tmp_path: Path, rank: int):
    """A step that is there is one that can be gone on from."""
    learner = learner_at(initial, tmp_path, lora_rank=rank)
    take(learner, 0)
    trained = [value for value in learner.replica.policy.parameters() if value.requires_grad]
    with torch.no_grad():
        trained[-1].view(-1)[0] = torch.nan
    learner.train_step(*batch_of(1), {})
    with pytest.raises(ConfigError, match="is not finite at step 2") as caught:
        learner.written()
    assert "trainer.learning_rate" in caught.value.hint
    learner.close()
    again = learner_at(initial, tmp_path, lora_rank=rank)
    assert again.step == 1
    assert not again.train_step(*batch_of(1), {}).metrics["skipped"]
    again.close()


@pytest.mark.parametrize("place", ["state", "model"])
def test_failed_write_names_the_step(initial: Path, tmp_path: Path, place: str):
    """The write fails in torch.distributed.checkpoint, or in safetensors."""
    learner = learner_at(initial, tmp_path)
    learner.written()
    building = learner.checkpoints.building(1).parent
    if place == "state":
        building.write_bytes(b"")
    else:
        building.mkdir()
        (building / "model").write_bytes(b"")
    learner.train_step(*batch_of(0), {})
    with pytest.raises(StorageError, match="cannot write step 1"):
        learner.written()


def test_old_steps_are_removed(initial: Path, tmp_path: Path):
    learner = learner_at(initial, tmp_path)
    for step in range(4):
        take(learner, step)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["000003", "000004"]


def test_another_model_than_the_terms_name_is_refused(initial: Path, tmp_path: Path):
    terms = SimpleNamespace(model_hash=bytes(32), tokenizer_hash=tokenizer_hash(initial), temperature=1.0)
    with pytest.raises(ConfigError, match="the model in"):
        Learner(initial, tmp_path, terms, None, torch.float32, Ranks())  # type: ignore[arg-type]


async def test_steps_that_a_kill_left_unpublished_are_published_in_order(initial: Path, tmp_path: Path):
    """While step n is on its way to the chain, step n + 1 may reach the disk: after a kill, n still comes first."""
    learner = learner_at(initial, tmp_path)
    for step in range(2):
        take(learner, step)
    calls: list[tuple[str, int]] = []

    class Publisher:
        async def publish(self, metadata: CheckpointMetadata, model: Path, adapter: Path | None) -> dict[str, float]:
            assert adapter is None
            assert model == tmp_path / f"{metadata.step:06d}" / "model"
            calls.append(("publish", metadata.step))
            return {"weights/bytes": 7.0}

        async def report(
            self, metadata: CheckpointMetadata, metrics: dict[str, float], *_: object, finished: bool
        ) -> None:
            assert not finished
            assert metrics == {**metadata.metrics, "weights/bytes": 7.0}
            calls.append(("report", metadata.step))

    trainer = Trainer(
        Settings(),
        cast(Any, Publisher()),
        cast(Any, None),
        terms_of(initial),
        Ranks(),
    )
    await trainer.hand_off_older(learner_at(initial, tmp_path))
    assert calls == [("publish", 1), ("report", 1)]
    next(learner.checkpoints.state(1).glob("*.distcp")).unlink()
    await trainer.hand_off_older(learner_at(initial, tmp_path))
    assert len(calls) == 2  # an unreadable step is logged, and left to the chain


def test_a_model_that_drops_out_drops_nothing_here(tmp_path: Path):
    """What is learnt from is compared with what samplers said, and they drop nothing."""
    tokenizer = make_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=32,
        n_layer=1,
        n_head=1,
        resid_pdrop=0.5,
        embd_pdrop=0.5,
        attn_pdrop=0.5,
        bos_token_id=None,
        eos_token_id=0,
    )
    save_model(GPT2LMHeadModel(config), tokenizer, tmp_path)
    replica = Replica(tmp_path, UpdateTerms(), Ranks())
    assert replica.model.training
    sample = Sample(np.arange(4), np.arange(4, 12), np.zeros(8, np.float32), 1.0)
    row = collate([sample], [1.0], [0])
    first, second = (replica.policy(row)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.requires_grad
