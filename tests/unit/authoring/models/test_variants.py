"""Changed copies of a checkpoint: what becomes of its weights, exactly, and that the copies are checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from muster.authoring.models.variants import (
    CHEAPER,
    FINAL_NORM,
    rounded_to,
    save_changed,
    save_sharpened,
    to_fp8,
    with_low_rank,
    with_noise,
)
from muster.errors import ConfigError, MalformedError
from muster.models.files import model_hash, tokenizer_hash
from muster.models.init import load_model, make_tokenizer, save_model
from muster.models.weights import parameter_count, read_weights
from testbed.samples.models import SMALL, write_model

IDS = torch.tensor([[3, 20, 21, 50, 33, 7]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model", SMALL)


def matrix(rows: int = 6, columns: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return load_model(folder)(IDS).logits


# --- Changes


@pytest.mark.parametrize(("bits", "levels"), [(8, 127), (4, 7)])
def test_rounded_weights_are_whole_multiples_of_their_row_s_scale(bits: int, levels: int) -> None:
    before = matrix()
    after = rounded_to(bits)(before)
    largest = before.abs().amax(dim=1, keepdim=True)
    steps = after / (largest / levels)
    torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
    assert float(steps.abs().max()) == pytest.approx(levels)
    assert bool(((after - before).abs() <= largest / levels / 2 * 1.0001).all())
    assert not torch.equal(after, before)
    torch.testing.assert_close(rounded_to(bits)(after), after)


def test_rounding_by_hand() -> None:
    """Three bits: -3 to 3. The scale of a row is its largest weight over three."""
    before = torch.tensor([[3.0, 1.4, -1.6, 0.4], [0.3, 0.06, 0.0, -0.3], [0.0, 0.0, 0.0, 0.0]])
    after = torch.tensor([[3.0, 1.0, -2.0, 0.0], [0.3, 0.1, 0.0, -0.3], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(rounded_to(3)(before), after)


def test_fp8_keeps_three_bits_of_mantissa_and_one_scale() -> None:
    before = torch.tensor([[448.0, 1.0, 1.0625, 1.125], [17.0, -0.3, 2.0**-9, 0.0]])
    after = torch.tensor([[448.0, 1.0, 1.0, 1.125], [16.0, -0.3125, 2.0**-9, 0.0]])
    assert torch.equal(to_fp8(before), after), "the largest weight is float8's largest: the scale is 1"
    assert torch.equal(to_fp8(before / 1024), after / 1024)
    drawn = matrix()
    assert float(((to_fp8(drawn) - drawn) / drawn).abs().median()) < 2**-4


def test_a_low_rank_change_has_its_rank_and_its_norm() -> None:
    before = matrix(32, 48)
    added = with_low_rank(0.01)(before) - before
    assert int(torch.linalg.matrix_rank(added, rtol=1e-3)) == 4
    assert float(added.norm() / before.norm()) == pytest.approx(0.01, rel=1e-4)
    assert int(torch.linalg.matrix_rank(with_low_rank(0.5, rank=1)(before) - before, rtol=1e-3)) == 1


def test_noise_has_its_share_of_the_weights_deviation() -> None:
    before = matrix(200, 200) * 3
    added = with_noise(0.01)(before) - before
    assert float(added.std() / before.std()) == pytest.approx(0.01, rel=0.02)
    assert abs(float(added.mean())) < 0.001


@pytest.mark.parametrize("name", CHEAPER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_change_keeps_shape_and_dtype_and_is_the_same_each_time(name: str, dtype: torch.dtype) -> None:
    before = matrix(32, 48).to(dtype)
    kept = before.clone()
    after = CHEAPER[name]()(before)
    assert (after.shape, after.dtype) == (before.shape, dtype)
    assert torch.equal(before, kept), "what it is made of stays as it is"
    assert torch.equal(CHEAPER[name]()(before), after)
    assert not torch.equal(after, before)


def test_vectors_and_embeddings_are_left_out_where_a_cheat_leaves_them() -> None:
    vector, embedding = torch.arange(5.0), matrix(100, 4)
    for change in (rounded_to(4), to_fp8, with_low_rank(0.01)):
        assert change(vector) is vector
    assert with_low_rank(0.01)(embedding) is embedding


# --- Folders


@pytest.mark.parametrize("times", [2.0, 4.0, 0.5])
def test_sharpened_logits_are_so_many_times_as_large(model: Path, tmp_path: Path, times: float) -> None:
    """Exactly: a power of two changes no mantissa."""
    assert torch.equal(logits(save_sharpened(model, tmp_path / "sharp", times)), logits(model) * times)
    changed, before = dict(read_weights(tmp_path / "sharp")), dict(read_weights(model))
    assert {name for name in before if not torch.equal(before[name], changed[name])} == {FINAL_NORM}


def test_a_copy_is_a_checkpoint_of_the_same_run(model: Path, tmp_path: Path) -> None:
    copy = save_changed(model, tmp_path / "copy", lambda tensor: tensor)
    assert tokenizer_hash(copy) == tokenizer_hash(model)
    assert {path.name for path in copy.iterdir()} == {path.name for path in model.iterdir()}
    assert torch.equal(logits(copy), logits(model))
    cheaper = save_changed(model, tmp_path / "cheaper", rounded_to(8))
    assert tokenizer_hash(cheaper) == tokenizer_hash(model)
    assert model_hash(cheaper) != model_hash(model)
    assert parameter_count(cheaper) == parameter_count(model)
    assert not torch.equal(logits(cheaper), logits(model))


def test_a_model_in_several_files_becomes_one_in_one(model: Path, tmp_path: Path) -> None:
    """Tensors that are views of others, and the index of the files, are not carried along."""
    source = tmp_path / "source"
    save_model(load_model(model), make_tokenizer(), source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    files = {name: f"model-{i:05}-of-{len(tensors):05}.safetensors" for i, name in enumerate(sorted(tensors), 1)}
    for name, file in files.items():
        save_file({name: tensors[name]}, source / file, metadata={"format": "pt"})
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    copy = save_changed(source, tmp_path / "copy", lambda tensor: tensor.t() if tensor.dim() == 2 else tensor)
    assert [path.name for path in copy.glob("*safetensors*")] == ["model.safetensors"]
    found = load_file(copy / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], tensors[name].t() if tensors[name].dim() == 2 else tensors[name]) for name in found
    )


def test_a_model_without_a_final_norm_is_not_sharpened(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_model(load_model(model), make_tokenizer(), source)
    tensors = load_file(source / "model.safetensors")
    del tensors[FINAL_NORM]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"has no model\.norm\.weight: its logits cannot be sharpened") as at:
        save_sharpened(source, tmp_path / "sharp", 2)
    assert at.value.hint == "pass --sharpened ''"
    assert not (tmp_path / "sharp").exists()
    with pytest.raises(MalformedError, match="no safetensors"):
        save_sharpened(tmp_path / "absent", tmp_path / "sharp", 2)
