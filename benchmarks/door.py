"""What the door of models does with each setting that a program may read, set to another value and to another type.

    python benchmarks/door.py --json [--types llama,qwen2] [--rounds 1]

door     of each type of model that the door lets in, the settings that transformers' classes or vLLM's model files
         read, found in their source. Each is set to other values and to values of other types. The share that is
         refused in words, or exact to 1e-4 as `muster model check` measures it. Values that are let in are measured
         together, one of each setting in a round. Those of keys that no program reads (METADATA, and what
         transformers leaves out of a configuration) are measured with llama alone.
control  the configurations of `testbed.samples.configurations`: the share that is let in.

Some minutes go to the door, and half a minute to each measurement: three or so for each type. --rounds 0 measures none.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from transformers.utils import logging

from benchmarks import report
from muster.authoring.models.door import FAMILIES, METADATA, check_checkpoint, check_config, read_config
from muster.authoring.models.measured import measure
from muster.errors import MusterError
from testbed.samples.configurations import PUBLIC, write_public
from testbed.samples.families import KINDS, write_family
from testbed.samples.settings import other_values, settings_read

LONGEST: Final = 160
EXACT: Final = 1e-4
ALL_READ: Final = "llama"
"""The type with which values of keys that no program reads are measured too."""


class Door:
    """One type's folder, whose config.json is changed."""

    def __init__(self, folder: Path, kind: str) -> None:
        write_family(folder, kind, **KINDS.get(kind, {}))
        self.folder, self.path = folder, folder / "config.json"
        self.written: dict[str, Any] = json.loads(self.path.read_text())

    def lets_in(self, changes: Mapping[str, object]) -> bool:
        """Return whether the door lets the changes in. Raises whatever it raises that is no refusal."""
        self.path.write_text(json.dumps({**self.written, **changes}))
        try:
            check_config(self.folder, read_config(self.folder))  # most are refused here
            check_checkpoint(self.folder)
        except MusterError:
            return False
        return True

    def difference(self, changes: Mapping[str, object]) -> float:
        """Return the largest difference in nats of what programs compute with the changes that fit together."""
        together: dict[str, object] = {}
        for name, value in changes.items():
            if self.lets_in({**together, name: value}):
                together[name] = value
        self.lets_in(together)
        found = asyncio.run(measure(self.folder, LONGEST, lambda _: None))
        worst = max(max(row.engine, row.neighbour, row.trainer) for row in found.rows)
        return float("inf") if found.fault else worst


def judge(kind: str, rounds: int) -> tuple[int, list[str], list[float]]:
    """Return how many changes were tried, those that ended in another error, and the differences of each round."""
    from transformers import AutoConfig

    usual, tried, broken, let_in = AutoConfig.for_model(kind).to_dict(), 0, [], {}
    with tempfile.TemporaryDirectory() as place:
        door = Door(Path(place) / "model", kind)
        for name in settings_read(kind):
            for value in other_values(door.written.get(name, usual.get(name))):
                tried += 1
                try:
                    if door.lets_in({name: value}):
                        let_in.setdefault(name, []).append(value)
                except Exception as error:  # noqa: BLE001 (what is counted)
                    broken.append(f"{kind}: {name} = {value!r:.60}: {error!r:.100}")
        read = [name for name in let_in if kind == ALL_READ or (name in usual and name not in METADATA)]
        columns = zip_longest(*([(name, value) for value in let_in[name]] for name in read))
        parts = [dict(filter(None, column)) for column in columns][:rounds]
        print(f"{kind}: {tried} tried, {sum(map(len, let_in.values()))} let in, {len(parts)} rounds", file=sys.stderr)
        return tried, broken, [door.difference(part) for part in parts]


def is_let_in(name: str) -> bool:
    """Return whether the door lets in a public configuration."""
    with tempfile.TemporaryDirectory() as place:
        write_public(Path(place) / "model", name)
        try:
            check_checkpoint(Path(place) / "model")
        except MusterError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return False
    return True


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--types", default=",".join(FAMILIES), help="types of models, separated by commas")
    parser.add_argument("--rounds", type=int, default=99, help="most measurements of a type")
    options = parser.parse_args()
    logging.set_verbosity_error()
    tried, broken, differences = 0, [], {}
    for kind in options.types.split(","):
        count, more, found = judge(kind, options.rounds)
        tried, broken = tried + count, broken + more
        differences |= {f"{kind}, round {place + 1}": value for place, value in enumerate(found)}
        print(f"{kind}: {found}", file=sys.stderr)
    wrong = broken + [name for name, value in differences.items() if value > EXACT]
    let_in = [name for name in PUBLIC if is_let_in(name)]
    counts = {
        "tried": tried,
        "wrong": wrong,
        "measured": len(differences),
        "largest": max(differences.values(), default=0),
    }
    figures = [
        report.figure("door", 1 - len(wrong) / tried, target=1.0, unit="of those tried", **counts),
        report.figure("control", len(let_in) / len(PUBLIC), target=1.0, unit=f"of {len(PUBLIC)} configurations"),
    ]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
