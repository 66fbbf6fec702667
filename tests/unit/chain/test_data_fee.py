"""On an OP chain a transaction's data is paid for as well, and counted where gas is said."""

from __future__ import annotations

from typing import Any, cast

import pytest

from muster.chain.connection import Web3
from muster.chain.gas import COMMITMENT_GAS
from muster.chain.provider import RpcError

REVERTED = RpcError("eth_call", {"code": 3, "message": "execution reverted", "data": "0x"})
FAILED = RpcError("eth_gasPrice", {"code": -32603, "message": "internal error"})


class Endpoint:
    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []

    async def answers(self, requests: list[Any]) -> list[Any]:
        self.asked = requests
        return self._answers


@pytest.mark.parametrize(
    ("fee", "price"),
    [
        ("0x", 10),  # no contract
        ("0x" + f"{0:064x}", 10),
        ("0x" + f"{7 * COMMITMENT_GAS:064x}", 17),
        ("0x" + f"{7 * COMMITMENT_GAS + 1:064x}", 17),
        (REVERTED, 10),  # another contract
    ],
)
async def test_price_of_gas_has_its_part_of_the_data_fee(fee: Any, price: int) -> None:
    endpoint = Endpoint("0xa", fee)
    assert await Web3(cast(Any, endpoint)).gas_price() == price
    assert endpoint.asked[1][1][0]["data"].startswith("0xf1c7a58b")


async def test_price_that_is_an_error_is_one() -> None:
    with pytest.raises(RpcError, match="internal error"):
        await Web3(cast(Any, Endpoint(FAILED, "0x"))).gas_price()
