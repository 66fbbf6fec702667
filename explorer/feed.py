"""Turn the log of events into sentences with a link each. Pure.

The feed has what is notable, and one line for the steps between two other events. Routine is on the page of all events
only: single commitments, seals and votes are counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from explorer.render import amount, hour, number, percent, short, shown
from muster.protocol.messages import Demand, Message
from muster.protocol.metric_names import HELD_OUT, REWARD, UNENDED_ALARM

Tone = Literal["plain", "good", "bad", "warn"]
Names = Mapping[str, str]
"""Nodes' names by address."""


class FeedLine(Message):
    id: int
    time: float
    kind: str
    who: str
    """Name or shortened address of the node that it is about; empty for the run's own."""
    text: str
    href: str
    """Page that has more."""
    tone: Tone


def feed_lines(events: Iterable[Any], names: Names, *, routine: bool = False) -> list[FeedLine]:
    """Return the notable ones of some events (`summary.EventLine`), with `routine` all of them, in their order."""
    sentences = {**_SENTENCES, **_ROUTINE} if routine else _SENTENCES
    lines = []
    for event in events:
        if event.data.get("rejections", 1) > 1 and not routine:
            continue  # the first is news, and the page of the commitment has them all
        if (sentence := sentences.get(event.kind)) is not None:
            who, text, href, tone = sentence(event.data, names)
            lines.append(
                FeedLine(id=event.id, time=event.time, kind=event.kind, who=who, text=text, href=href, tone=tone)
            )
    return lines


def folded(lines: Iterable[FeedLine]) -> list[FeedLine]:
    """Return lines, newest first, with each step once and the steps between two other events in one line.

    A step that was reported again keeps its newest report.
    """
    kept: list[list[FeedLine]] = []
    known = set[str]()
    for line in lines:
        if line.kind != "step":
            kept.append([line])
        elif line.href not in known:
            known.add(line.href)
            if kept and kept[-1][0].kind == "step":
                kept[-1].append(line)
            else:
                kept.append([line])
    return [_folded_steps(group) if len(group) > 1 else group[0] for group in kept]


def _folded_steps(group: Sequence[FeedLine]) -> FeedLine:
    """Return one line for several steps, newest first: the newest says what it says alone."""
    first, newest = group[-1].href.rpartition("/")[2], group[0]
    last, _, numbers = newest.text.partition(": ")
    text = f"Steps {first} to {last.removeprefix('Step ')}; the last: {numbers}"
    tone: Tone = "good" if any(line.tone == "good" for line in group) else "plain"
    return newest.model_copy(update={"text": text, "tone": tone})


def called(address: str | None, names: Names) -> str:
    """Return a node's name, or else its shortened address."""
    return shown(names.get(address or "", "")) or short(address)


def state_sentence(
    *,
    step: int | None,
    finished: bool,
    blocked: str,
    demand: Demand,
    unended: float | None = None,
    stale: bool = False,
) -> tuple[str, str]:
    """Return what the swarm does or waits for, as a sentence, and its tone: done, wait or go.

    unended: share of completions that never end their thinking. stale: chain or log have not been read for a while, so
    what it says now is not known.
    """
    if stale:
        return "What the swarm does now is not known: chain or log are not read.", "wait"
    if finished:
        return f"Training is finished at step {number(step)}.", "done"
    if blocked:
        return f"Waiting: {blocked}.", "wait"
    if (unended or 0) >= UNENDED_ALARM:
        return f"Little is learnt: {percent(unended)} of completions never end their thinking.", "wait"
    waiting = f"{number(demand.waiting_groups)} groups wait for the trainer"
    if demand.wanted:
        return f"Work continues: {waiting}, and it wants more.", "go"
    return f"Enough work: {waiting}, and it wants no more for now.", "go"


_Sentence = tuple[str, str, str, Tone]


def _about_node(text: Callable[[Mapping[str, Any], Names], str], tone: Tone = "plain") -> Callable[..., _Sentence]:
    def sentence(data: Mapping[str, Any], names: Names) -> _Sentence:
        return called(data.get("node"), names), text(data, names), f"/nodes/{data.get('node')}", tone

    return sentence


def _step(data: Mapping[str, Any], names: Names) -> _Sentence:
    metrics = data.get("metrics", {})
    score = metrics.get(HELD_OUT)
    known = {"reward": metrics.get(REWARD), "held out": score}
    numbers = ", ".join(f"{name} {number(value, 3)}" for name, value in known.items() if value is not None)
    again = "the same weights, published again without new work" if data.get("step") else "the model to begin with"
    what = f"from {data.get('files')} files" if data.get("files") else again
    text = f"Step {data.get('step')}: {numbers or what}"
    return "", text, f"/steps/{data.get('step')}", "good" if score is not None else "plain"


