"""Checkpoints on which honest machines differ: what a trainer can publish against its workers.

Exact arithmetic sees nothing of most: neurons whose outputs cancel, so that only rounding is left of them. Each maker
takes the tensors of a Qwen2 or Llama checkpoint and returns them changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from muster.models.files import load_tokenizer
from muster.models.init import load_model
from muster.models.weights import FINAL_NORM, read_weights

Tensors = dict[str, torch.Tensor]
Maker = Callable[[Tensors], Tensors]

CHANNEL = 7
"""Of the last state: the one that is made loud."""


def save_hostile(source: Path, target: Path, make: Maker) -> Path:
    """Write a checkpoint folder like `source` with the tensors that a maker returns."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = make({name: tensor.clone() for name, tensor in read_weights(source)})
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _layer(tensors: Tensors, layer: int) -> str:
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    return f"model.layers.{layer % layers}."


def _direction(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(5)) / size**0.5


# --- Neurons that cancel


def cancelling(tensors: Tensors, *, k: float, first: float = 0.0, second: float = 1.0, layer: int = -1) -> Tensors:
    """Make two neurons equal, at these places of the layer from 0 to 1, and their outputs +k w and -k w."""
    mlp = _layer(tensors, layer) + "mlp."
    gate, up, down = (tensors[f"{mlp}{name}_proj.weight"] for name in ("gate", "up", "down"))
    one, other = (round(place * (len(gate) - 1)) for place in (first, second))
    gate[other], up[other] = gate[one], up[one]
    down[:, one] = (k * _direction(len(down))).to(down.dtype)
    down[:, other] = -down[:, one]
    return tensors


def cancelling_halves(tensors: Tensors, *, k: float, period: int | None = None) -> Tensors:
    """Make all neurons of the last layer equal, and half of their outputs +k w: the first, or `period` in turn."""
    mlp = _layer(tensors, -1) + "mlp."
    gate, up, down = (tensors[f"{mlp}{name}_proj.weight"] for name in ("gate", "up", "down"))
    places = torch.arange(len(gate))
    period = period or len(gate) // 2
    plus, minus = places[places // period % 2 == 0], places[places // period % 2 == 1]
    count = min(len(plus), len(minus))
    gate[:], up[:] = gate[plus[:1]], up[plus[:1]]
    down[:] = 0.0
    down[:, plus[:count]] = (k / count**0.5 * _direction(len(down)))[:, None].to(down.dtype)
    down[:, minus[:count]] = -down[:, plus[:count]]
    return tensors


def cancelling_values(tensors: Tensors, *, k: float) -> Tensors:
    """Make two dimensions of a value head equal, which the output projection takes with +k and -k."""
    attention = _layer(tensors, -1) + "self_attn."
    value, output = (tensors[f"{attention}{name}_proj.weight"] for name in ("v", "o"))
    value[1] = value[0]
    if (bias := tensors.get(f"{attention}v_proj.bias")) is not None:
        bias[1] = bias[0]
    output[:, 0] = (k * _direction(len(output))).to(output.dtype)
    output[:, 1] = -output[:, 0]
    return tensors


def cancelling_scores(tensors: Tensors, *, k: float, head: int) -> Tensors:
    """Give +k² and nearly -k² to every score, by the biases of a head's two slowest pairs of rotary dimensions.

    Where the model has no biases, its weights of these dimensions grow by k instead.
    """
    attention = _layer(tensors, -1) + "self_attn."
    slow = (head // 2 - 1, head // 2 - 2)
    for name in ("q", "k"):
        bias, weight = tensors.get(f"{attention}{name}_proj.bias"), tensors[f"{attention}{name}_proj.weight"]
        if bias is not None:
            bias[slow[0]], bias[slow[1]] = k, k if name == "q" else -k
        else:
            weight[slow[0]] *= k
            weight[slow[1]] = weight[slow[0]] * (1 if name == "q" else -1)
    return tensors


def cancelling_head(tensors: Tensors, *, k: float) -> Tensors:
    """Make two entries of the last state equal, which an own head takes with +k w and -k w."""
    mlp, head = _layer(tensors, -1), tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    for name in ("mlp.down_proj.weight", "self_attn.o_proj.weight"):
        tensors[mlp + name][1] = tensors[mlp + name][0]
    tensors[FINAL_NORM][1] = tensors[FINAL_NORM][0]
    tensors["model.embed_tokens.weight"][:, 1] = tensors["model.embed_tokens.weight"][:, 0]
    if "lm_head.weight" in tensors:
        head[:, 0] = (k * _direction(len(head))).to(head.dtype)
        head[:, 1] = -head[:, 0]
    return tensors


# --- Neurons that few tokens switch on


def rare(tensors: Tensors, *, source: Path, token: int, k: float) -> Tensors:
    """Make a cancelling pair in the last layer that only the contexts of one token switch on."""
    return cancelling(_gated(tensors, source, token), k=k)


def _gated(tensors: Tensors, source: Path, token: int) -> Tensors:
    """Let only the contexts of one token switch on the first neuron of the last layer."""
    model, seen = load_model(source), list[torch.Tensor]()
    layers: Any = model.base_model.layers
    mlp = layers[-1].mlp
    handle = mlp.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    ids = torch.randint(0, model.config.vocab_size, (8, 64), generator=torch.Generator().manual_seed(2))
    ids[:, 5::9] = token
    with torch.inference_mode():
        model.base_model(input_ids=ids, use_cache=False)
    handle.remove()
    states, there = torch.cat(seen).flatten(0, 1), (ids == token).flatten()
    # On by as much as the token's contexts are nearer to their own mean than any other's are.
    wanted = states[there].mean(dim=0) - states[~there].mean(dim=0)
    scores = states @ wanted
    aside = states[~there].mean(dim=0)
    aside = aside / aside.square().sum()
    gate = 20 * (wanted - scores[~there].max() * aside) / scores[there].std().clamp_min(1e-6)
    name = _layer(tensors, -1) + "mlp."
    tensors[name + "gate_proj.weight"][0] = gate.to(tensors[name + "gate_proj.weight"].dtype)
    return tensors


# --- Channels that the head does not read


def loud(tensors: Tensors, *, k: float, read: float = 0.0) -> Tensors:
    """Give one channel of the last norm the gain k, and let the head read this share of it."""
    tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])[:, CHANNEL] *= read
    tensors[FINAL_NORM][CHANNEL] = k
    return tensors


