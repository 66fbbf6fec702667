"""The count of mirrors: pairs of classes that declare mostly the same fields."""

from __future__ import annotations

from scripts.mirrors import classes_in, mirrors

MODULE = """
class Work:
    run: int
    node: str
    index: int
    root: bytes
    LIMIT: Final = 5

class Line:
    node: str
    index: int
    root: bytes
    run: int
    reason: str

class Derived(Work):
    reason: str
    size: int
    hour: int
    block: int

class Constants:
    run: ClassVar = 1
    node: Final = ""
    index: ClassVar[int] = 2
    root: Final = b""

class Wide:
    run: int
    node: str
    index: int
    hour: int
    block: int
    size: int
"""


def test_a_pair_counts_where_most_declared_fields_are_the_same() -> None:
    classes = classes_in("a.py", MODULE)
    assert [name for name, _ in classes] == ["a.py:Work", "a.py:Line", "a.py:Derived", "a.py:Wide"]
    assert mirrors(classes) == [(4, "a.py:Work", "a.py:Line")]
