"""Which rows of a commitment a validator re-runs: drawn from the chain's secret and its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import UnreachableError
from muster.protocol.draws import chain_preimages, draw_pool, draw_rows, link_of, shared_rows
from muster.protocol.hashes import keccak
from muster.protocol.terms import Terms
from testbed.samples.commitments import rules
from testbed.samples.validator import NODE


def test_each_hour_has_its_link_from_that_of_the_registration_on() -> None:
    links = chain_preimages(b"s" * 32, 3)
    assert [link_of(links, 100, hour) for hour in (100, 101, 102)] == links
    assert keccak(link_of(links, 100, 101)) == link_of(links, 100, 100)
    for hour in (99, 103):
        with pytest.raises(UnreachableError, match=f"links for 3 hours, and not for hour {hour}"):
            link_of(links, 100, hour)


def terms_of(groups: int, longest: int = 512, look_rows: int = 24) -> Terms:
    shape = {"group_size": 16, "groups_per_commitment": groups, "max_completion_tokens": longest}
    return replace(rules().terms, **shape, look_rows=look_rows)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 20), st.integers(1, 400), st.integers(0, 9))
def test_validator_replays_the_pool_and_rows_of_its_own(
    block_hash: bytes, groups: int, look_rows: int, index: int
) -> None:
    terms = terms_of(groups, look_rows=look_rows)

    def rows(link: int) -> list[int]:
        drawn = {"block_hash": block_hash, "link": bytes([link]) * 32, "validator": NODE, "node": NODE}
        return draw_rows(**drawn, index=index, terms=terms)

    pool = draw_pool(block_hash=block_hash, node=NODE, index=index, terms=terms)
    assert len(pool) == shared_rows(terms) <= max(1, look_rows // 3)
    for link in (1, 2):
        drawn = rows(link)
        assert set(pool) <= set(drawn), "every validator re-runs these"
        assert drawn == sorted(set(drawn)) == rows(link)
        assert len(drawn) == min(look_rows * (2 if index < 4 else 1), terms.positions)


def test_block_link_and_address_each_draw_other_rows() -> None:
    terms = terms_of(16)

    def rows(block: int, link: int, validator: int) -> tuple[int, ...]:
        seeds = {"block_hash": bytes([block]) * 32, "link": bytes([link]) * 32}
        return tuple(draw_rows(**seeds, validator=f"0x{validator:040x}", node=NODE, index=3, terms=terms))

    drawn = {rows(block, link, one) for block in range(4) for link in range(4) for one in range(4)}
    assert len(drawn) == 64


def test_how_many_rows_a_pool_takes_of_a_commitment() -> None:
    assert [shared_rows(terms_of(groups)) for groups in (1, 2, 4, 7, 8, 64)] == [1, 2, 4, 7, 8, 8]
    assert [shared_rows(terms_of(8, look_rows=rows)) for rows in (1, 3, 6, 12, 23, 24, 128)] == [1, 1, 2, 4, 7, 8, 8]
    longest = (16, 2_048, 4_096, 5_000, 16_384, 100_000)
    assert [shared_rows(terms_of(8, tokens)) for tokens in longest] == [8, 8, 4, 3, 1, 1]
    draws = {tuple(draw_pool(block_hash=bytes([n]) * 32, node=NODE, index=3, terms=terms_of(8))) for n in range(16)}
    assert len(draws) == 16, "another block, another pool"
