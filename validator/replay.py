"""The replay checks: run the completions through the model again and measure what the worker claims of them.

One forward pass of transformers over prompt and completion gives all statistics, of sampled tokens only: its logits the
sampling replay and the log-probabilities, its last hidden states the activations; `muster.verification.statistics` says
how they are measured. It is the reference that evidence is judged by, because it runs on anyone's machine; it agrees
with the worker's vLLM up to numerics, which the profile's limits allow for. On weights that are made for it numerics
exceed every limit: a second pass, in perturbed arithmetic, measures a row's *honest spread*, how far off another honest
machine's claims would be in its context.

Measuring needs the model, judging (`judge`) is pure. Rollouts must have passed the static checks of
`muster.verification.checks`: their tokens are in the vocabulary, and there is at least one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np
import torch

from muster.errors import ConfigError, MalformedError
from muster.models.arithmetic import perturbing
from muster.models.init import load_model
from muster.models.matmul import choose_matmul
from muster.models.numerics import pin_numerics
from muster.models.weights import read_weights
from muster.proofs.projection import Comparison, compare_proofs, make_proofs
from muster.proofs.seeded_sampling import chosen_logprobs, gumbel, measure, scale
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import sampled_mask
from muster.settings.schema import MatmulSetting
from muster.verification.devices import check_device
from muster.verification.judging import Measurement
from muster.verification.profiles import STATISTICS, Profile
from muster.verification.statistics import RowStatistics, TokenErrors, TokenScores

_set_threads = torch.set_num_threads
"""Kept from before vLLM, should it be in the same process, replaces it by something that does nothing."""

DEVICE: Final = "cpu"
"""Kind of device that replays run on."""

_PASS_TOKENS: Final = 1024
"""Tokens, padding included, of one forward pass: enough for fast matrix products. With more, intermediate results are
so large that the system maps each again; at 113M parameters a seventh of the time went into page faults."""
_LOGITS_AT_ONCE: Final = 1 << 25
"""Logits computed at a time: 128 MiB of float32."""
_LARGEST_STATE: Final = 1e30
"""States beyond this have projections that are no numbers."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RowErrors:
    """How far each token of one rollout is off."""

    errors: TokenErrors
    position: int
    detail: str = ""
    """Why the proof cannot be compared, if so."""


