"""What the load of benchmarks/service.py needs: signatures at little cost, and events of contracts that did nothing."""

from __future__ import annotations

import pytest

from muster.chain.keys import Signer
from muster.contracts.codec import decode_log
from muster.contracts.runs import WorkCommitted
from muster.protocol.eip712 import recover_signer, sign_message
from testbed.chain.anvil import Anvil
from testbed.chain.emitter import emission, let_emit
from testbed.samples.messages import ELSEWHERE, HERE, OTHER, request_of
from testbed.signing import QuickSigner
from testbed.waiting import wait_until

SECRET = "5e" * 32
NAME = "06fdde03"
"""Selector of name(), which every token has."""


def test_quick_signatures_are_the_signers() -> None:
    quick, signer = QuickSigner(SECRET, HERE), Signer.from_key(SECRET)
    message = sign_message(quick, HERE, request_of(path="/v1/verdicts", expiry=1_800_000_030))
    assert message == sign_message(signer, HERE, message)
    assert recover_signer(HERE, message) == quick.address == signer.address


def test_a_quick_signer_has_one_domain() -> None:
    with pytest.raises(AssertionError):
        sign_message(QuickSigner(SECRET, HERE), ELSEWHERE[0], request_of())


def test_a_contract_emits_what_it_is_given_and_answers_as_before() -> None:
    # The stand-in for a contract returns 42 from its storage, for whatever call, and reverts without any.
    contract, code = "0x" + "c0" * 20, "0x366007575f5ffd5b5f545f5260205ff3"
    fields = {"run": 1, "node": OTHER.address, "step": 7, "index": 3, "hour": 500_000, "root": b"\x0b" * 32}
    with Anvil() as anvil:
        anvil.request("anvil_setCode", contract, code)
        anvil.request("anvil_setStorageAt", contract, "0x0", f"0x{42:064x}")
        let_emit(anvil, contract)
        sender = anvil.request("eth_accounts")[0]
        call = {"from": sender, "to": contract, "data": emission(WorkCommitted.ABI, **fields)}
        sent = anvil.request("eth_sendTransaction", call)
        (log,) = wait_until(lambda: anvil.request("eth_getTransactionReceipt", sent), "it is mined")["logs"]
        answer = anvil.request("eth_call", {"to": contract, "data": "0x" + NAME}, "latest")
        (refused,) = anvil.batch([("eth_call", [{"to": contract, "data": "0x"}, "latest"])])
    event = decode_log(WorkCommitted, log)
    assert {name: getattr(event, name) for name in fields} == fields
    assert log["address"] == contract
    assert int(answer, 16) == 42
    assert "revert" in refused["error"]["message"]
