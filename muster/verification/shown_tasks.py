"""Tasks in evidence: one line each, with the proof that the run's task set has it. They need no shard.

The run's terms name the task set's document, the document names the root of every shard, and the proof leads to the
root of the shard that holds the slot. A validator has the document anyway: it is what opening a run begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from muster.environments.task import MAX_TASK_BYTES, Task
from muster.errors import MismatchError
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.messages import Hash, Message, UInt32
from muster.rollouts.schema import Rollout
from muster.tasksets.document import SHARD_TASKS
from muster.tasksets.packs import TaskProof
from muster.tasksets.taskset import TaskSet

MAX_TASK_PATH: Final = (SHARD_TASKS - 1).bit_length()
"""Hashes from a task to the root of its shard: 10, which are 320 bytes, and 690 in a bundle."""
MAX_TASKS_BYTES: Final = 2 * MAX_TASK_BYTES + (1 << 12)
"""Of the tasks: JSON within JSON is at most twice as long, so the largest one fits with its proof."""


class ShownTask(Message):
    """A task that rows are judged by, and the proof that the run's task set has it at a slot."""

    slot: UInt32
    line: str = Field(max_length=MAX_TASK_BYTES, pattern="^[ -~]*$")
    """The task's canonical line."""
    path: list[Hash] = Field(max_length=MAX_TASK_PATH)
    """Merkle proof, from the task to the root of its shard."""


def show_tasks(task_set: TaskSet, slots: Sequence[int]) -> list[ShownTask]:
    """Return the tasks of these slots as a bundle holds them, each once; of slots that the set has."""
    found = []
    for slot in dict.fromkeys(slots):
        if slot < task_set.size:
            proof = task_set.shown_task(slot)
            found.append(ShownTask(slot=slot, line=proof.line.decode(), path=[hex_hash(node) for node in proof.path]))
    return found


def read_tasks(shown: Sequence[ShownTask], rows: Sequence[Rollout], task_set: TaskSet) -> dict[int, Task | None]:
    """Return the tasks shown for rows, by slot: exactly those that the rows name. Raises CheckError.

    None where the set's task at a slot is unusable. The set's document, which the run's terms name, proves a task: no
    shard is read.
    """
    wanted = list(dict.fromkeys(row.task for row in rows))
    if sorted(one.slot for one in shown) != sorted(wanted):
        raise MismatchError(f"{len(shown)} tasks are shown, the rows are of slots {sorted(wanted)}")
    found: dict[int, Task | None] = {}
    for one in shown:
        proof = TaskProof(one.line.encode(), tuple(hash_bytes(node) for node in one.path))
        found[one.slot] = task_set.verify_shown(one.slot, proof)
    return found


def size_of(tasks: Sequence[ShownTask]) -> int:
    """Return how many bytes tasks take in a bundle."""
    return sum(len(task.model_dump_json()) for task in tasks)
