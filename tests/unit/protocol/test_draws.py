"""Which rows of a commitment a validator re-runs: drawn from the chain's secret and its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import UnreachableError
from muster.protocol.draws import chain_preimages, draw_pool, draw_rows, draw_sample, link_of, pool_rows
from muster.protocol.hashes import keccak
from muster.protocol.terms import Terms
from testbed.samples.commitments import rules
from testbed.samples.validator import NODE


@settings(deadline=None)
@given(
    st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 300), st.integers(0, 300)
)
def test_a_sample_is_distinct_ascending_and_follows_from_both_secrets(
    block_hash: bytes, link: bytes, positions: int, count: int
) -> None:
    def sample() -> list[int]:
        return draw_sample(block_hash=block_hash, link=link, node=NODE, index=3, positions=positions, count=count)

    drawn = sample()
    assert drawn == sorted(set(drawn)) == sample()
    assert len(drawn) == min(count, positions)
    assert all(0 <= position < positions for position in drawn)


def test_neither_side_alone_decides_the_sample() -> None:
    def sample(block: int, link: int) -> tuple[int, ...]:
        return tuple(
            draw_sample(
                block_hash=bytes([block]) * 32, link=bytes([link]) * 32, node=NODE, index=3, positions=256, count=32
            )
        )

    assert len({sample(block, link) for block in range(8) for link in range(8)}) == 64


def test_each_hour_has_its_link_from_that_of_the_registration_on() -> None:
    links = chain_preimages(b"s" * 32, 3)
    assert [link_of(links, 100, hour) for hour in (100, 101, 102)] == links
    assert keccak(link_of(links, 100, 101)) == link_of(links, 100, 100)
    for hour in (99, 103):
        with pytest.raises(UnreachableError, match=f"links for 3 hours, and not for hour {hour}"):
            link_of(links, 100, hour)


def terms_of(groups: int, longest: int = 512) -> Terms:
    return replace(rules().terms, group_size=16, groups_per_commitment=groups, max_completion_tokens=longest)


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 20), st.integers(0, 300))
def test_validator_replays_the_pool_and_its_own_sample(block_hash: bytes, groups: int, count: int) -> None:
    terms = terms_of(groups)

    def rows(link: int) -> list[int]:
        return draw_rows(block_hash=block_hash, link=bytes([link]) * 32, node=NODE, index=3, terms=terms, count=count)

    pool = draw_pool(block_hash=block_hash, node=NODE, index=3, terms=terms)
    assert len(pool) == pool_rows(terms)
    for link in (1, 2):
        drawn = rows(link)
        assert set(pool) <= set(drawn), "every validator re-runs these"
        assert drawn == sorted(set(drawn)) == rows(link)
        assert len(drawn) == min(len(pool) + count, terms.positions)


def test_how_many_rows_a_pool_takes_of_a_commitment() -> None:
    assert [pool_rows(terms_of(groups)) for groups in (1, 2, 4, 7, 8, 64)] == [1, 2, 4, 7, 8, 8]
    longest = (16, 2_048, 4_096, 5_000, 16_384, 100_000)
    assert [pool_rows(terms_of(8, tokens)) for tokens in longest] == [8, 8, 4, 3, 1, 1]
    draws = {tuple(draw_pool(block_hash=bytes([n]) * 32, node=NODE, index=3, terms=terms_of(8))) for n in range(16)}
    assert len(draws) == 16, "another block, another pool"
