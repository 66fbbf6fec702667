"""A small model that calls the calculator, a task set where it may, and rules of a run with both.

The model learns the form of a conversation by heart: a call, the result, and one more call or an answer. Its figures
are often wrong, so honest rows have true results, errors, several calls of a turn and all numbers of turns.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import ChatMessage, Task
from muster.environments.tools.base import function_schema
from muster.environments.tools.calculator import Calculator
from muster.environments.tools.manifest import TurnsManifest
from muster.models.files import load_tokenizer
from muster.models.init import ModelShape, make_model, save_model
from muster.protocol.prompts import prompt_tokens
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import Conversation, TurnRules, turn_rules
from muster.rollouts.spans import sampled_mask
from muster.swarm.plan import LOCAL_TERMS
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import CPU_FP32, Profile, profile_hash
from muster.verification.rules import ModelFacts, Rules
from testbed.samples.chat_templates import CORPUS, FAMILIES
from testbed.samples.task_sets import SOURCE
from testbed.samples.terms import made_terms
from testbed.samples.texts import byte_pair_tokenizer
from testbed.suite import shared_work

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_PROMPT: Final = 256
MAX_COMPLETION: Final = 320
TURNS: Final = TurnsManifest(("calculator",), turns=8, fuel=200)
STOP_TEXT: Final = "<|im_end|>"


def call_text(expression: str) -> str:
    """Return a call as the model is taught to write it."""
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def tool_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer of any text with Qwen2.5's form of a template, in which calls and results are short."""
    from transformers import AddedToken

    schema = str(function_schema(Calculator())).replace("'", '"').replace("True", "true")
    texts = [call_text("12+34"), "You may call:", schema, "Work out 12+34.", "<tool_response>\n46\n</tool_response>"]
    made = byte_pair_tokenizer([*CORPUS, *texts, *texts])
    family = FAMILIES["Qwen2.5"]
    for text in ("<|im_start|>", *family.ends):
        made.add_tokens(AddedToken(text, normalized=False, special=True))
    for text in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        made.add_tokens(AddedToken(text, normalized=False, special=False))
    made.chat_template = family.template
    made.eos_token = STOP_TEXT
    return made


def tool_tasks(folder: Path, turns: TurnsManifest = TURNS, count: int = 512) -> TaskSet:
    """Write tasks of sums and products, which may be worked out with tools."""
    random, tasks = Random(7), []
    for number in range(count):
        left, right, sign = random.randint(10, 99), random.randint(10, 99), random.choice("+*")
        answer = str(left + right if sign == "+" else left * right)
        tasks.append(
            Task(f"t{number}", (ChatMessage("user", f"Work out {left}{sign}{right}."),), {"answer": answer}, 1)
        )
    plain = own_manifest("arithmetic", {"thinking": "none"})
    manifest = replace(plain, turns=turns)
    return write_task_set(folder, [NewPart("sums", manifest, tasks, 1, [SOURCE])])


def tool_terms(tasks: TaskSet, profile: Profile = CPU_FP32, **changes: Any) -> Terms:
    """Return the demo's terms with room for conversations."""
    rooms = {"max_prompt_tokens": MAX_PROMPT, "max_completion_tokens": MAX_COMPLETION}
    return made_terms({**LOCAL_TERMS, **rooms}, tasks, **{"profile": profile_hash(profile.name), **changes})


def tool_rules(model_dir: Path, tasks: TaskSet, terms: Terms) -> Rules:
    """Return the rules of a run of these tasks."""
    facts = ModelFacts.read(model_dir)
    return Rules(31337, "0x" + "11" * 20, 1, terms, tasks, Scorers(), load_tokenizer(model_dir), facts)


def taught_conversation(rules: TurnRules, prompt: list[int], random: Random) -> Conversation:
    """Return a conversation as the model is to have it: one call or two a turn, often several turns, and a number."""
    talk = Conversation(rules, prompt, 4096)
    while True:
        if random.random() < 0.72:
            calls = [f"{random.randint(1, 99)}{random.choice('+*-')}{random.randint(1, 99)}" for _ in range(2)]
            text = "\n".join(call_text(one) for one in calls[: random.choice((1, 1, 1, 2))])
        else:
            text = str(random.randint(10, 9999))
        talk.add(rules.template.tokenizer(text + STOP_TEXT, add_special_tokens=False)["input_ids"])
        if not talk.go_on():
            return talk


def make_tool_model(folder: Path, tasks: TaskSet) -> Path:
    """Write the model that a run of the tests trains once for equal tasks. Return the folder."""

    def train(path: Path) -> None:
        train_tool_model(path, tasks)

    made = shared_work.share(train, folder, tasks.root)
    return folder if made == folder else Path(shutil.copytree(made, folder))


def train_tool_model(folder: Path, tasks: TaskSet, *, steps: int = 150, seed: int = 0) -> None:
    """Train a model on taught conversations, on their sampled tokens, and save it."""
    tokenizer, random = tool_tokenizer(), Random(seed)
    stops = frozenset({tokenizer.convert_tokens_to_ids(STOP_TEXT)})
    turns = tasks.manifest(0).turns
    assert turns is not None, "these tasks have no tools"
    rules = turn_rules(tokenizer, turns, stops, thinks=False)
    model = make_model(tokenizer, ModelShape(hidden=64, layers=2, heads=2, intermediate=128, context=1024), seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows, labels = [], []
        for _ in range(8):
            task = tasks.task(random.randrange(tasks.size))
            prompt = prompt_tokens(tokenizer, task, 8, thinks=False, tools=rules.template.functions).tolist()
            talk = taught_conversation(rules, prompt, random)
            own = torch.full((len(prompt) + talk.length,), -100)
            mask = torch.from_numpy(sampled_mask(talk.ends))
            own[len(prompt) :][mask] = torch.tensor(talk.tokens)[mask]
            rows.append(torch.tensor(prompt + talk.tokens)[:448])
            labels.append(own[:448])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        wanted = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save_model(model, tokenizer, folder)
