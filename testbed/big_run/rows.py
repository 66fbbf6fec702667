"""Rows of a synthetic run: members, steps, work and its verdicts, in the order in which they are inserted quickest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from explorer.series import BASE, LEVELS
from muster.constants import HOUR_SECONDS
from muster.ledger.tables import PAYMENTS
from muster.protocol.looks import hold_seconds
from muster.protocol.terms import Terms
from testbed.big_run.shape import (
    ACCEPTED,
    DAY_SECONDS,
    HEAD_SECONDS,
    PENDING,
    REASONS,
    REJECTED,
    STATUSES,
    Numbers,
    Shape,
    Work,
    hashes,
    rows_of,
)

Row = tuple[Any, ...]
UNSIGNED: Final = "0x" + "00" * 65
NOTHING: Final = "0x" + "00" * 32
VERDICT_SECONDS: Final = 40
CLAIM_SECONDS: Final = 74 * HOUR_SECONDS
"""After a day's end its work is claimed: as if no hour were sealed, for on the chain none is."""
AWAY_SECONDS: Final = 7 * DAY_SECONDS
"""Workers without work for so long may have left."""
GONE: Final = ("retired", "withdrawn")
DEVICES: Final = (
    ("NVIDIA H100 80GB HBM3", 8, 21_000.0),
    ("NVIDIA A100-SXM4-80GB", 4, 6_400.0),
    ("NVIDIA GeForce RTX 4090", 1, 1_900.0),
    ("NVIDIA GeForce RTX 3090", 2, 1_700.0),
    ("NVIDIA L40S", 1, 1_500.0),
    ("AMD EPYC 9654 96-Core Processor", 1, 45.0),
)
NAMES: Final = ("Ada's cellar", "Sternwarte 9", "pool-7.example", "Zürich #4", "北京 GPU", "спутник", "garage", "lab_2")


@dataclass(frozen=True)
class Members:
    """The addresses of all parties in a run."""

    run: int
    trainer: str
    workers: list[str]
    validators: list[str]
    operators: dict[str, str]
    """By node."""


