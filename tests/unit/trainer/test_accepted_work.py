"""Work that is falsely reported as accepted: the trainer never uses it, and reports it as refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muster.chain.keys import Signer
from muster.contracts.registry import Node, Role, Status
from muster.errors import ChainError, MusterError, NotFoundError, RefusedError, UnreachableError
from muster.protocol.eip712 import sign_message
from muster.protocol.messages import AcceptedCommitment, Verdict
from testbed.samples.commitments import WHERE
from testbed.samples.messages import verdict_of
from testbed.samples.trainer import FORGED, RUN, STEP, Chain, Orchestrator, accepted_work_of
from testbed.samples.trainer import NODE as WORKER


async def test_unaccepted_file_is_refused_unread_until_its_step_is_past() -> None:
    client = Orchestrator()
    accepted_work = accepted_work_of(Chain(), client)
    looked = await accepted_work.poll(0, ())
    assert (looked.fresh, looked.refused) == (0, (FORGED,))
    assert (accepted_work.files, accepted_work.refused, client.fetched) == ([], [FORGED], [])
    assert (await accepted_work.poll(0, ())).refused == ()
    accepted_work.forget((), oldest_step=STEP)
    assert accepted_work.refused == [FORGED]
    accepted_work.forget((), oldest_step=STEP + 1)
    assert accepted_work.refused == []


async def test_silence_is_no_refusal() -> None:
    client = Orchestrator()
    accepted_work, client.silent = accepted_work_of(Chain(), client), True
    with pytest.raises(UnreachableError):
        await accepted_work.poll(0, ())
    assert accepted_work.refused == []


VALIDATOR = Signer.from_key(b"\x05" * 32)


def signed(validator: str = VALIDATOR.address) -> Verdict:
    """One validator's acceptance of the file. Its signature covers the address bytes, in any spelling."""
    unsigned = verdict_of(step=STEP, node=WORKER, root="0x" + "01" * 32, file_hash=FORGED, validator=validator)
    return sign_message(VALIDATOR, WHERE, unsigned)


class Accepting(Orchestrator):
    """Lists a file with the words of validators."""

    domain = WHERE

    def __init__(self, *verdicts: Verdict) -> None:
        super().__init__()
        self.verdicts = verdicts

    async def accepted(self, run: int, min_step: int) -> list[AcceptedCommitment]:
        [work] = await super().accepted(run, min_step)
        return [work.model_copy(update={"verdicts": list(self.verdicts)})]


class Seen(Chain):
    """A chain node's view of the one validator and of the commitment."""

    def __init__(self, status: Status, *, committed: bool = True) -> None:
        self.status = status
        self.committed = committed

    async def nodes(self, addresses: list[str]) -> list[Node]:
        [worker, *others] = await super().nodes(addresses)
        role = Role.NONE if self.status == Status.NONE else Role.VALIDATOR
        validator = Node(VALIDATOR.address, RUN, role, 0, self.status, 0, 1, 0, bytes(32))
        return [worker, *(validator for _ in others)]

    async def call(self, call: object) -> bool:
        return self.committed


@pytest.mark.parametrize(
    "trouble",
    [
        RefusedError("down", status=500, title="Internal"),
        UnreachableError("no answer"),
        ChainError("the node is behind"),
    ],
    ids=["refused", "unreachable", "chain"],
)
async def test_trouble_of_others_refuses_no_file(trouble: MusterError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Chain, addresses: list[str]) -> list[Node]:
        raise trouble

    monkeypatch.setattr(Chain, "nodes", fail)
    accepted_work = accepted_work_of(Chain(), Accepting(signed()))
    looked = await accepted_work.poll(0, ())
    assert (looked.fresh, looked.refused, accepted_work.refused) == (0, (), [])


async def test_one_validator_in_two_spellings_is_one() -> None:
    address = VALIDATOR.address
    assert address not in (address.lower(), "0x" + address[2:].upper())
    client = Accepting(signed(), signed(address.lower()), signed("0x" + address[2:].upper()))
    looked = await accepted_work_of(Seen(Status.ACTIVE), client, required=2).poll(0, ())
    assert (looked.refused, client.fetched) == ((FORGED,), [])


@pytest.mark.parametrize("status", [Status.ACTIVE, Status.RETIRED])
async def test_the_word_of_a_validator_counts_while_its_stake_is_there(status: Status) -> None:
    client = Accepting(signed())
    looked = await accepted_work_of(Seen(status), client).poll(0, ())
    assert client.fetched == [FORGED]
    assert looked.refused == (FORGED,), "what came of it is no file of rollouts"


@pytest.mark.parametrize(
    "chain",
    [Seen(Status.NONE), Seen(Status.JAILED), Seen(Status.WITHDRAWN), Seen(Status.ACTIVE, committed=False)],
    ids=["unknown", "convicted", "gone", "uncommitted"],
)
async def test_work_missing_on_chain_is_rechecked_then_refused(chain: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted_work = accepted_work_of(chain, Accepting(signed()))
    for _ in range(2):
        assert (await accepted_work.poll(0, ())).refused == ()
    monkeypatch.setattr("trainer.accepted_work.GONE_SECONDS", 0.0)
    assert (await accepted_work.poll(0, ())).refused == (FORGED,)


async def test_a_chain_node_that_lags_costs_no_file() -> None:
    chain, client = Seen(Status.NONE, committed=False), Accepting(signed())
    accepted_work = accepted_work_of(chain, client)
    assert (await accepted_work.poll(0, ())).refused == ()
    chain.status = Status.ACTIVE
    assert (await accepted_work.poll(0, ())).refused == ()
    assert client.fetched == []
    chain.committed = True
    await accepted_work.poll(0, ())
    assert client.fetched == [FORGED]


async def test_a_file_that_storage_lost_is_refused_after_a_while_and_until_then_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Demand counts it: enough of them would keep all new work away."""
    client = Orchestrator()
    accepted_work = accepted_work_of(Chain(), client)

    async def missing(name: str) -> bytes:
        raise NotFoundError("no such file", status=404, title="Not found")

    async def fine(work: AcceptedCommitment) -> None:
        return None

    async def busy(name: str) -> bytes:
        raise RefusedError("later", status=503, title="Busy")

    clock = [0.0]
    monkeypatch.setattr("trainer.accepted_work.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(accepted_work, "check_claim", fine)
    for answer, now in ((missing, 0), (missing, 299), (busy, 300), (missing, 301), (missing, 600)):
        client.get_file, clock[0] = answer, now
        assert (await accepted_work.poll(0, ())).refused == (), now
    clock[0] = 602  # not found at every look since 301
    assert (await accepted_work.poll(0, ())).refused == (FORGED,)


async def test_who_took_no_place_decides_nothing_now() -> None:
    client = Accepting(signed())
    accepted_work = accepted_work_of(Seen(Status.ACTIVE), client, places=False)
    assert (await accepted_work.poll(0, ())).refused == (), "the place may be seen later"
    assert client.fetched == []
