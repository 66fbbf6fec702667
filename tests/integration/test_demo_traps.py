"""`muster swarm demo --scenario traps`: looking is paid, and who does not look earns nothing. Read from its chain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from eth_utils.address import to_checksum_address

from muster.chain.client import Chain
from muster.chain.keys import load_raw_key
from muster.constants import CHAIN_ANVIL
from muster.contracts import runs, token, traps
from muster.contracts.masters import MasterRevealed
from muster.contracts.runs import WorkCommitted
from muster.contracts.traps import LookPaid, TicketShown, TrapFound, Withdrawn
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import epoch_of
from muster.protocol.seals import closes_at
from muster.protocol.terms import Terms
from muster.protocol.traps import is_picked
from muster.settings.sources import load_settings
from muster.swarm.launch import operator_of
from testbed.runs.swarms import demo, processes_of

DEMO_SECONDS = 1500
HONEST = ("validator-1", "validator-2", "validator-3")
RUN = 1


@dataclass
class Story:
    """What is on the chain of a demo that has ended."""

    folder: Path
    chain: Chain
    terms: Terms

    def address(self, name: str) -> str:
        return str(load_raw_key(self.folder / "keys" / name, CHAIN_ANVIL).address)

    async def sender(self, transaction: bytes) -> str:
        found = await self.chain.web3.provider.request("eth_getTransactionByHash", hex_hash(transaction))
        return to_checksum_address(found["from"])

    async def masters_were_shown_in_time(self) -> dict[int, bytes]:
        """The trainer shows the first master, once the seals of its hours have closed; the owner shows the last one."""
        first, last = await self.chain.all_events(MasterRevealed)
        assert (first.epoch, last.epoch) == (1, 2)
        senders = [await self.sender(one.at.transaction) for one in (first, last)]
        assert senders == [self.address("trainer"), self.address("owner")]
        committed = await self.chain.all_events(WorkCommitted)
        hour = max(one.hour for one in committed if epoch_of(self.terms.trap_series, one.step) == 1)
        assert (await self.chain.block(first.at.block)).timestamp >= closes_at(hour)
        return {one.epoch: one.master for one in (first, last)}

    async def traps_are_what_the_lottery_picked(self, masters: dict[int, bytes]) -> set[tuple[str, int]]:
        """Every picked commitment has a ticket, and no other has."""
        picked = set()
        for one in await self.chain.all_events(WorkCommitted):
            master = masters[epoch_of(self.terms.trap_series, one.step)]
            given = {"entropy": (await self.chain.draw_source(one.node)).entropy, "node": one.node, "index": one.index}
            if is_picked(master=master, every=self.terms.trap_every, **given):
                picked.add((one.node, one.index))
        assert picked == {(one.node, one.index) for one in await self.chain.all_events(TicketShown)}
        return picked

    async def finders_were_paid(self, opened: set[tuple[str, int]]) -> None:
        """A prize goes by how many of the last 24 hours were sealed. No rejection was wrong, so no fine is kept."""
        found, paid = await self.chain.all_events(TrapFound), await self.chain.all_events(Withdrawn)
        assert found
        assert {(one.node, one.index) for one in found} <= opened
        assert {one.validator for one in found} <= {self.address(name) for name in HONEST}
        assert await self.chain.all_events(LookPaid) == [], "no trap lacked its ticket, no master was withheld"
        for name in HONEST:
            mine = [one.prize for one in found if one.validator == self.address(name)]
            account = await self.chain.call(traps.account(self.address(name)))
            assert set(mine) <= {self.terms.trap_prize * hours // 24 for hours in range(1, 25)}
            assert account.credit == account.paid == sum(mine)
            assert account.excused == (await self.chain.call(runs.sealer_of(self.address(name)))).rejected
            operator = await self.chain.call(token.balance_of(self.address(operator_of(name))))
            assert operator == sum(one.amount for one in paid if one.validator == self.address(name)) == sum(mine)

    async def lazy_vouched_for_all_and_earned_nothing(self) -> None:
        lazy = self.address("lazy")
        hours = {one.hour for one in await self.chain.all_events(WorkCommitted)}
        sealer = await self.chain.call(runs.sealer_of(lazy))
        assert sealer.rejected == 0
        assert any([await self.chain.call(runs.vouch_root(lazy, hour)) != bytes(32) for hour in hours])
        assert await self.chain.call(traps.account(lazy)) == traps.Account(0, 0, 0)
        assert await self.chain.call(token.balance_of(self.address(operator_of("lazy")))) == 0


@pytest.mark.slow
@pytest.mark.timeout(DEMO_SECONDS + 200)
async def test_looking_is_paid_and_a_lazy_validator_earns_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--scenario", "traps", "--json", "--stay") as process:
        printed = tmp_path / "out"
        process.wait_until(lambda: printed.read_text().endswith("}\n"), "the summary is printed", DEMO_SECONDS)
        summary, settings = process.document, load_settings(tmp_path / "swarm" / "lazy" / "muster.toml")
        async with await Chain.connect(settings.chain) as chain:
            story = Story(tmp_path / "swarm", chain, await chain.terms(RUN))
            opened = await story.traps_are_what_the_lottery_picked(await story.masters_were_shown_in_time())
            await story.finders_were_paid(opened)
            await story.lazy_vouched_for_all_and_earned_nothing()
            assert (await chain.solvency()).solvent
    assert [row["found"] > 0 for row in summary["looking"] if row["name"] == "lazy"] == [False]
    assert sum(row["credit"] for row in summary["looking"]) == sum(row["paid"] for row in summary["looking"]) > 0
    assert all(node["rejected"] == {} for node in summary["nodes"] if node["role"] == "worker")
    assert processes_of(tmp_path) == []