class Replayer:
    """Holds one model and swaps the run's checkpoints through it.

    `keep` checkpoints stay in memory: commitments of several steps arrive interleaved, since workers lag. Not thread
    safe: one call at a time.
    """

    def __init__(
        self,
        model_dir: Path,
        profile: Profile,
        temperature: float,
        *,
        keep: int = 4,
        threads: int = 1,
        matmul: MatmulSetting = "auto",
    ) -> None:
        self.profile = profile
        self.temperature = temperature
        self.threads = threads
        self._dtype: torch.dtype = getattr(torch, profile.dtype)
        self.model = load_model(model_dir, self._dtype, choose_matmul(matmul)).eval()
        check_device(profile, self.model.device.type)
        if getattr(self.model.config, "final_logit_softcapping", None):
            raise ConfigError(f"{model_dir} caps its logits, which replay does not know", hint="choose another model")
        self._keep = keep
        self.weights: OrderedDict[tuple, dict[str, torch.Tensor]] = OrderedDict()
        self._loaded: tuple | None = None

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens the model knows."""
        return self.model.config.vocab_size

    @property
    def _head(self) -> torch.nn.Linear:
        return cast(torch.nn.Linear, self.model.get_output_embeddings())

    def load_weights(self, model_dir: Path) -> None:
        """Replay with this checkpoint from now on. Raises MalformedError when it does not fit the model."""
        key = tuple((str(file), file.stat().st_mtime_ns) for file in sorted(model_dir.resolve().glob("*.safetensors")))
        if key == self._loaded:
            return
        if key not in self.weights:
            self.weights[key] = {name: tensor.to(self._dtype) for name, tensor in read_weights(model_dir)}
            while len(self.weights) > self._keep:
                self.weights.popitem(last=False)
        self.weights.move_to_end(key)
        self._loaded = None
        self._assign(self.weights[key], model_dir)
        self._loaded = key

    def _assign(self, weights: dict[str, torch.Tensor], model_dir: Path) -> None:
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        try:
            result = self.model.load_state_dict(weights, strict=False, assign=True)  # no second copy: files are mapped
        except RuntimeError as error:
            raise MalformedError(f"the weights in {model_dir} do not fit the model: {error}") from error
        if wrong := [*result.unexpected_keys, *(set(result.missing_keys) - tied)]:
            raise MalformedError(f"{model_dir} lacks weights or has others than the model: {', '.join(sorted(wrong))}")
        if tied:  # a head with any other weights would condemn every honest rollout
            self._head.weight = cast(torch.nn.Embedding, self.model.get_input_embeddings()).weight

    def replay(self, rollouts: Sequence[Rollout]) -> list[Measurement]:
        """Measure the rollouts under the loaded weights, in order: infinite where the model computes no numbers."""
        return [self._measured(row) for row in self.errors(rollouts)]

    def spread(self, rollouts: Sequence[Rollout]) -> list[Measurement]:
        """Measure the honest spread of each rollout's context, in order: infinite where that is no number."""
        found = []
        for row, near in self._batched(rollouts, self._spread):
            spread = replace(self._measured(row), gap_worst=self._measured(near).gap_worst)
            if math.isinf(spread.gap_worst):
                sums = replace(spread.sums, gaps=math.inf, states=math.inf, squares=math.inf, signed=math.inf)
                spread = replace(spread, sums=sums)
            found.append(spread)
        return found

    def errors(self, rollouts: Sequence[Rollout]) -> list[RowErrors]:
        """Return what `replay` makes its statistics of, in order."""
        return self._batched(rollouts, self._errors)

    def _measured(self, row: RowErrors) -> Measurement:
        return Measurement.of(row.errors, self.profile, row.position, row.detail)

    @torch.inference_mode()
    def _batched(self, rollouts: Sequence[Rollout], work: Callable[[list[Rollout]], list[T]]) -> list[T]:
        """Return the work of all rollouts, in order, that is done on some of about one length at a time."""
        pin_numerics()
        _set_threads(self.threads)
        found: dict[int, T] = {}
        for batch in _batches(rollouts):
            found.update(zip(batch, work([rollouts[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(rollouts))]

    def _errors(self, rollouts: Sequence[Rollout]) -> list[RowErrors]:
        """Compare the rollouts with what one forward pass says of them."""
        places = sampled_places(rollouts)
        return self._compare(self._states(rollouts, places), rollouts, places)

    def _compare(
        self, states: torch.Tensor, rollouts: Sequence[Rollout], places: Sequence[np.ndarray]
    ) -> list[RowErrors]:
        """Compare what the rollouts claim with what follows from the states behind their sampled tokens."""
        # 1. Each token scored from its last hidden state.
        lengths = list(map(len, places))
        scores = self._score(states, rollouts, places)

        # 2. The proofs against the states.
        ends = np.cumsum(lengths)
        comparisons = compare_proofs(
            [rollout.proof for rollout in rollouts],
            states.tensor_split(ends[:-1].tolist()),
            [rollout.seed for rollout in rollouts],
        )

        # 3. Row by row.
        return [
            _row(rollout, comparison, scores, slice(end - length, end))
            for rollout, comparison, length, end in zip(rollouts, comparisons, lengths, ends, strict=True)
        ]

    def _spread(self, rollouts: Sequence[Rollout]) -> list[tuple[RowErrors, RowErrors]]:
        """Return how far off another honest machine's claims are, and how far if each token were a near-tie.

        A row with a near-tie may be measured where the others' tokens are not near to any: so a token's gap is, in the
        second, what the two machines' differences between its two best candidates are apart.
        """
        # 1. The states on both machines.
        places = sampled_places(rollouts)
        own = self._states(rollouts, places)
        with perturbing(self.model):
            others = self._states(rollouts, places)
        sound = (others.abs() <= _LARGEST_STATE).all(dim=1)

        # 2. What the other one claims: proofs, and of each token's two best candidates the one that it is not here.
        ends = np.cumsum(list(map(len, places)))[:-1]
        seeds = [rollout.seed for rollout in rollouts]
        states = others.masked_fill(~sound[:, None], 0.0).tensor_split(ends.tolist())
        proofs = make_proofs(states, seeds)
        rivals, logprobs, flipped, apart = self._rivals(own, others, seeds, places)
        apart[~sound.numpy()] = np.inf
        claims = zip(rollouts, places, proofs, np.split(rivals, ends), np.split(logprobs, ends), strict=True)
        claimed = []
        for row, sampled, proof, tokens, values in claims:
            completion = row.completion_tokens.astype(np.int64)
            completion[sampled] = tokens
            claimed.append(replace(row, proof=proof, completion_tokens=completion, logprobs=values))

        # 3. How that looks from here.
        found = []
        parts = zip(np.split(flipped, ends), np.split(apart, ends), strict=True)
        for row, (other, gaps) in zip(self._compare(own, claimed, places), parts, strict=True):
            if not np.isfinite(gaps).all():
                row = replace(row, errors=_no_numbers(row.errors))
                found.append((row, row))
                continue
            real = np.where(other, row.errors.gaps, np.float32(0))
            found.append(tuple(replace(row, errors=replace(row.errors, gaps=values)) for values in (real, gaps)))
        return found

    def _rivals(
        self, own: torch.Tensor, others: torch.Tensor, seeds: Sequence[int], places: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, ...]:
        """Return of each sampled token, [sampled tokens], the best candidate here that is not the one sampled here.

        Or the one that is sampled from the other machine's states, where that is another: int64; its log-probability
        there, whether it is sampled there, and how far the two candidates moved against each other.
        """
        keys = torch.from_numpy(np.repeat(np.array(seeds, dtype=np.int64), list(map(len, places))))
        positions, found = torch.from_numpy(np.concatenate(places)), []
        for part in torch.arange(len(keys)).split(max(1, _LOGITS_AT_ONCE // self.vocabulary)):
            here = scale(self._head(own[part]), self.temperature)
            with perturbing(self.model):
                there = scale(self._head(others[part]), self.temperature)
            noise = gumbel(keys[part], positions[part], self.vocabulary)
            sampled, second = (noise + here).topk(2, dim=1).indices.unbind(1)
            other = (noise + there).argmax(dim=1)
            rivals = torch.where(other == sampled, second, other)
            pair = torch.stack([rivals, sampled], dim=1)
            apart = (there - here).gather(1, pair).diff(dim=1)[:, 0].abs()
            found.append((rivals, chosen_logprobs(there, rivals), other != sampled, apart))
        return tuple(torch.cat(column).numpy() for column in zip(*found, strict=True))

    def _states(self, rollouts: Sequence[Rollout], places: Sequence[np.ndarray]) -> torch.Tensor:
        """Compute the last hidden state behind the completion tokens at these places: [sampled tokens, H]."""
        starts = [len(rollout.prompt_tokens) - 1 for rollout in rollouts]
        width = max(start + len(rollout.completion_tokens) for start, rollout in zip(starts, rollouts, strict=True))
        ids = np.zeros((len(rollouts), width), dtype=np.int64)
        for row, rollout in enumerate(rollouts):
            # Padding on the right needs no mask, causal attention never reads it; the last token is only predicted.
            sequence = np.concatenate([rollout.prompt_tokens, rollout.completion_tokens[:-1]])
            ids[row, : len(sequence)] = sequence
        hidden = self.model.base_model(input_ids=torch.from_numpy(ids), use_cache=False).last_hidden_state
        firsts = np.repeat(np.arange(len(rollouts)) * width + starts, list(map(len, places)))
        rows = firsts + np.concatenate(places)
        return hidden.flatten(0, 1)[torch.from_numpy(rows)]

    def _score(self, states: torch.Tensor, rollouts: Sequence[Rollout], places: Sequence[np.ndarray]) -> TokenScores:
        """Score every sampled token from its state: [sampled tokens, H]."""
        tokens = torch.from_numpy(sampled_tokens(rollouts, places))
        keys = np.array([rollout.seed for rollout in rollouts], dtype=np.int64)
        seeds = torch.from_numpy(np.repeat(keys, list(map(len, places))))
        positions = torch.from_numpy(np.concatenate(places))
        head, rows = self._head, self._head.weight  # [V, H]
        at_once = max(1, _LOGITS_AT_ONCE // self.vocabulary)
        found = torch.empty(5, len(tokens))
        for start in range(0, len(tokens), at_once):
            part = slice(start, start + at_once)
            # 1. Which token is sampled here, and how far the claimed one is from it.
            logits = head(states[part])
            replay = measure(logits, tokens[part], seeds[part], positions[part], self.temperature)

            # 2. What an error of the state makes of it.
            chosen, sampled = rows[tokens[part]].float(), rows[replay.sampled].float()
            sizes = states[part].float().square().mean(dim=1).sqrt() / self.temperature
            extremes = torch.stack([logits.gather(1, tokens[part, None])[:, 0], logits.amax(dim=1)])
            magnitudes = extremes.float().abs().amax(dim=0) / self.temperature
            gap_scales, logprob_scales = sizes * (chosen - sampled).norm(dim=1), sizes * chosen.norm(dim=1)
            found[:, part] = torch.stack([replay.gaps, replay.logprobs, gap_scales, logprob_scales, magnitudes])
        return TokenScores(*found.numpy())


def _row(rollout: Rollout, comparison: Comparison, scores: TokenScores, tokens: slice) -> RowErrors:
    """Return the errors of one row, whose tokens' scores are those in the slice."""
    said = {name: values[tokens] for name, values in vars(scores).items()}
    logprobs = said["logprobs"]
    errors = TokenErrors(
        **said,
        claimed=rollout.logprobs if len(rollout.logprobs) == len(logprobs) else np.full_like(logprobs, np.nan),
        states=comparison.distances,
    )
    if not all(np.isfinite(values).all() for values in said.values()):
        errors = _no_numbers(errors)
    return RowErrors(errors, rollout.position, comparison.problem)


def _no_numbers(errors: TokenErrors) -> TokenErrors:
    """Return the errors of a row on which the model computes no numbers: infinite gaps, and nothing to compare."""
    nothing, infinite = np.zeros_like(errors.gaps), np.full_like(errors.gaps, np.inf)
    return TokenErrors(infinite, nothing - 1, nothing, nothing, nothing, claimed=nothing - 1, states=nothing)


def spread_share(spread: RowStatistics, profile: Profile) -> float:
    """Return the largest share of a rejecting limit that a row's honest spread is."""
    return max(getattr(spread, name) / getattr(profile, name).reject for name in STATISTICS)


def _batches(rollouts: Sequence[Rollout]) -> Iterator[list[int]]:
    """Yield indices of rollouts of about one length, as many at a time as a forward pass should have."""
    lengths = [len(rollout.prompt_tokens) + len(rollout.completion_tokens) for rollout in rollouts]
    batch: list[int] = []
    for i in sorted(range(len(rollouts)), key=lambda i: lengths[i]):
        if batch and lengths[i] * (len(batch) + 1) > _PASS_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def sampled_places(rollouts: Sequence[Rollout]) -> list[np.ndarray]:
    """Return where in its completion each sampled token is, which its noise goes by: int64 [sampled tokens] each.

    Of rows that passed the static checks; a single span is the whole completion, whatever its end.
    """
    return [
        np.arange(len(row.completion_tokens)) if len(row.spans) <= 1 else np.flatnonzero(sampled_mask(row.spans))
        for row in rollouts
    ]


def sampled_tokens(rollouts: Sequence[Rollout], places: Sequence[np.ndarray]) -> np.ndarray:
    """Return the tokens at these places, rollout after rollout: int64 [sampled tokens]."""
    return np.concatenate([row.completion_tokens[own] for row, own in zip(rollouts, places, strict=True)]).astype(
        np.int64
    )
