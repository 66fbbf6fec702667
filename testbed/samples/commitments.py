"""A commitment made by hand as an honest worker would, without an engine: for the checks that need no forward pass."""

from __future__ import annotations

from functools import cache

import numpy as np

from muster.chain.keys import Signer
from muster.constants import MICRO
from muster.environments.scoring import Scorers
from muster.models.init import make_tokenizer
from muster.protocol.draws import Draw, DrawSource
from muster.protocol.eip712 import Domain, sign_message
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import Upload
from muster.protocol.prompts import end_token
from muster.protocol.receipts import upload_target
from muster.protocol.requests import HEADER_EXPIRY, HEADER_NONCE, HEADER_SIGNATURE, host_of, sign_request
from muster.protocol.terms import WorkClass
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.schema import Rollout
from muster.verification.rules import CommittedWork, ModelFacts, Rules
from testbed.samples.messages import about, receipt_of, request_of
from testbed.samples.rollouts import drawn_row
from testbed.samples.task_sets import generated
from testbed.samples.terms import keys_of, terms_of

RUNS = "0x" + "11" * 20
REGISTRY = "0x" + "22" * 20
WHERE = Domain(31337, REGISTRY)
NODE = Signer.from_key(b"\x01" * 32)
STORAGE = Signer.from_key(b"\x02" * 32)
ACCUSER = Signer.from_key(b"\x03" * 32).address
SOURCE = DrawSource(NODE.address, b"\x07" * 32, 0)
KEYS = keys_of(RUNS, STORAGE.address)
LIMIT = 24


@cache
def rules() -> Rules:
    task_set = generated(3, train=64, held_out=16)
    terms = terms_of(
        group_size=4,
        groups_per_commitment=3,
        accepts_required=1,
        commit_phase=60,
        reveal_phase=60,
        max_completion_tokens=LIMIT,
        task_count=task_set.size,
        task_root=task_set.root,
        classes=(WorkClass(10_000, (8, 12, 16)),),
    )
    tokenizer = make_tokenizer()
    facts = ModelFacts(len(tokenizer), frozenset({end_token(tokenizer)}))
    return Rules(31337, RUNS, 1, terms, task_set, Scorers(), tokenizer, facts)


def commitment_of(root: bytes = bytes(32), index: int = 5) -> CommittedWork:
    return CommittedWork(run=1, step=3, node=NODE.address, index=index, root=root, hour=0, block=10)


@cache
def drawn(index: int = 5) -> Draw:
    return rules().draw(SOURCE, index)


def tokens_of(text: str) -> np.ndarray:
    return np.asarray(rules().tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)


def honest_row(position: int) -> Rollout:
    """Even positions answer rightly and stop; odd ones think until the limit."""
    made, draw, rng = rules(), drawn(), np.random.default_rng(position)
    group = draw.groups[position // made.terms.group_size]
    answer = "..</think>" + made.task(group.task).reference["answer"] + made.tokenizer.eos_token
    completion = tokens_of("." * LIMIT if position % 2 else answer)
    reward, reason = (0, "length") if position % 2 else (MICRO, "stop")
    logprobs = -rng.random(len(completion)).astype(np.float32)
    columns = {"task_reward": reward, "finish_reason": reason, "proof": rng.bytes(8 * len(completion))}
    return drawn_row(made, draw, position, completion, logprobs=logprobs, **columns)


@cache
def _honest_rows() -> tuple[Rollout, ...]:
    return tuple(honest_row(position) for position in range(rules().terms.positions))


def honest_rows() -> list[Rollout]:
    return list(_honest_rows())


def committed(rows: list[Rollout]) -> CommittedWork:
    """Return the commitment to these rows."""
    return commitment_of(rollout_tree(rows).root)


def upload_of(
    data: bytes, commitment: CommittedWork, node: Signer = NODE, storage: Signer = STORAGE, where: Domain = WHERE
) -> Upload:
    """Return the upload of a file for a commitment, signed by these two."""
    name, root = content_hash(data), hex_hash(commitment.root)
    path, query = upload_target(name, commitment.run, commitment.index, root)
    url = f"http://127.0.0.1:8600{path}?{query}"
    headers = sign_request(node, where, "PUT", url, name, now=1_000_000)
    request = request_of(
        name,
        method="PUT",
        host=host_of(url),
        path=path,
        query=query,
        nonce=headers[HEADER_NONCE],
        expiry=int(headers[HEADER_EXPIRY]),
        signature=headers[HEADER_SIGNATURE],
    )
    work = {key: value for key, value in about(commitment).items() if key != "step"}
    receipt = receipt_of(**work, file_hash=name, size=len(data))
    return Upload(receipt=sign_message(storage, where, receipt), request=request)
