"""Models and tokenizers: making a small one, loading any.

`init_model` is `muster model init`: a Qwen2 model of a third of a million parameters and a tokenizer, in Hugging
Face's own formats, warmed up on the run's task format until it solves about half of the held-out tasks, so that
reinforcement learning has something to improve. Nothing is downloaded. Wherever a folder made here is accepted, so is
any other Hugging Face checkpoint, by name or path.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional

from muster.environments.answers import THINK_END
from muster.environments.scoring import Scorers
from muster.errors import ConfigError
from muster.models.greedy import greedy_score
from muster.models.matmul import widen
from muster.protocol.prompts import end_token, pad_token
from muster.protocol.turns.calls import CALL_BEGIN, CALL_END
from muster.protocol.turns.conversation import Conversation, Conversations
from muster.rollouts.spans import sampled_mask
from muster.settings.schema import Matmul
from muster.tasksets.taskset import COMPONENTS_NAME, Scored, TaskSet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if thinking_budget is defined %}<|budget|>{{ thinking_budget }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)
TOOL_TEMPLATE: Final = (
    "{% for tool in tools or [] %}<|tool|>{{ tool.function.name }}{% endfor %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Of a model that calls tools. Its prompts only name them: it has learnt the form of calls by heart."""
PAD, EOS, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
SPECIAL_TOKENS: Final = (PAD, EOS, UNKNOWN, "<|system|>", "<|user|>", "<|budget|>", "<|assistant|>")
TOOL: Final = "<|tool|>"
THINK_TOKENS: Final = ("<think>", THINK_END)
CALCULATOR, ARGUMENT = "calculator", "expression"
CALL_PARTS: Final = ('{"name": "', '", "arguments": {"', '": "', '"}}')
"""What JSON has around the names and values of a call with one argument; one token each, so that calls are short."""
CHARACTERS: Final = ("\u010a", "\u0120", *(chr(code) for code in range(33, 127)))
"""Newline, space and the printable ASCII characters, as byte-level BPE spells them."""

CONTEXT: Final = 512
"""Longest sequence of a model made here, in tokens."""


# --- Tokenizers


def make_tokenizer(
    tokens: Sequence[str] = CHARACTERS, merges: Sequence[tuple[str, str]] = (), *, names: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """Make a fast tokenizer with a chat template that announces the thinking budget.

    By default one token per printable ASCII character; others have none. With tokens and merges of a byte-level BPE it
    can spell any text. It is of Qwen2's own class: for a folder with a Qwen2 config.json that is what AutoTokenizer
    makes of any tokenizer, and with another class's splitting of text it would give other prompts than the ones the
    model was warmed up on. names: of tools and arguments, one token each, where the model is to call any.
    """
    from transformers import AddedToken, Qwen2Tokenizer

    special: list[str] = [*SPECIAL_TOKENS, *THINK_TOKENS]
    if names:
        special += [TOOL, CALL_BEGIN, CALL_END, *CALL_PARTS, *names]
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate([*special, *tokens])},
        merges=list(merges),  # type: ignore[arg-type]
        unk_token=UNKNOWN,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=TOOL_TEMPLATE if names else CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )
    for token in special:
        tokenizer.add_tokens(AddedToken(token, special=token in (*SPECIAL_TOKENS, TOOL), normalized=False))
    return tokenizer


# --- Models


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a Qwen2 model. The head size, hidden / heads, must be one that vLLM's attention has (32, 64 …)."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    intermediate: int = 256
    initializer_range: float = 0.04
    """Standard deviation of fresh matrices: twice Qwen2's own, with which so small a model learns half as fast."""
    key_value_heads: int | None = None
    """As many as `heads` without it."""
    vocabulary: int | None = None
    """Rows of the embedding; as many as the tokenizer has tokens without it."""
    context: int = CONTEXT
    """Longest sequence in tokens."""


