"""From a task to prompt tokens, and from completion tokens back to text. Workers and validators must agree on both.

The prompt announces the thinking budget. A tokenizer whose chat template has a `thinking_budget` variable renders
it where the model expects it (ours do, and some public models'); for any other, a sentence is added to the last
message, unless the environment asks for no thinking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.environments.task import Task
from muster.errors import ConfigError, MalformedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DAY = date(2024, 7, 26)
"""Today, for chat templates that print it: otherwise two machines, or two days, would render different prompts."""

BUDGET_SENTENCE = "\n\nThink for about {budget} tokens inside <think> and </think>, then give only the answer."

MAX_TEMPLATE = 1 << 18
"""Longest chat template that is rendered, in characters; those that people use have up to some 20,000."""

UNKNOWN = "\ufffd"
"""Stands in a text for a token that the tokenizer does not know."""


def end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the token that ends a completion. Raises ConfigError if the tokenizer has none."""
    if not isinstance(tokenizer.eos_token_id, int):
        raise ConfigError("the tokenizer has no end-of-sequence token", hint="use a chat model, or muster model init")
    return tokenizer.eos_token_id


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id to fill batches with; the end token where the tokenizer has no other."""
    pad = tokenizer.pad_token_id
    return pad if isinstance(pad, int) else end_token(tokenizer)


def prompt_text(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    budget: int,
    *,
    thinks: bool = True,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Render the prompt, special tokens spelled out; `thinks` as in `EnvironmentManifest`.

    tools: the functions that the model may call, with their schemas. Raises ConfigError if the tokenizer has no chat
    template, MalformedError if that refuses the task's messages.
    """
    messages = [{"role": message.role, "content": message.content} for message in task.messages]
    if thinks and "thinking_budget" not in chat_template(tokenizer):
        messages[-1]["content"] += BUDGET_SENTENCE.format(budget=budget)
    try:
        return render(tokenizer, messages, thinks=thinks, tools=tools, thinking_budget=budget)
    except MalformedError as error:
        raise MalformedError(f"the chat template refuses task {task.id[:80]!r}: {error}") from error


def chat_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the tokenizer's chat template. Raises ConfigError if it has none, or one longer than MAX_TEMPLATE."""
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several, by name
        template = template.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            "the tokenizer has no chat template",
            hint="use a chat model (of several templates one named default), or muster model init",
        )
    if len(template) > MAX_TEMPLATE:
        raise ConfigError(f"a chat template of {len(template)} characters; at most {MAX_TEMPLATE} are rendered")
    return template


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    *,
    thinks: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    opens_turn: bool = True,
    **more: Any,
) -> str:
    """Render messages by the chat template, the same on every machine and every day. Raises MalformedError.

    more: what else the template may know.
    """
    from jinja2 import TemplateError  # of what renders templates; imported with transformers

    template = chat_template(tokenizer)
    arithmetic = (ArithmeticError, SyntaxError, RecursionError)
    if tools:
        more |= {"tools": list(tools)} | ({"xml_tools": list(tools)} if "xml_tools" in template else {})
    try:
        text = tokenizer.apply_chat_template(
            list(messages),  # type: ignore[arg-type]
            chat_template=template,
            tokenize=False,
            add_generation_prompt=opens_turn,
            enable_thinking=thinks,
            strftime_now=DAY.strftime,
            **more,
        )
    except (TemplateError, TypeError, ValueError, AttributeError, LookupError, *arithmetic) as error:
        raise MalformedError(str(error)) from error
    assert isinstance(text, str)
    return text


def prompt_tokens(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    budget: int,
    *,
    thinks: bool = True,
    tools: Sequence[Mapping[str, Any]] = (),
) -> np.ndarray:
    """Return the token ids of the prompt, int32 [length]. `budget` is in tokens, as drawn. Raises as `prompt_text`."""
    text = prompt_text(tokenizer, task, budget, thinks=thinks, tools=tools)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.asarray(ids, dtype=np.int32)


def completion_text(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | np.ndarray, stop_tokens: Collection[int] = ()
) -> str:
    """Decode the text that is scored: all tokens but a final one that ended it, special tokens spelled out.

    The tokenizer's EOS ends a completion, and so do `stop_tokens`. Total on hostile input of int32 ids: each id that
    the tokenizer does not know, such as those that pad an embedding, is a replacement character and never nothing.
    """
    ids = [int(token) for token in tokens]
    if ids and (ids[-1] == end_token(tokenizer) or ids[-1] in stop_tokens):
        ids.pop()
    return tokens_text(tokenizer, ids)


def tokens_text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    """Decode tokens, special ones spelled out. Total as `completion_text`."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if 0 <= token < len(tokenizer):
            parts[-1].append(token)
        else:
            parts.append([])
    texts = (tokenizer.decode(p, skip_special_tokens=False, clean_up_tokenization_spaces=False) for p in parts)
    return UNKNOWN.join(str(text) for text in texts)
