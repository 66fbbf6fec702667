"""A validator's draw secret: one file, and the hash chain that it makes."""

from __future__ import annotations

from pathlib import Path

from eth_utils.crypto import keccak

from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.protocol.draws import chain_preimages, opens_chain


def test_the_hash_chain_opens_front_to_back(tmp_path: Path) -> None:
    secret = create_draw_secret(tmp_path)
    links, tip = chain_preimages(secret, 50), draw_tip(secret)
    assert opens_chain(draw_tip_of(links), links[0], 0)
    assert all(opens_chain(draw_tip_of(links), links[i], i) for i in (1, 17, 49))
    assert not opens_chain(draw_tip_of(links), links[18], 17)
    assert not opens_chain(draw_tip_of(links), draw_tip_of(links), -1), "the tip is no link"
    assert links[-1] == secret
    assert tip != draw_tip_of(links), "the tip depends on the length"
    assert create_draw_secret(tmp_path) == secret
    assert (tmp_path / "draw_secret").stat().st_mode & 0o777 == 0o600


def draw_tip_of(links: list[bytes]) -> bytes:
    return keccak(links[0])