def make_model(tokenizer: PreTrainedTokenizerBase, shape: ModelShape, seed: int) -> PreTrainedModel:
    """Make a Qwen2 model with random float32 weights: equal arguments, equal weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape.vocabulary or len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads or shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=shape.context,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_token(tokenizer),
        pad_token_id=pad_token(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def import_transformers() -> None:
    """Import what loading a model and its tokenizer would."""
    for name in ("modeling_auto", "tokenization_auto"):
        import_module(f"transformers.models.auto.{name}")


def load_model(path: str | Path, dtype: torch.dtype = torch.float32, matmul: Matmul = "native") -> PreTrainedModel:
    """Load a causal language model by folder or Hugging Face name, from safetensors and without its code.

    What its generation_config.json asks for (penalties, temperatures) is left out: a run's terms say how to sample.
    `matmul`: how it multiplies bfloat16. Raises ConfigError if there is none.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, attn_implementation="sdpa", use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"no model at {path}: {error}", hint="muster model init") from error
    model.generation_config = GenerationConfig()
    if dtype == torch.bfloat16 and matmul == "float32":
        widen(model)
    return model


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a checkpoint folder: model.safetensors, config.json and the tokenizer's files."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


# --- Making a model that is half good


@dataclass(frozen=True)
class WarmUp:
    """How a fresh model is trained on the task format, by supervised steps on training tasks."""

    target: float = 0.45
    """Accuracy at which warming up ends: greedy, on the first `check_tasks` held-out tasks. It rises by two or three
    points a step here, so the model ends up between this and a half."""
    check_tasks: int = 256
    budgets: tuple[int, ...] = (8, 12, 16)
    """Thinking budgets to announce, in tokens."""
    max_tokens: int = 32
    """Longest completion when measuring."""
    jitter: int = 3
    """The texts miss their budget by up to this many tokens: keeping it better is left to reinforcement learning."""
    batch: int = 32
    learning_rate: float = 2e-3
    """AdamW's, after its warm-up; half of it from a third of the target on, so that accuracy rises evenly."""
    warmup_steps: int = 10
    min_steps: int = 30
    """Steps before the first measurement: by then no model is near the target."""
    max_steps: int = 1000
    call_share: float = 0.2
    """Share of the examples that call the calculator, of tasks where it may be called."""

    def steps_until_check(self, accuracy: float) -> int:
        """Return how many more steps to take before measuring again: fewer, the nearer the target is."""
        return 10 if accuracy < self.target / 3 else 4 if accuracy < self.target * 2 / 3 else 2


@dataclass(frozen=True)
class InitReport:
    """What `init_model` made."""

    parameters: int
    accuracy: float
    """Held-out, greedy, after the warm-up."""
    steps: int
    seconds: float


def init_model(
    directory: Path,
    task_set: TaskSet,
    *,
    seed: int = 0,
    target: float = WarmUp.target,
    budgets: Sequence[int] = WarmUp.budgets,
    shape: ModelShape = ModelShape(),
) -> InitReport:
    """Make, warm up and save a model and its tokenizer. Equal arguments give equal bytes on one machine.

    Raises ConfigError when `target` is not reached within the step limit.
    """
    started = time.monotonic()
    calls = any(manifest.turns is not None for manifest, _ in task_set.held_out)
    tokenizer = make_tokenizer(names=(CALCULATOR, ARGUMENT) if calls else ())
    model = make_model(tokenizer, shape, seed)
    warm = WarmUp(target=target, budgets=tuple(budgets), max_tokens=2 * max(budgets))
    if calls:
        warm = replace(warm, target=0.0, min_steps=CALL_STEPS, learning_rate=2 * warm.learning_rate)
    accuracy, steps = warm_up(model, tokenizer, task_set, warm, seed=seed)
    save_model(model, tokenizer, directory)
    return InitReport(
        parameters=sum(p.numel() for p in model.parameters()),
        accuracy=accuracy,
        steps=steps,
        seconds=round(time.monotonic() - started, 1),
    )