class Rows:
    """What there is to insert. A method per table; each yields rows in the order of the columns that `fill` names."""

    def __init__(self, shape: Shape, work: Work, members: Members, terms: Terms) -> None:
        self.shape, self.work, self.members, self.terms = shape, work, members, terms
        self.rng = np.random.default_rng(shape.seed + 1)
        self.claims = self._claims()

    # Members

    def nodes(self) -> Iterator[Row]:
        work, members = self.work, self.members
        worked, away, hours, paid = work.count > 0, self.away(), self._hours(), self._paid()
        place = np.minimum(work.first_at, self.shape.commitments - 1)
        first = np.where(worked, work.step[place], 0)
        since = work.published(np.maximum(first - 2, 0))
        settled = np.zeros(self.shape.workers, np.int64)
        worker, _, through, _ = self.claims
        np.maximum.at(settled, worker, through + 1)
        transactions = hashes(self.rng, self.shape.nodes)
        columns = [one.tolist() for one in (first, settled, since)]
        for i, (node, *rest) in enumerate(zip(members.workers, *columns, strict=True)):
            left = "jailed" if work.is_cheater[i] and worked[i] else GONE[i % 2] if away[i] else "active"
            money = (str(paid[kind, node]) for kind in PAYMENTS)
            joined = (node, members.operators[node], "worker", 0, left, work.block_of(rest[-1]))
            yield *joined, *rest, transactions.pop(), int(hours[i]), left == "withdrawn", *money
        for node in members.validators:
            joined = (node, members.operators[node], "validator", 0, "active", work.block_of(work.begun))
            yield *joined, 0, 0, work.begun, transactions.pop(), 0, False, *("0" for _ in PAYMENTS)

    def away(self) -> NDArray[np.bool_]:
        """Return which workers have left by themselves. Bool [workers]."""
        work = self.work
        last = np.where(work.count > 0, work.time[np.maximum(work.last_at, 0)], work.now)
        return (work.now - last > AWAY_SECONDS) & (np.arange(self.shape.workers) % 7 == 3)

    def _hours(self) -> Numbers:
        """Return in how many hours each worker made a commitment. Int64 [workers]."""
        pairs = np.unique(self.work.worker * (1 << 32) + self.work.hour) >> 32
        return np.bincount(pairs, minlength=self.shape.workers)

    def _paid(self) -> Counter[tuple[str, str]]:
        """Return the sums of all payments, by kind and node."""
        found: Counter[tuple[str, str]] = Counter()
        for _, _, node, kind, amount, *_ in self.payments():
            found[kind, node] += int(amount)
        return found

    def names(self) -> Iterator[Row]:
        """Every third node has a name."""
        for number, node in enumerate([*self.members.validators, *self.members.workers]):
            if number % 3 == 0:
                name = f"{NAMES[number // 3 % len(NAMES)]} {number}"
                document = {"run": self.members.run, "node": node, "name": name, "named": self.work.now - number}
                yield node, name, self.work.now - number, json.dumps(document | {"signature": UNSIGNED}), 0.0

    def machines(self, received: float) -> Iterator[Row]:
        """Yield what each node said last; those that are not at work said it long ago."""
        for i, node in enumerate(self.members.workers):
            device, devices, speed = DEVICES[i % 31 % len(DEVICES)]
            ago = self.work.now - int(self.work.time[self.work.last_at[i]]) if self.work.count[i] else 0
            last = received - (ago if ago > HOUR_SECONDS else 0)
            yield node, device, devices, speed * (0.8 + i % 5 / 10), 20.0 + i, last
        for i, node in enumerate(self.members.validators):
            yield node, DEVICES[i % 4][0], 1, 0.0, None, received

    # Steps

    def checkpoints(self) -> Iterator[Row]:
        steps = np.arange(self.shape.steps + 1)
        blocks = self.work.block_at(self.work.published(steps)).tolist()
        columns = [hashes(self.rng, len(steps)) for _ in range(5)]
        yield from zip(steps.tolist(), *columns[:3], blocks, *columns[3:], strict=True)

    def reports(self) -> Iterator[Row]:
        """Yield a report of each step: its batch is what was accepted of the step before."""
        values = metrics_of(self.shape)
        begins = np.searchsorted(self.work.step, np.arange(-1, self.shape.steps + 1))
        accepted = self.work.status == ACCEPTED
        for step, said in enumerate(rows_of(*values.values())):
            used = np.flatnonzero(accepted[begins[step] : begins[step + 1]]) + begins[step]
            seconds = {"wait": 21.5, "load": 1.25, "update": 24.0, "write": 3.5, "publish": 4.75}
            document = {
                "run": self.members.run,
                "step": step,
                "metrics": {name: value for name, value in zip(values, said, strict=True) if value == value},
                "batch": [self.work.file_hash[place] for place in used],
                "dropped": [],
                "finished": False,
                "stages": seconds if step else {},
            }
            yield step, json.dumps(document, separators=(",", ":")), float(self.work.published(np.int64(step))) + 2.5

    def spent(self) -> Iterator[Row]:
        """Files that reports say were used, by their hash."""
        work = self.work
        used = np.flatnonzero((work.status == ACCEPTED) & (work.step < self.shape.steps)).tolist()
        steps = (work.step + 1).tolist()
        yield from sorted((work.file_hash[place], steps[place], True) for place in used)

    def scores(self) -> Iterator[Row]:
        every = max(1, self.shape.steps // 50)
        for step in range(0, self.shape.steps + 1, every):
            for benchmark, low, high in (("humaneval", 0.31, 0.52), ("math-500", 0.22, 0.71), ("ifeval", 0.4, 0.58)):
                score = low + (high - low) * step / max(1, self.shape.steps)
                measured = int(self.work.published(np.int64(step))) + 600
                fields = {"run": self.members.run, "step": step, "benchmark": benchmark, "score": score}
                interval = {"low": score - 0.02, "high": score + 0.02, "tasks": 164, "samples": 4}
                document = json.dumps({**fields, **interval, "measured": measured, "signature": UNSIGNED})
                yield step, benchmark, score, measured, document

    # Work

    def _by_node(self) -> Numbers:
        """Return the places of all commitments in the order of the table's key: node, then index."""
        rank = np.empty(self.shape.workers, np.int64)
        rank[np.argsort(self.members.workers)] = np.arange(self.shape.workers)
        return np.lexsort((self.work.index, rank[self.work.worker]))

    def commitments(self) -> Iterator[Row]:
        work, nodes = self.work, self.members.workers
        order = self._by_node()
        columns = [work.worker, work.index, work.step, work.hour, work.block_at(work.time), work.status, work.reason]
        for place, worker, index, step, hour, block, status, reason in rows_of(order, *(one[order] for one in columns)):
            why = REASONS[reason] if status == REJECTED else None
            spent = status == ACCEPTED and step < self.shape.steps
            yield nodes[worker], index, step, hour, work.root[place], block, STATUSES[status], why, spent, None

    def uploads(self) -> Iterator[Row]:
        """Yield an upload of each commitment, some seconds before it. `document` has a messages.Upload."""
        work, nodes, run = self.work, self.members.workers, self.members.run
        order = self._by_node()
        nonces = hashes(self.rng, len(order))
        columns = [work.worker, work.index, work.size, work.time]
        for place, worker, index, size, time in rows_of(order, *(one[order] for one in columns)):
            node, root, name = nodes[worker], work.root[place], work.file_hash[place]
            document = (
                f'{{"receipt":{{"run":{run},"node":"{node}","index":{index},"root":"{root}","file_hash":"{name}",'
                f'"size":{size},"stored_at":{time - 4},"signature":"{UNSIGNED}"}},"request":{{"method":"PUT",'
                f'"host":"orchestrator.example","path":"/v1/files/{name}","query":"run={run}&index={index}&root={root}",'
                f'"body_hash":"{name}","nonce":"{nonces[place]}","expiry":{time + 50},"signature":"{UNSIGNED}"}}}}'
            )
            yield node, index, root, name, size, document, time - 4.0

    def verdicts(self) -> Iterator[Row]:
        """Yield the first verdict of each commitment, and a second where a lost case cleared it, as they arrived."""
        work, members = self.work, self.members
        judged, cleared = np.flatnonzero(work.status != PENDING), np.flatnonzero(work.cleared)
        place = np.concatenate([judged, cleared])
        second = np.arange(len(place)) >= len(judged)
        validator = (work.validator[place] + second) % self.shape.validators
        received = work.time[place] + VERDICT_SECONDS * (1 + 90 * second)
        order = np.argsort(received, kind="stable")
        accepted = ~work.refused[place] | second
        columns = [place, validator, accepted, work.worker[place], work.index[place], work.step[place], received]
        found = rows_of(*(one[order] for one in columns))
        for log_place, (at, number, good, worker, index, step, time) in enumerate(found):
            by, node = members.validators[number], members.workers[worker]
            root, name, reason = work.root[at], work.file_hash[at], None if good else REASONS[work.reason[at]]
            finding = (
                '"reason":null,"position":null,"measured":null,"threshold":null,"evidence":null'
                if good
                else f'"reason":"{reason}","position":3,"measured":0.25,"threshold":0.0625,"evidence":"{name}"'
            )
            document = (
                f'{{"run":{members.run},"step":{step},"node":"{node}","index":{index},"root":"{root}","file_hash":"{name}",'
                f'"validator":"{by}","accepted":{"true" if good else "false"},{finding},'
                f'"inspected":4,"signature":"{UNSIGNED}"}}'
            )
            came = self._opens(at) + hold_seconds(self.terms) * (good and bool(work.cleared[at]))
            said = good, reason, None if good else 3, document
            yield log_place, by, node, index, root, *said, float(time), came, None, False

    def calls(self) -> Iterator[Row]:
        """Yield who was called to the commitments that were judged: who judged them first, and then the next one."""
        work, members, many = self.work, self.members.validators, self.shape.validators
        for place in np.flatnonzero(work.status != PENDING).tolist():
            first = int(work.validator[place])
            order = json.dumps([members[(first + one) % many] for one in range(2)])
            node, index = self.members.workers[work.worker[place]], int(work.index[place])
            yield node, index, 0, work.root[place], order, self._opens(place), ""

    def _opens(self, place: int) -> int:
        return int(self.work.time[place])

    # Money and hours

    def _claims(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return the claims of honest workers, one for each of their days: worker, second, last index, commitments."""
        work = self.work
        day = work.time // DAY_SECONDS
        claimed = (day + 1) * DAY_SECONDS + CLAIM_SECONDS
        paid = np.flatnonzero((claimed < work.now) & ~work.is_cheater[work.worker])
        key, many = np.unique(work.worker[paid] * (1 << 32) + day[paid], return_counts=True)
        worker, days = key >> 32, key & 0xFFFFFFFF
        through = np.zeros(len(key), np.int64)
        np.maximum.at(through, np.searchsorted(key, work.worker[paid] * (1 << 32) + day[paid]), work.index[paid])
        return worker, (days + 1) * DAY_SECONDS + CLAIM_SECONDS, through, many

    def payments(self) -> Iterator[Row]:
        rng = np.random.default_rng(self.shape.seed + 4)
        logs, transactions = count(), iter(hashes(rng, len(self.claims[0]) + 2 * self.shape.workers))
        pay = self.terms.pay_of(0)
        for worker, second, _, many in rows_of(*self.claims):
            place = (self.work.block_of(second), next(logs))
            yield *place, self.members.workers[worker], "claim", str(many * pay), second, next(transactions)
        for worker in self.convicted().tolist():
            second = self.convicted_at(worker)
            block, node = self.work.block_of(second), self.members.workers[worker]
            void = str(int(self.work.count[worker]) * pay)
            yield block, next(logs), node, "slash", str(self.terms.slash), second, next(transactions)
            yield block, next(logs), node, "void", void, second, next(transactions)

    def convicted(self) -> Numbers:
        """Return the workers that were convicted: cheaters that committed to anything."""
        return np.flatnonzero(self.work.is_cheater & (self.work.count > 0))

    def convicted_at(self, worker: int) -> int:
        """Return the chain's second at which a worker was convicted."""
        return min(self.work.now - HEAD_SECONDS, int(self.work.time[self.work.last_at[worker]]) + HOUR_SECONDS)

    def seals(self) -> Iterator[Row]:
        sealed = np.unique(self.work.hour[self.work.time < self.work.now - 2 * HOUR_SECONDS]).tolist()
        for node in sorted(self.members.validators):
            for hour in sealed:
                yield node, hour


Floats = NDArray[np.float64]
EVALUATED_EVERY: Final = 10
"""Steps between two scores on held-out tasks."""


def metrics_of(shape: Shape) -> dict[str, Floats]:
    """Return each metric by the trainer's name: float64 [steps + 1], NaN where a report does not have it."""
    rng = np.random.default_rng(shape.seed + 2)
    steps = shape.steps + 1
    done = np.arange(steps) / max(1, shape.steps)
    learned = 1 - np.exp(-4 * done)

    def around(curve: Floats | float, noise: float) -> Floats:
        return np.broadcast_to(curve, steps) + noise * rng.standard_normal(steps)

    reward = np.clip(around(0.18 + 0.55 * learned, 0.03), 0, 1)
    length = np.clip(around(900 + 2_400 * done, 90), 1, None)
    found = {
        "reward": reward,
        "reward_std": np.sqrt(reward * (1 - reward)),
        "rewards/right/mean": np.clip(reward + 0.05, 0, 1),
        "rewards/brief/mean": np.clip(around(0.3 + 0.2 * learned, 0.02), 0, 1),
        "frac_reward_zero_std": np.clip(around(0.2 + 0.2 * done, 0.04), 0, 1),
        "completions/mean_length": length,
        "completions/mean_budget": around(1_000 + 2_200 * done, 40),
        "completions/max_length": length * 2.5,
        "completions/clipped_ratio": np.clip(around(0.08 * learned, 0.01), 0, 1),
        "completions/length_error": np.clip(around(0.9 - 0.6 * learned, 0.03), 0, None),
        "staleness/mean": np.clip(around(1.1, 0.2), 0, 2),
        "staleness/max": np.full(steps, 2.0),
        "batch/files": np.full(steps, 16.0),
        "batch/completion_tokens": length * 128,
        "loss": around(0.0, 0.02),
        "grad_norm": np.exp(around(-1.5, 0.3)),
        "entropy": np.clip(around(0.9 - 0.5 * learned, 0.03), 0, None),
        "kl": np.clip(around(0.08 * done, 0.003), 0, None),
        "mismatch_kl": np.exp(around(-7.0, 0.4)),
        "clip_ratio/low_mean": np.clip(around(0.004, 0.001), 0, 1),
        "clip_ratio/high_mean": np.clip(around(0.006, 0.002), 0, 1),
    }
    scored = np.arange(steps) % EVALUATED_EVERY == 0
    held_out = {
        "held_out/reward": np.clip(around(0.16 + 0.52 * learned, 0.012), 0, 1),
        "held_out/mean_length": np.clip(around(850 + 2_300 * done, 60), 1, None),
        "held_out/length_error": np.clip(around(0.9 - 0.6 * learned, 0.02), 0, None),
    }
    return found | {name: np.where(scored, values, np.nan) for name, values in held_out.items()}


def buckets_of(values: dict[str, Floats]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of metric_buckets, by metric, level and bucket."""
    for name in sorted(values):
        numbered = np.flatnonzero(np.isfinite(values[name]))
        numbers = values[name][numbered]
        for level in range(LEVELS):
            bucket, begins = np.unique(numbered // BASE**level, return_index=True)
            counts = np.diff(np.append(begins, len(numbers)))
            columns = [bucket, counts, *(add.reduceat(numbers, begins) for add in (np.add, np.minimum, np.maximum))]
            for row in rows_of(*columns):
                yield name, level, *row
