"""Measure what a large task set costs: writing, importing, opening, reading, proving. 285,000 made-up rows by default.

    python -m benchmarks.scoring.large_set [--rows 285000]

Prints one JSON document. Opening is measured in a fresh process, above one that has imported nothing of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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

empty, begun = resident(), time.perf_counter()
from pathlib import Path
from muster.tasksets.taskset import TaskSet
imported = time.perf_counter()
cpu = time.process_time()
task_set = TaskSet.open(Path(sys.argv[1]))
opened, opened_bytes, open_cpu = time.perf_counter(), resident(), time.process_time() - cpu
slots = [i * 7919 * 37 % task_set.size for i in range(int(sys.argv[2]))]
_ = task_set.task(slots[0])
first = time.perf_counter()
for slot in slots:
    _ = task_set.task(slot)
read, read_bytes = time.perf_counter(), resident()
proof = task_set.proof(slots[0])
proven = time.perf_counter()
proof.verify(task_set.part(slots[0]).root, task_set.document.locate(slots[0])[1])
verified = time.perf_counter()
print(json.dumps({
    "import_s": imported - begun, "open_s": opened - imported, "open_cpu_s": open_cpu,
    "open_bytes": opened_bytes - empty,
    "first_task_s": first - opened, "tasks_s": read - first, "tasks_bytes": read_bytes - empty,
    "proof_s": proven - read, "verify_s": verified - proven, "proof_bytes": 32 * len(proof.path),
    "proof_json_bytes": len(json.dumps(["0x" + node.hex() for node in proof.path])), "slots": task_set.size,
}))
"""


def measure(rows: int = ROWS, folder: Path | None = None) -> dict[str, Any]:
    """Write `rows` made-up rows, import them and open the set; return seconds, bytes and rates."""
    from muster.authoring.tasks.importing import ImportOptions, import_set
    from muster.authoring.tasks.sources import ImportReport, format_of, import_tasks
    from muster.tasksets.document import TaskSource

    with tempfile.TemporaryDirectory(dir=folder) as name:
        # 1. The rows alone: read, converted and checked.
        path = write_rows(Path(name) / "rows.jsonl", rows)
        begun, cpu, report = time.perf_counter(), time.process_time(), ImportReport()
        for _ in import_tasks(format_of("synthetic"), path, report):
            pass
        convert_s, convert_cpu = time.perf_counter() - begun, time.process_time() - cpu

        # 2. The whole import: duplicates, split, packs, trees.
        begun, cpu, report = time.perf_counter(), time.process_time(), ImportReport()
        made = import_set(
            format_of("synthetic"),
            path,
            Path(name) / "set",
            TaskSource("CC0-1.0", "made up"),
            report,
            ImportOptions(held_out=rows // 100),
        )
        import_s, import_cpu = time.perf_counter() - begun, time.process_time() - cpu
        parts = (*made.document.parts, *made.document.held_out)

        # 3. Opened by another process, as a worker does.
        return {
            "rows": rows,
            "taken": report.taken,
            "convert_rows_per_s": round(rows / convert_s),
            "convert_rows_per_cpu_s": round(rows / convert_cpu),
            "import_rows_per_s": round(rows / import_s),
            "import_rows_per_cpu_s": round(rows / import_cpu),
            "document_bytes": len(made.document.to_bytes()),
            "shards": sum(len(part.shards) for part in parts),
            "decompressed_bytes": sum(shard.bytes for part in parts for shard in part.shards),
            "stored_bytes": sum(file.stat().st_size for file in (made.folder / "shards").iterdir()),
            "import_peak_bytes": _peak(),
            **open_in_new_process(made.folder),
        }


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


def open_in_new_process(folder: Path) -> dict[str, Any]:
    """Measure the cost of opening a set, reading tasks all over it and proving one."""
    command = [sys.executable, "-c", _OPEN, str(folder), str(READS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description="What a large task set costs.")
    parser.add_argument("--rows", type=int, default=ROWS)
    print(json.dumps(measure(parser.parse_args().rows), indent=2))


if __name__ == "__main__":
    main()
