"""The sender at an endpoint whose servers lag or fail: each call still happens once."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.chain.keys import Signer
from muster.errors import ChainError
from testbed.chain.balancer import Server, balanced, first
from testbed.chain.contracts import funded_on
from testbed.chain.senders import Start, background, balance, opened, payment, pooled
from testbed.waiting import until

LOOKS = 40
"""Answers of servers that have not indexed a transaction yet: 20 s of them at the default pause."""


@pytest.mark.parametrize(("fate", "looks"), [("fails", 2), ("lags", LOOKS), ("forgets", LOOKS)])
async def test_a_server_that_has_no_receipt_says_nothing_of_the_transaction(
    start_anvil: Start, tmp_path: Path, fate: str, looks: int
) -> None:
    anvil = start_anvil()
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with balanced(anvil) as balancer, opened(balancer, signer, tmp_path) as sender:
        setattr(balancer, fate, first(looks, "eth_getTransactionReceipt"))
        assert (await sender.send(payment(to))).ok
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 1


@pytest.mark.parametrize("fate", ["fails", "lags", "forgets"])
async def test_a_mined_transaction_whose_answer_got_lost_is_not_sent_again(
    start_anvil: Start, tmp_path: Path, fate: str
) -> None:
    anvil = start_anvil()
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with balanced(anvil) as balancer, opened(balancer, signer, tmp_path) as sender:
        balancer.loses = first(1, "eth_sendRawTransaction")
        setattr(balancer, fate, first(LOOKS, "eth_getTransactionReceipt"))
        assert (await sender.send(payment(to))).ok
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 1


async def test_next_send_settles_transaction_left_by_refusal(start_anvil: Start, tmp_path: Path) -> None:
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with balanced(anvil) as balancer, opened(balancer, signer, tmp_path, timeout_seconds=60) as sender:
        async with background(sender.send(payment(to))) as sending:
            await until(pooled(anvil, 1))
            (left,) = sender.journal.pending()
            balancer.error = {"code": -32000, "message": "oversized data"}
            balancer.fails = first(1, "eth_sendRawTransaction")
            anvil.request("anvil_dropTransaction", "0x" + left.hashes[0].hex())
            with pytest.raises(ChainError, match="pay 1: the endpoint refuses the transaction: oversized data"):
                await sending
        (still,) = sender.journal.pending()
        assert (still.nonce, still.hashes[0]) == (left.nonce, left.hashes[0])
        anvil.request("evm_setAutomine", True)
        await sender.send(payment(to, 7))
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 8


@pytest.mark.parametrize(
    ("fate", "code", "message"),
    [
        ("fails", -32000, "sequencer pending tx pool full, please try again"),
        ("loses", 0, "no answer"),
        ("lies", -32000, "already in mempool"),
        ("lies", -32000, "replacement transaction underpriced"),
    ],
)
async def test_transaction_of_unknown_fate_is_kept_until_it_is_known(
    start_anvil: Start, tmp_path: Path, fate: str, code: int, message: str
) -> None:
    """An endpoint that fails did not take it, one that lies or loses its answer did."""
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    broadcasts: list[str] = []

    def is_first(text: str) -> bool:
        if "eth_sendRawTransaction" in text:
            broadcasts.append(text)
        return broadcasts == [text]

    async with balanced(anvil) as balancer, opened(balancer, signer, tmp_path, timeout_seconds=8) as sender:
        balancer.error = {"code": code, "message": message}
        setattr(balancer, fate, is_first)
        async with background(sender.send(payment(to))) as sending:
            await until(lambda: sending.done() or pooled(anvil, 1)())
            assert len(sender.journal.pending()) == 1
            anvil.request("evm_mine")
            assert (await sending).ok
        assert sender.journal.pending() == []
    assert len(set(broadcasts)) == 1, "byte for byte"
    assert (balance(anvil, to), anvil.request("eth_getTransactionCount", signer.address, "latest")) == (1, "0x1")


@pytest.mark.parametrize("message", ["replacement transaction underpriced", "nonce too low", "transaction underpriced"])
async def test_a_transaction_that_one_server_took_and_others_do_not_know_is_sent_once(
    start_anvil: Start, tmp_path: Path, message: str
) -> None:
    """A front that tries each server: the second refuses what the first took, and the next to be asked has no pool."""
    anvil = start_anvil(mining=False)
    (signer,) = funded_on(anvil, 1)
    to = Signer.random()
    async with balanced(anvil) as balancer, opened(balancer, signer, tmp_path, timeout_seconds=4) as sender:
        balancer.error = {"code": -32000, "message": message}
        balancer.lies = first(1, "eth_sendRawTransaction")
        turns = iter(range(8))
        balancer.server = lambda: Server(pool=next(turns, None) is None)
        async with background(sender.send(payment(to))) as sending:
            await until(lambda: anvil.request("evm_mine") and sending.done())
            assert (await sending).ok
        anvil.request("evm_mine")
        assert sender.journal.pending() == []
    assert balance(anvil, to) == 1
