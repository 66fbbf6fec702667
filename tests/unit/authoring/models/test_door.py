"""The door: folders that engine, replay and trainer would compute differently are refused in words, by kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from muster.authoring.models.door import FREE, METADATA, check_checkpoint, check_config, read_config
from muster.environments.task import ask
from muster.errors import ConfigError, MalformedError
from muster.models.files import load_tokenizer
from muster.protocol.prompts import prompt_text
from muster.verification.rules import ModelFacts
from testbed.samples.configurations import PUBLIC, write_public
from testbed.samples.families import KINDS, VARIANTS, write_family
from testbed.samples.settings import other_values, settings_read

WEIGHTS = "model.safetensors"
ENDLESS = "{% for i in range(99999) %}"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_family(tmp_path / "model", "llama")
    return tmp_path / "model"


def edit(folder: Path, name: str = "config.json", **changes: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reweigh(folder: Path, change: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]) -> None:
    whole = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}  # the file is mapped
    save_file(dict(change(whole)), folder / WEIGHTS, metadata={"format": "pt"})


def rope(**settings: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, **settings}}


@pytest.mark.parametrize("changes", [{}, rope(**YARN), {"rope_scaling": None}, rope(rope_type="linear", factor=2.0)])
def test_a_dense_model_is_let_in(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder, **changes)
    check_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (rope(rope_type="longrope", short_factor=[1.0], long_factor=[2.0]), "'longrope'.*depend on its length"),
        (rope(rope_type="dynamic", factor=2.0), "'dynamic'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "nests settings of RoPE in another way",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "su"}}, "'su'"),
        (rope(**YARN, attention_factor=2.0), "attention_factor"),
        (rope(rope_type="yarn", factor=4.0), "no original_max_position_embeddings"),
        ({**rope(**YARN), "max_position_embeddings": 513}, "yarn reaches 512 positions"),
        *(({"num_key_value_heads": count}, "no multiple of num_key_value_heads") for count in (3, 8)),
        ({"head_dim": 15}, "even"),
        ({"max_position_embeddings": 0}, "max_position_embeddings of 0"),
        *((rope(rope_type="linear", factor=value), "factor to .* above 0") for value in (0.0, -2.0)),
        *((rope(rope_type="default", rope_theta=value), "rope_theta to .* above 0") for value in (-1.0, float("nan"))),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps to -1e-06"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "both rope_scaling and rope_parameters"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"sliding_window": 8}, "sliding_window"),
        *(({"layer_types": [one, "full_attention"]}, "layer_types") for one in ("sliding_attention", "full_attention")),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_local_experts": 8}, "num_local_experts"),
        *(({name: True}, f"{name} to True, which llama does not have") for name in ("alibi", "qk_norm", "qkv_bias")),
        ({"is_causal": False}, "is_causal to False, which llama does not have"),
        ({"dual_chunk_attention_config": {"chunk_size": 8}}, "dual_chunk_attention_config"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_max_length": 8}, "model_max_length"),
        ({"attention_bias": 0}, "attention_bias"),
        ({"hidden_act": None}, "hidden_act"),
        ({"chunk_size_feed_forward": 8}, "chunk_size_feed_forward"),
        ({"return_dict": False}, "return_dict"),
        *(({"pad_token_id": token}, f"pad_token_id to {token}, beyond") for token in (-1, 128)),
        ({"bos_token_id": 1 << 20}, "bos_token_id to 1048576, beyond"),
        *(({"eos_token_id": [1, token]}, "eos_token_id") for token in (128, True, [2])),
        ({"rope_theta": [1]}, r"rope_theta to \[1\]"),
        ({"rope_parameters": [1]}, "no object"),
        (rope(rope_type=["yarn"]), "depend on its length"),
        ({"rope_parameters": {"full_attention": None}}, "full_attention"),
        (rope(rope_type="linear", type="yarn", factor=2.0), "'linear and yarn'"),
        (rope(rope_type="linear", factor=True), "factor to True"),
        (rope(**LLAMA3, low_freq_factor=4.0, high_freq_factor=1.0), "low_freq_factor above"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers of 1000000"),
        ({"model_type": "mixtral"}, "mixture of experts"),
        ({"model_type": "mamba"}, "state between tokens"),
        ({"model_type": []}, "cannot be used"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "names the architectures"),
        ({"num_hidden_layers": 3}, "lacks model.layers.2"),
        ({"num_hidden_layers": 1}, "has others than the model's: model.layers.1"),
        ({"intermediate_size": 64}, "another shape"),
        ({"tie_word_embeddings": True}, "has another lm_head.weight than"),
        ({"num_attention_heads": "4"}, "num_attention_heads of '4'"),
    ],
)
def test_a_configuration_that_programs_read_apart_is_refused(folder: Path, changes: dict[str, Any], says: str) -> None:
    edit(folder, **changes)
    with pytest.raises(ConfigError, match=says):
        check_checkpoint(folder)


@pytest.mark.parametrize("name", PUBLIC)
def test_keys_of_public_configurations_are_let_in(tmp_path: Path, name: str) -> None:
    write_public(tmp_path / "model", name)
    check_checkpoint(tmp_path / "model")


def test_ropes_are_judged_as_the_type_makes_them(tmp_path: Path) -> None:
    write_family(tmp_path / "model", "phi3")
    edit(tmp_path / "model", **rope(**YARN))  # which phi3 takes for longrope
    with pytest.raises(ConfigError, match="longrope"):
        check_checkpoint(tmp_path / "model")


def test_settings_that_say_nothing_are_let_in(folder: Path) -> None:
    edit(
        folder,
        is_causal=None,
        anything=None,
        quantization_config=None,
        layer_types=None,
        use_mrope=False,
        _flash_attn_2_enabled=True,
        id2label={"0": "LABEL_0"},
        max_new_tokens=20,
    )
    check_checkpoint(folder)


@pytest.mark.parametrize("kind", ["llama", pytest.param("olmo3", marks=pytest.mark.slow)])
def test_settings_that_a_program_may_read_are_refused_or_taken(tmp_path: Path, kind: str) -> None:
    """Each setting found in the source of transformers and vLLM; benchmarks/door.py measures those that are taken."""
    write_family(tmp_path / "model", kind, **KINDS[kind])
    written = json.loads((tmp_path / "model/config.json").read_text())
    for name in settings_read(kind):
        for value in other_values(written.get(name))[::4]:
            edit(tmp_path / "model", **{**written, name: value})
            try:
                config = check_config(tmp_path / "model", read_config(tmp_path / "model"))
            except ConfigError:
                continue
            finally:
                (tmp_path / "model/config.json").write_text(json.dumps(written))
            assert name in config.to_dict() or name in METADATA | FREE or name in GenerationConfig().to_dict(), name


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("text", ["[]", "3", '"x"', "{", '{"model_max_length": [], "pad_token_id": "x"}'])
def test_files_of_another_form_are_refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError):
        check_checkpoint(folder)


def test_a_configuration_that_is_nested_without_end_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(folder)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_no_numbers_are_refused(folder: Path, value: float, dtype: torch.dtype) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        tensors["model.norm.weight"][-1] = value
        return tensors

    reweigh(folder, change)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight .* no numbers"):
        check_checkpoint(folder)


def test_a_model_under_which_limits_say_nothing_is_refused_before_it_costs(folder: Path) -> None:
    reweigh(folder, lambda tensors: {**tensors, "model.norm.weight": tensors["model.norm.weight"] * 1e6})
    with pytest.raises(ConfigError, match="the last norm times the head"):
        check_checkpoint(folder)


def test_a_missing_or_surplus_tensor_is_refused(folder: Path) -> None:
    reweigh(folder, lambda tensors: {name: one for name, one in tensors.items() if "norm" not in name})
    with pytest.raises(ConfigError, match="lacks"):
        check_checkpoint(folder)


def test_a_tied_head_that_equals_the_embedding_is_let_in(folder: Path) -> None:
    edit(folder, tie_word_embeddings=True)
    reweigh(folder, lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    check_checkpoint(folder)


def test_a_tokenizer_with_tokens_beyond_the_embedding_is_refused(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([f"<{i}>" for i in range(64)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match="beyond the model's vocabulary of 128"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for m in messages %}{{ m.content[0].text }}{% endfor %}", "content in parts"),
        (f"{ENDLESS}{ENDLESS}{{% endfor %}}{{% endfor %}}", "takes over 1 s"),
        pytest.param("{{ 'a' * 10**10 }}", "takes over 1 s, 1 GiB", marks=pytest.mark.slow),
        pytest.param("{{ messages[0].content * 2000 }}", "or 1048576 characters", marks=pytest.mark.slow),
        ("x" * 10_000_000, "template of 10000000 characters"),
    ],
)
def test_a_template_that_cannot_show_a_task_is_refused(folder: Path, template: str, says: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=says):
        check_checkpoint(folder)


def test_default_is_used_among_named_templates(folder: Path) -> None:
    tokenizer, task = load_tokenizer(folder), ask("2 + 3")
    expected = prompt_text(tokenizer, task, 8)
    tokenizer.chat_template = {"tool_use": "other", "default": tokenizer.chat_template}
    assert prompt_text(tokenizer, task, 8) == expected
    tokenizer.chat_template = {"tool_use": "other"}
    with pytest.raises(ConfigError, match="no chat template"):
        prompt_text(tokenizer, task, 8)


def test_template_receives_the_thinking_flag(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = "{{ messages[0].content }} {{ thinking_budget }} {{ enable_thinking }}"
    assert prompt_text(tokenizer, ask("2"), 8).endswith("True")
    assert prompt_text(tokenizer, ask("2"), 8, thinks=False).endswith("False")


@pytest.mark.parametrize(
    "template",
    ["{{ 1 + messages[0].content }}", "{{ 1 // 0 }}", "{% for i in range(10**9) %}{% endfor %}"],
)
def test_a_template_that_raises_is_malformed(folder: Path, template: str) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    with pytest.raises(MalformedError, match="refuses task"):
        prompt_text(tokenizer, ask("2"), 8)


def test_end_tokens_of_both_files_end_a_completion(folder: Path) -> None:
    edit(folder, eos_token_id=1)
    edit(folder, "generation_config.json", eos_token_id=[1, 5])
    assert ModelFacts.read(folder).stop_tokens == {1, 5}
    edit(folder, "generation_config.json", eos_token_id=["x"])
    with pytest.raises(ConfigError, match="eos_token_id of"):
        ModelFacts.read(folder)


def test_a_folder_with_tekken_is_refused(folder: Path) -> None:
    (folder / "tekken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tekken\.json"):
        check_checkpoint(folder)


def test_the_page_of_models_says_what_the_door_says(tmp_path: Path) -> None:
    rows = []
    for name, (kind, settings) in ({kind: (kind, one) for kind, one in KINDS.items()} | dict(VARIANTS)).items():
        folder = tmp_path / name
        write_family(folder, kind, **settings)
        try:
            check_checkpoint(folder)
            said = "works"
        except ConfigError as error:
            said = f"refused: {str(error).partition(': ')[2]}"
        rows.append(f"| {name} | {said} |")
    page = (Path(__file__).parents[4] / "docs/use/models.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| ")][1:] == rows
