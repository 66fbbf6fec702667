"""Let strangers' programs attack the two walls, and count what they read, wrote, reached or left behind.

The host has canaries, which are looked at after each attack, and the next call is compared, to the fuel, with one that
came before any attack. An attack on the component runs in two processes: what differs between them is an escape too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.constants import MICRO
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ask
from muster.errors import MusterError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.sandbox.scorer import Outcome, ScorerManifest
from testbed.escapes import attempts
from testbed.escapes.attacks import COMPONENT, PAYLOADS, REACHED, RUNNING_ANSWERS, Attack
from testbed.escapes.canaries import Canaries, canaries

FUEL: Final = 10**9

COMPONENT_PROBE: Final = """
import builtins, json, os, random, sys, time
def probe(x):
    left = [hasattr(m, "LEFT") for m in (builtins, sys, sys.modules["code_runner"])] + [dict(os.environ)]
    return [x, left, len([1]), json.dumps([x]), random.random(), time.time(), sys.getrecursionlimit(), len(sys.modules)]
"""


@dataclass
class Report:
    """What came of the attacks."""

    tried: list[str] = field(default_factory=list)
    escapes: list[str] = field(default_factory=list)
    """Attack and what it gained."""
    seconds: float = 0.0
    """The longest of one attack."""

    def add(self, kind: str, gained: Sequence[str], seconds: float = 0.0) -> None:
        self.tried.append(kind)
        self.escapes += [f"{kind}: {one}" for one in gained]
        self.seconds = max(self.seconds, seconds)


class _Assailant:
    """Attacks by several scorers in turn, and looks at what came of it."""

    def __init__(self, host: Canaries, calls: Sequence[Callable[..., Outcome]], probe: Sequence[Any]) -> None:
        """probe: what a call is given whose outcome no attack may change."""
        self.report = Report()
        self._host, self._calls, self._probe = host, calls, probe
        self._clean = self._probed()
        assert self._clean[0][0], self._clean

    def run(self, kind: str, *given: Any) -> None:
        """Make one call of each scorer; note what it gained."""
        begun, outcomes, gained = time.monotonic(), [], []
        for call in self._calls:
            try:
                outcomes.append(call(*given))
            except MusterError as error:
                gained.append(f"it ended the scorer ({error})")
        seconds = (time.monotonic() - begun) / len(self._calls)
        gained += [one for outcome in outcomes for one in self._host.told_by(outcome)]
        gained += (
            ["it reached what it wanted"] if any(outcome.value == {"value": REACHED} for outcome in outcomes) else []
        )
        gained += ["its outcome differs between two processes"] if len(set(map(repr, outcomes))) > 1 else []
        self.report.add(kind, [*gained, *self.after()], seconds)

    def after(self) -> list[str]:
        """Return what an attack left behind."""
        found = self._host.touched()
        return [*found, "the next call differs"] if self._probed() != self._clean else found

    def _probed(self) -> list[tuple[Any, int]]:
        outcomes = [call(*self._probe) for call in self._calls]
        return [(outcome.value, outcome.fuel) for outcome in outcomes]


# --- The inner wall


def attack_component(attacks: Iterable[Attack] = COMPONENT.values(), *, payloads: bool = True) -> Report:
    """Run programs, payloads and answers that attack the inner wall, in two processes."""
    component = local_component().hash

    def call(sandbox: Sandbox, function: str, payload: Any) -> Outcome:
        return sandbox.call(ScorerManifest(component, function, FUEL), payload)

    def program(entry: str, code: str, *given: str) -> tuple[str, dict[str, Any]]:
        return "code", {"kind": "function", "entry": entry, "code": code, "input": list(given)}

    with canaries() as host, Sandbox() as one, Sandbox() as other:
        calls = [partial(call, sandbox) for sandbox in (one, other)]
        assailant = _Assailant(host, calls, program("probe", COMPONENT_PROBE, "x"))
        assailant.report.add("what the process inherits", _inherited(host, (one, other)))
        for attack in attacks:
            assailant.run(attack.kind, *program("attack", attack.program(**host.names())))
        for kind, (function, payload) in PAYLOADS.items() if payloads else ():
            assailant.run(f"payload: {kind}", function, payload)
        for dataset, gained in _answers(host, component, (one, other)) if payloads else ():
            assailant.report.add(f"reasoning_gym: {dataset}", [*gained, *assailant.after()])
        return assailant.report


def _inherited(host: Canaries, sandboxes: Sequence[Sandbox]) -> list[str]:
    """Return what the scorers' processes were given by the one that started them."""
    gained = []
    for sandbox in sandboxes:
        for server in sandbox._servers.values():  # noqa: SLF001 - a process is looked at from outside
            assert server._process is not None  # noqa: SLF001
            found = Path(f"/proc/{server._process.pid}")  # noqa: SLF001
            if host.variable.encode() in (found / "environ").read_bytes():
                gained.append("the environment")
            if any(os.readlink(one) == str(host.file) for one in (found / "fd").iterdir()):
                gained.append("an open file")
    return gained


def _answers(host: Canaries, component: str, sandboxes: Sequence[Sandbox]) -> Iterable[tuple[str, list[str]]]:
    """Give reasoning-gym's scorers answers that compute the right one when they are executed; yield what that gains."""
    manifest = default_manifest("reasoning_gym", component)
    environment, scorer = make_environment(manifest), manifest.scorer
    assert scorer is not None
    for one in RUNNING_ANSWERS:
        task = ask("?", dataset=one.dataset, entry={"question": "?", **one.entry})
        environment.check(task)
        scores = [
            environment.score(task, f"</think>{text.replace('FILE', str(host.file))}", partial(sandbox.call, scorer))
            for text in (one.hostile, one.entry["answer"])
            for sandbox in sandboxes
        ]
        gained = ["it ran"] if any(score.parts[0] > one.most * MICRO for score in scores[:2]) else []
        gained += ["the right answer is not taken"] if any(score.parts != (MICRO,) for score in scores[2:]) else []
        gained += ["its fuel differs"] if scores[0] != scores[1] or scores[2] != scores[3] else []
        yield one.dataset, gained


# --- The outer walls


def attack_process() -> tuple[Report, list[str]]:
    """Let a process behind the outer walls try what it can; return also which controls failed without walls."""
    report = Report()
    with canaries() as host:
        tried, controls = attempts.run_in_process(host.folder, host.port)
        report.escapes = [f"all of them: {one}" for one in host.touched()]
    for kind, said in tried.items():
        report.add(kind, [] if said == attempts.REFUSED else [said])
    return report, [kind for kind, said in controls.items() if said != attempts.DONE]