CALL_STEPS: Final = 250
"""Of a warm-up on tasks with a tool: a greedy model calls it always or never, so that accuracy says little there."""


def warm_up(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task_set: TaskSet, terms: WarmUp, *, seed: int
) -> tuple[float, int]:
    """Take supervised steps until the target is reached. Return (held-out accuracy, steps taken)."""
    rng = Random(f"muster.warm_up.{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=terms.learning_rate, weight_decay=0.01)
    accuracy, next_check = 0.0, terms.min_steps
    train, held_out = list(task_set.train), list(task_set.held_out)

    def measure(tasks: Sequence[Scored]) -> float:
        return greedy_score(model, tokenizer, tasks, scorers, budgets=terms.budgets, max_tokens=terms.max_tokens).reward

    with Scorers(task_set.folder / COMPONENTS_NAME) as scorers:
        talks = Conversations(tokenizer, scorers)
        for step in range(1, terms.max_steps + 1):
            near = 0.5 if accuracy >= terms.target / 3 else 1.0
            optimizer.param_groups[0]["lr"] = terms.learning_rate * min(1.0, step / terms.warmup_steps) * near
            examples = [_example(talks, rng.choice(train), terms, rng) for _ in range(terms.batch)]
            _supervised_loss(model, tokenizer, examples).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step < min(next_check, terms.max_steps):
                continue
            accuracy = measure(held_out[: terms.check_tasks])
            if accuracy >= terms.target:
                return measure(held_out), step
            next_check = step + terms.steps_until_check(accuracy)
    raise ConfigError(
        f"the model reached {accuracy:.2f} of {terms.target:.2f} held-out accuracy in {terms.max_steps} steps",
        hint="choose easier tasks or a lower target",
    )


def _example(talks: Conversations, scored: Scored, terms: WarmUp, rng: Random) -> Conversation:
    """Return a completion: the model thinks in dots, about as many as the budget leaves room for, and answers.

    Where no thinking is asked for, the completion is the answer. Where the calculator may be called, some are a call
    that asks for all before the task's equals sign, the result, and the answer.
    """
    (manifest, task), tokenizer, scorers = scored, talks.tokenizer, talks.scorers
    right = scorers.environment(manifest).reference_completion(task)
    if right is None:
        raise ConfigError(f"task {task.id!r} of {manifest.name} has no reference answer to warm up on")
    budget = rng.choice(terms.budgets)
    length = budget + rng.randint(-terms.jitter, terms.jitter) if manifest.thinks else 0
    ending = tokenizer(right + EOS, add_special_tokens=False)["input_ids"]
    dot = tokenizer(".", add_special_tokens=False)["input_ids"]
    talk = talks.begin(scored, budget, CONTEXT)
    if talk.rules is not None and rng.random() < terms.call_share:
        call = {"name": CALCULATOR, "arguments": {ARGUMENT: task.text.rstrip("=")}}
        text = f"{CALL_BEGIN}{json.dumps(call)}{CALL_END}{EOS}"
        talk.add(tokenizer(text, add_special_tokens=False)["input_ids"])
        talk.go_on()
    talk.add(dot * max(0, length - len(ending)) + list(ending))
    return talk


def _supervised_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, talks: Sequence[Conversation]
) -> torch.Tensor:
    """Return the cross-entropy of what was to be sampled."""
    width = max(len(talk.prompt) + talk.length for talk in talks)
    ids = torch.full((len(talks), width), pad_token(tokenizer))
    labels = torch.full((len(talks), width), -100)
    for row, talk in enumerate(talks):
        start, end = len(talk.prompt), len(talk.prompt) + talk.length
        ids[row, :end] = torch.tensor(talk.prompt + talk.tokens)
        sampled = torch.from_numpy(sampled_mask(talk.ends))
        labels[row, start:end] = torch.tensor(talk.tokens).masked_fill(~sampled, -100)
    # Padding on the right needs no mask: causal attention never sees it.
    logits = model(input_ids=ids).logits[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
