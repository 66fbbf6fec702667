"""Read a checkpoint's weights, for those who put them into a model that is already there, and those who judge by it."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.errors import MalformedError
from muster.models.files import INDEX, checkpoint_problem
from muster.models.safetensors import MAX_HEAD_BYTES, Tensor, pieces_of, tensors_of
from muster.runtime.documents import unique

if TYPE_CHECKING:
    import torch

HEAD: Final = "lm_head.weight"
EMBEDDING: Final = "model.embed_tokens.weight"

_READ: Final = (".safetensors", ".json", ".jinja", ".model")
"""Suffixes of what some program reads in a folder of a model."""
_VERSION_FILE: Final = "manifest.json"
"""Beside the files of a version that was fetched (`muster.shardcast`)."""


def weights_in(folder: Path) -> dict[str, tuple[Path, Tensor]]:
    """Return where each tensor of a checkpoint folder lies, by the heads of its files.

    Raises MalformedError where two programs could read other weights out of the folder: for a file that some would read
    and others not, a tensor that is there twice, an index that says otherwise than the heads, and a head that differs
    from the embedding it is tied to.
    """
    shown = [path.name for path in folder.glob("[!.]*") if path.suffix in _READ and path.name != _VERSION_FILE]
    if problem := checkpoint_problem(shown):
        raise MalformedError(f"{folder}: {problem}", hint="muster model fetch copies what a checkpoint needs")
    found: dict[str, tuple[Path, Tensor]] = {}
    for path in (folder / name for name in sorted(shown) if name.endswith(".safetensors")):
        try:
            tensors = tensors_of(path)
        except (OSError, ValueError) as error:
            hint = f"download {path.name} again"
            raise MalformedError(f"{path} is not a safetensors file: {error}", hint=hint) from error
        for tensor in tensors:
            if (first := found.setdefault(tensor.name, (path, tensor))[0]) != path:
                raise MalformedError(f"{folder}: {tensor.name[:200]} is both in {first.name} and in {path.name}")
    files = {name: path.name for name, (path, _) in found.items()}
    if INDEX in shown and _json_value(folder / INDEX, "weight_map") != files:
        hint = f"download {INDEX} and the files that it names again"
        raise MalformedError(f"{folder / INDEX} does not say which tensors the files hold", hint=hint)
    is_untied = _json_value(folder / "config.json", "tie_word_embeddings") is False
    if HEAD in found and not is_untied and not _equal(found[HEAD], found.get(EMBEDDING)):
        raise MalformedError(f"{folder} has another {HEAD} than {EMBEDDING}, and its config.json does not untie them")
    return found


def parameter_count(folder: Path) -> int:
    """Return the number of weights in a checkpoint folder. Raises MalformedError as `weights_in`."""
    return sum(math.prod(tensor.shape) for _, tensor in weights_in(folder).values())


def _json_value(path: Path, key: str) -> object:
    """Return the value of a key in a file of JSON; None where there is none, or the file cannot be read."""
    try:
        with path.open("rb") as file:
            return json.loads(file.read(MAX_HEAD_BYTES), object_pairs_hook=unique).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _equal(one: tuple[Path, Tensor], other: tuple[Path, Tensor] | None) -> bool:
    if other is None or (one[1].dtype, one[1].shape) != (other[1].dtype, other[1].shape):
        return False
    return all(a == b for a, b in zip(pieces_of(*one), pieces_of(*other), strict=True))


def read_weights(model_dir: Path, only: Container[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of everything in the folder's safetensors files, or of the names in `only`, one at a time.

    Raises MalformedError as `weights_in`, before the first.
    """
    from safetensors import safe_open

    for path in dict.fromkeys(path for path, _ in weights_in(model_dir).values()):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                if only is None or name in only:
                    yield name, tensors.get_tensor(name)


FINAL_NORM: Final = "model.norm.weight"
"""The gain behind a model's last layer: logits are in proportion to it."""
_ADDS_ONE: Final = ("gemma",)
"""How the types of models begin whose norms multiply by 1 plus their weights."""
SCALE_PER_NAT: Final = 8.0
"""Largest `logit_scale` of a step over the temperature, per nat by which sampled tokens are ahead of random ones. On
average that is at least the logarithm of the vocabulary's size, whatever the weights. With a larger scale, what two
honest machines may differ by comes to as much, and limits no longer tell random tokens from sampled ones."""


def check_scale(model_dir: Path, temperature: float) -> None:
    """Raise MalformedError for a step under whose weights limits say nothing (SCALE_PER_NAT), or are no numbers."""
    try:
        scale, most = logit_scale(model_dir) / temperature, SCALE_PER_NAT * math.log(len(read_head(model_dir)))
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        raise MalformedError(f"{model_dir} has a head or last norm of another shape or dtype: {error}") from error
    if not scale <= most:
        raise MalformedError(
            f"the last norm times the head of {model_dir} comes to {scale:.3g}; at most {most:.3g} is taken",
            hint="nobody's work of such a step can be judged: do not work for it",
        )


def logit_scale(model_dir: Path) -> float:
    """Return what a relative error of 1 of the last state makes of a logit, at most: from weights alone.

    That is the largest gain of the last norm times the longest row of the head: no state behind the norm is longer than
    sqrt(H) times that gain, whatever its context is.
    """
    import torch

    config = json.loads((model_dir / "config.json").read_text())
    bias = FINAL_NORM.replace("weight", "bias")
    norm = {name: tensor.float() for name, tensor in read_weights(model_dir, (FINAL_NORM, bias))}
    gain = norm.get(FINAL_NORM, torch.ones(1)) + str(config.get("model_type")).startswith(_ADDS_ONE)
    largest = gain.abs().max() + norm.get(bias, torch.zeros(1)).abs().max()
    return float(largest * torch.linalg.vector_norm(read_head(model_dir), dim=1, dtype=torch.float32).max())


def read_head(model_dir: Path) -> torch.Tensor:
    """Return the rows that make logits of states, [V, H] as they are stored: mapped, so that few are read for a few.

    Raises MalformedError when the folder has none.
    """
    found = dict(read_weights(model_dir, (HEAD, EMBEDDING)))
    if not found:
        raise MalformedError(f"no weights in {model_dir} are called {HEAD} or {EMBEDDING}")
    # Where a model has both, `weights_in` has seen that it unties them, or that they are equal.
    return found[HEAD if HEAD in found else EMBEDDING]
