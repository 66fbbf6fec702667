"""`17+25=` is answered by `42`, exactly."""

from __future__ import annotations

from typing import ClassVar

from muster.environments.exact import ExactAnswer


class Arithmetic(ExactAnswer):
    """Sums, differences and products. Reference: `{"answer": "42"}`."""

    NAME: ClassVar[str] = "arithmetic"
