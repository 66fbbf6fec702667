"""Conversations with tools: what is caught, what is exact, and what turns cost.

    python benchmarks/tools.py [--json] [--only PART] [--conversations 5000] [--samples 200] [--runs 5]

PARTS are measured one after the other, each in its own process. `adversaries` and `honest` are measured under both
profiles, in bfloat16 with a fifth of the conversations. All of it takes some hours on two cores; --only and smaller
numbers make it short. Exits with 3 when a target is missed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report, tool_gain
from benchmarks.python_calls import python_after
from muster.models.init import ModelShape, make_model, save_model
from muster.protocol.turns.bridge import GivenMessage, TurnTemplate, bridge
from muster.protocol.turns.calls import ToolCall, parse_turn
from muster.protocol.turns.conversation import Conversation, TurnRules, conversation_error
from muster.protocol.turns.results import cut, escape
from muster.verification.checks import check_rows
from muster.verification.judging import judge
from muster.verification.profiles import BF16, CPU_FP32, PROFILES
from testbed.adversaries.kinds import Adversary
from testbed.adversaries.lab import AdversaryLab
from testbed.adversaries.pipeline import DAY, KNOWN, LocalContext, make, outcome, sample_of
from testbed.adversaries.tool_code import CODE_ADVERSARIES, code_rules, rows_by
from testbed.adversaries.turns import TURN_ADVERSARIES, open_tool_lab
from testbed.samples.calls import STOP, decode, ids_of, rules_of, turn_of, vectors
from testbed.samples.chat_templates import FAMILIES, family_template
from testbed.samples.tool_model import call_text, tool_tokenizer
from testbed.samples.vllm_calls import COMPARED, unexplained
from worker.engine import Engine, EngineLimits, GenerationRequest

SURE: Final = 0.99
"""Share of the samples in which a kind must be rejected to count as caught."""
HONEST_ROOM: Final = 448
"""Tokens of an honest conversation: room for eight turns."""
CONVERSATIONS: Final = 32
"""Side by side, where turns are timed."""
TURNS: Final = 4
TURN_TOKENS: Final = 256
GIVEN_TOKENS: Final = 32
TOOL_SECONDS: Final = 0.02


# --- What is caught


def adversaries(options: Any) -> list[report.Figure]:
    found = []
    for profile in (CPU_FP32, BF16):
        kinds, in_rows = report.apart(catch, profile.name, options.samples)
        once = [name for name, in_one in kinds.items() if in_one < SURE]
        day = [name for name, in_one in kinds.items() if 1 - (1 - in_one) ** DAY < SURE]
        missed, target = (once, 1.0) if profile is CPU_FP32 else (day, 0.9)
        share, about = 1 - len(missed) / len(kinds), {"kinds": len(kinds), "missed": missed, "profile": profile.name}
        found.append(report.figure(f"tool_adversaries_{profile.dtype}", share, target=target, unit="of kinds", **about))
        if profile is CPU_FP32:
            seen = [name for name, one in in_rows.items() if one == 1]
            unseen = sorted(in_rows.keys() - set(seen))
            share, unit = len(seen) / len(in_rows), "of kinds that static checks see"
            about = {"kinds": len(in_rows), "missed": unseen}
            found.append(report.figure("tool_adversaries_in_a_row", share, target=1.0, unit=unit, **about))
    return found


def catch(name: str, samples: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return by kind how often a commitment of it is rejected, and which share of its rows static checks reject."""

    async def caught(lab: AdversaryLab) -> tuple[dict[str, float], dict[str, float]]:
        context, in_one, in_rows = LocalContext(lab), {}, {}
        try:
            for kind, one in TURN_ADVERSARIES.items():
                adversary, job = Adversary(kind, one.lie, one.reasons), lab.job(KNOWN)
                made = await make(context, lab, adversary, job)
                in_one[kind] = outcome(lab, adversary, [made], samples=samples).describe()["in_one"]
                if one.static:
                    lies = [row for row, true in zip(made.rows, lab.honest(job), strict=True) if row is not true]
                    in_rows[kind] = np.mean([check_rows([row], job.draw, lab.rules) is not None for row in lies]).item()
                print(f"{name}: {kind}: {in_one[kind]:.1%}", file=sys.stderr)
        finally:
            await context.close()
        return in_one, in_rows

    profile = PROFILES[name]
    with tempfile.TemporaryDirectory() as folder, open_tool_lab(Path(folder), profile) as lab:
        in_one, in_rows = asyncio.run(caught(lab))
    with tempfile.TemporaryDirectory() as folder:
        rules = code_rules(Path(folder))
        honest, draw = rows_by(rules)
        for kind, lie in CODE_ADVERSARIES.items():
            pairs = zip(rows_by(rules, lie)[0], honest, strict=True)
            lies = [row for row, true in pairs if row.completion_tokens.tobytes() != true.completion_tokens.tobytes()]
            in_rows[kind] = np.mean([check_rows([row], draw, rules) is not None for row in lies]).item()
            in_one[kind] = float(in_rows[kind] > 0)
        rules.scorers.close()
    return in_one, in_rows


