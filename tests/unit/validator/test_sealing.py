"""What a seal vouches for."""

from __future__ import annotations

from muster.protocol.merkle import LeafTree
from muster.verification.rules import CommittedWork
from testbed.samples.validator import NODE
from validator.sealing import EMPTY_ROOT, vouch_leaf, vouch_root


def test_the_vouch_root_opens_to_what_was_accepted() -> None:
    accepted = [CommittedWork(1, index // 3, NODE, index, bytes([index]) * 32, hour=5, block=1) for index in range(5)]
    anchors = {0: b"\x0a" * 32, 1: b"\x0b" * 32}
    leaves = [vouch_leaf(c, anchors[c.step]) for c in accepted]
    assert vouch_root(accepted, anchors) == LeafTree.from_hashes(leaves).root
    assert vouch_root(accepted[:4], anchors) != vouch_root(accepted, anchors)
    assert vouch_root(accepted, anchors | {1: b"\x0c" * 32}) != vouch_root(accepted, anchors)
    assert vouch_root([], {}) == EMPTY_ROOT == bytes(32)
    assert len(set(leaves)) == 5
