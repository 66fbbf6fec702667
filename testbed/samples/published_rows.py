"""Rows in the schemas of the nine published benchmarks, made up here: for tests, and to compare scorers on.

They are in `published_rows.jsonl`, but for what published files spell out or pack: IFEval's rows have every argument's
name, None where it is not meant, and LiveCodeBench's have their tests as JSON, the private ones pickled.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any, Final

Row = dict[str, Any]
FILE: Final = Path(__file__).with_suffix(".jsonl")


def packed(tests: list[Row]) -> str:
    """Return tests as LiveCodeBench packs private ones."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def _rows() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["benchmark"], []).append(one["row"])
    names = sorted({name for row in found["ifeval"] for asked in row["kwargs"] for name in asked})
    for row in found["ifeval"]:
        row["kwargs"] = [{name: asked.get(name) for name in names} for asked in row["kwargs"]]
    for row in found["livecodebench"]:
        row |= {name: json.dumps(row[name]) for name in ("public_test_cases", "metadata")}
        row["private_test_cases"] = packed(row["private_test_cases"])
    return {**found, "aime25": found["aime24"]}


ROWS: Final = _rows()
"""Rows of each benchmark, by its name."""
GSM8K, IFEVAL, MBPP, LIVECODEBENCH = (ROWS[name] for name in ("gsm8k", "ifeval", "mbpp", "livecodebench"))
