"""Every worked example of docs/understand/protocol.md is what the code computes and what the vectors hold."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.crypto import keccak

from muster.chain.client import vote_hash
from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import Task
from muster.protocol.announcements import BenchmarkScore, NodeName, name_problem
from muster.protocol.draws import (
    chain_preimages,
    draw_base,
    draw_pool,
    draw_rows,
    draw_unit,
    group_draw,
    link_of,
    opens_chain,
    position_seed,
)
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.hashes import content_hash
from muster.protocol.looks import Seat, Seating, call_order, wages_leaf, wages_tree
from muster.protocol.masters import check_master, epoch_of, epochs_trained
from muster.protocol.merkle import LeafTree
from muster.protocol.messages import Upload, UploadReceipt, Verdict
from muster.protocol.receipts import check_receipt, check_upload, check_verdict, upload_target
from muster.protocol.requests import verify_request
from muster.protocol.terms import WorkClass, unpack_class
from muster.rollouts.leaves import Leaf, leaf_hash, leaf_of
from muster.rollouts.schema import Rollout
from muster.shardcast.delta.codec import TypedSpan, apply, encode
from muster.shardcast.format.manifest import parse_manifest
from muster.tasksets.document import ShardEntry, TaskSetDocument, TaskSetPart, TaskSource
from muster.tasksets.packs import TaskShard, task_leaf
from muster.verification.bundles import EvidenceBundle
from muster.verification.profiles import profile_hash
from muster.verification.rules import CommittedWork
from scripts.contract_vectors import terms_with
from testbed.paths import ROOT
from testbed.samples.terms import keys_of
from validator.sealing import vouch_leaf

Values = dict[str, Any]

PAGE = (ROOT / "docs" / "understand" / "protocol.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = {title: json.loads(text) for title, text in EXAMPLE.findall(PAGE)}
TYPE = re.compile(r"^    (Request|Receipt|Verdict|LookList|NodeName|BenchmarkScore)\(([^)]*)\)", re.MULTILINE)
TYPES = {name: [field.split() for field in fields.split(",")] for name, fields in TYPE.findall(PAGE)}
"""The EIP-712 structs as the page writes them: name and fields, each a type and a name."""


def raw(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


def row(given: Values) -> Rollout:
    arrays = {
        "prompt_tokens": np.int32,
        "completion_tokens": np.int32,
        "spans": np.int32,
        "logprobs": np.float32,
        "parts": np.int64,
    }
    parts = {name: np.array(given[name], dtype=kind) for name, kind in arrays.items()}
    return Rollout(**(given | parts | {"proof": raw(given["proof"])}))


def the_row(given: Values) -> Values:
    leaf = leaf_of(row(given))
    names = ("completion_hash", "proof_hash", "row_hash")
    return {name: hexed(getattr(leaf, name)) for name in names} | {"leaf": hexed(leaf_hash(leaf))}


def the_leaf(given: Values) -> Values:
    leaf = Leaf(
        position=given["position"],
        task=given["task"],
        seed=int(given["seed"], 16),
        budget=given["budget"],
        length=given["length"],
        task_reward=given["taskReward"],
        completion_hash=raw(given["completionHash"]),
        proof_hash=raw(given["proofHash"]),
        row_hash=raw(given["rowHash"]),
    )
    node = leaf_hash(leaf)
    for sibling in map(raw, given["proof"]):
        node = keccak(min(node, sibling) + max(node, sibling))
    return {"hash": hexed(leaf_hash(leaf)), "root": hexed(node)}


def the_root(given: Values) -> Values:
    tree = LeafTree.from_hashes([raw(leaf) for leaf in given["leaves"]])
    return {"root": hexed(tree.root), "proof of leaf 0": [hexed(sibling) for sibling in tree.proof(0)]}


def the_draw(given: Values) -> Values:
    base = draw_base(
        chain_id=given["chainId"],
        runs=given["runs"],
        run=given["run"],
        entropy=raw(given["entropy"]),
        node=given["node"],
        index=given["index"],
    )
    terms = terms_with(given["taskCount"], unpack_class(int(given["workClass"], 16)))
    group = group_draw(base, given["group"], terms, 0)
    seed = hex(position_seed(base, given["position"]))
    return {"base": hexed(base), "task": group.task, "budget": group.budget, "seed": seed}


def the_sample(given: Values) -> Values:
    links = chain_preimages(raw(given["secret"]), given["length"])
    tip = keccak(links[0])
    link = link_of(links, given["joined_hour"], given["hour"])
    assert opens_chain(tip, link, given["hour"] - given["joined_hour"])
    drawn = {"block_hash": raw(given["block_hash"]), "node": given["node"], "index": given["index"]}
    shape = {name: given[name] for name in ("group_size", "groups_per_commitment", "max_completion_tokens")}
    terms = replace(terms_with(1, WorkClass(10_000, (8,))), **shape, look_rows=given["look_rows"])
    pool = draw_pool(**drawn, terms=terms)
    rows = draw_rows(**drawn, link=link, validator=given["validator"], terms=terms)
    step = {"block_hash": raw(given["block_hash"]), "node": given["node"], "first": given["index"]}
    unit = [list(place) for place in draw_unit(**step, last=given["last"], terms=terms)]
    return {"tip": hexed(tip), "link": hexed(link), "pool": pool, "rows": rows, "unit": unit}


def signed(given: Values, struct: str, message: Values) -> Values:
    """Signer, digest and signature by eth-account over the types that the page shows: an implementation apart."""
    where = Domain(given["chain_id"], given["registry"])
    types = {struct: [{"name": name, "type": kind} for kind, name in TYPES[struct]]}
    document = encode_typed_data(where.as_dict(), types, message)
    signature = Account.from_key(raw(given["key"])).sign_message(document)
    return {
        "signer": Account.from_key(raw(given["key"])).address,
        "digest": hexed(keccak(b"\x19\x01" + document.header + document.body)),
        "signature": hexed(bytes(signature.signature)),
    }


def the_request(given: Values) -> Values:
    message = dict(given["request"])
    found = signed(given, "Request", message)
    headers = {
        "Muster-Body": message["bodyHash"],
        "Muster-Nonce": message["nonce"],
        "Muster-Expiry": str(message["expiry"]),
        "Muster-Signature": found["signature"],
    }
    where = Domain(given["chain_id"], given["registry"])
    parts = {name: message[name] for name in ("method", "host", "path", "query")}
    sender, _ = verify_request(where, **parts, headers=headers, now=message["expiry"] - 30)
    assert sender == found["signer"]
    assert message["bodyHash"] == content_hash(given["body"].encode())
    return found


def fields(message: Values) -> Values:
    """Return what a signed message says, by the names of its model: fileHash is file_hash."""
    return {re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name): value for name, value in message.items()}


def the_receipt(given: Values) -> Values:
    message = given["receipt"]
    found = signed(given, "Receipt", message)
    receipt = UploadReceipt(**fields(message), signature=found["signature"])
    where = Domain(given["chain_id"], given["registry"])
    check_receipt(where, receipt, keys_of(found["signer"]))
    path, query = upload_target(receipt.file_hash, receipt.run, receipt.index, receipt.root)
    return found | {"upload": f"PUT {path}?{query}"}


def the_verdict(given: Values) -> Values:
    message = given["verdict"]
    found = signed(given, "Verdict", message)
    measured, threshold = float(message["measured"]), float(message["threshold"])
    given_back: Values = fields(message) | {"measured": measured, "threshold": threshold}
    verdict = Verdict(**given_back, signature=found["signature"])
    check_verdict(Domain(given["chain_id"], given["registry"]), verdict)
    assert found["signer"] == verdict.validator
    return found


def the_call(given: Values) -> Values:
    shape = {"accepts_required": given["accepts_required"], "jury_seniority": 1}
    terms = replace(terms_with(1, WorkClass(10_000, (8,))), **shape)
    seats = [Seat(one, since=0, rests=one in given["rests"]) for one in given["validators"]]
    drawn = {"block_hash": raw(given["block_hash"]), "node": given["node"], "index": given["index"]}
    order = call_order(seats, **drawn, at=given["opens"], terms=terms)
    call = Seating(order, given["opens"], given["hold"], terms.accepts_required)
    came = [(validator, second) for validator, second in given["came"]]
    return {"order": order, "takers": call.takers(came), "lapsed": call.lapsed(came, given["opens"] + 9_999)}


def the_wages(given: Values) -> Values:
    totals = given["totals"]
    tree, last = wages_tree(given["run"], totals), max(totals)
    leaf = hexed(wages_leaf(given["run"], last, totals[last]))
    proof = [hexed(node) for node in tree.proof(len(totals) - 1)]
    return {"leaf of the last": leaf, "root": hexed(tree.root), "proof of the last": proof}


def the_name(given: Values) -> Values:
    found = signed(given, "NodeName", given["name"])
    announced = NodeName(**given["name"], signature=found["signature"])
    assert name_problem(announced.name) == ""
    assert recover_signer(Domain(given["chain_id"], given["registry"]), announced) == found["signer"]
    return found


def the_score(given: Values) -> Values:
    found = signed(given, "BenchmarkScore", given["score"])
    numbers = {name: float(given["score"][name]) for name in ("score", "low", "high")}
    score = BenchmarkScore(**given["score"] | numbers, signature=found["signature"])
    assert recover_signer(Domain(given["chain_id"], given["registry"]), score) == found["signer"]
    return found


def the_masters(given: Values) -> Values:
    sealed = {name: given[name] for name in ("grade_epochs", "grade_epoch_steps")}
    masters = chain_preimages(raw(given["last"]), given["grade_epochs"])
    terms = replace(terms_with(1, WorkClass(10_000, (8,))), grade_tip=keccak(masters[0]), **sealed)
    for epoch, master in enumerate(masters, 1):
        check_master(terms.grade_series, epoch, master)
    return {
        "masters": [hexed(master) for master in masters],
        "grade_tip": hexed(terms.grade_tip),
        "epochs": [epoch_of(terms.grade_series, step) for step in given["steps"]],
        "shown at it": [epochs_trained(terms.grade_series, step, 2) for step in given["steps"]],
    }


def the_seal(given: Values) -> Values:
    leaves = [
        vouch_leaf(CommittedWork(1, one["step"], one["node"], one["index"], raw(one["root"]), 0, 0), raw(one["anchor"]))
        for one in given["accepted"]
    ]
    return {"leaves": [hexed(leaf) for leaf in leaves], "vouch root": hexed(LeafTree.from_hashes(leaves).root)}


def the_vote(given: Values) -> Values:
    found = vote_hash(given["case_id"], given["judge"], given["guilty"], raw(given["salt"]))
    return {"hash": hexed(found)}


def the_manifest(given: Values) -> Values:
    manifest = parse_manifest(given["canonical"].encode())
    return {
        "leaves": [hexed(manifest.header_leaf), *(hexed(shard.leaf) for shard in manifest.shards)],
        "root": manifest.id,
    }


def the_difference(given: Values) -> Values:
    base, new, width = raw(given["base"]), raw(given["new"]), given["width"]
    frame = encode(memoryview(base), memoryview(new), [TypedSpan(width, len(new))])
    made = bytearray(base)
    apply(frame, made)
    assert made == new
    return {"frame": hexed(frame)}


def the_evidence(given: Values) -> Values:
    data = EvidenceBundle(**given).to_bytes()
    return {"bytes": len(data), "content hash": content_hash(data)}


def the_task_set(given: Values) -> Values:
    """As a reader: the shard is given, since its bytes depend on the version of zstd."""
    lines, stored = [line.encode() for line in given["lines"]], raw(given["shard"])
    assert [Task.from_line(line).to_line() for line in lines] == lines
    tree = LeafTree.from_hashes([task_leaf(index, line) for index, line in enumerate(lines)])
    entry = ShardEntry(content_hash(stored), tree.root, len(lines), len(b"\n".join(lines)))
    shard = TaskShard.open(entry, 0, stored)
    assert [shard.line(place) for place in range(len(lines))] == lines
    environment = EnvironmentManifest.from_document(given["environment"])
    sources = (TaskSource(given["licence"], given["origin"]),)
    document = TaskSetDocument((TaskSetPart(given["part"], environment, (entry,), given["weight"], sources),))
    data = document.to_bytes()
    return {
        "leaves": [hexed(task_leaf(index, line)) for index, line in enumerate(lines)],
        "shard root": hexed(shard.tree.root),
        "proof of task 0": [hexed(node) for node in shard.tree.proof(0)],
        "document": data.decode(),
        "task_root": "0x" + hashlib.sha256(data).hexdigest(),
        "task_count": document.slots,
    }


def the_terms(given: Values) -> Values:
    work_class = unpack_class(int(given["word"], 16))
    return {
        "weight_bps": work_class.weight_bps,
        "budgets": list(work_class.budgets),
        "profile": hexed(profile_hash(given["profile"])),
    }


COMPUTED: dict[str, Callable[[Values], Values]] = {
    "Row": the_row,
    "Leaf": the_leaf,
    "Root": the_root,
    "Draw": the_draw,
    "Sample": the_sample,
    "Request signature": the_request,
    "Receipt": the_receipt,
    "Verdict": the_verdict,
    "Call": the_call,
    "Wages": the_wages,
    "Node name": the_name,
    "Benchmark score": the_score,
    "Masters": the_masters,
    "Vouch root": the_seal,
    "Vote": the_vote,
    "Manifest": the_manifest,
    "Difference": the_difference,
    "Evidence": the_evidence,
    "Task set": the_task_set,
    "Terms": the_terms,
}
"""By the heading under which the example stands."""


@pytest.mark.parametrize("title", COMPUTED)
def test_the_example_is_what_the_code_computes(title: str) -> None:
    example = EXAMPLES[title]
    assert example["gives"] == COMPUTED[title](example["given"])


def test_every_example_of_the_page_is_computed() -> None:
    assert set(EXAMPLES) == set(COMPUTED)


@pytest.mark.parametrize("title", ["Leaf", "Draw"])
def test_the_example_is_an_entry_of_the_contracts_vectors(title: str) -> None:
    example = EXAMPLES[title]
    path, number = example["vector"].split("#")
    vectors = json.loads((ROOT / path).read_text())
    for name, value in (example["given"] | example["gives"]).items():
        assert vectors[name][int(number)] == value, name


def test_the_manifest_is_an_entry_of_the_vectors() -> None:
    example = EXAMPLES["Manifest"]
    path, number = example["vector"].split("#")
    vector = json.loads((ROOT / path).read_text())[int(number)]
    assert {name: vector[name] for name in ("canonical", "leaves", "root")} == example["given"] | example["gives"]


def test_an_upload_of_the_page_is_the_nodes_own() -> None:
    """The receipt of the page and a signed request of its node make an upload that a juror takes."""
    given, gives = EXAMPLES["Receipt"]["given"], EXAMPLES["Receipt"]["gives"]
    message = given["receipt"]
    node_key = EXAMPLES["Request signature"]["given"]["key"]
    path, query = gives["upload"].removeprefix("PUT ").split("?")
    request = {
        "method": "PUT",
        "host": "run.example.org:8600",
        "path": path,
        "query": query,
        "bodyHash": message["fileHash"],
        "nonce": "0x" + "07" * 32,
        "expiry": 1_800_000_030,
    }
    found = signed(given | {"key": node_key}, "Request", request)
    receipt = {name: message[name] for name in ("run", "node", "index", "root", "size")} | {
        "stored_at": message["storedAt"]
    }
    upload = Upload.model_validate(
        {
            "receipt": receipt | {"file_hash": message["fileHash"], "signature": gives["signature"]},
            "request": {name: request[name] for name in ("method", "host", "path", "query", "nonce", "expiry")}
            | {"body_hash": request["bodyHash"], "signature": found["signature"]},
        }
    )
    check_upload(Domain(given["chain_id"], given["registry"]), upload)
