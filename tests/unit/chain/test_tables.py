"""What Python knows of the contracts is what their ABIs and interfaces say."""

from __future__ import annotations

import inspect
import re
import string
import time
from dataclasses import fields
from types import ModuleType

import pytest
from eth_abi.abi import encode
from eth_utils.abi import abi_to_signature, get_abi_input_types
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.chain.error_messages import HINTS, MESSAGES, decode_revert, error_message, known_errors
from muster.contracts import court, refutations, registry, run_terms, runs, token
from muster.contracts.abi import CONTRACTS, artifact, snake
from muster.contracts.codec import Call, Place, Transaction, decode_log
from muster.contracts.court import Outcome
from muster.contracts.registry import Role, Status
from muster.errors import ConfigError, MalformedError, UsageError
from muster.protocol.terms import Terms
from muster.runtime.units import moment_text

pytestmark = pytest.mark.usefixtures("built_contracts")

ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
MODULES = [token, registry, runs, court]
SAMPLES = {"address": ADDRESS, "bool": True, "bytes32": b"h" * 32, "uint8": 2}
SAMPLES |= {f"uint{bits}": bits - 1 for bits in (16, 24, 32, 64, 256)}
"""A value of each type that events have."""


def revert(contract: str, name: str, *values: object) -> bytes:
    item = next(item for item in artifact(contract).items("error") if item["name"] == name)
    return keccak(text=abi_to_signature(item))[:4] + encode(get_abi_input_types(item), values)


# Errors


def test_every_custom_error_has_a_sentence_that_uses_its_own_values() -> None:
    for item in known_errors().values():
        assert item["name"] in MESSAGES, item["name"]
    by_name: dict[str, list[set[str]]] = {}
    for item in known_errors().values():
        by_name.setdefault(item["name"], []).append({part["name"] for part in item["inputs"]})
    for name, parameter_sets in by_name.items():
        used = {field for _, field, _, _ in string.Formatter().parse(MESSAGES[name]) if field} - {"meaning"}
        for parameters in parameter_sets:
            assert used <= parameters, name


def test_no_sentence_is_about_an_error_that_does_not_exist() -> None:
    known = {item["name"] for item in known_errors().values()}
    assert set(MESSAGES) - known == set()
    assert set(HINTS) <= known


def test_an_error_becomes_its_name_values_and_a_sentence() -> None:
    error = decode_revert(revert("runs", "WindowOpen", ADDRESS.lower(), 3, 1_800_000_000), "Runs.claim")
    assert error.name == "WindowOpen"
    assert error.values == {"node": ADDRESS, "index": 3, "maturesAt": 1_800_000_000}
    until = moment_text(1_800_000_000, time.time())
    assert re.match(r"2027-01-1[456] \d\d:\d\d:00 \S+ \(in .+\)$", until)
    before, _, after = str(error).partition(" (")
    assert (before, after[:3]) == (
        f"Runs.claim: commitment 3 of {ADDRESS} is still open to challenges, until {until.partition(' (')[0]}",
        "in ",
    )
    assert error.exit_code == 4


def test_amounts_enums_and_short_strings_are_readable() -> None:
    short = decode_revert(revert("registry", "FreeBalanceShort", ADDRESS, 15 * 10**17, 10**18), "x")
    assert str(short) == f"x: {ADDRESS} has 1.5 MUST free in the registry and needs 1 MUST"
    assert "is jailed and not active" in str(decode_revert(revert("registry", "NotActive", ADDRESS, 3), "x"))
    term = revert("run_terms", "TermOutOfBounds", b"slashBps".ljust(32, b"\0"), 10_001, 1, 10_000)
    assert str(decode_revert(term, "x")) == "x: the term slashBps is 10001 and must be 1 to 10000"
    pay = revert("run_terms", "TermOutOfBounds", b"workerStake".ljust(32, b"\0"), 0, 10**18, 10**24)
    assert str(decode_revert(pay, "x")) == "x: the term workerStake is 0 MUST and must be 1 MUST to 1,000,000 MUST"
    deposit = revert("run_terms", "TermOutOfBounds", b"juryDeposit".ljust(32, b"\0"), 10**18, 4 * 10**18, 10**26)
    shown = decode_revert(deposit, "x")
    assert str(shown) == "x: the term juryDeposit is 1 MUST and must be 4 MUST to 100,000,000 MUST"
    assert shown.hint == "which terms depend on others is in docs/use/own-a-run.md, Money"
    late = error_message("HourNotEnded", {"hour": 1, "endsAt": 2**255, "timestamp": 0})
    assert late.endswith(f"ends at second {2**255}")


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


