"""Which architectures the door lets in, and whether a row's value there depends on what stands beside it.

    python benchmarks/models.py --json [--only families,neighbour] [--quick]

families    tiny random models of `testbed.samples.families.KINDS` at the static door. Of those that it lets in, replay
            (padded batches) and trainer (packed rows) against the plain transformers model, alone, in float32: the
            share of all that is refused in words or exact to 1e-4.
neighbour   of those let in, and their variants of RoPE: the largest change of a row's log-probabilities, in nats, by
            the rows beside it in replay and trainer. Rows of 1 token to beyond every threshold of the configuration.

The engine is not part of it: `tests/engine` compares that with replay on one architecture.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from muster.authoring.models.door import check_checkpoint
from muster.errors import ConfigError
from muster.models.init import load_model
from muster.models.numerics import pin_numerics
from testbed.samples.families import KINDS, VARIANTS, write_family
from trainer.packing import Sample, collate
from trainer.policy import Policy

WINDOW = 32
"""Window of attention and original context of the models tried."""
LENGTHS = (2, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 5, 5 * WINDOW)
EXACT = 1e-4


def plain(folder: Path, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the log-probabilities of each row, alone, by transformers' eager attention."""
    model = load_model(folder).eval()
    model.set_attn_implementation("eager")
    return [_chosen(model(row[None], use_cache=False).logits[0], row) for row in rows]


def batched(folder: Path, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return them as replay computes them: in one batch, padded on the right, without a mask for the padding."""
    model = load_model(folder).eval()
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logits = model(ids, attention_mask=mask, use_cache=False).logits
    return [_chosen(one, row) for one, row in zip(logits, rows, strict=False)]


def packed(folder: Path, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return them as the trainer computes them: one after the other in one row."""
    policy = Policy(load_model(folder), temperature=1.0).eval()
    ids = [row.numpy() for row in rows]
    samples = [Sample(one[:1], one[1:], np.zeros(len(one) - 1, np.float32), 0.0) for one in ids]
    found, _ = policy(collate(samples, [0.0] * len(ids), list(range(len(ids)))))
    return list(found.split([len(one) - 1 for one in ids]))


def _chosen(logits: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return logits[: len(row) - 1].float().log_softmax(-1).gather(-1, row[1:, None])[:, 0]


def apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Return the largest difference, infinite where one is no number."""
    worst = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    return worst if worst == worst else float("inf")


@torch.no_grad()
def measure(folder: Path, *, quick: bool) -> dict[str, float]:
    """Return how far replay and trainer are from the plain model, and what neighbours change, in nats."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(9, 128, (length,), generator=draw) for length in (LENGTHS[::3] if quick else LENGTHS)]
    own = plain(folder, rows)
    result = {"exact": 0.0, "neighbour": 0.0}
    for way in (batched, packed):
        together = way(folder, rows)
        alone = [way(folder, [row])[0] for row in rows]
        result["exact"] = max(result["exact"], apart(together, own), apart(alone, own))
        result["neighbour"] = max(result["neighbour"], apart(together, alone))
    return result


def judge(kind: str, settings: dict[str, object], *, quick: bool) -> dict[str, object]:
    """Make a model of the family and say what comes of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_family(folder, kind, **settings)
        try:
            check_checkpoint(folder)
        except ConfigError as error:
            return {"refused": str(error)}
        return dict(measure(folder, quick=quick))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one document")
    parser.add_argument("--only", default="families,neighbour", help="figures, comma-separated")
    parser.add_argument("--quick", action="store_true", help="fewer lengths")
    options = parser.parse_args()
    pin_numerics()
    names = [name for name in ("families", "neighbour") if name in options.only.split(",")]
    tried = {kind: judge(kind, settings, quick=options.quick) for kind, settings in KINDS.items()}
    tried |= {name: judge(kind, settings, quick=options.quick) for name, (kind, settings) in VARIANTS.items()}
    measured = {name: found for name, found in tried.items() if "refused" not in found}
    exact = [name for name, found in measured.items() if float(str(found["exact"])) <= EXACT]
    result: dict[str, object] = {"tried": len(tried), "accepted": len(measured), "rows": tried}
    if "families" in names:
        result["families"] = (len(tried) - len(measured) + len(exact)) / len(tried)
    if "neighbour" in names:
        result["neighbour"] = max(float(str(found["neighbour"])) for found in measured.values())
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, found in tried.items():
        print(f"{name:24} {found.get('refused') or found}")
    print({name: result[name] for name in names})


if __name__ == "__main__":
    main()
