"""What Python says about the contracts' errors, events and structs is what their ABIs say."""

from __future__ import annotations

import string
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.chain import types as chain_types
from muster.chain.abi import CONTRACTS, artifact, selector, snake, types
from muster.chain.codec import function, struct
from muster.chain.events import EVENTS, codecs
from muster.chain.reverts import decode_revert, known_errors, sentence
from muster.chain.sentences import HINTS, SENTENCES
from muster.chain.types import Kind, Outcome, Role, Status
from muster.errors import ConfigError, UsageError
from muster.messages import Reason
from muster.terms import Terms

pytestmark = pytest.mark.usefixtures("built_contracts")

ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def revert(contract: str, name: str, *values: object) -> bytes:
    item = next(item for item in artifact(contract).items("error") if item["name"] == name)
    return selector(item) + encode(types(item["inputs"]), values)


# Errors


def test_every_custom_error_has_a_sentence_that_uses_its_own_values() -> None:
    for item in known_errors().values():
        assert item["name"] in SENTENCES, item["name"]
    by_name: dict[str, list[set[str]]] = {}
    for item in known_errors().values():
        by_name.setdefault(item["name"], []).append({part["name"] for part in item["inputs"]})
    for name, parameter_sets in by_name.items():
        used = {field for _, field, _, _ in string.Formatter().parse(SENTENCES[name]) if field} - {"meaning"}
        for parameters in parameter_sets:
            assert used <= parameters, name


def test_no_sentence_is_about_an_error_that_does_not_exist() -> None:
    known = {item["name"] for item in known_errors().values()}
    assert set(SENTENCES) - known == set()
    assert set(HINTS) <= known


def test_an_error_becomes_its_name_values_and_a_sentence() -> None:
    error = decode_revert(revert("runs", "WindowOpen", ADDRESS.lower(), 3, 1_800_000_000), "Runs.claim")
    assert error.name == "WindowOpen"
    assert error.values == {"node": ADDRESS, "index": 3, "maturesAt": 1_800_000_000}
    assert str(error) == (
        f"Runs.claim: commitment 3 of {ADDRESS} is still open to challenges, until 2027-01-15 08:00:00 UTC"
    )
    assert error.exit_code == 4


def test_amounts_enums_and_short_strings_are_readable() -> None:
    short = decode_revert(revert("registry", "FreeBalanceShort", ADDRESS, 15 * 10**17, 10**18), "x")
    assert "has 1.5 tokens free in the registry and needs 1" in str(short)
    assert "is jailed and not active" in str(decode_revert(revert("registry", "NotActive", ADDRESS, 3), "x"))
    term = revert("runs", "TermOutOfBounds", b"slashBps".ljust(32, b"\0"), 10_001, 1, 10_000)
    assert str(decode_revert(term, "x")) == "x: the term slashBps is 10001 and must be 1 to 10000"
    assert sentence("HourNotEnded", {"hour": 1, "endsAt": 2**255, "timestamp": 0}).startswith("the hour 1970-01-01 01:")


def test_solidity_s_own_errors_are_decoded() -> None:
    panic = bytes.fromhex("4e487b71") + encode(["uint256"], [0x11])
    assert str(decode_revert(panic, "x")) == "x: the contract failed an internal check: arithmetic overflow"
    text = bytes.fromhex("08c379a0") + encode(["string"], ["no {braces}"])
    assert str(decode_revert(text, "x")) == "x: no {braces}"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    selectors = list(known_errors())
    for prefix in (b"", selectors[len(data) % len(selectors)]):
        error = decode_revert(prefix + data, "x")
        assert str(error).startswith("x: ")


def test_unknown_errors_keep_their_data() -> None:
    error = decode_revert(b"\x01\x02\x03\x04\x05", "x")
    assert (error.name, error.values) == ("", {"data": "0x0102030405"})
    assert decode_revert(b"", "x").values == {}


# Events


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
def test_every_event_of_ours_has_its_dataclass(contract: str) -> None:
    openzeppelin = {"Transfer", "Approval", "EIP712DomainChanged"}
    declared = {item["name"] for item in artifact(contract).items("event")} - openzeppelin
    assert {kind.__name__ for kind in EVENTS[contract]} == declared


