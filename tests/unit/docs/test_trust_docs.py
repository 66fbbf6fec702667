"""trust.md and invariants.md in docs/understand/ match the contracts and their tests."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from muster.contracts.abi import CONTRACTS as NAMES
from muster.contracts.abi import artifact
from testbed.paths import ROOT

CONTRACTS, TESTS = ROOT / "contracts", ROOT / "tests" / "contracts"
TRUST = (ROOT / "docs" / "understand" / "trust.md").read_text()
INVARIANTS = (ROOT / "docs" / "understand" / "invariants.md").read_text()

CHECKS = {
    "onlyGuardian": "guardian",
    "_ownInfo(": "run owner",
    "NotOwner(": "run owner",
    "_requireOwner(": "run owner",
    "NotAdmitter(": "admitter",
    "NotTrainer(": "trainer",
    "NotOperator(": "operator",
    "_register(": "operator",
    "_debit(msg.sender": "operator",
    "_checkWorker(": "worker's key",
    "_checkSealer(": "validator's key",
    "_empanel(": "validator's key",
    "_requireJudge(caseId, msg.sender)": "validator's key",
    "NotVoted(": "validator's key",
    "NotValidator(": "validator's key",
    "onlyRegistry": "Registry",
    "onlyCourt": "SlashCourt",
    "NotRunTerms(": "RunTerms",
    "NotRefutations(": "Refutations",
}
"""What in a function's head or body says that not everybody may call it, and who may."""

EXTERNAL = re.compile(r"\n    function (\w+)\(([^{;]*?\bexternal\b[^{;]*)\{(.*?)\n    \}", re.DOTALL)
NO_NAMES = frozenset({"timestamp", "push"})
"""In backticks, and no names of ours: a slither detector, a function of OpenZeppelin's."""


def sources(folder: Path) -> dict[str, str]:
    """Text of every contract, interface and library by its name."""
    found = {}
    for path in folder.rglob("*.sol"):
        text = path.read_text()
        for name in re.findall(r"^(?:abstract )?(?:contract|interface|library) (\w+)", text, re.MULTILINE):
            found[name] = text
    return found


def ticked(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_table_of_privileged_calls_is_what_the_sources_check() -> None:
    checked = defaultdict(set)
    for path in CONTRACTS.glob("*.sol"):
        for name, head, body in EXTERNAL.findall(path.read_text()):
            for check, role in CHECKS.items():
                if check in head or check in body:
                    checked[role].add(name)
    documented = defaultdict(set)
    for role, calls in re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", TRUST, re.MULTILINE):
        documented[role] |= {name.split(".")[-1] for name in ticked(calls)}
    assert {role: names for role, names in documented.items() if names} == checked


def test_every_loop_of_the_contracts_has_a_bound_on_the_page_of_invariants() -> None:
    found = []
    for path in sorted(CONTRACTS.rglob("*.sol")):
        for line in re.sub(r"//.*", "", path.read_text()).splitlines():
            if match := re.match(r"\s*function (\w+)", line):
                function = match[1]
            found += [f"{path.stem}.{function}" for _ in re.findall(r"\b(?:for|while|do)\s*[({]", line)]
    _, _, table = INVARIANTS.partition("| loop | bound |\n|---|---|\n")
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(found)
    assert len(found) == 6


@pytest.mark.usefixtures("built_contracts")
def test_every_function_is_measured_in_a_world_of_many_things() -> None:
    """Of the token no views, which are OpenZeppelin's, and none that only our contracts may call."""
    ours = "onlyRegistry|onlyCourt|NotRunTerms|NotRefutations"
    left_out = set[str]()
    for path in CONTRACTS.glob("*.sol"):
        for name, head, body in EXTERNAL.findall(path.read_text()):
            left_out |= {f"{path.stem}.{name}"} if re.search(ours, head + body) else set()
    expected = {
        f"{NAMES[contract]}.{item['name']}"
        for contract in NAMES
        for item in artifact(contract).items("function")
        if not item["name"].isupper() and (contract != "token" or item["stateMutability"] == "nonpayable")
    }
    measured = re.findall(r'(?:_cost|_look)\("(\w+\.\w+)"', (TESTS / "Worlds.t.sol").read_text())
    assert set(measured) == expected - left_out


@pytest.mark.usefixtures("built_contracts")
def test_unprivileged_calls_are_documented_as_public() -> None:
    calls = {
        item["name"]
        for contract in NAMES.keys() - {"token"}
        for item in artifact(contract).items("function")
        if item["stateMutability"] not in ("view", "pure")
    }
    table = {name.split(".")[-1] for name in ticked("".join(re.findall(r"^\|.*$", TRUST, re.MULTILINE)))}
    [sentence] = re.findall(r"^Everything else \((.+?)\)", TRUST, re.MULTILINE | re.DOTALL)
    public = set(ticked(sentence))
    assert public & table == set()
    assert calls - table == public


def test_every_name_on_the_page_of_invariants_exists() -> None:
    ours, tests = sources(CONTRACTS), sources(TESTS)
    named = ours | tests
    functions = {name for text in named.values() for name in re.findall(r"function (\w+)\(", text)}
    missing = []
    for name in ticked(INVARIANTS):
        if "/" in name or name.endswith(".sol"):
            there = any((folder / name).exists() for folder in (ROOT, TESTS, CONTRACTS))
        elif " " in name:
            there = name.removeprefix("make ") in (ROOT / "Makefile").read_text() + (ROOT / "foundry.toml").read_text()
        elif "." in name:
            contract, function = name.split(".")
            there = contract in named and f"function {function}(" in named[contract]
        elif name.endswith("_"):
            there = any(function.startswith(name) for function in functions)
        else:
            there = name in named or name in functions or name in NO_NAMES or "-" in name
        if not there:
            missing.append(name)
    assert missing == []
