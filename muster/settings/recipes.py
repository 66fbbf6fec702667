"""Named recipes of the trainer: what each sets, unless the settings say otherwise. `muster` is the defaults themselves.

Sources: INTELLECT-2 report (arXiv 2505.07291) and the public code and configuration of its run, which differ in the
entropy and the KL coefficient: here as in the report, with a KL term that has a gradient. DAPO: arXiv 2503.14476. GSPO:
arXiv 2507.18071, section 5.1. GRPO: arXiv 2402.03300, section 4.2. Dr. GRPO: arXiv 2503.20783. IcePop: arXiv 2510.18855
(Ring-1T), with its bounds 0.5 and 5, and without its KL term, whose weight we did not find. `prob_mask` is GRPO's clip
with the mask of prime-rl's IPO and its bound 0.3 (docs.primeintellect.ai/prime-rl/ipo). IPO itself has no clip, takes
the ratio to the samplers, and adds a squared log ratio. The sampling temperature is the run's, so no recipe sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

RecipeName = Literal["muster", "intellect2", "grpo", "dr_grpo", "dapo", "gspo", "icepop", "prob_mask"]
OldLogprobs = Literal["auto", "behaviour", "recomputed"]
RatioLevel = Literal["token", "sequence"]
Normaliser = Literal["tokens", "rollouts", "constant"]
LengthUnit = Literal["budget", "token"]

_NO_BOUND: Final = 0.0
"""Of `delta`: the ratio is not bounded where the advantage is negative."""

_GRPO: Final[dict[str, object]] = {"delta": _NO_BOUND, "length_weight": 0.0}

RECIPES: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "muster": {},
        "intellect2": {
            "learning_rate": 3e-7,
            "warmup_steps": 25,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.01,
            "gradient_clip": 0.1,
            "batch_groups": 256,
            "max_files": 1024,
            "optimiser_steps": 8,
            "old_logprobs": "recomputed",
            "epsilon": 0.2,
            "delta": 4.0,
            "normaliser": "constant",
            "entropy_coefficient": 1e-4,
            "kl_coefficient": 1e-3,
            "length_weight": 3e-4,
            "length_unit": "token",
            "add_rewards_first": True,
            "scale_by_std": True,
        },
        "grpo": _GRPO | {"normaliser": "rollouts", "kl_coefficient": 0.04},
        "dr_grpo": _GRPO | {"normaliser": "constant", "scale_by_std": False},
        "dapo": _GRPO | {"normaliser": "tokens", "epsilon_high": 0.28},
        "gspo": _GRPO
        | {
            "normaliser": "rollouts",
            "ratio": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
            "optimiser_steps": 4,
            "old_logprobs": "recomputed",
        },
        "icepop": _GRPO
        | {
            "normaliser": "rollouts",
            "old_logprobs": "recomputed",
            "mask_ratio_low": 0.5,
            "mask_ratio_high": 5.0,
        },
        "prob_mask": _GRPO | {"normaliser": "tokens", "old_logprobs": "recomputed", "mask_probability_difference": 0.3},
    }
)
"""Values of `TrainerSettings` by recipe."""
