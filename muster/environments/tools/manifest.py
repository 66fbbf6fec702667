"""What several turns of an environment depend on: a part of its manifest, so of the hash that the terms name."""

from __future__ import annotations

from dataclasses import dataclass
from operator import not_
from typing import Annotated, Final, Literal

from pydantic import Field

from muster.environments.tools.base import MAX_TURNS, CallStyle
from muster.environments.tools.sandboxed import AuthoredTool
from muster.environments.tools.search import MAX_DOCUMENTS, Document
from muster.errors import MalformedError
from muster.sandbox.scorer import MAX_FUEL, ScorerManifest

MAX_TOOLS: Final = 16
LEAST_CALLS: Final = 4
"""A call uses at most so great a part of the conversation's fuel: one that never ends leaves the others theirs."""


@dataclass(frozen=True)
class TurnsManifest:
    """The tools that completions of an environment may call, and the bounds of a conversation."""

    tools: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...], Field(max_length=MAX_TOOLS)]
    """Names of `muster.environments.tools.registry`, in order, each once."""
    calls: CallStyle | Literal["auto"] = "auto"
    """How the policy writes calls; auto: in the first style by which its chat template's own calls are read."""
    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 4
    """Most turns that the policy samples."""
    fuel: Annotated[int, Field(ge=0, le=MAX_FUEL)] = 2_000_000_000
    """Most that all calls of a conversation use together, a quarter of it by one call at most. The shortest call of
    `python` needs 5,000,000. That later calls run it again is not counted."""
    result_characters: Annotated[int, Field(ge=64, le=1 << 16)] = 2048
    """Most of one result; of a longer one the first and the last half is kept."""
    budget: Literal["sampled", "thinking"] = "sampled"
    """What the thinking budget counts: all sampled tokens, or those of the turns' thinking."""
    call_ends_thinking: bool = False
    """Whether a call that is opened in unclosed thinking ends it; otherwise it is a draft, which is not run."""
    sandbox: Annotated[ScorerManifest | None, Field(exclude_if=not_)] = None
    """What runs `python` and authored tools, and how much one call may use."""
    corpus: Annotated[tuple[Document, ...], Field(max_length=MAX_DOCUMENTS, exclude_if=not_)] = ()
    """What `search` searches."""
    authored: Annotated[tuple[AuthoredTool, ...], Field(max_length=MAX_TOOLS, exclude_if=not_)] = ()
    """Tools of other authors, in order of their names."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.tools + tuple(one.name for one in self.authored)

    def __post_init__(self) -> None:
        authored = [one.name for one in self.authored]
        if authored != sorted(set(authored)) or set(authored) & set(self.tools):
            raise MalformedError("the authored tools are not in order, or two tools have one name")
        if (self.authored or "python" in self.tools) and self.sandbox is None:
            raise MalformedError("tools that run code need a sandbox: name its component")
        if ("search" in self.tools) != bool(self.corpus):
            raise MalformedError("search needs a corpus, and a corpus needs search")
        if len({one.name for one in self.corpus}) != len(self.corpus):
            raise MalformedError("two documents of the corpus have one name")
