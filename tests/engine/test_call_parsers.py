"""The parser of calls beside vLLM's own parsers, on the same text: every difference is one that the page explains."""

from __future__ import annotations

from testbed.samples.vllm_calls import COMPARED, unexplained


def test_every_difference_to_the_parsers_of_vllm_is_named() -> None:
    assert unexplained() == []
    assert len(COMPARED) >= 80
