"""How far lies about log-probabilities that verification does not see can steer the gradient.

    python benchmarks/steering.py [--json] [--rows 336] [--steps 10]

Under each of two profiles the real engine makes rows with the demo's model, and the trainer's policy is two updates
further, as old as the demo's work may be. A node lies in all of its rows, as far as the validator's own replay and
limits let it: for every row by itself, bisection finds the largest size of each of LIES. First comes that of a
distorted activation proof, which licenses larger errors, then that of the claims. No row is rejected, so neither is the
node, however many of its rows are replayed. In a day (24 commitments, two validators, 16 rows each) one row in 168 may
be rejected before the chance of that is 99 %: UNLIMITED lie in so many, by any size. The gradient over all rows is that
of the trainer's own update, in the setting that `trainer.old_logprobs = "auto"` chooses, and with `behaviour` to
compare. What a lie changes by having its own row left out is reported but not counted: that row is the liar's. Takes
about four minutes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from muster.models.init import load_model
from muster.rollouts.schema import Rollout
from muster.settings.schema import TrainerSettings
from muster.swarm.plan import LOCAL_TERMS
from muster.verification.judging import judge
from muster.verification.profiles import BF16, CPU_FP32, Profile
from testbed.adversaries.lab import AdversaryLab, Job, open_lab, taught
from testbed.adversaries.steering import LIES, UNLIMITED, LiedRow, claim, distort, expected_units
from trainer.learner import Recipe
from trainer.old_logprobs import recomputes
from trainer.packing import Sample, collate
from trainer.policy import Policy
from trainer.update import UpdateTerms, update

ROWS: Final = 336
"""Twice 168: one row in so many may be rejected all day and be found with less than 99 %."""
STEPS: Final = 10
"""Halvings of a bisection: sizes are found to one in 1,000 of the largest."""
LARGEST: Final = 32.0
"""Expected errors, beyond every limit."""
STALE: Final = LOCAL_TERMS["async_level"]
"""Updates between the policy that made the rows and the one that is trained on them."""
NORM, COSINE = 0.95, 0.99
"""Least that a lie may leave of the gradient's norm, and of its cosine with the honest one."""
DAY_ROWS: Final = 24 * 2 * 16
"""Rows that are replayed of a node in a day: commitments, validators, rows of a known node."""
FOUND: Final = 0.99


# --- Searching


def largest(
    lab: AdversaryLab, job: Job, make: Callable[[int, float], Rollout], count: int, top: float, steps: int
) -> list[Rollout]:
    """Return each row with the largest lie that its limits let pass, by bisection in [0, top]."""
    low, high = np.zeros(count), np.full(count, top)
    for _ in range(steps):
        middle = (low + high) / 2
        rows = [make(i, middle[i]) for i in range(count)]
        passed = np.array([judge([one], lab.profile) is None for one in lab.measure(job, rows)])
        low, high = np.where(passed, middle, low), np.where(passed, high, middle)
    return [make(i, low[i]) for i in range(count)]


# --- The gradient


class Recorder(torch.optim.SGD):
    """Keeps the gradient of the step that it is asked for, and takes none."""

    gradient: torch.Tensor

    def step(self, closure: Any = None) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.gradient = torch.cat([grad.flatten().double() for grad in grads])


def gradient(policy: Policy, samples: Sequence[Sample], terms: UpdateTerms) -> tuple[torch.Tensor, int]:
    """Return the gradient of the trainer's update, and the rollouts it left out."""
    recorder = Recorder(policy.parameters(), lr=0.0)
    done = update(policy, recorder, samples, replace(terms, gradient_clip=float("inf")), step=1)
    return recorder.gradient, done.dropped_rollouts


def compare(lie: torch.Tensor, honest: torch.Tensor) -> tuple[float, float]:
    """Return norm ratio and cosine."""
    return float(lie.norm() / honest.norm()), float(torch.nn.functional.cosine_similarity(lie, honest, dim=0))


# --- Measuring


