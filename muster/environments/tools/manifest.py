"""What several turns of an environment depend on: a part of its manifest, so of the hash that the terms name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from muster.environments.tools.base import MAX_TURNS, CallStyle
from muster.sandbox.scorer import MAX_FUEL

MAX_TOOLS: Final = 16


@dataclass(frozen=True)
class TurnsManifest:
    """The tools that completions of an environment may call, and the bounds of a conversation."""

    tools: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...], Field(max_length=MAX_TOOLS)]
    """Names of `muster.environments.tools.registry`, in order, each once."""
    calls: CallStyle = "json"
    """How the policy writes calls."""
    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 4
    """Most turns that the policy samples."""
    fuel: Annotated[int, Field(ge=0, le=MAX_FUEL)] = 1_000_000
    """Most that all calls of a conversation use together."""
    result_characters: Annotated[int, Field(ge=64, le=1 << 16)] = 2048
    """Most of one result; the rest is cut before it is tokenised."""
    budget: Literal["sampled", "thinking"] = "sampled"
    """What the thinking budget counts: all sampled tokens, or those of the turns' thinking."""
    call_ends_thinking: bool = False
    """Whether a call that is opened in unclosed thinking ends it; otherwise it is a draft, which is not run."""
