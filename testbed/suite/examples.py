"""How many examples hypothesis tries: few in `make test`, all that a test asks for in `make test-all`."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

FEW: Final = "few"
MANY: Final = "many"
"""Names of the profiles."""
AT_MOST: Final = 50
"""Of each test, under FEW."""

settings.register_profile(FEW, deadline=None, max_examples=AT_MOST)  # no test asserts how fast this machine is today
settings.register_profile(MANY, deadline=None, max_examples=100)


def up_to(count: int, few: int = AT_MOST) -> int:
    """Return the number of examples of a test that wants `count`. `few`: in `make test`, where an example is dear."""
    return min(count, few) if settings.get_current_profile_name() == FEW else count
