"""Draws, leaves and Merkle proofs in Python and in Solidity, the same for values that hypothesis makes up.

The libraries run on a real Anvil behind tests/contracts/libraries/Twins.sol, whose code is lent to an address for the
time of a call.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from eth_abi.abi import decode, encode
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.chain.client import charge_of
from muster.constants import CHAIN_ANVIL, MAX_BUDGETS
from muster.contracts import court
from muster.contracts.abi import artifact
from muster.contracts.codec import Place, plain
from muster.contracts.court import CaseOpened
from muster.protocol.draws import draw_base, group_draw, position_seed
from muster.protocol.merkle import LeafTree
from muster.protocol.terms import WorkClass, pack_class
from muster.rollouts.leaves import Leaf, leaf_hash
from scripts.contract_vectors import terms_with
from testbed.chain.anvil import Anvil
from testbed.paths import ROOT
from testbed.suite.examples import up_to
from testbed.waiting import BOUND

HOME = to_checksum_address(b"\x7e" * 20)
LEAF = "(uint256,uint256,uint256,uint256,uint256,int256,bytes32,bytes32,bytes32)"

uint16s = st.integers(1, (1 << 16) - 1)
uint32s = st.integers(0, (1 << 32) - 1)
words = st.integers(0, (1 << 256) - 1)
hashes = st.binary(min_size=32, max_size=32)
addresses = st.binary(min_size=20, max_size=20).map(to_checksum_address)
classes = st.builds(WorkClass, uint16s, st.lists(uint16s, min_size=1, max_size=MAX_BUDGETS).map(tuple))
leaves = st.builds(
    Leaf, words, words, words, words, words, st.integers(-(1 << 255), (1 << 255) - 1), hashes, hashes, hashes
)

Ask = Callable[..., Any]
plenty = settings(deadline=None, max_examples=up_to(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def ask(anvil: Anvil) -> Ask:
    """Calls a function of Twins: `ask("seed(bytes32,uint32)", [base, 7], "uint256")`."""
    forge = ROOT / "node_modules" / ".bin" / "forge"
    source = "tests/contracts/libraries/Twins.sol"
    # Build into separate folders: the contracts' tests may be building at the same time.
    out, cache = ROOT / "out" / "twins", ROOT / "cache" / "twins"
    command = [forge, "build", source, "--root", ROOT, "--out", out, "--cache-path", cache]
    subprocess.run(command, check=True, timeout=BOUND, capture_output=True)
    code = json.loads((out / "Twins.sol" / "Twins.json").read_text())["deployedBytecode"]["object"]

    def call(signature: str, arguments: list[object], *returned: str) -> Any:
        kinds = _split(signature[signature.index("(") + 1 : -1])
        data = "0x" + (keccak(signature.encode())[:4] + encode(kinds, arguments)).hex()
        answer = anvil.request("eth_call", {"to": HOME, "data": data}, "latest", {HOME: {"code": code}})
        values = decode(returned, bytes.fromhex(answer[2:]))
        return values[0] if len(values) == 1 else values

    return call


def _split(kinds: str) -> list[str]:
    """The types of a signature; a tuple counts as one."""
    return [kinds] if kinds.startswith("(") else kinds.split(",")


@plenty
@given(runs=addresses, node=addresses, run=uint32s, index=uint32s, entropy=hashes)
def test_bases_match(ask: Ask, runs: str, node: str, run: int, index: int, entropy: bytes) -> None:
    ours = draw_base(chain_id=CHAIN_ANVIL, runs=runs, run=run, entropy=entropy, node=node, index=index)
    signature = "base(address,uint32,bytes32,address,uint32)"
    assert ask(signature, [runs, run, entropy, node, index], "bytes32") == ours


@plenty
@given(base=hashes, group=uint32s, tasks=st.integers(1, (1 << 32) - 1), work_class=classes)
def test_groups_match(ask: Ask, base: bytes, group: int, tasks: int, work_class: WorkClass) -> None:
    ours = group_draw(base, group, terms_with(tasks, work_class), 0)
    arguments = [base, group, tasks, pack_class(work_class)]
    assert ask("group(bytes32,uint32,uint32,uint256)", arguments, "uint256", "uint256") == (ours.task, ours.budget)


@plenty
@given(base=hashes, position=uint32s)
def test_seeds_match(ask: Ask, base: bytes, position: int) -> None:
    assert ask("seed(bytes32,uint32)", [base, position], "uint256") == position_seed(base, position)


@plenty
@given(node=addresses, index=uint32s, step=uint32s, root=hashes, kind=st.integers(0, 255), row=uint32s, proof=hashes)
def test_charges_match(
    anvil: Anvil, node: str, index: int, step: int, root: bytes, kind: int, row: int, proof: bytes
) -> None:
    """Of the court itself: the function reads nothing, so that its code answers at any address."""
    opened = CaseOpened(
        Place(0, bytes(32), bytes(32), 0), 1, node, HOME, 1, index, step, root, kind, row, proof, 3, 0, 0
    )
    view = court.charge_of(court.Target(node, index, step, root), kind, row, proof)
    code = {HOME: {"code": "0x" + artifact("court").deployed_bytecode.hex()}}
    answer = anvil.request("eth_call", {"to": HOME, "data": "0x" + view.encode().hex()}, "latest", code)
    assert bytes.fromhex(answer[2:]) == charge_of(opened)


@plenty
@given(leaf=leaves)
def test_leaves_match(ask: Ask, leaf: Leaf) -> None:
    assert ask(f"hash({LEAF})", [plain(leaf)], "bytes32") == leaf_hash(leaf)


@plenty
@given(tree=st.lists(hashes, min_size=1, max_size=40), place=st.integers(0), other=hashes)
def test_proofs_match(ask: Ask, tree: list[bytes], place: int, other: bytes) -> None:
    built = LeafTree.from_hashes(tree)
    i = place % len(tree)
    signature = "verify(bytes32[],bytes32,bytes32)"
    assert ask(signature, [built.proof(i), built.root, tree[i]], "bool")
    assert ask(signature, [built.proof(i), built.root, other], "bool") == (other == tree[i])
