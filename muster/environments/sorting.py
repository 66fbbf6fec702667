"""`sort 5231` is answered by `1235`, exactly."""

from __future__ import annotations

from typing import ClassVar

from muster.environments.exact import ExactAnswer


class Sorting(ExactAnswer):
    """Digits to sort. Reference: `{"answer": "1235"}`."""

    NAME: ClassVar[str] = "sorting"