def _case_opened(data: Mapping[str, Any], names: Names) -> _Sentence:
    text = f"is accused of {_kind(data)} in commitment {data.get('index')}, by {called(data.get('challenger'), names)}"
    return called(data.get("node"), names), text, f"/court/{data.get('case')}", "warn"


def _case_ended(data: Mapping[str, Any], names: Names) -> _Sentence:
    outcome, votes = str(data.get("outcome", "")), f"{data.get('guilty')} of {data.get('reveals')} votes guilty"
    text = f"case {data.get('case')} ended: {outcome.replace('_', ' ')}, {votes}"
    tone: Tone = "bad" if outcome == "guilty" else "plain"
    return called(data.get("node"), names), text, f"/court/{data.get('case')}", tone


def _convicted(data: Mapping[str, Any], names: Names) -> str:
    return f"is convicted: {amount(data.get('slashed'))} of its stake are gone, its pay is void"


def _rejected(data: Mapping[str, Any], names: Names) -> _Sentence:
    why, by = _kind(data, "reason"), called(data.get("validator"), names)
    text = f"commitment {data.get('index')} is rejected for {why}, by {by}"
    return called(data.get("node"), names), text, f"/nodes/{data.get('node')}/{data.get('index')}", "warn"


def _kind(data: Mapping[str, Any], key: str = "kind") -> str:
    return str(data.get(key, "")).replace("_", " ")


def _plain(text: str, href: str = "/", tone: Tone = "plain") -> Callable[..., _Sentence]:
    return lambda data, names: (
        "",
        text.format_map({key: shown(str(value)) for key, value in data.items()}),
        href,
        tone,
    )


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, Any], Names], _Sentence]]] = {
    "joined": _about_node(lambda data, _: f"joins as a {data.get('role')}", "good"),
    "retired": _about_node(lambda data, _: "retires"),
    "withdrawn": _about_node(lambda data, _: "has its stake back"),
    "named": _about_node(lambda data, _: "has a new name"),
    "convicted": _about_node(_convicted, "bad"),
    "refuted": _about_node(lambda data, _: f"commitment {data.get('index')} is proven false: {_kind(data)}", "bad"),
    "fined": _about_node(lambda data, _: f"is fined {amount(data.get('amount'))}", "warn"),
    "claimed": _about_node(lambda data, _: f"is paid {amount(data.get('amount'))}", "good"),
    "rejected": _rejected,
    "case opened": _case_opened,
    "case ended": _case_ended,
    "step": _step,
    "scored": lambda data, names: (
        "",
        f"Step {data.get('step')} scores {number(data.get('score'), 3)} on {shown(str(data.get('benchmark')))}",
        f"/steps/{data.get('step')}",
        "good",
    ),
    "finished": _plain("Training is finished at step {step}", tone="good"),
    "closed": _plain("The run is closed"),
    "relay misbehaved": _plain("A relay sent wrong bytes: {relay}", "/leaderboard?list=others", "warn"),
}
NOTABLE: Final = frozenset(_SENTENCES)
"""Kinds of events that the feed tells."""
PINNED: Final = frozenset({"case opened", "case ended", "convicted", "refuted"})
"""Kinds that stay at the top of the feed for a day."""


def _of_judge(text: str) -> Callable[..., _Sentence]:
    return lambda data, names: (
        called(data.get("judge"), names),
        text.format_map(data),
        f"/court/{data.get('case')}",
        "plain",
    )


_ROUTINE: Final[Mapping[str, Callable[[Mapping[str, Any], Names], _Sentence]]] = {
    "committed": lambda data, names: (
        called(data.get("node"), names),
        f"commits work {data.get('index')}",
        f"/nodes/{data.get('node')}/{data.get('index')}",
        "plain",
    ),
    "sealed": _about_node(lambda data, _: f"seals the hour {hour(data['hour'])}"),
    "voided": _about_node(lambda data, _: f"loses {amount(data.get('amount'))} of unsettled pay", "bad"),
    "checkpoint": lambda data, names: (
        "",
        f"Step {data.get('step')} is on chain",
        f"/steps/{data.get('step')}",
        "plain",
    ),
    "voted": _of_judge("votes in case {case}"),
    "absent": _of_judge("does not reveal its vote in case {case}"),
}
KINDS: Final = tuple(sorted(_SENTENCES | _ROUTINE))
"""Kinds of all events that have a sentence."""
