"""What TRL's own GRPOTrainer makes of small fixed batches: the vectors that our losses are tested against.

    .peers/trl/bin/python benchmarks/peers/trl_loss_vectors.py [FILE]       default: tests/unit/vectors/trl_loss.json

Every figure is computed by TRL's code (`make bench-peers`): a GRPOTrainer is made from a GRPOConfig for each case, its
forward pass is replaced by given log-probabilities and entropies, and what `compute_loss` returns is written down with
its gradient, all in float64. Advantages go through `_generate_and_score_completions` with given rewards; there TRL
computes in float32. The inputs are drawn from a fixed seed and written down as well, so the file is all a test needs:

    {
      "peer": "trl 1.16.0",
      "batches": {NAME: {
        "logprobs": [[…], …],       one list of floats per rollout, as long as its completion: the trainer's, in nats
        "behaviour": [[…], …],      the sampler's, likewise (TRL: old_per_token_logps)
        "reference": [[…], …],      the reference model's, likewise
        "entropy": [[…], …],        of the trainer's distribution, likewise, in nats
        "advantages": [a, …],       one per rollout
        "given": [[…], …]           only of `turns`: 1 where a token is a tool's, as TRL masks it, else 0
      }},
      "conversations": [{           what TRL makes of scripted turns, in the order of the batch `turns`
        "texts": ["…", …],          what the policy says, turn by turn
        "tokens": [t, …]            TRL's completion ids: these turns, and what it gives between them
      }, …],
      "losses": [{
        "batch": NAME,
        "loss_type": "grpo" | "bnpo" | "dapo" | "dr_grpo",
        "importance_sampling_level": "token" | "sequence",
        "epsilon": e, "epsilon_high": e, "delta": d or null,
        "beta": b, "use_bias_correction_kl": true | false, "entropy_coef": c,
        "max_completion_length": n,  dr_grpo divides by rollouts × n
        "tokens": n,                 of the global batch, which dapo divides by; more than the batch's own where the
                                     batch is a micro-batch of a larger one
        "loss": l,
        "gradient": [[…], …]         of the loss with respect to `logprobs`
      }, …],
      "advantages": [{
        "scale_rewards": "group" | "none" | "batch",
        "rewards": [[…], …],         one list per group
        "advantages": [[…], …]
      }, …]
    }

`grpo` is the mean over rollouts of their means over tokens; `bnpo` divides the sum over tokens by the batch's tokens,
`dapo` by `tokens`, `dr_grpo` by a constant. `delta` bounds the ratio from above before the minimum is taken. `sequence`
is GSPO: one ratio per rollout, the exponential of its mean log-ratio. `beta` adds the k3 estimate of the distance to
the reference, with its gradient; `use_bias_correction_kl`, TRL's default, multiplies it by the ratio before any clip,
with the ratio's gradient. The entropy bonus is a mean over the tokens of the (micro-)batch whatever the type.
TRL divides advantages by the sample's deviation (n − 1) plus 1e-4, of the group or of the batch.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from muster.environments.tools.calculator import Calculator
from testbed.samples.chat_templates import family_tokenizer

FILE = Path(__file__).resolve().parents[2] / "tests/unit/vectors/trl_loss.json"
COMMON: dict[str, Any] = tomllib.loads(Path(__file__).with_name("trl.toml").read_text())["common"]
GROUP = 4
INPUT_DECIMALS, OUTPUT_DECIMALS = 6, 12
"""Inputs are rounded before they are used, so what is written down is what was used."""
Rows = list[torch.Tensor]


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    with tempfile.TemporaryDirectory(prefix="muster-trl-") as scratch:
        peer = Peer(Path(scratch))
        batches = make_batches()
        conversations, batches["turns"] = converse(peer)
        losses = [case(peer, name, batches[name], **terms) for name, terms in loss_cases(batches)]
        advantages = [advantage_case(peer, scale, rewards) for scale, rewards in advantage_cases()]
    document = {
        "peer": f"trl {trl.__version__}",
        "batches": tree_map(torch.Tensor.tolist, batches),
        "conversations": conversations,
        "losses": losses,
        "advantages": advantages,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document) + "\n")
    print(f"{file}: {len(losses)} losses, {len(advantages)} sets of advantages, {file.stat().st_size} bytes")


# --- What is put in


def make_batches() -> dict[str, dict[str, Any]]:
    """Ragged batches, float64. The names say how far the trainer has moved from the sampler."""
    generator = torch.Generator().manual_seed(20260)
    ragged = list(range(1, 18))
    batches = {
        "near": _batch(ragged, 0.05, generator),
        "off": _batch(ragged, 0.4, generator),
        "far": _batch(ragged, 1.5, generator),
        "even": _batch([6] * 8, 0.4, generator),
        "single": _batch([1] * 5, 1.0, generator),
        "same": _batch([3, 1, 12, 7], 0.0, generator),
        "extreme": _extreme(),
    }
    return tree_map(_rounded, batches)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return torch.round(values, decimals=INPUT_DECIMALS)


def _batch(lengths: Sequence[int], distance: float, generator: torch.Generator) -> dict[str, Any]:
    def rows(scale: float, around: Rows | None = None) -> Rows:
        drawn = [scale * torch.randn(n, generator=generator, dtype=torch.float64) for n in lengths]
        return drawn if around is None else [d + a for d, a in zip(drawn, around, strict=True)]

    def below_zero(rows: Rows) -> Rows:
        return [-row.abs() - 0.01 for row in rows]

    behaviour = below_zero(rows(2.0))
    # Every second rollout has moved as a whole, so that some ratios of whole sequences are clipped too.
    shifts = [distance * (-1) ** (i // 2) * (i % 2) for i in range(len(lengths))]
    moved = zip(rows(distance, behaviour), shifts, strict=True)
    logprobs = [(row + shift).clamp(max=-0.001) for row, shift in moved]
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    if len(lengths) > 4:
        advantages[3] = 0.0
    return {
        "logprobs": logprobs,
        "behaviour": behaviour,
        "reference": rows(0.3, behaviour),
        "entropy": [row.abs() for row in rows(2.0)],
        "advantages": advantages,
    }


def _extreme() -> dict[str, Any]:
    """Every ratio that is a different case of clipping, under advantages of both signs: a rollout of each sign."""
    ratios = torch.tensor([0.01, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 3.9, 4.1, 50.0], dtype=torch.float64)
    behaviour = -torch.linspace(0.1, 6.0, len(ratios), dtype=torch.float64)
    rows = [behaviour + ratios.log()] * 2
    return {
        "logprobs": rows,
        "behaviour": [behaviour] * 2,
        "reference": [behaviour - 0.2] * 2,
        "entropy": [-behaviour] * 2,
        "advantages": torch.tensor([1.5, -0.7], dtype=torch.float64),
    }


def loss_cases(batches: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    clips = [
        {"epsilon": 0.2, "epsilon_high": 0.2, "delta": None},
        {"epsilon": 0.2, "epsilon_high": 0.28, "delta": None},
        {"epsilon": 0.2, "epsilon_high": 0.2, "delta": 4.0},
        {"epsilon": 0.1, "epsilon_high": 0.3, "delta": 1.5},
    ]
    types, levels = ("grpo", "bnpo", "dapo", "dr_grpo"), ("token", "sequence")
    no_kl = {"beta": 0.0, "use_bias_correction_kl": False}
    plain = {**no_kl, "entropy_coef": 0.0, "max_completion_length": 32, "more_tokens": 0}
    two_sided = {**plain, **clips[2]}
    cases = [
        (name, {**two_sided, "loss_type": loss_type, "importance_sampling_level": level})
        for name, loss_type, level in itertools.product(batches, types, levels)
    ]
    for name, clip in itertools.product(batches, clips):
        if clip is not clips[2]:
            cases.append((name, {**plain, **clip, "loss_type": "dapo", "importance_sampling_level": "token"}))
            cases.append((name, {**plain, **clip, "loss_type": "grpo", "importance_sampling_level": "sequence"}))
    for name, loss_type, level in itertools.product(("off", "even", "turns"), types, levels):
        chosen = {**two_sided, "loss_type": loss_type, "importance_sampling_level": level}
        cases.append((name, {**chosen, "beta": 0.05}))
        cases.append((name, {**chosen, "beta": 0.05, "use_bias_correction_kl": True}))
        cases.append((name, {**chosen, "entropy_coef": 0.01}))
        cases.append((name, {**chosen, "more_tokens": 1000, "max_completion_length": 100}))
    return cases


def advantage_cases() -> list[tuple[str, list[list[float]]]]:
    generator = torch.Generator().manual_seed(7)
    solved = torch.randint(0, 2, (6, GROUP), generator=generator).tolist()
    graded = torch.rand(6, GROUP, generator=generator).tolist()
    alike = [[1.0] * GROUP, [0.0] * GROUP, [0.0] * (GROUP - 1) + [1.0]]
    rewards = [[list(map(float, group)) for group in groups] for groups in (solved, graded, alike)]
    return list(itertools.product(("group", "none", "batch"), rewards))


def _call(expression: str) -> str:
    arguments = json.dumps({"expression": expression})
    return f'<tool_call>\n{{"name": "calculator", "arguments": {arguments}}}\n</tool_call>'


SCRIPTS = [
    ["I reckon. " + _call("6*7"), "It is 42."],
    ["It is 7."],
    ["<think>\nhard\n</think>\n\n" + _call("2**70") + "\n" + _call("1/0"), _call("(17 + 4) * 3"), "It is 63."],
    [_call("10 // 3"), "3"],
]
"""What the policy says in a conversation, turn by turn. Every turn ends by itself."""


# --- What comes out


class Peer:
    """TRL trainers of a tiny model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a"))
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
        shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        heads: dict[str, Any] = {"num_attention_heads": 1, "num_key_value_heads": 1}
        config = Qwen2Config(vocab_size=3, pad_token_id=0, eos_token_id=1, **shape, **heads)
        Qwen2ForCausalLM(config).save_pretrained(folder)

    def trainer(
        self,
        reward: Any = None,
        rollout: Any = None,
        *,
        rows: int = GROUP,
        prompt: Any = "a",
        model: Any = None,
        tokenizer: Any = None,
        tools: Any = None,
        **terms: Any,
    ) -> GRPOTrainer:
        config = GRPOConfig(
            output_dir=str(self.folder / "out"),
            num_generations=GROUP,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=1,
            **COMMON,
            **terms,
        )
        trainer = GRPOTrainer(
            model=model or str(self.folder),
            reward_funcs=reward or (lambda completions, **_: [0.0] * len(completions)),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [prompt] * rows}),
            processing_class=tokenizer or self.tokenizer,
            tools=tools,
            rollout_func=rollout,
        )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1  # what Trainer.train sets
        return trainer


