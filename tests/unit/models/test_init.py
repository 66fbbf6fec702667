"""Models and tokenizers: what is loaded is what was made, equal seeds give equal bytes, the warm-up reaches its aim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from muster.environments.scoring import Scorers
from muster.errors import ConfigError, MalformedError
from muster.models import init
from muster.models.files import (
    INDEX,
    WEIGHTS,
    load_tokenizer,
    model_hash,
    tokenizer_hash,
    vocabulary_of,
)
from muster.models.greedy import greedy_completions, greedy_score
from muster.models.init import (
    ModelShape,
    WarmUp,
    init_model,
    load_model,
    make_model,
    make_tokenizer,
    save_model,
    warm_up,
)
from muster.models.weights import FINAL_NORM, parameter_count, weights_in
from muster.protocol.prompts import prompt_tokens
from muster.protocol.turns.conversation import Conversations
from muster.tasksets.taskset import TaskSet
from testbed.samples.models import write_model
from testbed.samples.task_sets import generated
from testbed.samples.texts import byte_pair_tokenizer

SMALL = ModelShape(hidden=32, layers=1, heads=1, intermediate=32)


@pytest.fixture(scope="module")
def task_set() -> TaskSet:
    return generated(5, levels=(1, 2), train=60, held_out=20)


@pytest.mark.parametrize("kind", ["character", "byte_pair"])
def test_a_loaded_tokenizer_gives_the_prompts_that_the_made_one_gave(
    kind: str, task_set: TaskSet, tmp_path: Path
) -> None:
    prompts = [task.text for _, task in task_set.train]
    made = byte_pair_tokenizer(prompts) if kind == "byte_pair" else make_tokenizer()
    # With a Qwen2 config.json beside it, AutoTokenizer chooses the class itself.
    save_model(make_model(made, SMALL, seed=0), made, tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab() == made.get_vocab()
    for _, task in task_set.train:
        assert prompt_tokens(loaded, task, 12).tolist() == prompt_tokens(made, task, 12).tolist()
    text = " 12\n don't..... </think>12345<|end|>"
    ids = made(text, add_special_tokens=False)["input_ids"]
    assert loaded(text, add_special_tokens=False)["input_ids"] == ids
    assert loaded.decode(ids) == made.decode(ids) == text


def test_a_saved_model_loads_with_its_weights_and_is_safe(task_set: TaskSet, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, ModelShape(), seed=3)
    assert sum(p.numel() for p in model.parameters()) == 342_528
    save_model(model, tokenizer, tmp_path)
    loaded = load_model(tmp_path)
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    # A head size that vLLM's attention has on every platform.
    assert config["hidden_size"] // config["num_attention_heads"] == 32
    assert not list(tmp_path.glob("*.bin"))


def test_equal_seeds_give_equal_models() -> None:
    tokenizer = make_tokenizer()
    before = torch.get_rng_state()
    first, again, other = (make_model(tokenizer, SMALL, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(before, torch.get_rng_state())


def test_hashes_name_the_model_and_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        save_model(make_model(tokenizer, SMALL, seed), tokenizer, folder)
    assert model_hash(folders[0]) == model_hash(folders[1]) != model_hash(folders[2])
    assert tokenizer_hash(folders[0]) == tokenizer_hash(folders[2])
    template = folders[1] / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert tokenizer_hash(folders[0]) != tokenizer_hash(folders[1])
    assert model_hash(folders[0]) == model_hash(folders[1])
    config = folders[2] / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 1', '"eos_token_id": 2'))
    assert tokenizer_hash(folders[0]) != tokenizer_hash(folders[2]), "a stop token is part of what stays the same"
    for function in (model_hash, tokenizer_hash, load_model, load_tokenizer):
        with pytest.raises(ConfigError):
            function(tmp_path / "absent")


def test_init_reaches_its_target_and_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    easy = generated(1, levels=(1, 2), train=60, held_out=20)
    shape = ModelShape(hidden=64, layers=1, heads=2, intermediate=64)
    reports = [init_model(tmp_path / n, easy, seed=4, target=0.05, budgets=(4,), shape=shape) for n in ("a", "b")]
    assert reports[0].accuracy == reports[1].accuracy >= 0.05
    assert reports[0].steps == reports[1].steps
    assert model_hash(tmp_path / "a") == model_hash(tmp_path / "b")
    # The saved folder scores the same as the model in memory.
    model, tokenizer = load_model(tmp_path / "a"), load_tokenizer(tmp_path / "a")
    score = greedy_score(model, tokenizer, easy.held_out, Scorers(), budgets=(4,), max_tokens=8)
    assert score.reward == reports[0].accuracy


@pytest.mark.parametrize(("family", "dots"), [("sums", False), ("arithmetic", True)])
def test_a_model_is_warmed_up_by_completions_that_score(
    family: str, dots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thinking is part of them only where the environment asks for it."""
    tasks, tokenizer = generated(1, families=(family,), levels=(2,), train=12, held_out=1), make_tokenizer()
    seen: list[str] = []

    def loss(model: PreTrainedModel, *rest: Any) -> torch.Tensor:
        examples = rest[-1]
        seen.extend(tokenizer.decode(talk.tokens) for talk in examples)
        return supervised_loss(model, *rest)

    supervised_loss = init._supervised_loss  # noqa: SLF001
    monkeypatch.setattr(init, "_supervised_loss", loss)
    warm_up(make_model(tokenizer, SMALL, 0), tokenizer, tasks, WarmUp(target=0.0, min_steps=1), seed=0)
    answers = {task.reference["answer"] for _, task in tasks.train}
    assert len(seen) == WarmUp.batch
    for text in seen:
        thought, mark, answer = text.removesuffix("<|end|>").rpartition("</think>")
        assert answer in answers
        assert (bool(thought), bool(mark)) == (dots, dots)
        assert thought == "." * len(thought)


