"""Explain every term that the page uses: one sentence or two each, in the order in which they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from muster.constants import UNSEALED_WINDOW_HOURS, WINDOW_HOURS

SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "The run": {
        "run": "One training of one model under terms that never change, with an escrow that pays for the work.",
        "step": "A published state of the model. Step 0 is the one the run began with; its roots are on chain.",
        "checkpoint": "The weights of a step, as public files that can be checked against the root on chain.",
        "policy step": "The step whose weights wrote a rollout.",
        "orchestrator": "The service through which nodes exchange files and verdicts. It decides nothing "
        "about money or guilt; the contracts do.",
        "trainer": "The process that turns accepted work into the next step.",
        "run owner": "Who created the run and pays its escrow.",
        "escrow": "Tokens that the owner put into the contract. Pay is reserved there as soon as work is committed, "
        "so a claim can always be paid.",
        "cost per step": "Pay of the unrefuted commitments made at one step; the median of the newest steps.",
        "demand": "How much accepted or waiting work the trainer has, and whether it wants more.",
        "block": "The newest block of the chain that this explorer has read.",
    },
    "Who takes part": {
        "node": "A key that is registered for this run, as a worker or a validator, with its own stake.",
        "worker": "A node that generates rollouts and commits to them.",
        "validator": "A node that inspects the work of workers, accuses cheaters and judges others' cases.",
        "operator": "The key that owns stakes and earnings of nodes. It is cold: working does not need it.",
        "name": "What an operator calls a node, signed with the operator's key. Two nodes may have the same name: the "
        "address tells them apart.",
        "relay": "A server that passes weights on. It cannot change them: every piece is checked on arrival.",
        "machine": "The hardware that a node claims. The claim is not checked, and does not affect pay.",
        "author": "Who signed tasks that this run trains on.",
        "uptime": "Share of the hours since a worker joined in which it made a commitment.",
    },
    "Work": {
        "rollout": "One answer that the model wrote to one task, with its log-probabilities and its activation proof.",
        "group": "Several rollouts of the same task: the trainer learns from how they differ.",
        "commitment": "A worker's promise on chain: the root over a file of rollouts. Each pays the same.",
        "draw": "Task, budget and random numbers of every rollout follow from the chain. No worker chooses its work.",
        "thinking budget": "The number of tokens that the prompt announces for thinking.",
        "reward": "What the task's own scorer says that an answer is worth, from 0 to 1. Everybody computes the same "
        "number.",
        "reference": "What the scorer holds an answer against. That of a private task is not shown.",
        "accepted": "Enough validators found nothing wrong: the trainer may use it.",
        "pending": "Not judged yet.",
        "rejected": "A validator found something wrong. It is not trained on; that is not yet an accusation.",
        "void": "Of a node that was convicted: it counts no more.",
        "tokens per second": "What active workers say that they generate, together.",
        "batch": "The accepted files that one step was made of.",
        "staleness": "How many steps older than the training step the work is that goes into it.",
    },
    "Numbers of training": {
        "held-out score": "Mean reward on tasks that are never trained on.",
        "benchmark": "A published test that the owner or trainer ran on a step, and signed.",
        "completion length": "Tokens per answer, beside the budget that was announced.",
        "entropy": "How undecided the model is at each token, in nats. It falls as the model becomes sure.",
        "mismatch": "How far the trainer's log-probabilities are from those of the workers' engines, in nats per "
        "token.",
        "gradient norm": "Size of an update before it is clipped.",
        "groups without signal": "Share of groups whose answers were all worth the same: nothing can be learned from "
        "them.",
    },
    "Inspection": {
        "verdict": "A validator's signed judgement of one commitment.",
        "measured, limit": "What a check measured, and from which value on it rejects.",
        "evidence": "A public file with which the check can be run again.",
        "case": "An accusation on chain: validators vote, first hidden and then shown.",
        "proof": "Something false that the contract could see by itself: no vote is needed.",
        "convicted": "Found guilty: a part of the stake is lost, unsettled pay is void, and the key can never join "
        "again.",
        "jury": "Validators who joined well before the case, and are neither accuser, accused nor owner.",
        "seal": "A validator's statement that it has inspected an hour. A sealed hour matures sooner.",
    },
    "Money": {
        "stake": "Tokens that a node locks when it joins. They come back some days after it retires.",
        "slash": "The part of a stake that a conviction takes.",
        "window": f"The {WINDOW_HOURS} hours after the end of an hour in which its work can still be accused; "
        f"{UNSEALED_WINDOW_HOURS} if it is not sealed.",
        "maturing": "Pay that is in the window.",
        "claimable": "Pay whose window has passed: any account may claim it for the operator.",
        "claimed": "Pay that was paid out.",
        "last day": "Pay of the unrefuted commitments of the current hour and the 23 before it.",
        "test tokens": "All tokens here are test money. They are worth nothing.",
    },
    "Weights": {
        "manifest root": "Hash over all files of a step. It is on chain, so a relay cannot send anything else.",
        "batch root": "Hash over the files that a step was made of, as the trainer says.",
        "difference": "What changed from one step to the next: much smaller than the whole.",
    },
}

WORDS: Final[Mapping[str, str]] = {term: text for section in SECTIONS.values() for term, text in section.items()}


def anchor_of(term: str) -> str:
    """Return the fragment of a term on the page that explains it."""
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")