def test_event_fields_are_those_of_the_abi_in_order() -> None:
    assert len(codecs()) == sum(len(kinds) for kinds in EVENTS.values())
    for contract, kinds in EVENTS.items():
        items = {item["name"]: item for item in artifact(contract).items("event")}
        for kind in kinds:
            names = [snake(part["name"]) for part in items[kind.__name__]["inputs"]]
            assert [field.name for field in fields(kind)] == ["at", *names], kind.__name__
            assert_types_fit(kind, items[kind.__name__]["inputs"])


def assert_types_fit(kind: type, inputs: list[dict]) -> None:
    hints = get_type_hints(kind)
    for part in inputs:
        hint = hints[snake(part["name"])]
        solidity = part["type"]
        expected = (
            str if solidity == "address" else bool if solidity == "bool" else bytes if "bytes" in solidity else int
        )
        assert issubclass(hint, expected), (kind.__name__, part["name"])
        if part["internalType"].startswith("enum "):
            assert hint.__name__ == part["internalType"].split(".")[-1], (kind.__name__, part["name"])


# Structs and enums


@pytest.mark.parametrize(
    ("contract", "getter", "kind"),
    [
        ("runs", "runState", chain_types.RunState),
        ("runs", "runInfo", chain_types.RunInfo),
        ("runs", "work", chain_types.Work),
        ("runs", "commitment", chain_types.Commitment),
        ("runs", "terms", Terms),
        ("registry", "node", chain_types.Node),
        ("court", "caseOf", chain_types.Case),
    ],
)
def test_structs_mirror_the_contracts(contract: str, getter: str, kind: type) -> None:
    item = next(item for item in artifact(contract).items("function") if item["name"] == getter)
    components = item["outputs"][0]["components"]
    assert [field.name for field in fields(kind)] == [snake(part["name"]) for part in components]
    if kind is not Terms:  # its classes are unpacked words
        assert_types_fit(kind, components)


def test_arguments_mirror_the_contracts() -> None:
    for name, kind in (("register", chain_types.Registration), ("depositWithPermit", chain_types.Permit)):
        item = next(item for item in artifact("registry").items("function") if item["name"] == name)
        components = item["inputs"][0]["components"]
        assert [field.name for field in fields(kind)] == [snake(part["name"]) for part in components]
    checkpoint = next(item for item in artifact("runs").items("function") if item["name"] == "checkpoint")
    names = [snake(part["name"]) for part in checkpoint["outputs"][0]["components"]]
    assert [field.name for field in fields(chain_types.Checkpoint)] == ["step", *names]


def test_kinds_of_cases_are_the_reasons_of_verdicts() -> None:
    assert [Kind.of(reason) for reason in get_args(Reason)] == list(Kind)


def test_struct_makes_members_of_enums() -> None:
    node = struct(chain_types.Node, (ADDRESS, 1, 2, 0, 3, 10, 20, 30, bytes(32)))
    assert node.role is Role.VALIDATOR
    assert node.status is Status.JAILED
    with pytest.raises(ValueError, match="9 is not a valid"):
        struct(chain_types.Node, (ADDRESS, 1, 9, 0, 3, 10, 20, 30, bytes(32)))


def test_calls_that_do_not_fit_their_abi_are_usage_errors() -> None:
    claim = function("runs", "claim")
    assert claim.label == "Runs.claim"
    assert claim.encode(ADDRESS, 3) == keccak(text="claim(address,uint32)")[:4] + encode(
        ["address", "uint32"], [ADDRESS, 3]
    )
    for arguments in ((ADDRESS, -1), (ADDRESS, 1 << 32), ("0x12", 1), (ADDRESS,)):
        with pytest.raises(UsageError, match=r"Runs\.claim: an argument does not fit"):
            claim.encode(*arguments)


def test_an_empty_answer_means_the_wrong_address() -> None:
    with pytest.raises(ConfigError, match="is that contract at this address"):
        function("runs", "runCount").decode(b"")


def test_outcomes_are_said_in_words() -> None:
    assert sentence("CaseEnded", {"caseId": 4, "outcome": Outcome.NOT_GUILTY}) == "case 4 has ended: not guilty"
