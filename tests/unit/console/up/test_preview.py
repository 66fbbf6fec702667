"""The exact preview before a stake is locked."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from muster.chain.gas import GasBalance
from muster.clients.transport import parse_answer
from muster.console.up.facts import UNKNOWN
from muster.console.up.preview import at_stake, earnings_sentence, fetch_earnings
from muster.console.up.steps import steps_left
from muster.constants import CHAIN_ANVIL, CHAIN_BASE_SEPOLIA, TOKEN
from muster.contracts.registry import Role
from muster.errors import MalformedError
from muster.protocol.announcements import DayEarnings
from muster.protocol.hashes import hex_hash
from muster.protocol.keys import ZERO_ADDRESS
from muster.runtime.units import Duration
from testbed.http import Reply, serving
from testbed.samples.joining import NODE, OPERATOR, PRICE, RUN_HASH, facts

CHAIN = SimpleNamespace(chain_id=CHAIN_ANVIL, addresses=SimpleNamespace(registry=ZERO_ADDRESS))


class Asked:
    """A session whose run's description names an explorer."""

    def __init__(self, explorer: str) -> None:
        self._explorer = explorer
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def orchestrator(self, _: object) -> Self:
        return self

    async def run_info(self, _: int) -> SimpleNamespace:
        return SimpleNamespace(explorer=self._explorer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


WINDOWS = (Duration(7 * 86_400), 24, 72)


def test_a_worker_s_preview() -> None:
    needed = facts()
    earned = DayEarnings(run=1, workers=5, low=10 * TOKEN, median=12 * TOKEN, high=14 * TOKEN)
    assert at_stake(needed, steps_left(needed), WINDOWS, earned) == {
        "run hash": hex_hash(RUN_HASH),
        "node": NODE,
        "operator": OPERATOR,
        "stake": "100 MUST; a conviction takes 50 MUST of it",
        "unbonding": "the stake comes back 7 days after you retire",
        "pay": (
            "0.05 MUST for 128 rollouts (class 0: 8, 12 tokens), 24 hours after their hour, 72 where it is not sealed"
        ),
        "a day": "5 active workers made 12 MUST each in the last day (the median); half of them 10 MUST to 14 MUST",
        "cover": "800 commitments may wait for their pay at a time",
        "validators": "4 active; their majority decides cases",
        "gas": (
            "0.02 ETH to the node's key, for 2 days of 255 commitments an hour (--gas-days); as much again while "
            "muster up is open"
        ),
        "funds": "10,000 MUST from the faucet, ether from the local chain",
    }


def test_a_validator_s_preview_on_a_public_chain() -> None:
    needed = facts(Role.VALIDATOR, gas=GasBalance(NODE, CHAIN_BASE_SEPOLIA, 0, PRICE))
    unknown = replace(needed, joining=replace(needed.joining, node=UNKNOWN))
    assert at_stake(unknown, steps_left(unknown), WINDOWS, None) == {
        "run hash": hex_hash(RUN_HASH),
        "node": "made when you go on",
        "operator": OPERATOR,
        "stake": "200 MUST; a conviction takes 100 MUST of it",
        "unbonding": "the stake comes back 7 days after you retire",
        "earns": (
            "0.003125 MUST for each look that counts, twice that for a node's first 4 commitments: with 5 validators "
            "and 2 looks at a commitment more than it costs from 8.6 commitments an hour on; "
            "10 MUST for each worker whose conviction it brings about (20 MUST for a validator), "
            "0.25 MUST to 3.666667 MUST for each case that it judges with the majority"
        ),
        "can lose": (
            "100 MUST of the stake by a conviction; 1 MUST by a case that it opens and loses; "
            "10 MUST by a vote that most of the jury does not share, and as much of the stake for each day on which it "
            "shows no vote, with its seat after the third in a row"
        ),
        "puts down": (
            "1 MUST a case, 10 MUST a vote; 110 MUST go to the free balance for that; "
            "muster wallet withdraw takes out what is left"
        ),
        "admits": "anyone who locks a stake",
        "validators": "4 active; their majority decides cases",
        "gas": (
            "0.02 ETH to the node's key, for 2 days of 2 seals or votes an hour (--gas-days); as much again while "
            "muster up is open"
        ),
        "funds": "10,000 MUST from the faucet, 0.0218 ETH that you send to the operator",
    }


@pytest.mark.parametrize(
    ("workers", "amounts", "sentence"),
    [
        (0, (0, 0, 0), "what workers earn is not known yet"),
        (1, (1, 1, 1), "1 active worker made 1 MUST each in the last day (the median); half of them 1 MUST to 1 MUST"),
        (2, (3, 2, 4), "what workers earn is not known: the explorer's numbers cannot be"),
        (2, (-1, 2, 4), "what workers earn is not known: the explorer's numbers cannot be"),
        (2, (1, 2, 10**12), "what workers earn is not known: the explorer's numbers cannot be"),
    ],
)
def test_worker_earnings_are_one_sentence(workers: int, amounts: tuple[int, int, int], sentence: str) -> None:
    low, median, high = (amount * TOKEN for amount in amounts)
    assert earnings_sentence(DayEarnings(run=1, workers=workers, low=low, median=median, high=high)) == sentence
    assert earnings_sentence(None) == "what workers earn is not known yet"


@pytest.mark.parametrize("named", ["", "http://[", "http://a b", "ftp://127.0.0.1", "http://xn--" + "a" * 180])
async def test_earnings_are_not_known_without_an_explorer(named: str) -> None:
    session = Asked(named)
    assert await fetch_earnings(cast(Any, session), cast(Any, CHAIN), 1) is None
    assert [line.partition(":")[0] for line in session.said] == ["what workers earn is not known"]


async def test_earnings_are_those_of_the_explorer_that_the_run_names(monkeypatch: pytest.MonkeyPatch) -> None:
    earned = DayEarnings(run=1, workers=5, low=10 * TOKEN, median=12 * TOKEN, high=14 * TOKEN)
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        asked.append(request.path)
        return Reply(earned.model_dump_json().encode())

    with serving(answer) as url:
        session = Asked(url)
        assert await fetch_earnings(cast(Any, session), cast(Any, CHAIN), 1) == earned
    assert (asked, session.said) == (["/v1/runs/1/earnings"], [])
    monkeypatch.setattr("muster.console.up.preview.EXPLORER_SECONDS", 0.1)
    assert await fetch_earnings(cast(Any, session), cast(Any, CHAIN), 1) is None
    assert session.said[0].startswith(f"what workers earn is not known: GET {url}/v1/runs/1/earnings: ")


def test_an_estimate_is_said_to_be_one() -> None:
    early = DayEarnings(run=1, workers=2, low=TOKEN, median=2 * TOKEN, high=3 * TOKEN, estimated=True)
    assert earnings_sentence(early) == (
        "an estimate by the pace of the last minutes: 2 active workers would make 2 MUST each (the median); "
        "half of them 1 MUST to 3 MUST"
    )


@pytest.mark.parametrize("workers", [-1, 1 << 32, 10**4_000], ids=["negative", "large", "very large"])
def test_a_number_of_workers_that_cannot_be_is_no_answer(workers: int) -> None:
    """Four thousand digits would push the stake out of sight."""
    said = f'{{"run": 1, "workers": {workers}, "low": 1, "median": 1, "high": 1}}'
    with pytest.raises(MalformedError, match="workers"):
        parse_answer(DayEarnings, said.encode())
