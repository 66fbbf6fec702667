"""Which rows of a commitment a validator re-runs: drawn from the chain's secret and its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.protocol.draws import draw_sample
from tests.support.validator_samples import NODE


@settings(deadline=None)
@given(
    st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 300), st.integers(0, 300)
)
def test_a_sample_is_distinct_ascending_and_follows_from_both_secrets(
    block_hash: bytes, preimage: bytes, positions: int, count: int
) -> None:
    def sample(block: bytes, link: bytes) -> list[int]:
        return draw_sample(block_hash=block, preimage=link, node=NODE, index=3, positions=positions, count=count)

    drawn = sample(block_hash, preimage)
    assert drawn == sorted(set(drawn)) == sample(block_hash, preimage)
    assert len(drawn) == min(count, positions)
    assert all(0 <= position < positions for position in drawn)


def test_neither_side_alone_decides_the_sample() -> None:
    def sample(block: int, link: int) -> tuple[int, ...]:
        return tuple(
            draw_sample(
                block_hash=bytes([block]) * 32, preimage=bytes([link]) * 32, node=NODE, index=3, positions=256, count=32
            )
        )

    assert len({sample(block, link) for block in range(8) for link in range(8)}) == 64
