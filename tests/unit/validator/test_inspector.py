"""What an inspection comes to, and what an inspector needs to begin one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muster.chain.keys import Signer
from muster.contracts.court import Kind
from muster.errors import UnreachableError
from muster.settings.schema import ValidatorSettings
from muster.verification.checks import Finding
from muster.verification.evidence import verify_evidence
from muster.verification.pools import ACCUSE
from muster.verification.rules import CommittedWork
from testbed.samples import commitments as samples
from testbed.samples.validator import NODE, ROOT
from testbed.samples.verification_context import LEANING, STRAIGHT, Context, thinking_rows
from validator import inspector as inspector_room
from validator.inspector import Inspector, from_replay, from_static
from validator.records import PooledCommitment

ACCUSER_KEY = Signer.from_key(b"\x03" * 32)


def test_what_accuses_comes_before_what_rejects_and_then_the_order_of_the_checks() -> None:
    slight = Finding("sampling_mismatch", 1, 1.2, 1.0, accuse=False)
    forged = Finding("wrong_logprobs", 2, 9.0, 1.0)
    noisy = [Finding("activation_mismatch", p, m, 1.0) for p, m in ((3, 2.0), (4, 5.0))]
    inspection = from_replay([slight, None, forged, *noisy])
    assert inspection.finding == noisy[1]
    assert inspection.rows == (4, 3, 2, 1)
    assert inspection.replayed == 5
    assert from_replay([slight, None]).finding == slight
    assert from_replay([None, None]).finding is None
    assert from_static(Finding("wrong_draw", 3)).rows == (3,)
    assert from_static(Finding("wrong_root")).rows == ()


async def test_the_operator_is_warned_before_the_hash_chain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[int] = []

    class Log:
        def warning(self, _event: str, *, used: int, links: int, hint: str) -> None:
            assert (links, "another operator" in hint) == (10, True)
            warned.append(used)

    class Context:
        rules = samples.rules()
        chain = property(lambda self: self)

        async def master(self, step: int) -> bytes | None:
            return None

        async def block_hash(self, number: int) -> bytes:
            raise UnreachableError("no block")

    monkeypatch.setattr(inspector_room, "log", Log())
    policy = ValidatorSettings()
    inspector = Inspector(Context(), SimpleNamespace(), [bytes(32)] * 10, policy)  # type: ignore[arg-type]
    about = CommittedWork(1, 3, NODE, 5, ROOT, hour=5, block=10)
    for link in (6, 7, 8, 9):
        with pytest.raises(UnreachableError, match="no block"):
            await inspector.inspect(about, link, suspect=False, missing_counts=False)
    assert warned == [8], "once"
    with pytest.raises(UnreachableError, match="all 10 links of this") as caught:
        await inspector.inspect(about, 10, suspect=False, missing_counts=False)
    assert "--operator" in caught.value.hint


async def test_what_no_row_shows_a_pool_of_commitments_shows_and_its_evidence_holds() -> None:
    """Each row is far below what rejects a row. The seventh commitment is not used, the twelfth accuses its node."""
    context = Context(sums=LEANING)
    inspector = Inspector(context, ACCUSER_KEY, [bytes(32)] * 64, ValidatorSettings())  # type: ignore[arg-type]
    known: list[PooledCommitment] = []
    for index in range(12):
        work = context.commit(thinking_rows(index), index)
        found = await inspector.inspect(work, index, suspect=False, missing_counts=True, neighbours=known)
        assert found.pooled is not None
        known = [PooledCommitment(work, found.pooled), *known]
        assert (found.finding is not None, found.guilty) == (index >= 6, index == 11)
    verdict, evidence = inspector.conclude(work, found, 11)
    assert (verdict.accepted, verdict.reason, verdict.threshold) == (False, "sampling_mismatch", ACCUSE)
    assert evidence is not None
    assert (await verify_evidence(evidence, Kind.SAMPLING_MISMATCH, work, context)).guilty

    # Where a file of the pool cannot be had the commitment is not used, and accuses nobody yet.
    context.uploads.pop(4)
    found = await inspector.inspect(work, 11, suspect=False, missing_counts=True, neighbours=known[1:])
    assert (found.finding is not None, found.guilty, found.pool) == (True, False, ())
    # Where a row is rejected by itself, that row is named.
    context.findings = lambda _step, rows: (
        [Finding("wrong_logprobs", rows[0].position, 13.0, 12.0, accuse=False)] + [None] * (len(rows) - 1)
    )
    found = await inspector.inspect(work, 11, suspect=False, missing_counts=True, neighbours=known[1:])
    assert found.finding is not None
    assert (found.finding.reason, found.finding.position in found.rows, found.pool) == ("wrong_logprobs", True, ())


async def test_honest_commitments_stay_accepted_however_many_there_are() -> None:
    context = Context(sums=STRAIGHT)
    inspector = Inspector(context, ACCUSER_KEY, [bytes(32)] * 64, ValidatorSettings())  # type: ignore[arg-type]
    known: list[PooledCommitment] = []
    for index in range(16):
        work = context.commit(thinking_rows(index), index)
        found = await inspector.inspect(work, index, suspect=False, missing_counts=True, neighbours=known)
        assert found.finding is None
        assert found.pooled is not None
        known = [PooledCommitment(work, found.pooled), *known]
