"""Render a chat template in a process of its own: one without end, or too large, takes no other with it."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import time
from functools import lru_cache
from itertools import product
from typing import Any, Final

from muster.errors import ConfigError
from muster.protocol.prompts import DAY, MAX_TEMPLATE, refusals
from muster.runtime.module_command import module_command
from muster.sandbox.walls import set_limit

CPU_SECONDS: Final = 3
WALL_SECONDS: Final = 60.0
MEMORY: Final = 1 << 30
"""Address space in bytes, with what is imported."""
MAX_TEXT: Final = 1 << 20
"""Longest prompt with QUESTION, in characters."""
QUESTION: Final = "What is 2 + 3? " * 100
"""Long enough that a template takes too much if its time grows with more than the square of a text."""
FUNCTION: Final = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
TOOLS: Final[tuple[Any, ...]] = (None, [{"type": "function", "function": FUNCTION}])
SPECIAL: Final = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<s>")


@lru_cache
def check_bound(template: str) -> None:
    """Raise ConfigError for a chat template that takes much time, memory or text for a short prompt."""
    command = module_command("muster.authoring.models.template")
    most = f"{CPU_SECONDS} s, {MEMORY >> 30} GiB or {MAX_TEXT} characters"
    try:
        subprocess.run(command, input=template.encode(), capture_output=True, timeout=WALL_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        hint = "take the template of the model's maker"
        raise ConfigError(f"the chat template takes over {most} for a short prompt", hint=hint) from error


def render_within(template: str) -> None:
    """Render a template in this process, which limits itself first. Raises MemoryError for what takes too much."""
    from transformers.utils.chat_template_utils import render_jinja_template

    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_AS, MEMORY)
    set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + CPU_SECONDS)
    messages = [{"role": "user", "content": QUESTION}]
    for tools, thinks in product(TOOLS, (True, False)):
        more: dict[str, Any] = SPECIAL | {"enable_thinking": thinks, "thinking_budget": 8, "strftime_now": DAY.strftime}
        try:
            texts, _ = render_jinja_template(
                [messages], tools, chat_template=template, add_generation_prompt=True, **more
            )
        except refusals():  # `prompt_text` says why
            continue
        if len(texts[0]) > MAX_TEXT:
            raise MemoryError(f"a prompt of {len(texts[0])} characters")


if __name__ == "__main__":
    render_within(sys.stdin.buffer.read(4 * MAX_TEMPLATE).decode())
