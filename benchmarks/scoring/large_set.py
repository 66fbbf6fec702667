"""Measure what a large task set costs: importing, opening, reading, proving. 285,000 made-up rows by default."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

ROWS: Final = 285_000
"""Tasks of INTELLECT-2."""
READS: Final = 64
PROBLEM_WORDS: Final = 90

_OPEN: Final = """
import json, sys, time

def resident():
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

empty = resident()
from pathlib import Path
from muster.tasksets.taskset import TaskSet
begun = time.perf_counter()
task_set = TaskSet.open(Path(sys.argv[1]))
slots = [i * 7919 * 37 % task_set.size for i in range(int(sys.argv[2]))]
_ = task_set.task(slots[0])
started = time.perf_counter() - begun
for slot in slots:
    _ = task_set.task(slot)
held = resident() - empty
proof = task_set.proof(slots[0])
proof.verify(task_set.part(slots[0]).root, task_set.document.locate(slots[0])[1])
print(json.dumps({"slots": task_set.size, "start_s": started, "bytes": held, "proof_bytes": 32 * len(proof.path)}))
"""


@dataclass(frozen=True)
class Costs:
    """What a task set of so many rows costs."""

    rows: int
    slots: int
    """Tasks that a run of it may draw."""
    import_rate: float
    """Rows a second, duplicates, split, packs and trees included; `import_rate_per_cpu_second` by processor time."""
    import_rate_per_cpu_second: float
    start_s: float
    """Until a new process has opened the set and read a task."""
    bytes: int
    """What that process holds after READS tasks, above what it held before it imported anything of ours."""
    proof_bytes: int


def measure(rows: int = ROWS, folder: Path | None = None) -> Costs:
    """Write `rows` made-up rows, import them, and open the set in another process, as a worker does."""
    from muster.authoring.tasks.importing import ImportOptions, import_set
    from muster.authoring.tasks.sources import ImportReport, format_of
    from muster.tasksets.document import TaskSource

    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = write_rows(Path(name) / "rows.jsonl", rows)
        begun, cpu = time.perf_counter(), time.process_time()
        made = import_set(
            format_of("synthetic"),
            path,
            Path(name) / "set",
            TaskSource("CC0-1.0", "made up"),
            ImportReport(),
            ImportOptions(held_out=rows // 100),
        )
        rates = (rows / (time.perf_counter() - begun), rows / (time.process_time() - cpu))
        command = [sys.executable, "-c", _OPEN, str(made.folder), str(READS)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return Costs(rows=rows, import_rate=rates[0], import_rate_per_cpu_second=rates[1], **json.loads(done.stdout))


def write_rows(path: Path, count: int) -> Path:
    """Write rows in the format of INTELLECT-2: about 750 bytes each, no two nearly equal."""
    with path.open("w", encoding="ascii") as file:
        for row in made_up_rows(count):
            file.write(json.dumps(row) + "\n")
    return path


def made_up_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield rows of a problem of random words."""
    random = Random(0)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(20_000)]
    for i in range(count):
        yield {
            "problem_id": f"made_up_{i}",
            "task_type": "verifiable_math",
            "prompt": " ".join(random.choices(words, k=PROBLEM_WORDS)),
            "verification_info": json.dumps({"ground_truth": str(random.randrange(10**6))}),
            "solve_rate_model": random.random(),
        }