def case(peer: Peer, name: str, batch: dict[str, Any], *, more_tokens: int, **terms: Any) -> dict[str, Any]:
    lengths = [len(row) for row in batch["logprobs"]]
    trainer = peer.trainer(**terms)
    padded = {
        key: pad_sequence(batch[key], batch_first=True) for key in ("logprobs", "behaviour", "reference", "entropy")
    }
    logprobs = padded["logprobs"].clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, padded["entropy"], None)
    mask = pad_sequence([torch.ones(n, dtype=torch.long) for n in lengths], batch_first=True)
    given = pad_sequence(batch.get("given", [torch.zeros(n) for n in lengths]), batch_first=True).long()
    tokens = int((mask * (1 - given)).sum()) + more_tokens
    inputs = {
        "prompt_ids": torch.full((len(lengths), 1), 2),
        "prompt_mask": torch.ones(len(lengths), 1, dtype=torch.long),
        "completion_ids": torch.full_like(mask, 2),
        "completion_mask": mask,
        **({"tool_mask": 1 - given} if "given" in batch else {}),
        "advantages": batch["advantages"],
        "num_items_in_batch": torch.tensor(tokens),
        "old_per_token_logps": padded["behaviour"],
        "ref_per_token_logps": padded["reference"],
    }
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    assert loss.dtype == torch.float64
    assert logprobs.grad is not None
    gradient = [
        [round(value, OUTPUT_DECIMALS) for value in row[:n].tolist()]
        for row, n in zip(logprobs.grad, lengths, strict=True)
    ]
    return {"batch": name, **terms, "tokens": tokens, "loss": round(loss.item(), OUTPUT_DECIMALS), "gradient": gradient}