def measure(profile: Profile, rows: int, steps: int) -> dict[str, Any]:
    """Measure all lies under one profile, in the setting that `auto` chooses and with `behaviour`."""
    with tempfile.TemporaryDirectory() as folder, open_lab(Path(folder), profile) as lab:
        # 1. A node's honest rows by a policy STALE updates old, those of groups with a signal.
        job = lab.job(100, step=lab.step - STALE)
        terms = Recipe.from_settings(TrainerSettings(), lab.rules.terms)
        honest, advantages = signal_rows(lab, rows, terms)
        policy = Policy(load_model(lab.checkpoints[-1], dtype=torch.float32), temperature=terms.update.temperature)

        # 2. What the liar knows, and the gradients of the truth.
        known = [
            LiedRow(row, ratio, advantage, units, np.random.default_rng(i))
            for i, (row, advantage, ratio, units) in enumerate(
                zip(honest, advantages, log_ratios(policy, honest), expected_units(lab, job, honest), strict=True)
            )
        ]
        auto, by_claims = terms.update, replace(terms.update, old_logprobs="behaviour", profile="")
        chosen = recomputes(policy, auto.old_logprobs, auto.profile, auto.loss)
        settings = {"auto": auto, "behaviour": by_claims}

        def gradients(lied: Sequence[Rollout]) -> dict[str, tuple[torch.Tensor, int]]:
            samples = [Sample.from_rollout(row, value) for row, value in zip(lied, advantages, strict=True)]
            return {name: gradient(policy, samples, one) for name, one in settings.items()}

        truth = gradients(honest)

        # 3. The largest distortion of each proof, and with it the largest lie of each kind.
        distorted = largest(
            lab,
            job,
            lambda i, size: replace(honest[i], proof=distort(honest[i], size)),
            len(honest),
            2 * profile.activation.reject,
            steps,
        )
        lies: dict[str, list[Rollout]] = {}
        for name, direction in LIES.items():
            ways = [direction(row) for row in known]

            def make(i: int, size: float, ways: list[np.ndarray] = ways) -> Rollout:
                return replace(distorted[i], logprobs=claim(known[i], ways[i], size))

            lies[name] = largest(lab, job, make, len(honest), LARGEST, steps)
            print(f"{profile.name}: {name}", file=sys.stderr)
        lies |= {name: unlimited(known, honest, shift) for name, shift in UNLIMITED.items()}

        # 4. What they do to the gradient.
        found = []
        for name, lied in lies.items():
            rejected = sum(judge([one], profile) is not None for one in lab.measure(job, lied))
            errors = [lie.logprobs.astype(np.float64) - row.logprobs for lie, row in zip(lied, known, strict=True)]
            flat, steered = np.abs(np.concatenate(errors)), gradients(lied)
            one: dict[str, Any] = {"lie": name, "rejected": rejected, "found_in_a_day": in_a_day(rejected / len(lied))}
            one |= {"mean_nats": float(flat.mean()), "worst_nats": float(flat.max())}
            for setting, (value, dropped) in steered.items():
                norm, cosine = compare(value, truth[setting][0])
                one[setting] = {"norm": norm, "cosine": cosine, "dropped": dropped - truth[setting][1]}
            found.append(one)
        return {"profile": profile.name, "rows": len(honest), "recomputed": chosen, "lies": found}


def signal_rows(lab: AdversaryLab, rows: int, terms: Recipe) -> tuple[list[Rollout], list[float]]:
    """Return honest rows of groups with a signal, and their advantages."""
    kept, advantages = list[Rollout](), list[float]()
    for index in range(100, 200):
        job = lab.job(index, step=lab.step - STALE)
        made = lab.honest(job)
        for sample in taught(job, made, terms.advantages):
            kept.append(made[sample.position])
            advantages.append(sample.advantage)
        if len(kept) >= rows:
            return kept[:rows], advantages[:rows]
    sys.exit("the model has hardly a group with a signal: there is nothing to train on")


@torch.no_grad()
def log_ratios(policy: Policy, rows: Sequence[Rollout]) -> list[np.ndarray]:
    """Return the policy's log-probabilities less the rows' own: float64 [tokens] each."""
    samples = [Sample.from_rollout(row, 0.0) for row in rows]
    found = [policy(collate([sample], [0.0], [0]))[0].double().numpy() for sample in samples]
    return [values - sample.logprobs for values, sample in zip(found, samples, strict=True)]


def unlimited(known: Sequence[LiedRow], honest: Sequence[Rollout], shift: Callable[[LiedRow], float]) -> list[Rollout]:
    """Return the rows with lies of `shift` nats in as many as a day does not find: those that weigh most.

    A shift of 0 leaves a row as it is.
    """
    count = max(n for n in range(len(known)) if in_a_day(n / len(known)) < FOUND)
    worth = np.array([(shift(row) != 0) * abs(row.advantage) * len(row.log_ratio) for row in known])
    chosen = set(np.argsort(-worth, kind="stable")[:count].tolist())
    return [
        replace(row, logprobs=row.logprobs + np.float32(shift(known[i]))) if i in chosen else row
        for i, row in enumerate(honest)
    ]


def in_a_day(share: float) -> float:
    """Return the chance that one of a day's replayed rows is among the `share` that is rejected."""
    return 1 - (1 - share) ** DAY_ROWS


# --- Figures


def figures(runs: int, *, rows: int = ROWS, steps: int = STEPS) -> list[report.Figure]:
    """Return the figures; those of `behaviour` under bf16 stand in each as `behaviour_bf16`, without a target."""
    profiles = (CPU_FP32, BF16)
    found = [[report.apart(measure, profile, rows, steps) for profile in profiles] for _ in range(runs)]
    return [_figure("norm", NORM, found), _figure("cosine", COSINE, found)]


def _figure(kind: str, target: float, runs: Sequence[Sequence[dict[str, Any]]]) -> report.Figure:
    least = [min(lowest(profile, "auto", kind) for profile in run) for run in runs]
    unsafe = min(
        lowest(profile, "behaviour", kind) for run in runs for profile in run if profile["profile"] == BF16.name
    )
    more = {"behaviour_bf16": unsafe, "profiles": runs[0]}
    name = f"steer_gradient_{kind}"
    return report.figure(name, least, ratio=min, target=target, unit="lie against honest", **more)


def lowest(profile: Mapping[str, Any], setting: str, kind: str) -> float:
    """Return the least over the lies that leave out no row; a norm above 1 counts as its inverse."""
    counted = [one[setting] for one in profile["lies"] if not one[setting]["dropped"]]
    return min(1 / one[kind] if one[kind] > 1 and kind == "norm" else one[kind] for one in counted)


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the node that lies")
    parser.add_argument("--steps", type=int, default=STEPS, help="halvings of each bisection")
    options = parser.parse_args()
    return report.show(figures(1, rows=options.rows, steps=options.steps), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