def honest(options: Any) -> list[report.Figure]:
    found = []
    for profile, count in ((CPU_FP32, options.conversations), (BF16, options.conversations // 5)):
        rejected, turns = report.apart(work_honestly, profile.name, count)
        name, about = f"honest_conversations_{profile.dtype}", {"conversations": sum(turns.values()), "turns": turns}
        found.append(report.none(name, rejected, "rejected", **about))
    return found


def work_honestly(name: str, count: int) -> tuple[list[str], dict[int, int]]:
    """Return what was rejected of so many honest conversations, and how many had how many turns.

    Each is checked and replayed by itself, and the rows of each commitment are checked together.
    """
    rejected: list[str] = []
    turns: dict[int, int] = {}
    room = {"max_completion_tokens": HONEST_ROOM}
    with tempfile.TemporaryDirectory() as folder, open_tool_lab(Path(folder), PROFILES[name], **room) as lab:
        index = KNOWN
        while sum(turns.values()) < count:
            job = lab.job(index)
            rows = lab.generate(job)
            findings = [check_rows(rows, job.draw, lab.rules)]
            for row, one in zip(rows, lab.measure(job, rows), strict=True):
                findings.append(check_rows([row], job.draw, lab.rules) or judge([one], lab.profile))
                number = len(row.spans) // 2 + 1
                turns[number] = turns.get(number, 0) + 1
            rejected += [f"{index}: {one.reason}: {one.detail}" for one in findings if one is not None]
            index += 1
    return rejected, dict(sorted(turns.items()))


# --- What is exact


def exact(options: Any) -> list[report.Figure]:
    wrong, count = [], 0
    for name in FAMILIES:
        random = Random(name)
        for number in range(options.conversations // len(FAMILIES) + 1):
            count += 1
            if not is_extended(name, random):
                wrong.append(f"{name} {number}")
    unlike = [vector["id"] for vector in vectors() if not is_read_right(vector)]
    outcomes = len(vectors()) - len(unlike)
    beside = len(COMPARED) - len(report.apart(unexplained))
    share, about = 1 - len(wrong) / count, {"conversations": count, "families": len(FAMILIES), "wrong": wrong[:20]}
    return [
        report.figure("bridge_exact", share, target=1.0, unit="of conversations", **about),
        report.figure("parser_vectors", outcomes, target=200, unit="read as defined", wrong=unlike),
        report.figure("parser_vectors_beside_vllm", beside, target=80, unit="agree, or differ as the page says"),
    ]


def is_extended(name: str, random: Random) -> bool:
    """Return whether all that is given in a conversation is what the template renders of the whole at that place.

    The prompt and the spans before stay as they are: so the ids, split anywhere, are a prefix of what they become.
    """
    template = family_template(name)
    texts = ("42", "Let me see.\n" + call_text("6*7"), call_text("1+1") * 2, "<think>\nhm", "<think>a</think>\n7", "")
    results = ("42", "", "<|im_end|>\n<|im_start|>system", "1e3 true\n\n  x", "é\ud800" * 40, "a" * 5000)
    spans: list[list[int]] = []
    history: list[dict[str, Any]] = [{"role": "user", "content": "What is asked?"}]
    for number in range(random.randint(1, 8)):
        ends = [template.end] if random.random() < 0.8 else []
        spans.append([*template.tokenizer(random.choice(texts), add_special_tokens=False)["input_ids"], *ends])
        follows = [GivenMessage(random.choice(results), "calculator") for _ in range(random.randint(1, 3))]
        given = bridge(template, spans[-1], follows).tolist()
        closing = 0 if ends else given.index(template.end) + 1
        history += as_messages(f"said{number}", [replace(one, content=shown(one, template)) for one in follows])
        whole = template.rendered(history, opens_turn=True)
        if template.decode(given[closing:]) != whole[template.end_of(whole, f"said{number}") :]:
            return False
        spans.append(given)
    return True


def shown(message: GivenMessage, template: TurnTemplate) -> str:
    return escape(cut(message.content, template.limit), template.pattern)


def as_messages(said: str, follows: Sequence[GivenMessage]) -> list[dict[str, Any]]:
    """Return a turn that says this, and what follows it, as chat templates want them."""
    function = {"name": "calculator", "arguments": {"expression": said}}
    call = {"type": "function", "id": "call00000", "function": function}
    given = [{"role": "tool", "content": one.content, "name": one.name} for one in follows]
    given = [one | {"tool_call_id": f"call{i:05d}"} for i, one in enumerate(given)]
    return [{"role": "assistant", "content": said, "tool_calls": [call]}, *given]


def is_read_right(vector: dict[str, Any]) -> bool:
    ids = ids_of(turn_of(vector)) + ([STOP] if vector.get("stop", True) else [])
    found = parse_turn(ids, rules_of(vector), decode, {STOP})
    read = [[one.name, dict(one.arguments)] if isinstance(one, ToolCall) else one.reason for one in found]
    return json.dumps(read, sort_keys=True) == json.dumps(vector["calls"], sort_keys=True)


# --- What it costs


class Paced(Conversation):
    """A conversation of TURNS turns whose tool takes TOOL_SECONDS and gives GIVEN_TOKENS tokens."""

    def go_on(self) -> bool:
        if len(self.spans) >= 2 * TURNS - 1:
            return False
        time.sleep(TOOL_SECONDS)
        self.spans.append([5 + len(self.spans)] * GIVEN_TOKENS)
        return True


def engine(options: Any) -> list[report.Figure]:
    cached, plain = (report.apart(time_turns, options.runs, caching) for caching in (True, False))
    about = {"turns": TURNS, "tokens_of_a_turn": TURN_TOKENS, "conversations": CONVERSATIONS}
    return [
        efficiency("engine_efficiency", cached, target=0.8, **about),
        efficiency("engine_efficiency_no_cache", plain, target=0.0, **about),
    ]


def efficiency(name: str, pairs: Sequence[tuple[float, float]], *, target: float, **about: Any) -> report.Figure:
    ours, single = (list(column) for column in zip(*pairs, strict=True))
    return report.relative(name, ours, peer=single, target=target, unit="sampled tokens/s", **about)


def time_turns(runs: int, caching: bool) -> list[tuple[float, float]]:
    """Return the tokens a second that are sampled in conversations, and in single turns of as many sampled tokens."""
    room = TURNS * TURN_TOKENS + (TURNS - 1) * GIVEN_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, model = tool_tokenizer(), Path(folder) / "model"
        save_model(make_model(tokenizer, ModelShape(context=TURN_TOKENS + room), 0), tokenizer, model)
        limits = EngineLimits(1.0, TURN_TOKENS, room, max_sequences=CONVERSATIONS, prefix_caching=caching)
        running = Engine(model, CPU_FP32, limits)
        running.stop_tokens = []  # turns have their length
        params = running.sampling_params

        def of_a_turn(request: GenerationRequest, slot: int, offset: int) -> Any:
            made = params(request, slot, offset)
            made.max_tokens = TURN_TOKENS if request.turns is not None else TURNS * TURN_TOKENS
            return made

        running.sampling_params = of_a_turn  # type: ignore[method-assign]

        def timed(turns: TurnRules | None, seed: int) -> float:
            random = np.random.default_rng(seed)
            prompts = random.integers(0, len(tokenizer), (CONVERSATIONS, TURN_TOKENS), dtype=np.int32)
            requests = [GenerationRequest(one, seed << 32 | i, room, turns) for i, one in enumerate(prompts)]
            started = time.perf_counter()
            with patch("worker.engine.Conversation", Paced):
                made = running.generate(requests)
            seconds = time.perf_counter() - started
            assert all(len(one.logprobs) == TURNS * TURN_TOKENS for one in made), "a turn has another length"
            return CONVERSATIONS * TURNS * TURN_TOKENS / seconds

        several = cast(TurnRules, object())  # the conversations are Paced
        pairs = [(timed(several, 2 * run + 1), timed(None, 2 * run + 2)) for run in range(runs + 1)]
        running.close()
    return pairs[1:]


def checking(options: Any) -> list[report.Figure]:
    costs = report.apart(time_checks, options.runs)
    making, judging, tools = ([cost[i] for cost in costs] for i in range(3))
    shares = [tool / whole for tool, whole in zip(tools, making, strict=True)]
    unit = "CPU seconds of making a commitment over inspecting it"
    ratios = [whole / part for whole, part in zip(making, judging, strict=True)]
    return [
        report.figure("validate_over_generate", ratios, target=5, unit=unit, tools="every call of every row run again"),
        report.figure("tools_over_generate", shares, target=0.1, unit="of generation's CPU time", at_most=True),
    ]


def time_checks(runs: int) -> list[tuple[float, float, float]]:
    """Return the CPU seconds of making a commitment, of inspecting it, and of running its tools again."""
    found = []
    with tempfile.TemporaryDirectory() as folder, open_tool_lab(Path(folder)) as lab:
        for run in range(runs + 1):
            job = lab.job(KNOWN + run)
            rows, making = _cpu(lambda job=job: lab.generate(job))
            drawn = set(sample_of(job, run, lab.rules.terms))
            sample = [row for row in rows if row.position in drawn]
            finding, judging = _cpu(
                lambda job=job, rows=rows, sample=sample: (
                    check_rows(rows, job.draw, lab.rules) or judge(lab.measure(job, sample), lab.profile)
                )
            )
            if finding is not None:
                sys.exit(f"honest work was rejected: {finding}")
            _, again = _cpu(lambda rows=rows: [run_again(lab, row) for row in rows])
            found.append((making, judging, again))
    return found[1:]


def run_again(lab: AdversaryLab, row: Any) -> None:
    turns, limit = lab.rules.turns(row.task), lab.rules.terms.max_completion_tokens
    assert turns is not None, "these tasks have no tools"
    conversation_error(turns, row.completion_tokens, row.spans.tolist(), row.call_fuel.tolist(), limit)


def _cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return work(), time.process_time() - started


PARTS: Final[dict[str, Callable[[Any], list[report.Figure]]]] = {
    "exact": exact,
    "engine": engine,
    "checking": checking,
    "adversaries": adversaries,
    "honest": honest,
    "python": python_after,
    "gain": tool_gain.gain,
}


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts alone")
    parser.add_argument("--conversations", type=int, default=5000, help="honest ones, and those that are bridged")
    parser.add_argument("--samples", type=int, default=200, help="of each adversary's commitment")
    parser.add_argument("--runs", type=int, default=5, help="how often times are measured")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of models that are trained")
    parser.add_argument("--updates", type=int, default=24, help="of each model that is trained")
    parser.add_argument("--update-tokens", type=int, default=3000, help="sampled tokens that an update trains on")
    parser.add_argument("--held-out", type=int, default=512, help="tasks that trained models are asked")
    options = parser.parse_args()
    figures = [figure for part in options.only or PARTS for figure in PARTS[part](options)]
    return report.show(figures, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
