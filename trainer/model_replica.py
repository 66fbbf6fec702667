"""The model in training as every rank has it: its share of the weights and moments, and what all ranks do together.

Rank 0 calls the methods; each first has the other ranks do the same, in `follow`. Nothing here knows of batches, files
or the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.tensor import DTensor

from muster.lora import Adapter
from muster.models import load_model
from trainer.layout import Sample
from trainer.lora import adapt, adapter_of
from trainer.policy import Policy, check_model
from trainer.ranks import Ranks, Torchrun, finish, samples_of_tensors, samples_to_tensors
from trainer.update import UpdateReport, UpdateTerms, make_optimizer, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPANY_SECONDS: Final = 60.0
"""Between two words to ranks that have nothing to do."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Replica:
    """One rank's part of the policy and its optimiser, and of the reference if the loss asks for one."""

    def __init__(self, initial: Path, terms: UpdateTerms, ranks: Ranks) -> None:
        """Raises ConfigError when the checkpoint in `initial` is of a model that cannot be packed."""
        torch.set_num_threads(1)  # sums in one order, whatever the cores: a step taken again gives the same bytes
        self.ranks = ranks
        self.terms = terms
        self.policy = Policy(load_model(initial, dtype=torch.float32), temperature=terms.temperature)
        check_model(self.policy)
        if terms.activation_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if terms.lora_rank:
            adapt(self.policy, terms.lora_rank, terms.lora_alpha)
        ranks.shard(self.policy)
        still(self.policy.train())
        self.optimizer = make_optimizer(self.policy, terms)
        self.reference: Policy | None = None
        if terms.loss.kl_coefficient:
            self.reference = Policy(load_model(initial, dtype=torch.float32), temperature=terms.temperature)
            ranks.shard(self.reference)
            self.reference.eval().requires_grad_(False)

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def update(self, samples: Sequence[Sample], step: int) -> UpdateReport:
        """`trainer.update.update`, by all ranks."""
        self.ranks.tell("update", samples_to_tensors(samples), step=step)
        return update(
            self.policy,
            self.optimizer,
            samples,
            self.terms,
            step=step,
            reference=self.reference,
            ranks=self.ranks,
        )

    def wait(self) -> None:
        """Tell the others that there is nothing to do yet: they give up on a first rank that is silent for long."""
        self.ranks.tell("wait")

    def save(self, folder: Path) -> Future[Any]:
        """Write weights and moments as they are now to `folder`; what comes after does not change what is written."""
        self.ranks.tell("save", folder=str(folder))
        return self.ranks.save(self._state(moments=bool(self.optimizer.state)), folder)

    def load(self, folder: Path, *, moments: bool) -> None:
        """Take weights and moments from `folder`, by however many ranks they were written."""
        self.ranks.tell("load", folder=str(folder), moments=moments)
        self.optimizer.state.clear()
        if moments:
            for parameter in self._trained().values():
                self.optimizer.state[parameter] = _no_moments(parameter)
        with torch.no_grad():
            self.ranks.load(self._state(moments=moments), folder)

    def published(self, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], Adapter | None]:
        """Whole weights by the model's own names, copied to the CPU, tied ones once; of the first rank alone.

        Where an adapter is trained it comes besides, in float32, and is not merged into them yet.
        """
        self.ranks.tell("published")
        weights = {}
        for name, parameter in self.policy.named_parameters():
            value = parameter.detach()
            whole = value.full_tensor() if isinstance(value, DTensor) else value  # one at a time: all would not fit
            if self.ranks.rank == 0:
                kept = torch.float32 if self.terms.lora_rank and parameter.requires_grad else dtype
                weights[name.removeprefix("model.")] = whole.to("cpu", kept, copy=True)
        if not self.terms.lora_rank:
            return weights, None
        return weights, adapter_of(weights, self.terms.lora_rank, self.terms.lora_alpha)

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: value for name, value in self.policy.named_parameters() if value.requires_grad}

    def _state(self, *, moments: bool) -> dict[str, Any]:
        """The tensors themselves, by parameter."""
        trained = self._trained()
        state: dict[str, Any] = {"weights": {name: value.detach() for name, value in trained.items()}}
        if moments:
            known = self.optimizer.state
            state["moments"] = {name: dict(known.get(p) or _no_moments(p)) for name, p in trained.items()}
        return state


def still(module: torch.nn.Module) -> None:
    """Switch dropout off for good: log-probabilities are compared with the samplers', who drop nothing."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def _no_moments(parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """AdamW's state of a parameter that has had no gradient yet."""
    return {"step": torch.zeros(())} | {name: torch.zeros_like(parameter) for name in MOMENTS}


def follow(replica: Replica, ranks: Torchrun) -> None:
    """Do what rank 0 does until it says that it is done. Blocks."""
    writing: Future[Any] | None = None
    while True:
        order, tensors, words = ranks.hear()
        if writing is not None and order not in ("update", "wait"):  # what comes then may need the files
            finish(writing, "this rank's share of a step")
            writing = None
        match order:
            case "wait":
                pass
            case "update":
                replica.update(samples_of_tensors(tensors), words["step"])
            case "save":
                writing = replica.save(Path(words["folder"]))
            case "load":
                replica.load(Path(words["folder"]), moments=words["moments"])
            case "published":
                replica.published(torch.float32)
            case "stop":
                return