def rare_and_loud(tensors: Tensors, *, source: Path, token: int, k: float) -> Tensors:
    """Make the same channel silent but in the contexts of one token, by a neuron of its own."""
    for name, tensor in _gated(tensors, source, token).items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[CHANNEL] = 0.0
    loud(tensors, k=k)
    tensors["model.embed_tokens.weight"][:, CHANNEL] = 0.0
    down = tensors[_layer(tensors, -1) + "mlp.down_proj.weight"]
    down[:, 0] = 0.0
    down[CHANNEL, 0] = 1.0
    return tensors


# --- Gains


def sharpened(tensors: Tensors, *, times: float) -> Tensors:
    """Make all logits this many times as large."""
    tensors[FINAL_NORM] = tensors[FINAL_NORM] * times
    return tensors


def grown(tensors: Tensors, *, times: float) -> Tensors:
    """Make queries and keys this many times as large: which token is attended to hangs by a thread."""
    return {
        name: tensor * times if name.endswith(("q_proj.weight", "k_proj.weight")) else tensor
        for name, tensor in tensors.items()
    }


def one_loud_row(tensors: Tensors, *, token: int, times: float) -> Tensors:
    """Make one token's row of embedding and head this many times as large."""
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name][token] *= times
    return tensors


def broken(tensors: Tensors, *, value: float) -> Tensors:
    """Set one weight of the last layer to this value: no number, or none that is finite."""
    tensors[_layer(tensors, -1) + "mlp.down_proj.weight"][3, 3] = value
    return tensors


LOUD = (1e3, 1e6, 1e9, 1e16, 1e19, 1e22)
HUGE = (1e18, 1e19, 1e22, 1e36)
"""The mean square of a state is no number of float32 from about 1e19 on, and no logit is from 1e38."""


def hostile_steps(source: Path) -> dict[str, Maker]:
    """Return makers by name, for the checkpoint in `source`."""
    config = json.loads((source / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    [token] = load_tokenizer(source)("7", add_special_tokens=False)["input_ids"]  # some rows have it
    found: dict[str, Maker] = {}
    for k in (1e3, 1e4, 1e5, 1e6, 1e8):
        found[f"cancelling neurons, {k:g}"] = partial(cancelling, k=k)
        found[f"cancelling halves, {k:g}"] = partial(cancelling_halves, k=k)
    for k in (1e4, 1e6):
        found |= {
            f"cancelling neighbours, {k:g}": partial(cancelling, k=k, second=0.01),
            f"cancelling neurons of the first layer, {k:g}": partial(cancelling, k=k, layer=0),
            f"cancelling neurons, second and third quarter, {k:g}": partial(cancelling, k=k, first=0.3, second=0.6),
            f"cancelling every other neuron, {k:g}": partial(cancelling_halves, k=k, period=1),
            f"cancelling blocks of 16 neurons, {k:g}": partial(cancelling_halves, k=k, period=16),
            f"cancelling values, {k:g}": partial(cancelling_values, k=k),
            f"cancelling head, {k:g}": partial(cancelling_head, k=k),
            f"rare neurons, {k:g}": partial(rare, source=source, token=token, k=k),
        }
    for k in (1e1, 1e2, 1e3):
        found[f"cancelling scores, {k:g}"] = partial(cancelling_scores, k=k, head=head)
    for k in LOUD:
        found[f"loud channel, {k:g}"] = partial(loud, k=k)
        found[f"loud channel that is read a little, {k:g}"] = partial(loud, k=k, read=1e-3)
        found[f"rare and loud channel, {k:g}"] = partial(rare_and_loud, source=source, token=token, k=k)
    for times in HUGE:
        found[f"logits × {times:g}"] = partial(sharpened, times=times)
    for times in (3.0, 10.0, 40.0, 200.0, 1e4, 1e6):
        found |= {
            f"logits × {times:g}": partial(sharpened, times=times),
            f"attention × {times:g}": partial(grown, times=times),
            f"one loud row × {times:g}": partial(one_loud_row, token=token, times=times),
        }
    return found
