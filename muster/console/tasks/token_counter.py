"""Count the tokens of tasks' prompts by a checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.errors import ConfigError, MalformedError

if TYPE_CHECKING:
    from muster.environments.manifest import EnvironmentManifest
    from muster.environments.task import Task

TokenizerOption = Annotated[Path | None, typer.Option(help="Checkpoint folder whose tokenizer counts tokens.")]


def token_counter(folder: Path) -> Callable[[EnvironmentManifest, Task], int]:
    """Return what counts the tokens of a task's prompt, announcing the largest thinking budget that a draw can have."""
    from muster.clients.evaluation import MAX_BUDGET
    from muster.models.files import load_tokenizer, vocabulary_of
    from muster.protocol.prompts import prompt_tokens

    tokenizer = load_tokenizer(folder)
    if not tokenizer.chat_template:
        raise ConfigError(f"the tokenizer of {folder} has no chat template", hint="use a chat model")
    size = vocabulary_of(folder) if (folder / "config.json").exists() else None

    def count(manifest: EnvironmentManifest, task: Task) -> int:
        tokens = prompt_tokens(tokenizer, task, MAX_BUDGET, thinks=manifest.thinks)
        if size is not None and int(tokens.max(initial=0)) >= size:
            raise MalformedError(
                f"the prompt of task {task.id[:80]!r} has token {tokens.max()}; the model of {folder} has {size}"
            )
        return len(tokens)

    return count
