"""What a worker concludes of a commitment it did not see mined, when the endpoint's servers disagree. Real chain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from balancer import balanced, first
from house import House, some_hash

from muster.chain.anvil import Anvil
from muster.chain.client import Chain
from muster.chain.contracts import runs
from muster.errors import ConfigError, UnreachableError
from muster.hashes import hash_bytes
from muster.settings import Settings
from worker.decisions import Entry
from worker.delivery import Courier
from worker.journal import WorkJournal
from worker.workplace import Workplace

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def house(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> House:
    folder = tmp_path_factory.mktemp("delivery")
    house = asyncio.run(House.build(folder, deployment.settings, seed="delivery", workers=("w1", "w2")))
    asyncio.run(house.publish(0))
    return house


@asynccontextmanager
async def workplace(house: House, worker: str, url: str, folder: Path) -> AsyncIterator[Workplace]:
    """A worker's place of work, with the chain seen through the endpoint at `url`."""
    settings = house.settings.model_copy(update={"rpc_url": url})
    journal = WorkJournal(folder / "work", worker)
    try:
        async with (
            await Chain.connect(settings, house.key(worker), journal_folder=folder / "transactions") as chain,
            house.client(NOWHERE, worker) as client,
        ):
            terms = await chain.terms(house.run)
            yield Workplace(Settings(run=house.run, chain=settings), chain, client, terms, journal)
    finally:
        journal.close()


async def saved(place: Workplace, root: str) -> Entry:
    """Work for index 0 in the journal."""
    anchor = (await place.chain.checkpoint(place.run, 0)).anchor
    return place.journal.save(0, 0, anchor, hash_bytes(root), b"finished work")


async def test_a_server_that_does_not_know_the_commitment_yet_accuses_nobody(
    house: House, anvil: Anvil, tmp_path: Path
) -> None:
    async with balanced(anvil) as balancer, workplace(house, "w1", balancer.url, tmp_path) as place:
        entry = await saved(place, some_hash("ours"))
        balancer.head = (await place.chain.head()).number
        await house.commit("w1", 0, some_hash("ours"))
        question = runs.is_committed(place.node, 0, entry.step, entry.root).encode().hex()
        balancer.lags = first(1, question)
        courier = Courier(place)
        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await courier.turn()
        assert place.journal.unsettled(1) == [entry]
        assert await courier.turn() == "no finished work to deliver"
        assert place.journal.unsettled(1) == []


async def test_another_root_at_our_index_is_another_machine_s(house: House, anvil: Anvil, tmp_path: Path) -> None:
    async with workplace(house, "w2", anvil.url, tmp_path) as place:
        await saved(place, some_hash("ours"))
        await house.commit("w2", 0, some_hash("theirs"))
        with pytest.raises(ConfigError, match="index 0 was committed with another root"):
            await Courier(place).turn()