# The generated modules


@pytest.mark.parametrize("module", MODULES)
def test_every_function_is_there_with_its_parameters_and_selector(module: ModuleType) -> None:
    contract = module.__name__.split(".")[-1]
    items = artifact(contract).items("function")
    assert items
    for item in items:
        made = getattr(module, snake(item["name"]))
        parameters = inspect.signature(made).parameters
        assert list(parameters) == [snake(part["name"]) or f"value_{i}" for i, part in enumerate(item["inputs"])]
        bound = made(*(None for _ in parameters))
        assert bound.function.selector == keccak(text=abi_to_signature(item))[:4]
        assert bound.function.label == f"{CONTRACTS[contract]}.{item['name']}"
        assert isinstance(bound, Call if item["stateMutability"] in {"view", "pure"} else Transaction)


@pytest.mark.parametrize("module", MODULES)
def test_every_event_is_there_and_decodes(module: ModuleType) -> None:
    contract = module.__name__.split(".")[-1]
    items = artifact(contract).items("event")
    assert {kind.__name__ for kind in module.EVENTS} == {item["name"] for item in items}
    for item in items:
        kind = getattr(module, item["name"])
        values = {part["name"]: SAMPLES[part["type"]] for part in item["inputs"]}
        log = log_of(item, values)
        event = decode_log(kind, log)
        assert event.at == Place(7, bytes([1]) * 32, bytes([2]) * 32, 3)
        assert {name: getattr(event, snake(name)) for name in values} == values
        assert [field.name for field in fields(kind)] == ["at", *(snake(name) for name in values)]
        with pytest.raises(MalformedError, match=f"does not decode as {kind.__name__}"):
            decode_log(kind, log | {"topics": [*log["topics"], log["topics"][0]]})
        if kind.ABI.plain:
            with pytest.raises(MalformedError, match="too short"):
                decode_log(kind, log | {"data": log["data"][:-2]})
        for number, (_, type_) in enumerate(kind.ABI.indexed, 1):
            if type_ not in ("bytes32", "uint256"):
                topics = [*log["topics"]]
                topics[number] = "0x" + "ff" * 32
                with pytest.raises(MalformedError, match=f"is no {type_}"):
                    decode_log(kind, log | {"topics": topics})


def log_of(item: dict, values: dict) -> dict:
    """A log of an event with these values, encoded by its ABI and nothing of ours."""
    words = [encode([part["type"]], [values[part["name"]]]) for part in item["inputs"] if part["indexed"]]
    rest = [part for part in item["inputs"] if not part["indexed"]]
    data = encode([part["type"] for part in rest], [values[part["name"]] for part in rest])
    return {
        "topics": ["0x" + word.hex() for word in (keccak(text=abi_to_signature(item)), *words)],
        "data": "0x" + data.hex(),
        "blockNumber": "0x7",
        "logIndex": "0x3",
        "blockHash": "0x" + "01" * 32,
        "transactionHash": "0x" + "02" * 32,
    }


def test_names_that_python_keeps_for_itself_get_an_underscore() -> None:
    assert [snake(name) for name in ("from", "class", "maturesAt", "WINDOW_HOURS", "terms_", "r")] == [
        "from_",
        "class_",
        "matures_at",
        "window_hours",
        "terms",
        "r",
    ]


