"""The trainer when the chain delays a step, and its warning about sampler mismatch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import torch
from safetensors.torch import save_file

from muster.contracts import runs
from muster.errors import (
    ChainError,
    ConfigError,
    MalformedError,
    MismatchError,
    MusterError,
    NotFoundError,
    RevertError,
    UnfundedError,
    UnreachableError,
)
from muster.models.weights import FINAL_NORM
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.messages import LeftOut, LogDocument, LogEntry, LogPage, StepDocument, StepFile, StepReport
from muster.settings.schema import Settings
from muster.shardcast.format.store import described
from muster.tasksets.grades import grades_hash
from testbed.samples.commitments import RUNS, rules
from testbed.samples.models import nudge, write_model
from trainer.batches import FileRef
from trainer.checkpoint import CheckpointMetadata
from trainer.distributed import Ranks
from trainer.launch import serve
from trainer.publisher import Publisher
from trainer.service import LEFT_OUT, Trainer


class Chain:
    """Refuses once, in some way, or is a step behind, and then takes the step."""

    def __init__(self, *troubles: MusterError, behind: int = 0) -> None:
        self.troubles = list(troubles)
        self.behind = behind
        self.published: list[object] = []
        self.steps = 3

    async def checkpoint(self, run: int, step: int) -> Any:
        return SimpleNamespace(batch_root=bytes([step] * 32))

    async def head(self) -> Any:
        return SimpleNamespace(number=7)

    async def block(self, number: int) -> Any:
        return SimpleNamespace(number=number, hash=bytes([number] * 32))

    async def await_pending(self) -> None:
        if self.troubles:
            raise self.troubles.pop()

    async def call(self, call: object) -> Any:
        self.behind -= 1
        return SimpleNamespace(steps=self.steps - 1 if self.behind >= 0 else self.steps)

    async def send(self, transaction: object) -> Any:
        self.published.append(transaction)
        return SimpleNamespace(hash="0x00")


class Orchestrator:
    """Has a log of two verdicts, and keeps what is added to it."""

    def __init__(self, chain: Chain) -> None:
        self.said: list[Any] = []
        self.before: StepDocument | None = None
        self._chain = chain

    async def step_document(self, run: int, batch_root: bytes) -> StepDocument:
        if self.before is None:
            raise NotFoundError("it is forgotten", status=404, title="Not found")
        assert batch_root == bytes([self.before.step] * 32)
        return self.before

    async def log(self, run: int, after: int) -> LogPage:
        texts = {place: f"document {place}" for place in (0, 1) if place >= after}
        found = [LogEntry(place=at, kind="verdict", came=0, received=0, text=text) for at, text in texts.items()]
        return LogPage(entries=found[:1], cursor=min(after + 1, 2))

    async def add_document(self, kind: str, document: LogDocument) -> None:
        self.said.append((kind, document, len(self._chain.published)))

    async def put_grades(self, run: int, text: str) -> str:
        self.said.append(("grades", text, len(self._chain.published)))
        return grades_hash(text)

    async def post_step(self, report: StepReport) -> None:
        await self.add_document("report", report)


def publisher_on(chain: Chain, folder: Path) -> Publisher:
    options = {"trainer": {"state_dir": folder, "poll_seconds": 0.01}, "shardcast": {"dir": folder / "weights"}}
    options["chain"] = {"confirmations": 2}
    client = cast(Any, Orchestrator(chain))
    return Publisher(Settings.model_validate(options), cast(Any, chain), client, rules().terms)


def model_in(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"tie_word_embeddings": false}')
    save_file({FINAL_NORM: torch.ones(2), "lm_head.weight": torch.ones(4, 2)}, model / "model.safetensors")
    return model


def revert(name: str) -> RevertError:
    return RevertError(name, name=name, values={})


@pytest.mark.parametrize(
    "trouble",
    [UnreachableError("no answer"), ChainError("step 3 is not published"), revert("StepTooSoon")],
    ids=["silent", "behind", "too soon"],
)
async def test_a_step_that_the_chain_does_not_take_now_is_published_later(tmp_path: Path, trouble: MusterError) -> None:
    chain = Chain(trouble)
    await publisher_on(chain, tmp_path).publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    assert len(chain.published) == 1


async def test_a_step_that_every_node_would_refuse_is_not_published(tmp_path: Path) -> None:
    chain, model = Chain(), model_in(tmp_path)
    save_file({FINAL_NORM: torch.tensor([1.0, 1e9]), "lm_head.weight": torch.ones(4, 2)}, model / "model.safetensors")
    with pytest.raises(MalformedError, match="the last norm times the head"):
        await publisher_on(chain, tmp_path).publish(CheckpointMetadata(step=3), model, None)
    assert (chain.published, (tmp_path / "weights").exists()) == ([], False)


async def test_step_that_a_reorg_dropped_is_published_again(tmp_path: Path) -> None:
    chain = Chain()
    publisher = publisher_on(chain, tmp_path)
    await publisher.anchor_again()
    assert chain.published == [], "none was ever published"
    await publisher.publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    chain.steps = 4
    await publisher.anchor_again()
    assert len(chain.published) == 1
    chain.steps = 3
    await publisher.anchor_again()
    assert len(chain.published) == 2
    assert chain.published[0] == chain.published[1]


async def test_lagging_node_is_asked_again_and_a_step_gap_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_in(tmp_path)
    await publisher_on(Chain(behind=2), tmp_path).publish(CheckpointMetadata(step=3), model, None)
    monkeypatch.setattr("trainer.publisher.PUBLISH_SECONDS", 0.1)
    chain = Chain(behind=10_000)
    with pytest.raises(MismatchError, match="step 3 is here to be published, but the run is at step 1"):
        await publisher_on(chain, tmp_path).publish(CheckpointMetadata(step=3), model, None)
    assert chain.published == []


async def test_an_outage_of_the_chain_is_sat_out_longer_than_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.publisher.PUBLISH_SECONDS", 0.05)
    model, metadata = model_in(tmp_path), CheckpointMetadata(step=3)
    chain = Chain(*[UnreachableError("no answer")] * 20)
    await publisher_on(chain, tmp_path).publish(metadata, model, None)
    assert len(chain.published) == 1
    monkeypatch.setattr("trainer.publisher.OUTAGE_SECONDS", 0.1)
    with pytest.raises(UnreachableError, match="no answer"):
        await publisher_on(Chain(*[UnreachableError("no answer")] * 10_000), tmp_path).publish(metadata, model, None)


@pytest.mark.parametrize("name", ["TooFewValidators", "ValidatorsTooNew"])
async def test_validators_are_waited_for_however_long_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("trainer.publisher.PUBLISH_SECONDS", 0.01)
    monkeypatch.setattr("trainer.publisher.OUTAGE_SECONDS", 0.01)
    publisher = publisher_on(chain := Chain(*[revert(name)] * 20), tmp_path)
    publisher.terms = replace(publisher.terms, min_step_interval=0)
    with structlog.testing.capture_logs() as said:
        await publisher.publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    assert len(chain.published) == 1
    assert [line["event"] for line in said] == ["publishing later", "published"], "said once"


async def test_final_error_is_the_one_of_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.publisher.PUBLISH_SECONDS", 0.1)
    chain = Chain(*[ChainError("is another program sending with this key?", hint="stop it")] * 10_000)
    with pytest.raises(ChainError, match="another program") as caught:
        await publisher_on(chain, tmp_path).publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    assert caught.value.hint == "stop it"


@pytest.mark.parametrize("trouble", [UnfundedError("no gas"), revert("NotTrainer")], ids=["unfunded", "another key"])
async def test_permanent_error_ends_the_trainer(tmp_path: Path, trouble: MusterError) -> None:
    chain = Chain(trouble)
    with pytest.raises(type(trouble)):
        await publisher_on(chain, tmp_path).publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    assert chain.published == []


@pytest.mark.parametrize(
    ("mismatch_kl", "left_out", "warns"),
    [(0.09, LEFT_OUT, False), (0.11, 0.0, True), (0.0, LEFT_OUT + 0.01, True)],
    ids=["near", "far", "many left out"],
)
def test_sampler_mismatch_is_a_warning(tmp_path: Path, mismatch_kl: float, left_out: float, warns: bool) -> None:
    settings = Settings.model_validate({"trainer": {"state_dir": tmp_path, "mismatch_alarm": 0.1}})
    trainer = Trainer(settings, cast(Any, None), cast(Any, None), rules().terms, Ranks())
    metrics = {"mismatch_kl": mismatch_kl, "rollouts": 100.0, "dropped_rollouts": 100 * left_out}
    with structlog.testing.capture_logs() as said:
        trainer.warn(CheckpointMetadata(step=3, metrics=metrics))
    assert [line["log_level"] for line in said] == ["warning"] * warns


async def test_a_precision_that_nothing_would_compute_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ConfigError, match=r"trainer\.precision is bfloat16") as caught:
        await serve(Settings.model_validate({"trainer": {"precision": "bfloat16"}}))
    assert "torchrun" in caught.value.hint


async def test_a_step_says_what_it_and_its_difference_weigh(tmp_path: Path) -> None:
    sizes = []
    for step in range(2):
        checkpoint = write_model(tmp_path / f"checkpoint-{step}")
        nudge(checkpoint, step, tensors=2 * step)
        chain = Chain()
        chain.steps = step
        publisher = publisher_on(chain, tmp_path)
        sizes.append(await publisher.publish(CheckpointMetadata(step=step), checkpoint, None))
        assert len(chain.published) == 1
    whole = sum(path.stat().st_size for path in (tmp_path / "checkpoint-0").iterdir())
    assert sizes[0] == {"weights/bytes": whole}
    ((_, difference),) = [
        (version, made) for version, made in described(tmp_path / "weights") if made.base_step is not None
    ]
    assert sizes[1] == {"weights/bytes": whole, "weights/delta_bytes": difference.total_bytes}
    assert 0 < difference.total_bytes < whole / 10


async def test_a_step_is_signed_once_however_often_it_is_tried_and_not_where_it_is_published(tmp_path: Path) -> None:
    chain = Chain(UnreachableError("no answer"), ChainError("behind"))
    send, refusals = chain.send, [revert("StepTooSoon"), revert("StepTooSoon")]

    async def refuse(transaction: object) -> Any:
        if refusals:
            raise refusals.pop()
        return await send(transaction)

    chain.send = refuse  # type: ignore[method-assign]
    publisher = publisher_on(chain, tmp_path)
    await publisher.publish(CheckpointMetadata(step=3), model_in(tmp_path), None)
    assert [kind for kind, *_ in cast(Any, publisher.client).said] == ["step"]

    again = publisher_on(chain, tmp_path)
    chain.steps = 4
    root = cast(Any, chain.published[0]).arguments[2]
    chain.checkpoint = lambda *_: settled(SimpleNamespace(manifest_root=root))  # type: ignore[method-assign, assignment]
    await again.publish(CheckpointMetadata(step=3), tmp_path / "model", None)
    assert cast(Any, again.client).said == []


async def settled(value: Any) -> Any:
    return value


async def test_what_a_step_was_trained_on_is_signed_before_it_is_published(tmp_path: Path) -> None:
    """With the grades that it names. Its hash is the step's batch root, and it says how far the trainer had read."""
    chain, texts = Chain(), ("[]", "[[0,0,[],0]]")
    publisher = publisher_on(chain, tmp_path)
    left_out = [LeftOut(step=2, file_hash="0x" + "0e" * 32, reason="no_signal")]
    publisher.left_out = lambda: left_out
    files = tuple(
        FileRef(2, RUNS, index, f"0x{index:064x}", "0x" + "0c" * 32, text, ("0x" + "0d" * 32,))
        for index, text in enumerate(texts)
    )
    metadata = CheckpointMetadata(step=3, files=files)
    await publisher.publish(metadata, model_in(tmp_path), None)
    await publisher.report(metadata, {}, {}, finished=False)
    said = cast(Any, publisher.client).said
    assert said[:2] == [("grades", text, 0) for text in texts]
    (kind, document, published), (_, report, _) = said[2:]
    assert (kind, published) == ("step", 0)
    assert document == StepDocument(
        run=publisher.settings.run,
        step=3,
        files=[
            StepFile(
                step=2,
                node=RUNS,
                index=index,
                root="0x" + "0c" * 32,
                file_hash=f"0x{index:064x}",
                grades=grades_hash(text),
                verdicts=["0x" + "0d" * 32],
            )
            for index, text in enumerate(texts)
        ],
        left_out=left_out,
        block=5,
        block_hash="0x" + "05" * 32,
        read=2,
        read_hash=content_hash(b"document 1"),
        report="0x" + "00" * 32,
    )
    root = hash_bytes(content_hash(document.to_bytes()))
    manifest = cast(Any, chain.published[0]).arguments[2]
    assert chain.published == [runs.publish_checkpoint(publisher.settings.run, 3, manifest, root)]

    # A trainer that starts again reads on from where it was, and had it not, from the first document.
    again = publisher_on(chain, tmp_path)
    cast(Any, again.client).before = document.model_copy(update={"step": 3, "read": 1})
    chain.steps = 4
    await again.publish(CheckpointMetadata(step=4), tmp_path / "model", None)
    [(_, resumed, _)] = cast(Any, again.client).said
    assert (resumed.read, resumed.read_hash) == (2, content_hash(b"document 1"))

    # The next document names the report that came between.
    chain.steps = 4
    await publisher.publish(CheckpointMetadata(step=4), tmp_path / "model", None)
    _, later, _ = said[4]
    assert (later.files, later.read, later.report) == ([], 2, content_hash(report.to_bytes()))
