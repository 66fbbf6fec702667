"""How much work a worker saves that picks its draws, at the same pay.

    python benchmarks/shopping.py [--json] [--keys 1 8] [--commitments 1000] [--trials 5] [--budgets 8 12 16]

Draws are the protocol's, with the terms of `muster run template`; the work of a commitment is the sum of its rows'
budgets. A shopper makes so many commitments, each is paid alike, and `saved` is by how much its work is below as many
times the mean. Three rules:

- `by step`: a draw follows from the step, as it did before muster.draw.v2. The shopper waits: at each step it takes the
  shortest of its keys' draws for the open steps, and leaves the others.
- `by node`: a draw follows from the step that the key joined for. It takes the shortest of its keys' next draws; the
  others stay, since indices have no gaps.
- `by node, ahead`: the same draws, and a shopper that knows all of them beforehand. It works each key as far as is best
  for the sum: no order of work saves more.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import parser
from muster.protocol.draws import draw_base, group_draw
from muster.protocol.hashes import keccak
from muster.protocol.terms import WorkClass
from muster.protocol.terms_file import PUBLIC_DEFAULTS, ZERO_ADDRESS
from testbed.samples.terms import made_terms

BUDGETS: Final = (8, 12, 16)
"""Of `muster run template`."""
OPEN_STEPS: Final = int(PUBLIC_DEFAULTS["async_level"]) + 1
"""Steps that a commitment may be for at a time."""
RULES: Final = ("by step", "by node", "by node, ahead")


class Draws:
    """The work of commitments: the sum of the budgets of their groups, in tokens of one sample."""

    def __init__(self, trial: int, budgets: tuple[int, ...] = BUDGETS) -> None:
        self._terms = made_terms(PUBLIC_DEFAULTS, task_count=1, classes=(WorkClass(10_000, budgets),))
        self._trial = trial
        self.mean = statistics.mean(budgets) * self._terms.groups_per_commitment

    def work(self, key: int, entropy_of: int, index: int) -> int:
        """Return the work of a key's commitment that is drawn by the entropy of a step."""
        entropy, node = keccak(f"{self._trial}/{entropy_of}".encode()), f"0x{key:040x}"
        base = draw_base(chain_id=0, runs=ZERO_ADDRESS, run=1, entropy=entropy, node=node, index=index)
        return sum(group_draw(base, g, self._terms, 0).budget for g in range(self._terms.groups_per_commitment))


def saved(rule: str, draws: Draws, keys: int, commitments: int) -> float:
    """Return the share of the work that a shopper with so many keys saves by a rule."""
    shop = {"by step": shop_by_step, "by node": shop_by_node, "by node, ahead": shop_ahead}[rule]
    return 1 - shop(draws, keys, commitments) / (commitments * draws.mean)


def shop_by_step(draws: Draws, keys: int, commitments: int) -> int:
    """Return the work of a shopper that does one commitment a step: the shortest draw that any open step has."""
    nexts = [0] * keys
    lasts = [0] * keys
    total = 0
    for newest in range(OPEN_STEPS - 1, OPEN_STEPS - 1 + commitments):
        choices = [
            (draws.work(key, step, nexts[key]), key, step)
            for key in range(keys)
            for step in range(max(lasts[key], newest - OPEN_STEPS + 1), newest + 1)
        ]
        work, key, step = min(choices)
        total, nexts[key], lasts[key] = total + work, nexts[key] + 1, step
    return total


def shop_by_node(draws: Draws, keys: int, commitments: int) -> int:
    """Return the work of a shopper that does the shortest of its keys' next draws."""
    nexts = [(draws.work(key, 0, 0), key, 0) for key in range(keys)]
    total = 0
    for _ in range(commitments):
        work, key, index = min(nexts)
        total += work
        nexts[key] = (draws.work(key, 0, index + 1), key, index + 1)
    return total


def shop_ahead(draws: Draws, keys: int, commitments: int) -> int:
    """Return the least work for which so many commitments can be made: how far each key goes is chosen knowing all."""
    least = np.zeros(1)
    for key in range(keys):
        sums = np.cumsum([0, *(draws.work(key, 0, index) for index in range(commitments))])
        longer = np.full(min(len(least) + commitments, commitments + 1), np.inf)
        for made, work in enumerate(least):  # of the keys before, so many commitments at best
            here = sums[: len(longer) - made] + work
            longer[made : made + len(here)] = np.minimum(longer[made : made + len(here)], here)
        least = longer
    return int(least[commitments])


def measure(
    keys: Sequence[int], commitments: int, trials: int, budgets: tuple[int, ...]
) -> dict[str, dict[str, float]]:
    """Return the mean share saved over trials, by rule and number of keys."""
    found: dict[str, dict[str, float]] = {}
    for rule in RULES:
        for count in keys:
            shares = [saved(rule, Draws(trial, budgets), count, commitments) for trial in range(trials)]
            found.setdefault(rule, {})[str(count)] = round(statistics.mean(shares), 4)
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, nargs="+", default=[1, 8])
    made.add_argument("--commitments", type=int, default=1_000)
    made.add_argument("--trials", type=int, default=5)
    made.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    options = made.parse_args()
    found = measure(options.keys, options.commitments, options.trials, tuple(options.budgets))
    if options.json:
        print(json.dumps({"commitments": options.commitments, "trials": options.trials, "saved": found}, indent=1))
        return
    print(f"{'rule':<16}" + "".join(f"{keys:>4} keys" for keys in options.keys))
    for rule, shares in found.items():
        print(f"{rule:<16}" + "".join(f"{share:>9.2%}" for share in shares.values()))


if __name__ == "__main__":
    main()
