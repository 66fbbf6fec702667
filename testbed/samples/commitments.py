"""A commitment made by hand as an honest worker would, without an engine: for the checks that need no forward pass."""

from __future__ import annotations

from functools import cache

import numpy as np

from muster.chain.keys import Signer
from muster.constants import MICRO
from muster.environments.rewards import length_reward
from muster.environments.scoring import Scorers
from muster.models.init import make_tokenizer
from muster.protocol.draws import Draw, DrawSource
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import SignedRequest, Upload, UploadReceipt
from muster.protocol.prompts import end_token
from muster.protocol.receipts import upload_target
from muster.protocol.requests import HEADER_BODY, HEADER_EXPIRY, HEADER_NONCE, HEADER_SIGNATURE, host_of, sign_request
from muster.protocol.terms import Terms, WorkClass
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.schema import Rollout, one_span
from muster.verification.rules import CommittedWork, ModelFacts, Rules
from testbed.samples.task_sets import generated

RUNS = "0x" + "11" * 20
REGISTRY = "0x" + "22" * 20
WHERE = Domain(31337, REGISTRY)
NODE = Signer.from_key(b"\x01" * 32)
STORAGE = Signer.from_key(b"\x02" * 32)
ACCUSER = Signer.from_key(b"\x03" * 32).address
SOURCE = DrawSource(NODE.address, b"\x07" * 32, 0)
LIMIT = 24


@cache
def rules() -> Rules:
    task_set = generated(3, train=64, held_out=16)
    terms = Terms(
        trainer=RUNS,
        storage_key=STORAGE.address,
        admitter="0x" + "00" * 20,
        pay=1,
        worker_stake=1,
        validator_stake=1,
        case_fee=1,
        jury_deposit=1,
        slash_bps=5000,
        bounty_bps=2000,
        group_size=4,
        groups_per_commitment=3,
        commitments_per_hour=100,
        async_level=2,
        accepts_required=1,
        seal_quorum=2,
        min_step_interval=1,
        commit_phase=60,
        reveal_phase=60,
        jury_seniority=1,
        temperature_micro=1_000_000,
        max_prompt_tokens=64,
        max_completion_tokens=LIMIT,
        task_count=task_set.size,
        task_root=task_set.root,
        model_hash=bytes(32),
        tokenizer_hash=bytes(32),
        profile=bytes(32),
        classes=(WorkClass(10_000, (8, 12, 16)),),
    )
    tokenizer = make_tokenizer()
    return Rules(
        chain_id=31337,
        runs=RUNS,
        run=1,
        terms=terms,
        task_set=task_set,
        scorers=Scorers(),
        tokenizer=tokenizer,
        model=ModelFacts(len(tokenizer), frozenset({end_token(tokenizer)})),
    )


def commitment_of(root: bytes = bytes(32), index: int = 5) -> CommittedWork:
    return CommittedWork(run=1, step=3, node=NODE.address, index=index, root=root, hour=0, block=10)


@cache
def drawn(index: int = 5) -> Draw:
    return rules().draw(SOURCE, index)


def tokens_of(text: str) -> np.ndarray:
    return np.asarray(rules().tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)


def honest_row(position: int) -> Rollout:
    """Even positions answer rightly and stop; odd ones think until the limit."""
    made, draw = rules(), drawn()
    group = draw.groups[position // made.terms.group_size]
    if position % 2:
        completion = tokens_of("." * LIMIT)
        reward = 0
    else:
        reward = MICRO
        completion = tokens_of("..</think>" + made.task(group.task).reference["answer"] + made.tokenizer.eos_token)
    rng = np.random.default_rng(position)
    return Rollout(
        run=1,
        step=3,
        position=position,
        group=position // made.terms.group_size,
        sample=position % made.terms.group_size,
        task=group.task,
        seed=draw.seeds[position],
        budget=group.budget,
        prompt_tokens=made.prompt(group.task, group.budget),
        completion_tokens=completion,
        spans=one_span(len(completion)),
        logprobs=-rng.random(len(completion)).astype(np.float32),
        task_reward=reward,
        parts=np.array([reward], np.int64),
        fuel=0,
        length_reward=length_reward(group.budget, len(completion)),
        finish_reason="length" if position % 2 else "stop",
        proof=rng.bytes(8 * len(completion)),
    )


@cache
def _honest_rows() -> tuple[Rollout, ...]:
    return tuple(honest_row(position) for position in range(rules().terms.positions))


def honest_rows() -> list[Rollout]:
    return list(_honest_rows())


def committed(rows: list[Rollout]) -> CommittedWork:
    """The commitment to these rows."""
    return commitment_of(rollout_tree(rows).root)


def upload_of(
    data: bytes, commitment: CommittedWork, node: Signer = NODE, storage: Signer = STORAGE, where: Domain = WHERE
) -> Upload:
    """The upload of a file for a commitment, signed by these two."""
    name, root = content_hash(data), hex_hash(commitment.root)
    path, query = upload_target(name, commitment.run, commitment.index, root)
    url = f"http://127.0.0.1:8600{path}?{query}"
    headers = sign_request(node, where, "PUT", url, name, now=1_000_000)
    request = SignedRequest(
        method="PUT",
        host=host_of(url),
        path=path,
        query=query,
        body_hash=headers[HEADER_BODY],
        nonce=headers[HEADER_NONCE],
        expiry=int(headers[HEADER_EXPIRY]),
        signature=headers[HEADER_SIGNATURE],
    )
    receipt = UploadReceipt(
        run=commitment.run,
        node=commitment.node,
        index=commitment.index,
        root=root,
        file_hash=name,
        size=len(data),
        stored_at=0,
        signature=UNSIGNED,
    )
    return Upload(receipt=sign_message(storage, where, receipt), request=request)
