"""What providers and nodes answer, and what it means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.chain.provider import ErrorKind, RpcError
from muster.chain.sender import TxSender

ANSWERS: list[tuple[str, int, str, ErrorKind]] = [
    # Log queries
    ("Alchemy", -32602, "Log response size exceeded. You can make requests with up to a 2K block range", "wide"),
    ("Alchemy", -32600, "You can make eth_getLogs requests with up to a 500 block range.", "wide"),
    ("Infura", -32005, "query returned more than 10000 results. Try with this block range [0xBD, 0x102].", "wide"),
    ("Infura", -32602, "range 1000000 exceeds limit of 10000", "wide"),
    ("QuickNode", -32614, "eth_getLogs is limited to a 5 range", "wide"),
    ("Ankr", -32600, "block range is too wide", "wide"),
    ("Ankr", -32602, "maximum [from, to] blocks distance: 10000", "wide"),
    ("Chainstack", -32005, "Block range limit exceeded. See more details at the docs.", "wide"),
    ("dRPC", 35, "ranges over 10000 blocks are not supported on freetier", "wide"),
    ("Base", -32000, "block range too large", "wide"),
    ("Base", -32020, "backend response too large", "wide"),
    ("Coinbase", -32602, "please limit the query to at most 1000 blocks", "wide"),
    ("PublicNode", -32701, "exceed maximum block range: 50000", "wide"),
    ("reth", -32602, "query exceeds max results 20000, retry with the range 25766988-25775072", "wide"),
    ("Arbitrum", -32000, "logs matched by query exceeds limit of 10000", "wide"),
    # A server that lacks the block
    ("geth", -32000, "block range extends beyond current head block", "behind"),
    ("geth", -32000, "header not found", "behind"),
    ("geth", -32000, "unknown block", "behind"),
    ("reth", -32001, "block not found: 0x1c9c380", "behind"),
    ("Besu", -32000, "One of the blocks specified in filter (fromBlock, toBlock or …) cannot be found.", "behind"),
    ("Nethermind", -32001, "Block 30000000 not found", "behind"),
    ("Alchemy", -32602, "toBlock is greater than the latest block", "behind"),
    ("Avalanche", -32000, "requested to block 120 after last accepted block 110", "behind"),
    ("QuickNode", -32000, "the requested block is not yet available", "behind"),
    ("any", -32602, "invalid block range: end (120) > latest (110)", "behind"),
    ("any", -32000, "toBlock 120 is in the future", "behind"),
    ("any", -32000, "block 0x78 does not exist", "behind"),
    ("any", -32000, "end block 0x78 is not yet synced", "behind"),
    ("any", -32000, "could not find block 120", "behind"),
    ("any", -32000, "no such block", "behind"),
    ("any", -32602, "block height 120 exceeds the current height 110", "behind"),
    # Too many requests
    ("Alchemy", 429, "Your app has exceeded its compute units per second capacity. If you have retries", "busy"),
    ("Anvil", -32602, "BlockOutOfRangeError: block height is 230 but requested was 224", "busy"),
    ("Infura", -32005, "project ID request rate exceeded", "busy"),
    ("Infura", -32005, "daily request count exceeded, request rate limited", "busy"),
    ("Infura", -32005, "exceeded project rate limit", "busy"),
    ("QuickNode", -32007, "30/second request limit reached - reduce calls per second or upgrade", "busy"),
    ("QuickNode", -32012, "credits limited to 6000/sec", "busy"),
    ("Ankr", -32090, "Too many requests, reason: call rate limit exhausted, retry in 10s", "busy"),
    ("Chainstack", -32005, "You've exceeded the RPS limit available on the current plan.", "busy"),
    ("dRPC", 15, "Too many request, try again later", "busy"),
    ("Base", -32016, "over rate limit", "busy"),
    ("Optimism", -32000, "This request has been rate limited.", "busy"),
    ("any", -32005, "limit exceeded", "busy"),
    ("any", -32029, "slow down", "busy"),
    # Transactions: the endpoint has it
    ("geth", -32000, "already known", "known"),
    ("Nethermind", -32010, "AlreadyKnown", "known"),
    ("erigon", -32000, "ALREADY_EXISTS: already known", "known"),
    ("erigon", -32000, "INTERNAL_ERROR: existing tx with same hash", "known"),
    ("OpenEthereum", -32010, "Transaction with the same hash was already imported.", "known"),
    ("Besu", -32000, "Known transaction", "known"),
    ("any", -32000, "tx already in mempool", "known"),
    # Nonces, fees, funds
    ("geth", -32000, "nonce too low: next nonce 5, tx nonce 4", "nonce_used"),
    ("reth", -32003, "nonce too low: next nonce 5, tx nonce 4", "nonce_used"),
    ("Nethermind", -32010, "OldNonce, Current nonce: 5, nonce of rejected tx: 4", "nonce_used"),
    ("erigon", -32000, "INTERNAL_ERROR: nonce too low", "nonce_used"),
    ("OpenEthereum", -32010, "Transaction nonce is too low. Try incrementing the nonce.", "nonce_used"),
    ("geth", -32000, "replacement transaction underpriced", "taken"),
    ("erigon", -32000, "could not replace existing tx", "taken"),
    ("Nethermind", -32010, "ReplacementNotAllowed", "taken"),
    ("geth", -32000, "transaction underpriced: gas tip cap 0, minimum needed 1", "cheap"),
    ("geth", -32000, "max fee per gas less than block base fee: maxFeePerGas: 1, baseFee: 2", "cheap"),
    ("erigon", -32000, "tx.feeCap < block baseFee", "cheap"),
    ("Nethermind", -32010, "FeeTooLowToCompete", "cheap"),
    ("geth", -32000, "insufficient funds for gas * price + value: balance 0, tx cost 1", "unfunded"),
    ("Nethermind", -32010, "InsufficientFunds, Account balance: 0, cumulative cost: 1", "unfunded"),
    ("Besu", -32004, "Upfront cost exceeds account balance", "unfunded"),
    # Nothing about the transaction
    ("any", -32603, "Internal error", "unclear"),
    ("any", -32000, "Internal server error", "unclear"),
    ("Arbitrum", -32000, "sequencer pending tx pool full, please try again", "unclear"),
    ("Infura", -32005, "query timeout exceeded", "unclear"),
    ("geth", -32002, "request timed out", "unclear"),
    ("geth", -32000, "context deadline exceeded", "unclear"),
    ("dRPC", 30, "Request timeout on the free tier, please upgrade your tier to the paid one", "unclear"),
    ("Base", -32011, "no backend is currently healthy to serve traffic", "unclear"),
    ("any", 19, "Temporary failure", "unclear"),
    # Refusals
    ("geth", -32000, "txpool is full", "refused"),
    ("geth", -32000, "tx fee (1.20 ether) exceeds the configured cap (1.00 ether)", "refused"),
    ("geth", -32000, "transaction type not supported: unknown transaction type", "refused"),
    ("Besu", -32005, "Transaction gas limit exceeds block gas limit", "refused"),
    ("Nethermind", -32010, "GasLimitExceeded, Gas limit: 1, gas limit of rejected tx: 2", "refused"),
    ("any", -32601, "the method eth_foo does not exist/is not available", "refused"),
    # Reverts, whatever they say
    ("geth", -32000, "execution reverted: rate limit", "reverted"),
    ("any", 3, "nonce too low", "reverted"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "code", "message", "kind"), ANSWERS)
def test_error_of_provider_has_its_kind(source: str, code: int, message: str, kind: ErrorKind) -> None:
    assert RpcError("eth_call", {"code": code, "message": message}).kind == kind, source


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": -32602, "message": "invalid params", "data": {"payload": "range 90 is above 20"}}, "wide"),
        ({"code": -32000, "message": "busy", "data": "0x08c379a0"}, "reverted"),
        ("Too Many Requests", "busy"),
        ({"code": "429"}, "unclear"),
        ({}, "unclear"),
        ([], "unclear"),
    ],
)  # fmt: skip
def test_odd_errors_have_a_kind(error: Any, kind: ErrorKind) -> None:
    assert RpcError("eth_call", error).kind == kind


async def test_receipt_counts_beside_another_answer_that_is_an_error() -> None:
    failed = RpcError("eth_getTransactionByHash", {"code": -32000, "message": "internal error"})
    receipt = {
        "transactionHash": "0x" + "11" * 32,
        "blockNumber": "0x7",
        "status": "0x1",
        "gasUsed": "0x5208",
        "logs": [],
    }

    answers: list[Any] = ["0x1", receipt, failed]

    async def answer(_: object) -> list[Any]:
        return answers

    sender = SimpleNamespace(
        web3=SimpleNamespace(provider=SimpleNamespace(answers=answer)), signer=SimpleNamespace(address="0x")
    )
    sent = SimpleNamespace(hashes=(b"1",), gas=30_000, nonce=0)
    mined = await TxSender._look(cast(Any, sender), cast(Any, sent))  # noqa: SLF001
    assert (cast(Any, mined).block, cast(Any, mined).ok) == (7, True)
    for others in (["0x1", None, failed], [failed, None, None]):
        answers[:] = others
        with pytest.raises(RpcError, match="internal error"):
            await TxSender._look(cast(Any, sender), cast(Any, sent))  # noqa: SLF001
