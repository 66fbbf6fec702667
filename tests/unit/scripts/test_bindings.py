"""The generator of typed Python refuses what Python could not tell apart, and says what."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from testbed.paths import ROOT

SCRIPT = ROOT / "scripts" / "bindings.py"


@pytest.fixture(scope="module")
def bindings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bindings", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bindings"] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module


def text_of(bindings: ModuleType, *abi: dict) -> str:
    return bindings.Module("runs", list(abi), bindings.Tree(), {}).text()


def function(name: str, *inputs: dict, outputs: tuple[dict, ...] = (), mutability: str = "view") -> dict:
    return {
        "type": "function",
        "name": name,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "stateMutability": mutability,
    }


def test_a_function_becomes_a_typed_one(bindings: ModuleType) -> None:
    node = {"name": "nodeKey", "type": "address", "internalType": "address"}
    amount = {"name": "", "type": "uint256", "internalType": "uint256"}
    text = text_of(bindings, function("paidTo", node, outputs=(amount,)))
    assert "def paid_to(node_key: Address) -> Call[int]:" in text
    assert "    return Call(_PAID_TO, (node_key,))" in text
    sent = text_of(bindings, function("pay", node, mutability="nonpayable"))
    assert "def pay(node_key: Address) -> Transaction[None]:" in sent


def test_two_names_that_are_one_in_python_are_refused(bindings: ModuleType) -> None:
    with pytest.raises(ValueError, match="Runs: MAX_PAUSE and maxPause are both max_pause in Python"):
        text_of(bindings, function("maxPause"), function("MAX_PAUSE"))


def test_an_overloaded_function_is_refused(bindings: ModuleType) -> None:
    word = {"name": "word", "type": "uint256", "internalType": "uint256"}
    with pytest.raises(ValueError, match="Runs: fund and fund are both fund"):
        text_of(bindings, function("fund"), function("fund", word))


def test_an_indexed_text_is_refused(bindings: ModuleType) -> None:
    name = {"name": "name", "type": "string", "internalType": "string", "indexed": True}
    with pytest.raises(ValueError, match=r"Runs\.Named: an indexed field is only a hash"):
        text_of(bindings, {"type": "event", "name": "Named", "inputs": [name], "anonymous": False})


def test_a_struct_without_a_name_is_refused(bindings: ModuleType) -> None:
    part = {"name": "x", "type": "uint256", "internalType": "uint256"}
    pair = {"name": "pair", "type": "tuple", "internalType": "", "components": [part]}
    with pytest.raises(ValueError, match="a tuple without a name"):
        text_of(bindings, function("both", pair))
