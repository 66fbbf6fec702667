"""What the trainer shows is taken as it signed it: one list an hour in rising order, masters that the terms name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.errors import RefusedError
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import content_hash, keccak
from muster.protocol.looks import settles_at
from muster.protocol.messages import LookList, LookStatement, RowCheck, ShownLooks, ShownMaster, ValidatorTotal
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.run_facts import ChainState
from orchestrator.shown import ShownDocuments, hour_key, newest_sums
from testbed.samples.messages import HASH, HERE, KEY, NOTHING, OTHER
from testbed.samples.terms import keys_of, terms_of

HOUR = 500_000
MASTERS = [keccak(b"second"), b""]
MASTERS[1] = keccak(MASTERS[0])
"""Of epochs 2 and 1."""
TERMS = terms_of(grade_tip=keccak(MASTERS[1]), grade_epochs=2, grade_epoch_steps=10)


@pytest.fixture
def shown(database: Database, tmp_path: Path) -> ShownDocuments:
    queries = Queries(database, 1, TERMS, keys_of(KEY.address), batch_groups=8, demand_batches=2)
    queries.chain = ChainState(now=settles_at(HOUR + 2))
    return ShownDocuments(HERE, queries, database, storage_url=f"file:{tmp_path}")


def looks(hour: int, total: int = 0, outcomes: tuple[Any, ...] = (), signer: Any = KEY, **changes: Any) -> ShownLooks:
    about = {"validator": OTHER.address, "node": OTHER.address, "index": 0, "root": HASH, "position": 3}
    listed = LookList(
        run=1,
        hour=hour,
        looks=[],
        checks=[RowCheck(**about, outcome=outcome) for outcome in outcomes],
        totals=[ValidatorTotal(validator=OTHER.address, total=total, barred_until=hour)],
    )
    text = listed.to_bytes().decode()
    said = {"run": 1, "hour": hour, "text_hash": content_hash(text.encode()), "signature": UNSIGNED, **changes}
    return ShownLooks(statement=sign_message(signer, HERE, LookStatement(**said)), text=text)


async def test_hours_rise_and_each_has_one_list(shown: ShownDocuments, database: Database) -> None:
    assert await shown.take_looks(looks(HOUR, 5, ("true", "false", "cannot")))
    assert not await shown.take_looks(looks(HOUR, 5, ("true", "false", "cannot")))
    for other in (looks(HOUR, 6), looks(HOUR - 1, 5)):
        with pytest.raises(RefusedError, match="there is another list of hour") as refused:
            await shown.take_looks(other)
        assert refused.value.status == 409
    assert await shown.take_looks(looks(HOUR + 2, 7, ("true",)))
    assert await shown.name_of("looks", None) == await shown.name_of("looks", hour_key(HOUR + 2))
    assert await shown.name_of("looks", hour_key(HOUR + 1)) is None
    assert await database.read(newest_sums) == {
        OTHER.address: {"total": 7, "barred_until": HOUR + 2, "checked": 4, "false": 1}
    }


async def test_no_list_is_taken_before_its_looks_count(shown: ShownDocuments) -> None:
    """Hours rise, so one of the last hour that there can be would be the last list."""
    with pytest.raises(RefusedError, match="do not count yet") as refused:
        await shown.take_looks(looks(HOUR + 3))
    assert refused.value.status == 425
    assert await shown.take_looks(looks(HOUR + 2))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"signer": OTHER}, "which is not the run's trainer"),
        ({"text_hash": NOTHING}, "the signature is for another text"),
        ({"hour": HOUR + 1}, "the signature is for another hour or run"),
    ],
)
async def test_a_list_that_the_trainer_did_not_sign_is_refused(shown: ShownDocuments, changes: dict, why: str) -> None:
    made = looks(HOUR, **{name: value for name, value in changes.items() if name == "signer"})
    said = {name: value for name, value in changes.items() if name != "signer"}
    statement = sign_message(changes.get("signer", KEY), HERE, made.statement.model_copy(update=said))
    with pytest.raises(RefusedError, match=why) as refused:
        await shown.take_looks(made.model_copy(update={"statement": statement}))
    assert refused.value.status == 403


async def test_a_master_is_taken_that_the_terms_name(shown: ShownDocuments) -> None:
    second = ShownMaster(epoch=2, master="0x" + MASTERS[0].hex())
    assert await shown.take_master(second)
    assert not await shown.take_master(second)
    with pytest.raises(RefusedError, match="this is not the master of epoch 1"):
        await shown.take_master(ShownMaster(epoch=1, master="0x" + MASTERS[0].hex()))
    name = await shown.name_of("masters", "2")
    assert name is not None
    assert ShownMaster.model_validate_json(await shown.stores["masters"].get(name)) == second
