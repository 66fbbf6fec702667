"""Task sets and rewards: what a run asks for and how an answer is scored.

`families` makes tasks with exact answers from a seed, `task_set` keeps them in one canonical file with a root that
the run's terms name, `rewards` scores a completion. Workers, validators and the trainer all score with `verify` and
`length_reward`; nobody else decides what an answer is worth.
"""

from muster.tasks.families import Task
from muster.tasks.rewards import LENGTH_ALPHA, length_reward, verify
from muster.tasks.task_set import TaskSet, load_task_set, make_task_set, save_task_set

__all__ = [
    "LENGTH_ALPHA",
    "Task",
    "TaskSet",
    "length_reward",
    "load_task_set",
    "make_task_set",
    "save_task_set",
    "verify",
]