def test_documentation_comes_from_the_solidity_interface() -> None:
    assert inspect.getdoc(runs.commit_work) == (  # newer Pythons keep no indentation
        "Commits the calling node to a full-sized piece of work and reserves its pay. Not while as many of its\n"
        "commitments are unsettled as its stake covers; while a case against it is open, those that have matured do "
        "not\ncount, so that cases delay pay and stop no work.\n\n"
        "anchor: Of the step, so that a reorg or a republished step reverts instead of framing an honest node.\n"
        "index: The node's next index.\n"
        "root: Merkle root over the leaves of all rows."
    )
    assert registry.Role.__doc__ == "What a node does. A key serves in one role, once, ever."


# Structs and enums


def test_enums_are_those_of_the_contracts() -> None:
    assert [status.name for status in Status] == ["NONE", "ACTIVE", "RETIRED", "JAILED", "WITHDRAWN"]
    assert [outcome.name for outcome in Outcome] == [
        "OPEN",
        "GUILTY",
        "NOT_GUILTY",
        "NO_QUORUM",
        "MOOT",
        "DISMISSED",
        "CURED",
    ]
    assert (Role.WORKER, Role.VALIDATOR) == (1, 2)
    assert (court.BallotState.VOTED_NOT_GUILTY, refutations.Flaw.POSITION_BEYOND) == (3, 6)


def test_terms_are_the_contract_s_with_their_classes_unpacked() -> None:
    assert [field.name for field in fields(Terms)] == [field.name for field in fields(run_terms.Terms)]


def test_an_answer_becomes_the_struct_it_is() -> None:
    words = (ADDRESS.lower(), 1, 2, 0, 3, 10, 20, 30, bytes(31) + b"x")
    answer = encode(registry.node(ADDRESS).function.outputs, [words])
    assert registry.node(ADDRESS).decode(answer) == registry.Node(
        ADDRESS, 1, Role.VALIDATOR, 0, Status.JAILED, 10, 20, 30, bytes(31) + b"x"
    )
    unknown = encode(registry.node(ADDRESS).function.outputs, [(*words[:4], 9, *words[5:])])
    with pytest.raises(ConfigError, match=r"Registry\.node answers nothing that makes sense"):
        registry.node(ADDRESS).decode(unknown)


def test_several_values_are_a_named_tuple() -> None:
    found = runs.claimable(ADDRESS).decode(encode(["uint32", "uint256"], [7, 10**18]))
    assert found == (7, 10**18)
    assert found.through == 7
    assert found.amount == 10**18


def test_structs_within_structs_are_encoded_by_their_fields() -> None:
    leaf = refutations.Leaf(0, 1, 2, 3, 4, -5, *(bytes([n]) * 32 for n in (6, 7, 8)))
    openings = [refutations.Opening(leaf, [bytes(32)])] * 2
    sent = refutations.prove_vouched(ADDRESS, 9, [b"p" * 32], court.Target(ADDRESS, 1, 2, b"r" * 32), openings)
    words = (0, 1, 2, 3, 4, -5, bytes([6]) * 32, bytes([7]) * 32, bytes([8]) * 32)
    expected = (ADDRESS, 9, [b"p" * 32], (ADDRESS, 1, 2, b"r" * 32), [(words, [bytes(32)])] * 2)
    assert sent.encode()[4:] == encode(sent.function.inputs, expected)


def test_calls_that_do_not_fit_their_abi_are_usage_errors() -> None:
    expected = keccak(text="claim(address,uint32)")[:4] + encode(["address", "uint32"], [ADDRESS, 3])
    assert runs.claim(ADDRESS, 3).encode() == expected
    for node, through in ((ADDRESS, -1), (ADDRESS, 1 << 32), ("0x12", 1), (ADDRESS, None)):
        with pytest.raises(UsageError, match=r"Runs\.claim: an argument does not fit"):
            runs.claim(node, through).encode()  # type: ignore[arg-type]


def test_an_empty_answer_means_the_wrong_address() -> None:
    with pytest.raises(ConfigError, match="is that contract at this address"):
        run_terms.run_count().decode(b"")


def test_outcomes_are_said_in_words() -> None:
    assert error_message("CaseEnded", {"caseId": 4, "outcome": Outcome.NOT_GUILTY}) == "case 4 has ended: not guilty"
