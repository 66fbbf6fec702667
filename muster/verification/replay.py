"""The replay checks: run the completions through the model again and measure what the worker claims of them.

One forward pass of transformers over prompt and completion gives all statistics, of sampled tokens only: its logits the
sampling replay and the log-probabilities, its last hidden states the activations; `muster.verification.statistics` says
how they are measured. It is the reference that evidence is judged by, because it runs on anyone's machine; it agrees
with the worker's vLLM up to numerics, which the profile's limits allow for. On weights that are made for it numerics
exceed every limit: passes in perturbed arithmetic measure a row's *honest spread*, how far off other honest machines
are on each of its tokens, as it claims them.

Measuring needs the model, judging (`judge`) is pure. Rollouts must have passed the static checks of
`muster.verification.checks`: their tokens are in the vocabulary, and there is at least one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from muster.proofs.look_sums import look_sums
from muster.proofs.projection import Comparison, compare_proofs, make_proofs
from muster.proofs.seeded_sampling import leads, measure
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import sampled_mask
from muster.settings.schema import MatmulSetting
from muster.verification.devices import check_device
from muster.verification.judging import Measurement
from muster.verification.look import LookSeeds, numbers_of
from muster.verification.profiles import STATISTICS, Profile
from muster.verification.statistics import TokenErrors, TokenScores, scaled_errors

_set_threads = torch.set_num_threads
"""Kept from before vLLM, should it be in the same process, replaces it by something that does nothing."""

DEVICE: Final = "cpu"
"""Kind of device that replays run on."""

_PASS_TOKENS: Final = 1024
"""Tokens, padding included, of one forward pass: enough for fast matrix products. With more, intermediate results are
so large that the system maps each again; at 113M parameters a seventh of the time went into page faults."""
_LOGITS_AT_ONCE: Final = 1 << 25
"""Logits computed at a time: 128 MiB of float32."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RowErrors:
    """How far each token of one rollout is off."""

    errors: TokenErrors
    position: int
    detail: str = ""
    """Why the proof cannot be compared, if so."""
    look: np.ndarray | None = None
    """Its numbers, [2, K], where seeds of a look were given."""


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
        self.load_weights(model_dir)  # by the one function that reads weights

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

    def spread(self, rollout: Rollout, at_once: int = 1) -> Iterator[list[TokenErrors]]:
        """Yield without end, `at_once` at a time, how far off other honest machines are on the tokens of a row.

        What this machine makes of the row is computed once.
        """
        rows, places = [rollout] * at_once, sampled_places([rollout])
        own, here = self._own(rollout, places)
        while True:
            yield self._differences(own, here, rows, places * at_once)

    def errors(self, rollouts: Sequence[Rollout], seeds: LookSeeds | None = None) -> list[RowErrors]:
        """Return what `replay` makes its statistics of, in order, and with `seeds` the numbers of a look."""
        return self._batched(rollouts, partial(self._errors, seeds=seeds))

    def _measured(self, row: RowErrors) -> Measurement:
        return Measurement.of(row.errors, self.profile, row.position, row.detail)

    @torch.inference_mode()
    def _batched(self, rollouts: Sequence[Rollout], work: Callable[[list[Rollout]], list[T]]) -> list[T]:
        """Return the work of all rollouts, in order, that is done on some of about one length at a time."""
        self._prepare()
        found: dict[int, T] = {}
        for batch in _batches(rollouts):
            found.update(zip(batch, work([rollouts[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(rollouts))]

    def _prepare(self) -> None:
        pin_numerics()
        _set_threads(self.threads)

    def _errors(self, rollouts: Sequence[Rollout], seeds: LookSeeds | None) -> list[RowErrors]:
        """Compare the rollouts with what one forward pass says of them."""
        # 1. Each sampled token scored from its last hidden state.
        places = sampled_places(rollouts)
        lengths = list(map(len, places))
        states = self._states(rollouts, places)
        keys = [] if seeds is None else [seeds.places(rollout.position) for rollout in rollouts]
        scores, ahead = self._score(states, rollouts, places, keys)

        # 2. The proofs against the states.
        ends = np.cumsum(lengths)
        comparisons = compare_proofs(
            [rollout.proof for rollout in rollouts],
            states.tensor_split(ends[:-1].tolist()),
            [rollout.seed for rollout in rollouts],
        )

        # 3. Row by row.
        rows = [
            _row(rollout, comparison, scores, slice(end - length, end))
            for rollout, comparison, length, end in zip(rollouts, comparisons, lengths, ends, strict=True)
        ]
        if seeds is None:
            return rows

        # 4. The numbers of a look.
        signs = [seeds.signs(rollout.position) for rollout in rollouts]
        count = numbers_of(self.profile)
        looks = look_sums(states, ahead, lengths, sign_seeds=signs, place_seeds=keys, count=count)
        return [replace(row, look=look) for row, look in zip(rows, looks, strict=True)]

    @torch.inference_mode()
    def _own(self, rollout: Rollout, places: Sequence[np.ndarray]) -> tuple[torch.Tensor, TokenScores]:
        """Return the states behind a row's sampled tokens, [T, H], and their scores."""
        self._prepare()
        states = self._states([rollout], places)
        return states, self._score(states, [rollout], places)[0]

    @torch.inference_mode()
    def _differences(
        self, own: torch.Tensor, here: TokenScores, rows: Sequence[Rollout], places: Sequence[np.ndarray]
    ) -> list[TokenErrors]:
        """Return how far off other machines, one for each of these equal rows, are from own states and scores.

        An honest token's gap is 0 on the machine that sampled it: what machines' gaps differ by explains as much of it.
        """
        # 1. What they compute of the row as it is claimed.
        self._prepare()
        with perturbing(self.model):
            states = self._states(rows, places)
            there, _ = self._score(states, rows, places)
        sound = _numbers(there) & np.tile(_numbers(here), len(rows))

        # 2. What they would claim, and how that looks from here.
        seeds = [row.seed for row in rows]
        parts = states.masked_fill(~torch.from_numpy(sound)[:, None], 0.0).tensor_split(len(rows))
        comparisons = compare_proofs(make_proofs(parts, seeds), [own] * len(rows), seeds)
        scores = {name: np.tile(values, len(rows)) for name, values in vars(here).items()}
        scores["gaps"] = np.abs(np.where(sound, there.gaps, 0) - np.where(sound, scores["gaps"], 0))
        distances = np.concatenate([one.distances for one in comparisons])
        errors = TokenErrors(**scores, claimed=there.logprobs, states=distances)
        errors = _where_numbers(sound, errors, claimed=np.nan, states=np.inf)
        return [errors.at(part) for part in np.split(np.arange(len(sound)), len(rows))]

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

    def _score(
        self,
        states: torch.Tensor,
        rollouts: Sequence[Rollout],
        places: Sequence[np.ndarray],
        looked: Sequence[int] = (),
    ) -> tuple[TokenScores, torch.Tensor]:
        """Score every sampled token from its state: [sampled tokens, H].

        And return the leads of their rivals, [sampled tokens], under the noise of the seeds `looked`, one a row.
        """
        tokens = torch.from_numpy(sampled_tokens(rollouts, places))
        lengths = torch.tensor(list(map(len, places)))
        seeds, keys = (
            torch.tensor(one, dtype=torch.int64).repeat_interleave(lengths)
            for one in ([rollout.seed for rollout in rollouts], looked or [0] * len(rollouts))
        )
        positions = torch.from_numpy(np.concatenate(places))
        head, rows = self._head, self._head.weight  # [V, H]
        at_once = max(1, _LOGITS_AT_ONCE // self.vocabulary)
        found, ahead = torch.empty(5, len(tokens)), torch.empty(len(tokens))
        for start in range(0, len(tokens), at_once):
            part = slice(start, start + at_once)
            # 1. Which token is sampled here, and how far the claimed one is from it.
            logits = head(states[part]).float()
            replay = measure(logits, tokens[part], seeds[part], positions[part], self.temperature)

            # 2. What an error of the state makes of it.
            chosen, sampled = rows[tokens[part]].float(), rows[replay.sampled].float()
            sizes = states[part].float().square().mean(dim=1).sqrt() / self.temperature
            extremes = torch.stack([logits.gather(1, tokens[part, None])[:, 0], logits.amax(dim=1)])
            magnitudes = extremes.abs().amax(dim=0) / self.temperature
            gap_scales, logprob_scales = sizes * (chosen - sampled).norm(dim=1), sizes * chosen.norm(dim=1)
            found[:, part] = torch.stack([replay.gaps, replay.logprobs, gap_scales, logprob_scales, magnitudes])

            # 3. How far its best rival is ahead.
            if looked:
                ahead[part] = leads(logits, tokens[part], keys[part], positions[part], self.temperature)
        return TokenScores(*found.numpy()), ahead


def _row(rollout: Rollout, comparison: Comparison, scores: TokenScores, tokens: slice) -> RowErrors:
    """Return the errors of one row, whose tokens' scores are those in the slice."""
    said = TokenScores(**{name: values[tokens] for name, values in vars(scores).items()})
    right = len(rollout.logprobs) == len(said.logprobs)
    claimed = rollout.logprobs if right else np.full_like(said.logprobs, np.nan)
    errors = TokenErrors(**vars(said), claimed=claimed, states=comparison.distances)
    errors = _where_numbers(_numbers(said), errors, claimed=-1.0, states=0.0)
    return RowErrors(errors, rollout.position, comparison.problem)


def _numbers(scores: TokenScores) -> np.ndarray:
    """Return of which tokens the model computes numbers: bool [T]."""
    return np.logical_and.reduce([np.isfinite(values) for values in vars(scores).values()])


def _where_numbers(sound: np.ndarray, errors: TokenErrors, *, claimed: float, states: float) -> TokenErrors:
    """Put an infinite gap, this claim and this distance in place of tokens that are not sound, bool [T]."""
    others = {"gaps": np.inf, "logprobs": -1.0, "gap_scales": 0.0, "logprob_scales": 0.0, "magnitudes": 0.0}
    others |= {"claimed": claimed, "states": states}
    return TokenErrors(
        **{name: np.where(sound, values, np.float32(others[name])) for name, values in vars(errors).items()}
    )


def spread_share(errors: TokenErrors, profile: Profile) -> float:
    """Return the largest share of a rejecting limit that the errors of a row's tokens come to."""
    row = scaled_errors(errors, profile).statistics()
    return max(getattr(row, name) / getattr(profile, name).reject for name in STATISTICS)


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
