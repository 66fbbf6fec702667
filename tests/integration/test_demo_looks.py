"""A demo in which one validator invents the numbers of its looks: it is found, counts no more and earns nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.chain.client import Chain
from muster.chain.keys import load_raw_key
from muster.clients.looks import LooksReader
from muster.clients.orchestrator import OrchestratorClient
from muster.constants import CHAIN_ANVIL
from muster.contracts import registry, token, wages
from muster.contracts.runs import WorkCommitted
from muster.contracts.wages import Claimed, Posted
from muster.protocol.looks import settles_at
from muster.protocol.messages import LookList
from muster.settings.sources import load_settings
from muster.swarm.launch import operator_of
from testbed.runs.swarms import demo, processes_of

DEMO_SECONDS = 1500
HONEST = ("validator-1", "validator-2", "validator-3")
RUN = 1


def address(folder: Path, name: str) -> str:
    return str(load_raw_key(folder / "keys" / name, CHAIN_ANVIL).address)


async def lists_of(chain: Chain, url: str) -> list[LookList]:
    """Return the lists of all hours with work, as anybody reads them."""
    hours = sorted({one.hour for one in await chain.all_events(WorkCommitted)})
    async with OrchestratorClient.on_chain(url, chain) as client:
        found = [await LooksReader(chain, client, RUN).list(hour) for hour in hours]
    assert None not in found, "each hour has its list"
    return [one for one in found if one is not None]


async def who_looked_was_paid(chain: Chain, folder: Path, lists: list[LookList]) -> None:
    """Every counted look was paid, to the operators of those that looked, once it counted."""
    totals = {one.validator: one.total for one in lists[-1].totals}
    counted = [one for shown in lists for one in shown.looks if one.counted]
    claimed = await chain.all_events(Claimed)
    for name in HONEST:
        validator, operator = address(folder, name), address(folder, operator_of(name))
        assert totals[validator] == sum(one.counted for one in counted if one.validator == validator) > 0
        assert totals[validator] == sum(one.amount for one in claimed if one.validator == validator)
        assert await chain.call(token.balance_of(operator)) == totals[validator]
    pot = await chain.call(wages.pot(RUN))
    assert pot.posted == pot.claimed == sum(totals.values())
    posts = await chain.all_events(Posted)
    assert [one.sum for one in posts] == sorted(one.sum for one in posts)
    assert (await chain.block(posts[0].at.block)).timestamp >= settles_at(lists[0].hour)


async def lazy_was_found_and_earned_nothing(chain: Chain, folder: Path, lists: list[LookList]) -> None:
    """Rows of two operators' nodes show it. No look of anybody else was called false."""
    lazy = address(folder, "lazy")
    false = [one for shown in lists for one in shown.checks if one.outcome == "false"]
    assert {one.validator for one in false} == {lazy}
    nodes = await chain.call_all([registry.node(node) for node in {one.node for one in false}])
    assert len({one.operator for one in nodes}) == 2
    looks = [one for shown in lists for one in shown.looks if one.validator == lazy]
    assert looks
    assert {(one.accepted, one.counted) for one in looks} == {(True, 0)}
    assert "false" in {one.why for one in looks}
    (total,) = [one for one in lists[-1].totals if one.validator == lazy]
    assert total.total == 0
    assert total.barred_until > settles_at(lists[-1].hour)
    assert await chain.call(token.balance_of(address(folder, operator_of("lazy")))) == 0


@pytest.mark.slow
@pytest.mark.timeout(DEMO_SECONDS + 200)
async def test_who_invents_looks_is_found_and_who_looks_is_paid(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    with demo(tmp_path, "--scenario", "lazy", "--json", "--stay") as process:
        printed = tmp_path / "out"
        process.wait_until(lambda: printed.read_text().endswith("}\n"), "the summary is printed", DEMO_SECONDS)
        summary, settings = process.document, load_settings(folder / "lazy" / "muster.toml")
        async with await Chain.connect(settings.chain) as chain:
            lists = await lists_of(chain, settings.orchestrator.url)
            await who_looked_was_paid(chain, folder, lists)
            await lazy_was_found_and_earned_nothing(chain, folder, lists)
            assert (await chain.solvency()).solvent
    rows = {row["name"]: row for row in summary["looking"]}
    assert {name: (row["earned"] > 0, row["barred"], row["false"] > 0) for name, row in rows.items()} == {
        **dict.fromkeys(HONEST, (True, False, False)),
        "lazy": (False, True, True),
    }
    assert all(node["rejected"] == {} for node in summary["nodes"] if node["role"] == "worker")
    assert processes_of(tmp_path) == []
