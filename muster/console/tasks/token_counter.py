"""Count the tokens of tasks' prompts by a checkpoint's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.errors import MalformedError

if TYPE_CHECKING:
    from muster.environments.manifest import EnvironmentManifest
    from muster.environments.task import Task

TokenizerOption = Annotated[Path | None, typer.Option(help="Checkpoint folder whose tokenizer counts tokens.")]


def token_counter(folder: Path) -> Callable[[EnvironmentManifest, Task], int]:
    """Return what counts the tokens of a task's prompt, announcing the largest thinking budget that a draw can have.

    It raises MalformedError for a prompt that the chat template refuses, or that the model has no embedding for.
    """
    from muster.clients.evaluation import MAX_BUDGET
    from muster.environments.task import ask
    from muster.models.files import load_tokenizer, vocabulary_of
    from muster.protocol.prompts import prompt_text, prompt_tokens

    tokenizer, size = load_tokenizer(folder), vocabulary_of(folder)
    prompt_text(tokenizer, ask("?"), MAX_BUDGET)  # raises where there is no template

    def count(manifest: EnvironmentManifest, task: Task) -> int:
        tokens = prompt_tokens(tokenizer, task, MAX_BUDGET, thinks=manifest.thinks)
        if (largest := max(tokens.tolist(), default=0)) >= size:
            raise MalformedError(f"it spells token {largest}, and the model has {size}")
        return len(tokens)

    return count
