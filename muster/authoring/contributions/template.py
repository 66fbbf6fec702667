"""What `muster env new` writes: a small environment that passes every check, to be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.authoring.contributions.folder import DESCRIPTION_NAME, README_NAME, SCORER_NAME, TASKS_NAME
from muster.errors import ConfigError, StorageError

DESCRIPTION: Final = """\
name = "{name}"
version = 1                  # raise it with every change that you submit
licence = ""                 # an SPDX identifier such as "CC-BY-4.0" or "MIT": what may others do with it?
credit = ""                  # whom people are to thank; in the data you are the address of your key
description = "Count how often a letter occurs in a word."
thinking = "tags"            # the model thinks first, as long as the prompt announces; "none": all of it is the answer

[parts]                      # what the scorer returns, each with its weight in millionths; they add up to 1_000_000
correct = 900_000
brief = 100_000

[limits]
fuel = 2_000_000_000         # of one score; muster env check shows what yours takes
"""

SCORER: Final = '''\
"""Score an answer. This runs in a sandbox, without files, network, clock or chance.

docs/use/contribute-an-environment.md explains what it may use.

task: {"id", "level", "messages": [{"role", "content"}], "answer": what tasks.jsonl says}
completion: the model's answer, without its thinking. It is a stranger's text: read it, never run it.
"""


def score(task, completion):
    """Return every part as an integer from 0 to 1_000_000."""
    answer = completion.strip()
    correct = answer == str(task["answer"])
    return {
        "correct": 1_000_000 if correct else 0,
        "brief": 1_000_000 if correct and len(answer) <= 3 else 0,
    }
'''

TASKS: Final = """\
{"id": "strawberry-r", "messages": [{"role": "user", "content": "How many r are in strawberry?"}], \
"answer": 3, "oracle": "3", "level": 1}
{"id": "banana-a", "messages": [{"role": "user", "content": "How many a are in banana?"}], \
"answer": 3, "oracle": "3", "level": 1}
{"id": "committee-e", "messages": [{"role": "user", "content": "How many e are in committee?"}], \
"answer": 2, "oracle": "2", "level": 2}
"""

README: Final = """\
# {name}

What is asked, where the tasks are from, and how they are scored.
"""


def write_template(folder: Path) -> None:
    """Write a folder to start from. Raises ConfigError when it exists, StorageError when it cannot be written."""
    if folder.exists():
        raise ConfigError(f"{folder} exists", hint="name a folder that does not")
    name = "".join(one if one.isascii() and one.isalnum() else "-" for one in folder.name.lower()).strip("-")
    name = name[:40] if name[:1].isalpha() and len(name) > 1 else "my-environment"
    files = {
        DESCRIPTION_NAME: DESCRIPTION.format(name=name),
        SCORER_NAME: SCORER,
        TASKS_NAME: TASKS,
        README_NAME: README.format(name=name),
    }
    try:
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
