"""Refused uploads: every rule of orchestrator.uploads, at its edge."""

from __future__ import annotations

import pytest

from muster.errors import RefusedError
from muster.ledger.queries import NodeRecord
from muster.ledger.tallies import CommitmentState
from muster.protocol.messages import SignedRequest
from orchestrator.auth import Caller
from orchestrator.uploads import AHEAD, MAX_ROOTS, refuse_upload

NODE = "0x" + "ab" * 20
ROOT, OTHER = "0x" + "01" * 32, "0x" + "02" * 32
REQUEST = SignedRequest.model_construct()


def caller(role: str = "worker", status: str = "active") -> Caller:
    return Caller(NODE, REQUEST, NodeRecord(NODE, NODE, role, status), False)


def commitment(root: str) -> CommitmentState:
    return CommitmentState(NODE, 2, root, 0, 0, "pending", None, 0, jailed=False)


def refusal(
    who: Caller, *, index: int = 5, committed: CommitmentState | None = None, roots: int = 0
) -> tuple[int, str] | None:
    found = refuse_upload(who, index=index, root=ROOT, committed=committed, next_index=5, roots=roots)
    assert found is None or isinstance(found, RefusedError)
    return None if found is None else (found.status, str(found))


def test_a_worker_uploads_for_its_next_indices():
    assert refusal(caller(), index=5) is None
    assert refusal(caller(), index=5 + AHEAD - 1) is None
    for index in (4, 5 + AHEAD):
        assert refusal(caller(), index=index) == (409, f"index {index} is not one of the node's next 8, from 5 on")


def test_the_number_of_roots_is_bounded():
    assert refusal(caller(), roots=MAX_ROOTS - 1) is None
    assert refusal(caller(), roots=MAX_ROOTS) == (409, "16 roots are uploaded for index 5 already")


def test_only_workers_upload():
    assert refusal(caller(role="validator")) == (403, f"{NODE} is no worker of this run")
    assert refusal(Caller(NODE, REQUEST, None, True)) == (403, f"{NODE} is no worker of this run")


@pytest.mark.parametrize("status", ["retired", "jailed", "withdrawn"])
def test_departed_node_uploads_only_what_it_committed(status):
    assert refusal(caller(status=status)) == (403, f"{NODE} is {status} and cannot commit")
    assert refusal(caller(status=status), index=2, committed=commitment(ROOT)) is None


def test_a_committed_index_takes_its_own_root_only():
    assert refusal(caller(), index=2, committed=commitment(ROOT)) is None
    assert refusal(caller(), index=2, committed=commitment(OTHER)) == (
        409,
        f"index 2 is committed to root {OTHER}",
    )
