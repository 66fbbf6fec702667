"""The architecture picture is what its script draws, names the parts of the README, and is well-formed."""

from __future__ import annotations

from xml.etree import ElementTree

from scripts.architecture import BOXES, TARGET, picture


def test_the_picture_is_current_and_well_formed() -> None:
    text = TARGET.read_text(encoding="utf-8")
    assert text == picture(), "python scripts/architecture.py"
    words = " ".join(node.text or "" for node in ElementTree.fromstring(text).iter())
    assert all(name in words for name in BOXES)


def test_boxes_do_not_overlap() -> None:
    places = [(x, y, x + width, y + height) for x, y, width, height, *_ in BOXES.values()]
    for i, (left, top, right, bottom) in enumerate(places):
        for other in places[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
