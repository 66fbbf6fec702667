"""Render a chat template in a process of its own: one without end, or too large, takes no other with it."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import time
from contextlib import suppress
from functools import lru_cache
from typing import Final

from muster.environments.task import ask
from muster.errors import ConfigError, MalformedError
from muster.protocol.prompts import prompt_text
from muster.runtime.module_command import module_command
from muster.sandbox.walls import set_limit

CPU_SECONDS: Final = 1
WALL_SECONDS: Final = 60.0
MEMORY: Final = 1 << 30
"""Address space in bytes, with what is imported."""
MAX_TEXT: Final = 1 << 20
"""Longest prompt with QUESTION, in characters."""
QUESTION: Final = ask("What is 2 + 3? " * 100)
"""Long enough that a template takes too much if its time grows with more than the square of a text."""
TOOL: Final = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"properties": {}}}}


@lru_cache
def check_bound(template: str) -> None:
    """Raise ConfigError for a chat template that takes much time, memory or text for a short prompt."""
    command = module_command("muster.authoring.models.template")
    most = f"{CPU_SECONDS} s, {MEMORY >> 30} GiB or {MAX_TEXT} characters"
    data = template.encode(errors="replace")
    try:
        subprocess.run(command, input=data, capture_output=True, timeout=WALL_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        hint = "take the template of the model's maker"
        raise ConfigError(f"the chat template takes over {most} for a short prompt", hint=hint) from error


def render_within(template: str) -> None:
    """Render a template in this process, which limits itself first. Raises MemoryError for what takes too much."""
    from transformers import PreTrainedTokenizerBase

    tokenizer = PreTrainedTokenizerBase(chat_template=template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_AS, MEMORY)
    set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + CPU_SECONDS)
    for tools in ([], [TOOL]):
        with suppress(MalformedError):  # the door says why
            if len(prompt_text(tokenizer, QUESTION, 8, thinks=not tools, tools=tools)) > MAX_TEXT:
                raise MemoryError


if __name__ == "__main__":
    render_within(sys.stdin.buffer.read().decode())