@pytest.fixture(scope="module")
def caller() -> tuple[TaskSet, PreTrainedModel, PreTrainedTokenizerBase]:
    """One product, and a model that has learnt by heart to call the calculator for it."""
    tasks = generated(3, families=("calculator",), levels=(2,), train=1, held_out=1)
    tokenizer = make_tokenizer(names=("calculator", "expression"))
    model = make_model(tokenizer, SMALL, 0)
    (scored,) = tasks.train
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Scorers() as scorers:
        talks = Conversations(tokenizer, scorers)
        for step in range(60):
            talk = init._example(talks, scored, WarmUp(call_share=1.0), Random(step))  # noqa: SLF001
            init._supervised_loss(model, tokenizer, [talk]).backward()  # noqa: SLF001
            optimizer.step()
            optimizer.zero_grad()
    return tasks, model, tokenizer


def test_greedy_answers_go_on_after_calls_and_only_the_sampled_tokens_count(
    caller: tuple[TaskSet, PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    tasks, model, tokenizer = caller
    ((manifest, task),) = tasks.train
    expression, answer = task.text.rstrip("="), str(task.reference["answer"])
    call = f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}</tool_call><|end|>'
    sampled = tokenizer(call + answer + "<|end|>", add_special_tokens=False)["input_ids"]
    with Scorers() as scorers:
        score = greedy_score(model, tokenizer, tasks.train, scorers, budgets=(8,), max_tokens=64)
        assert (score.reward, score.mean_length) == (1.0, len(sampled))
        # Where the result leaves no room for an answer, the call is all there is.
        given = len(tokenizer(f"<|tool|>{answer}<|assistant|>", add_special_tokens=False)["input_ids"])
        full = len(sampled) - len(answer) - 1 + given
        assert greedy_score(model, tokenizer, tasks.train, scorers, budgets=(8,), max_tokens=full).reward == 0
        # Without the tool the call is the answer, and a wrong one.
        alone = [(replace(manifest, turns=None), task)]
        assert greedy_score(model, tokenizer, alone, scorers, budgets=(8,), max_tokens=64).reward == 0


def test_a_warm_up_shows_calls_with_true_results_and_learns_only_what_is_sampled(
    caller: tuple[TaskSet, PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    tasks, _, tokenizer = caller
    (scored,) = tasks.train
    with Scorers() as scorers:
        talks = Conversations(tokenizer, scorers)
        made = [
            init._example(talks, scored, WarmUp(call_share=0.5), Random(seed))  # noqa: SLF001
            for seed in range(40)
        ]
    called = [talk for talk in made if len(talk.spans) > 1]
    assert 10 < len(called) < 30
    answer = tokenizer(scored[1].reference["answer"] + "<|end|>", add_special_tokens=False)["input_ids"]
    assert all(talk.spans[-1] == answer for talk in made)
    given = f"<|tool|>{scored[1].reference['answer']}<|assistant|>"
    assert {tokenizer.decode(talk.spans[1]) for talk in called} == {given}
    # The loss does not move with what was given: the model cannot be taught results.
    model = make_model(tokenizer, SMALL, 1)
    talk = called[0]
    start = len(talk.prompt) + len(talk.spans[0])
    logits = model(input_ids=torch.tensor([talk.prompt + talk.tokens])).logits[0].log_softmax(-1)
    places = [*range(len(talk.prompt), start), *range(start + len(talk.spans[1]), len(talk.prompt) + talk.length)]
    ids = talk.prompt + talk.tokens
    expected = -torch.stack([logits[place - 1, ids[place]] for place in places]).mean()
    assert torch.allclose(init._supervised_loss(model, tokenizer, [talk]), expected)  # noqa: SLF001


def test_a_target_out_of_reach_is_an_error(task_set: TaskSet) -> None:
    tokenizer = make_tokenizer()
    with pytest.raises(ConfigError, match=r"of 1\.00 held-out accuracy in 2 steps"):
        warm_up(make_model(tokenizer, SMALL, 0), tokenizer, task_set, WarmUp(target=1.0, max_steps=2), seed=0)


def test_greedy_decoding_does_not_depend_on_neighbours_or_padding(task_set: TaskSet) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, SMALL, seed=6)
    prompts = [
        torch.from_numpy(prompt_tokens(tokenizer, task, budget)).long()
        for (_, task), budget in zip(task_set.train[:8], (1, 1000, 8, 12) * 2, strict=True)
    ]
    assert len({len(prompt) for prompt in prompts}) > 2
    together = greedy_completions(model, tokenizer, prompts, max_tokens=6)
    alone = [greedy_completions(model, tokenizer, [prompt], max_tokens=6)[0] for prompt in prompts]
    assert together == alone
    for prompt, tokens in zip(prompts, alone, strict=True):
        ids = prompt.tolist()
        for token in tokens:
            assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)


def test_a_score_is_decoded_in_parts_that_a_cache_can_hold(task_set: TaskSet, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, SMALL, seed=6)
    prompts = [torch.from_numpy(prompt_tokens(tokenizer, task, 8)).long() for _, task in task_set.train[:5]]
    together = greedy_completions(model, tokenizer, prompts, max_tokens=6)
    sizes: list[int] = []
    generate = model.generate

    def watched(ids: torch.Tensor, **options: object) -> object:
        sizes.append(len(ids))
        return generate(ids, **options)

    monkeypatch.setattr(model, "generate", watched)
    longest = max(map(len, prompts)) + 6
    for bound, expected in ((2 * longest, [2, 2, 1]), (longest - 1, [1] * 5), (5 * longest, [5])):
        monkeypatch.setattr("muster.models.greedy.BATCH_TOKENS", bound)
        assert greedy_completions(model, tokenizer, prompts, max_tokens=6) == together
        assert sizes == expected
        sizes.clear()


def test_generation_config_does_not_change_greedy_completions(task_set: TaskSet, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    save_model(make_model(tokenizer, SMALL, seed=6), tokenizer, tmp_path)
    prompts = [torch.from_numpy(prompt_tokens(tokenizer, task, 8)).long() for _, task in task_set.train[:4]]
    plain = greedy_completions(load_model(tmp_path), tokenizer, prompts, max_tokens=6)
    asked = {"repetition_penalty": 100.0, "temperature": 0.3, "top_k": 1, "suppress_tokens": plain[0]}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    model = load_model(tmp_path)
    assert greedy_completions(model, tokenizer, prompts, max_tokens=6) == plain
    save_model(model, tokenizer, tmp_path / "again")  # which transformers refuses with a temperature and no sampling


@pytest.mark.parametrize(
    ("config", "says"), [("{}", "a vocab_size of None"), ("[", "cannot be read"), ('{"vocab_size": true}', "True")]
)
def test_a_configuration_that_names_no_vocabulary_is_an_error(config: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"vocab_size": 105}')
    assert vocabulary_of(tmp_path) == 105
    path.write_text(config)
    with pytest.raises(ConfigError, match=says):
        vocabulary_of(tmp_path)


def test_weights_are_counted_and_none_is_no_model(tmp_path: Path) -> None:
    model = make_model(make_tokenizer(), SMALL, seed=0)
    save_model(model, make_tokenizer(), tmp_path / "model")
    expected = sum(one.numel() for one in model.parameters())
    assert parameter_count(tmp_path / "model") == expected, "the head is the embedding, and counts once"
    save_file({"a": torch.zeros(3, 5), "b": torch.tensor(1.0)}, tmp_path / "model" / "more.safetensors")
    with pytest.raises(MalformedError, match="is none of a checkpoint"):
        parameter_count(tmp_path / "model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no safetensors")
    for name in ("absent", "empty", "broken"):
        with pytest.raises(MalformedError, match="safetensors"):
            parameter_count(tmp_path / name)


@pytest.mark.parametrize("kind", ["an index without metadata", "metadata that are none", "another shape"])
def test_weights_that_transformers_cannot_take_are_an_error_in_words(kind: str, tmp_path: Path) -> None:
    """Another one would end a validator that is to judge work of such a step."""
    folder = write_model(tmp_path / "model")
    tensors = load_file(folder / WEIGHTS)
    norm = {FINAL_NORM: tensors.pop(FINAL_NORM)[: 3 if kind == "another shape" else None].clone()}
    (folder / WEIGHTS).unlink()
    parts = {"model-00001-of-00002.safetensors": tensors, "model-00002-of-00002.safetensors": norm}
    for name, part in parts.items():
        save_file(part, folder / name)
    index: dict[str, Any] = {"weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    index |= {} if kind == "an index without metadata" else {"metadata": 5 if kind == "metadata that are none" else {}}
    (folder / INDEX).write_text(json.dumps(index))
    assert weights_in(folder)
    with pytest.raises(ConfigError, match=f"no model at {folder}"):
        load_model(folder)
