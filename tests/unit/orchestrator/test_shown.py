"""What the trainer shows is taken as it signed it: one list an hour in rising order, masters that the terms name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.documents import newest_sums
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import keccak
from muster.protocol.looks import settles_at
from muster.protocol.messages import LookList, RowCheck, ShownMaster, SignedText, ValidatorTotal
from muster.protocol.receipts import sign_text
from orchestrator.log import Log
from orchestrator.shown import ShownDocuments
from testbed.samples.messages import HASH, HERE, KEY, OTHER
from testbed.samples.terms import keys_of, terms_of

HOUR = 500_000
MASTERS = [keccak(b"second"), b""]
MASTERS[1] = keccak(MASTERS[0])
"""Of epochs 2 and 1."""
TERMS = terms_of(grade_tip=keccak(MASTERS[1]), grade_epochs=2, grade_epoch_steps=10)


@pytest.fixture
def documents(database: Database, tmp_path: Path) -> Log:
    queries = Queries(database, 1, TERMS, keys_of(KEY.address), groups_wanted=16)
    queries.chain = ChainState(now=settles_at(HOUR + 2))
    documents = Log(HERE, database, queries, storage_url=f"file:{tmp_path}")
    ShownDocuments(queries, database, documents, storage_url=f"file:{tmp_path}")
    return documents


def looks(hour: int, total: int = 0, outcomes: tuple[Any, ...] = (), signer: Any = KEY) -> SignedText:
    about = {"validator": OTHER.address, "node": OTHER.address, "index": 0, "root": HASH, "position": 3}
    listed = LookList(
        run=1,
        hour=hour,
        looks=[],
        checks=[RowCheck(**about, outcome=outcome) for outcome in outcomes],
        totals=[ValidatorTotal(validator=OTHER.address, total=total, barred_until=hour)],
    )
    return sign_text(signer, HERE, "looks", listed)


async def text_of(documents: Log, database: Database, kind: str, key: str | None) -> str | None:
    found = await database.read(lambda connection: documents.latest(connection, kind, key))
    return None if found is None else found.text


async def test_hours_rise_and_each_has_one_list(documents: Log, database: Database) -> None:
    assert await documents.take("looks", looks(HOUR, 5, ("true", "false", "cannot")))
    assert not await documents.take("looks", looks(HOUR, 5, ("true", "false", "cannot")))
    for other in (looks(HOUR, 6), looks(HOUR - 1, 5)):
        with pytest.raises(RefusedError, match="there is another list of hour") as refused:
            await documents.take("looks", other)
        assert refused.value.status == 409
    latest = looks(HOUR + 2, 7, ("true",))
    assert await documents.take("looks", latest)
    for key in (None, str(HOUR + 2)):
        assert await text_of(documents, database, "looks", key) == latest.to_bytes().decode()
    assert await text_of(documents, database, "looks", str(HOUR + 1)) is None
    assert await database.read(newest_sums) == {
        OTHER.address: {"total": 7, "barred_until": HOUR + 2, "checked": 4, "false": 1}
    }


async def test_no_list_is_taken_before_its_looks_count(documents: Log) -> None:
    """Hours rise, so one of the last hour that there can be would be the last list."""
    with pytest.raises(RefusedError, match="do not count yet") as refused:
        await documents.take("looks", looks(HOUR + 3))
    assert refused.value.status == 425
    assert await documents.take("looks", looks(HOUR + 2))


MADE = looks(HOUR)


@pytest.mark.parametrize(
    ("listed", "status", "why"),
    [
        (looks(HOUR, signer=OTHER), 403, f"the list is signed by {OTHER.address}, not by {KEY.address}"),
        (MADE.model_copy(update={"text": looks(HOUR, 6).text}), 403, "the list is signed by 0x"),
        (MADE.model_copy(update={"kind": "report"}), 403, "the document is signed as a report, not as a looks"),
        (MADE.model_copy(update={"run": 2}), 404, "this orchestrator serves run 1, not 2"),
        (
            sign_message(KEY, HERE, MADE.model_copy(update={"text": MADE.text.replace('"run":1', '"run":2')})),
            403,
            "the signature is for another run",
        ),
        (sign_message(KEY, HERE, MADE.model_copy(update={"text": "{}"})), 403, "the signed text does not parse"),
    ],
    ids=["another's", "another text", "another kind", "another run", "another run's text", "no list"],
)
async def test_a_list_that_the_trainer_did_not_sign_is_refused(
    documents: Log, listed: SignedText, status: int, why: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{why}") as refused:
        await documents.take("looks", listed)
    assert refused.value.status == status


async def test_a_master_is_taken_that_the_terms_name(documents: Log, database: Database) -> None:
    second, first = (
        sign_text(KEY, HERE, "master", ShownMaster(run=1, epoch=epoch, master="0x" + MASTERS[0].hex()))
        for epoch in (2, 1)
    )
    assert await documents.take("master", second)
    assert not await documents.take("master", second)
    with pytest.raises(RefusedError, match="this is not the master of epoch 1") as refused:
        await documents.take("master", first)
    assert refused.value.status == 403
    assert await text_of(documents, database, "master", "2") == second.to_bytes().decode()