def calculator(expression: str) -> str:
    """Works out an arithmetic expression exactly.

    Args:
        expression: The expression.
    """
    return Calculator().run({"expression": expression}, 1_000_000).text


class Scripted(Qwen2ForCausalLM):
    """A model that says what SCRIPTS hold. TRL itself reads its calls, runs them, and goes on."""

    turns: list[list[list[int]]]

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return the rows with the next turn of each one's script, padded on the right."""
        rows = []
        for place, row in enumerate(input_ids.tolist()):
            begun = next((turns for turns in self.turns if _has(row, turns[0])), self.turns[place])
            rows.append(torch.tensor([*row, *begun[sum(_has(row, one) for one in begun)]]))
        return pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)


def _has(row: list[int], part: list[int]) -> bool:
    return any(row[at : at + len(part)] == part for at in range(len(row)))


def converse(peer: Peer) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return TRL's conversations of SCRIPTS, and a batch of their lengths with TRL's mask."""
    tokenizer = family_tokenizer("Qwen3")
    tokenizer.chat_template = qwen3_chat_template
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    config = Qwen2Config.from_pretrained(peer.folder)
    config.vocab_size = len(tokenizer)
    config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    model = Scripted(config)
    model.turns = [
        [tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in turns] for turns in SCRIPTS
    ]
    prompt = [{"role": "user", "content": "What is it?"}]
    made = {"prompt": prompt, "model": model, "tokenizer": tokenizer, "tools": [calculator]}
    trainer = peer.trainer(max_completion_length=1024, **made)
    output = trainer._generate_and_score_completions([{"prompt": list(prompt)} for _ in SCRIPTS])
    kept = output["completion_mask"].bool()
    given = [1 - mask[keep] for mask, keep in zip(output["tool_mask"], kept, strict=True)]
    tokens = [row[keep].tolist() for row, keep in zip(output["completion_ids"], kept, strict=True)]
    batch = _batch([len(row) for row in given], 0.4, torch.Generator().manual_seed(4))
    texts = [{"texts": turns, "tokens": row} for turns, row in zip(SCRIPTS, tokens, strict=True)]
    return texts, {**tree_map(_rounded, batch), "given": given}


def advantage_case(peer: Peer, scale: str, rewards: list[list[float]]) -> dict[str, Any]:
    given = [reward for group in rewards for reward in group]

    def rollout(prompts: Sequence[str], _: GRPOTrainer) -> dict[str, Any]:
        tokens = [[2, 1]] * len(prompts)
        return {"prompt_ids": tokens, "completion_ids": tokens, "logprobs": [[-1.0, -1.0]] * len(prompts)}

    trainer = peer.trainer(lambda completions, **_: given, rollout, rows=len(given), scale_rewards=scale)
    output = trainer._generate_and_score_completions([{"prompt": "a"}] * len(given))
    advantages = output["advantages"].view(-1, GROUP).tolist()
    return {"scale_rewards": scale, "rewards": rewards, "advantages": advantages}


if __name__ == "__main__":
    main()
