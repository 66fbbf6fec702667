"""Write the test vectors by which Solidity is held equal to Python: draws, leaves and Merkle proofs.

    python scripts/contract_vectors.py

The files under tests/contracts/vectors/ are committed: forge reads them (libraries/Twins.t.sol), and
tests/unit/scripts/test_contract_vectors.py fails when they are not what this script would write. Each file is one
object of equally long lists, one entry per case; numbers wider than 53 bits are hex strings.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from eth_utils.address import to_checksum_address

from muster.protocol.draws import draw_base, group_draw, position_seed
from muster.protocol.merkle import LeafTree
from muster.protocol.terms import Terms, WorkClass, pack_class
from muster.rollouts.leaves import Leaf, leaf_hash

TARGET = Path(__file__).resolve().parent.parent / "tests" / "contracts" / "vectors"
CASES = 64
ZERO = bytes(32)

Vectors = dict[str, list]


def terms_with(task_count: int, work_class: WorkClass) -> Terms:
    """Return terms in which only the fields that draws depend on matter."""
    return Terms(
        pay=1,
        worker_stake=1,
        validator_stake=1,
        case_fee=1,
        jury_deposit=1,
        slash_bps=1,
        bounty_bps=0,
        group_size=1,
        groups_per_commitment=1,
        commitments_per_hour=1,
        async_level=0,
        accepts_required=1,
        seal_quorum=2,
        min_step_interval=1,
        commit_phase=1,
        reveal_phase=1,
        jury_seniority=1,
        temperature_micro=1,
        max_prompt_tokens=1,
        max_completion_tokens=1,
        task_count=task_count,
        task_root=ZERO,
        model_hash=ZERO,
        tokenizer_hash=ZERO,
        profile=ZERO,
        classes=(work_class,),
    )


def random_uint32(chance: random.Random) -> int:
    """Draw a uint32; small values and both ends are more frequent than in a uniform draw."""
    return chance.choice((0, 1, (1 << 32) - 1, chance.randrange(1 << 8), chance.randrange(1 << 32)))


def random_class(chance: random.Random) -> WorkClass:
    """Draw a work class with 1 to 14 budgets of any width."""
    budgets = tuple(chance.randrange(1, 1 << 16) for _ in range(chance.randrange(1, 15)))
    return WorkClass(chance.randrange(1, 1 << 16), budgets)


def draw_case(chance: random.Random) -> dict[str, object]:
    """Return one draw: its inputs, and what Python draws from them."""
    runs, node = (to_checksum_address(chance.randbytes(20)) for _ in range(2))
    run, index, group, position = (random_uint32(chance) for _ in range(4))
    chain_id, entropy = chance.choice((31_337, 84_532)), chance.randbytes(32)
    task_count, work_class = max(1, random_uint32(chance)), random_class(chance)
    base = draw_base(chain_id=chain_id, runs=runs, run=run, entropy=entropy, node=node, index=index)
    draw = group_draw(base, group, terms_with(task_count, work_class), 0)
    return {
        "chainId": chain_id,
        "runs": runs,
        "run": run,
        "entropy": "0x" + entropy.hex(),
        "node": node,
        "index": index,
        "group": group,
        "position": position,
        "taskCount": task_count,
        "workClass": hex(pack_class(work_class)),
        "base": "0x" + base.hex(),
        "task": draw.task,
        "budget": draw.budget,
        "seed": hex(position_seed(base, position)),
    }


def random_leaf(chance: random.Random) -> Leaf:
    """Draw a leaf; the reward may be negative, as the contract's int256 allows."""
    return Leaf(
        position=random_uint32(chance),
        task=random_uint32(chance),
        seed=chance.randrange(1 << 63),
        budget=chance.randrange(1 << 16),
        length=random_uint32(chance),
        task_reward=chance.choice((0, 1_000_000, -1, -1_000_000, chance.randrange(-(1 << 53), 1 << 53))),
        completion_hash=chance.randbytes(32),
        proof_hash=chance.randbytes(32),
        row_hash=chance.randbytes(32),
    )


def leaf_case(chance: random.Random) -> dict[str, object]:
    """Return one leaf, its hash, and its proof in a tree of 1 to 40 leaves."""
    leaf = random_leaf(chance)
    hashes = [leaf_hash(leaf), *(chance.randbytes(32) for _ in range(chance.randrange(40)))]
    tree = LeafTree.from_hashes(hashes)
    return {
        "position": leaf.position,
        "task": leaf.task,
        "seed": hex(leaf.seed),
        "budget": leaf.budget,
        "length": leaf.length,
        "taskReward": leaf.task_reward,
        "completionHash": "0x" + leaf.completion_hash.hex(),
        "proofHash": "0x" + leaf.proof_hash.hex(),
        "rowHash": "0x" + leaf.row_hash.hex(),
        "hash": "0x" + hashes[0].hex(),
        "root": "0x" + tree.root.hex(),
        "proof": ["0x" + sibling.hex() for sibling in tree.proof(0)],
    }


def columns(rows: list[dict[str, object]]) -> Vectors:
    """Return one list per field, the simplest form in which forge reads a file of records."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def vectors() -> dict[str, str]:
    """Return the content of every vector file, by name."""
    chance = random.Random("muster.vectors.v2")
    cases = {
        "draws.json": [draw_case(chance) for _ in range(CASES)],
        "leaves.json": [leaf_case(chance) for _ in range(CASES)],
    }
    return {name: json.dumps({"count": len(rows)} | columns(rows), indent=1) + "\n" for name, rows in cases.items()}


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in vectors().items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
