"""Nothing of the contracts is left out of their tests: every custom error, every state-changing function."""

from __future__ import annotations

import re

import pytest

from muster.contracts.abi import CONTRACTS, artifact
from testbed.paths import ROOT

pytestmark = pytest.mark.usefixtures("built_contracts")

TESTS = ROOT / "tests" / "contracts"
LIBRARIES_OWN = re.compile("^(ERC|ECDSA|SafeERC20|SafeCast|Checkpoint|InvalidAccountNonce|InvalidShort|String)")
"""OpenZeppelin's errors and functions have tests of their own, elsewhere."""
TOKEN_OWN = {"faucet", "burn"}
"""Of the token, what is not OpenZeppelin's."""


DECLARED = {key: "IMusterToken" if key == "token" else f"I{name}" for key, name in CONTRACTS.items()}
"""The interface with each contract's errors. Two interfaces may share a name: a test must expect the right one."""


def test_every_custom_error_is_expected_somewhere_with_its_values() -> None:
    text = "".join(path.read_text() for path in TESTS.rglob("*.sol"))
    wanted = {
        f"{DECLARED[contract]}.{item['name']}"
        for contract in CONTRACTS
        for item in artifact(contract).items("error")
        if not LIBRARIES_OWN.match(item["name"])
    }
    expected = set(re.findall(r"encodeWithSelector\(\s*(I\w+\.\w+)\.selector", text))
    assert len(wanted) > 80
    assert sorted(wanted - expected) == []


def test_every_state_changing_function_has_a_tree_beside_its_test() -> None:
    trees = {path: path.read_text() for path in TESTS.rglob("*.tree")}
    assert [path.name for path in trees if not path.with_suffix(".t.sol").is_file()] == []
    titles = {
        f"{contract}.{name.split('.')[-1]}"
        for text in trees.values()
        for contract, names in re.findall(r"^(\w+)\.(.+)$", text, re.MULTILINE)
        for name in names.split(", ")
    }
    for contract, name in CONTRACTS.items():
        for item in artifact(contract).items("function"):
            if item["stateMutability"] in ("view", "pure") or (contract == "token" and item["name"] not in TOKEN_OWN):
                continue
            assert f"{name}.{item['name']}" in titles
