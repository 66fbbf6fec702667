"""The model in training as every rank has it: its share of the weights and moments, and what all ranks do together.

Rank 0 calls the methods; each first broadcasts its command to the other ranks, which execute it in `follow`. Nothing
here knows of batches, files or the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.tensor import DTensor

from muster.models.init import load_model
from muster.models.lora import Adapter
from muster.models.numerics import pin_numerics
from trainer.distributed import Distributed, Ranks, finish, samples_from_tensors, samples_to_tensors
from trainer.lora import adapt, adapter_of
from trainer.old_logprobs import recomputes
from trainer.packing import Sample
from trainer.policy import Policy, check_model
from trainer.update import UpdateReport, UpdateTerms, make_optimizer, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEARTBEAT_SECONDS: Final = 60.0
"""Seconds between two heartbeats to ranks that have nothing to do."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Replica:
    """One rank's part of the policy and its optimiser, and of the reference if the loss asks for one."""

    def __init__(self, initial: Path, terms: UpdateTerms, ranks: Ranks) -> None:
        """Load the model.

        Raises ConfigError when the checkpoint in `initial` is of a model that cannot be packed, or one of which the
        run's profile tolerates lies too large for what the terms take the ratio against.
        """
        pin_numerics()
        torch.set_num_threads(1)  # one order of summation, whatever the cores: a repeated step gives the same bytes
        self.ranks = ranks
        self.terms = terms
        wide = ranks.dtype == torch.bfloat16 and terms.matmul == "float32"
        self.policy = Policy(load_model(initial), temperature=terms.temperature, wide=wide)
        check_model(self.policy)
        self.recomputes_at_start = recomputes(self.policy, terms.old_logprobs, terms.profile, terms.loss)
        if terms.activation_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if terms.lora_rank:
            adapt(self.policy, terms.lora_rank, terms.lora_alpha)
        ranks.shard(self.policy)
        disable_dropout(self.policy.train())
        self.optimizer = make_optimizer(self.policy, terms)
        self.reference: Policy | None = None
        if terms.loss.kl_coefficient:
            self.reference = Policy(load_model(initial), temperature=terms.temperature, wide=wide)
            ranks.shard(self.reference)
            self.reference.eval().requires_grad_(False)

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    def update(self, samples: Sequence[Sample], step: int) -> UpdateReport:
        """Run `trainer.update.update` on all ranks."""
        self.ranks.broadcast("update", samples_to_tensors(samples), step=step)
        return update(
            self.policy,
            self.optimizer,
            samples,
            self.terms,
            step=step,
            reference=self.reference,
            ranks=self.ranks,
        )

    def heartbeat(self) -> None:
        """Tell the other ranks that there is nothing to do yet: they end when the first rank is silent for long."""
        self.ranks.broadcast("heartbeat")

    def save(self, folder: Path) -> Future[Any]:
        """Begin to write weights and moments as they are now to `folder`; later changes do not reach the files."""
        self.ranks.broadcast("save", folder=str(folder))
        return self.ranks.save(self._state(moments=bool(self.optimizer.state)), folder)

    def load(self, folder: Path, *, moments: bool) -> None:
        """Load weights and moments from `folder`, by however many ranks they were written."""
        self.ranks.broadcast("load", folder=str(folder), moments=moments)
        self.optimizer.state.clear()
        if moments:
            for parameter in self._trained().values():
                self.optimizer.state[parameter] = _no_moments(parameter)
        with torch.no_grad():
            self.ranks.load(self._state(moments=moments), folder)

    def published(self, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], Adapter | None]:
        """Return whole weights by the model's own names, copied to the CPU, tied ones once; empty but for rank 0.

        A trained adapter is returned beside them, in float32, and is not merged into them yet.
        """
        self.ranks.broadcast("published")
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
        """Return the tensors themselves, by parameter."""
        trained = self._trained()
        state: dict[str, Any] = {"weights": {name: value.detach() for name, value in trained.items()}}
        if moments:
            known = self.optimizer.state
            state["moments"] = {name: dict(known.get(p) or _no_moments(p)) for name, p in trained.items()}
        return state


def disable_dropout(module: torch.nn.Module) -> None:
    """Switch dropout off for good: log-probabilities are compared with the samplers', who drop nothing."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        vars(part).update({name: 0.0 for name in vars(part) if name.endswith("dropout")})  # for torch's function


def _no_moments(parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """Return AdamW's state of a parameter that has had no gradient yet."""
    return {"step": torch.zeros(())} | {name: torch.zeros_like(parameter) for name in MOMENTS}


def follow(replica: Replica, ranks: Distributed) -> None:
    """Execute the commands of rank 0 until it sends "stop". Blocks."""
    writing: Future[Any] | None = None
    while True:
        command, tensors, fields = ranks.receive()
        if writing is not None and command not in ("update", "heartbeat"):  # the others may need the files
            finish(writing, "this rank's share of a step")
            writing = None
        match command:
            case "heartbeat":
                pass
            case "update":
                replica.update(samples_from_tensors(tensors), fields["step"])
            case "save":
                writing = replica.save(Path(fields["folder"]))
            case "load":
                replica.load(Path(fields["folder"]), moments=fields["moments"])
            case "published":
                replica.published(torch.float32)
            case "stop":
                return
