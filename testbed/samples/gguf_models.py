"""A tiny Llama in a GGUF file, as llama.cpp's converter writes one, and a wheel that carries it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import pre_tokenizers

from muster.authoring.models.from_gguf import LAYER_TENSORS, MODEL_TENSORS

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
