"""What a service that refuses a request answers."""

from __future__ import annotations

from pydantic import BaseModel


class Problem(BaseModel):
    """A problem document (RFC 9457), as every refusal of a service carries it; unknown members are allowed."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    hint: str = ""
    """The next thing to do: a command or setting that a person can type."""
