"""Task sets: packs of tasks under one root, from which runs draw; how they are made, imported, checked and proven.

May import `protocol` and below. Used by `evaluation`, `verification`, `clients` and the command line.
"""

from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetDocument, TaskSetPart, TaskSource
from muster.tasksets.packs import TaskProof
from muster.tasksets.taskset import TaskSet

__all__ = ["NewPart", "TaskProof", "TaskSet", "TaskSetDocument", "TaskSetPart", "TaskSource", "write_task_set"]
