"""Let strangers' programs attack both walls, and count what they read, wrote, reached or left behind.

The host has canaries: a file and a folder, a variable of the environment, an open descriptor, and a service that
listens. After each attack they are looked at, and the next call is compared, to the fuel, with one that came before any
attack. Each attack runs in two processes: what differs between them is an escape as well.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import default_manifest, make_environment
from muster.environments.task import ask
from muster.errors import UnreachableError
from muster.sandbox.client import Sandbox
from muster.sandbox.component import local_component
from muster.sandbox.scorer import Outcome, ScorerManifest
from testbed.escapes import native_attempts
from testbed.escapes.attacks import ATTACKS, PAYLOADS, REACHED, RUNNING_ANSWERS, Attack

FUEL: Final = 10**9
VARIABLE: Final = "MUSTER_CANARY"

PROBE: Final = """
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


class Canaries:
    """What an attack must not read, write or reach. The folder is not there any more when it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "canary"
        self.secret = secrets.token_hex(16)
        self.file.write_text(self.secret)
        (folder / "canary.py").write_text(f"SECRET = {self.secret!r}\n")
        self.variable = secrets.token_hex(16)
        os.environ[VARIABLE] = self.variable
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.descriptor = os.open(self.file, os.O_RDWR)
        os.set_inheritable(self.descriptor, True)
        self._before = self._state()

    def close(self) -> None:
        os.environ.pop(VARIABLE, None)
        os.close(self.descriptor)
        self.listener.close()

    def told_by(self, outcome: Outcome) -> list[str]:
        """Return which of the host's secrets an outcome holds."""
        text = json.dumps(outcome.value) + outcome.stopped
        names = {
            "the canary file": self.secret,
            "the environment": self.variable,
            "the host's folder": str(Path.cwd()),
            "the host's Python": sys.prefix,
        }
        return [f"it read {name}" for name, secret in names.items() if secret in text]

    def touched(self) -> list[str]:
        """Return what was done to the canaries since the last look."""
        found = []
        try:
            self.listener.accept()[0].close()
            found.append("it connected to the listener")
        except BlockingIOError:
            pass
        if (state := self._state()) != self._before:
            found.append("it changed a file")
            self._before = state
        return found

    def _state(self) -> list[tuple[str, int, int, bytes]]:
        return [
            (path.name, path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.folder.iterdir())
        ]


@contextmanager
def canaries() -> Iterator[Canaries]:
    """Put canaries into a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="muster-canary-") as folder:
        found = Canaries(Path(folder))
        try:
            yield found
        finally:
            found.close()


def attack_component(attacks: Sequence[Attack] = ATTACKS, *, payloads: bool = True) -> Report:
    """Run programs, payloads and answers that attack the inner wall, in two processes."""
    report = Report()
    with canaries() as guarded, Sandbox() as one, Sandbox() as other:
        assailant = _Assailant(guarded, (one, other), report)
        assailant.inherited()
        for attack in attacks:
            program = attack.program(FILE=guarded.file, FOLDER=guarded.folder, PORT=guarded.port)
            payload = {"kind": "function", "entry": "attack", "code": program, "input": []}
            assailant.run(attack.kind, "code", payload)
        if payloads:
            for kind, (function, payload) in PAYLOADS.items():
                assailant.run(f"payload: {kind}", function, payload)
            assailant.answers()
    return report


class _Assailant:
    """Attacks two processes in turn, and looks at what came of it."""

    def __init__(self, guarded: Canaries, sandboxes: tuple[Sandbox, Sandbox], report: Report) -> None:
        self._guarded, self._sandboxes, self._report = guarded, sandboxes, report
        self._component = local_component().hash
        self._clean = [self._probe(sandbox) for sandbox in sandboxes]
        assert self._clean[0].value is not None, self._clean[0]

    def run(self, kind: str, function: str, payload: Any) -> None:
        """Make one call in both processes; note what it gained."""
        begun, outcomes, gained = time.monotonic(), [], []
        for sandbox in self._sandboxes:
            try:
                outcomes.append(sandbox.call(ScorerManifest(self._component, function, FUEL), payload))
            except UnreachableError as error:
                gained.append(f"it ended the scorer ({error})")
        seconds = (time.monotonic() - begun) / len(self._sandboxes)
        gained += [one for outcome in outcomes for one in self._guarded.told_by(outcome)]
        if any(outcome.value == {"value": REACHED} for outcome in outcomes):
            gained.append("it reached what it wanted")
        if len({repr(outcome) for outcome in outcomes}) > 1:
            gained.append("its outcome differs between two processes")
        self._report.add(kind, [*gained, *self._after()], seconds)

    def answers(self) -> None:
        """Give reasoning-gym's scorers answers that compute the right one when they are executed."""
        manifest = default_manifest("reasoning_gym", self._component)
        environment = make_environment(manifest)
        scorer = manifest.scorer
        assert scorer is not None
        for dataset, (entry, answer, most) in RUNNING_ANSWERS.items():
            task = ask("?", dataset=dataset, entry={"question": "?", **entry})
            environment.check(task)
            scores = [
                environment.score(
                    task,
                    f"</think>{text.replace('FILE', str(self._guarded.file))}",
                    partial(sandbox.call, scorer),
                )
                for text in (answer, entry["answer"])
                for sandbox in self._sandboxes
            ]
            gained = ["it ran"] if any(score.parts[0] > most * MICRO for score in scores[:2]) else []
            gained += ["the right answer is not taken"] if any(score.parts != (MICRO,) for score in scores[2:]) else []
            gained += ["its fuel differs"] if scores[0] != scores[1] or scores[2] != scores[3] else []
            self._report.add(f"reasoning_gym: {dataset}", [*gained, *self._after()])

    def inherited(self) -> None:
        """Look at what the scorers' processes were given by the one that started them."""
        gained = []
        for sandbox in self._sandboxes:
            for server in sandbox._servers.values():  # noqa: SLF001 - a process is looked at from outside
                assert server._process is not None  # noqa: SLF001
                found = Path(f"/proc/{server._process.pid}")  # noqa: SLF001
                if self._guarded.variable.encode() in (found / "environ").read_bytes():
                    gained.append("the environment")
                if any(os.readlink(one) == str(self._guarded.file) for one in (found / "fd").iterdir()):
                    gained.append("an open file")
        self._report.add("what the process inherits", gained)

    def _after(self) -> list[str]:
        found = self._guarded.touched()
        if [self._probe(sandbox) for sandbox in self._sandboxes] != self._clean:
            found.append("the next call differs")
        return found

    def _probe(self, sandbox: Sandbox) -> Outcome:
        payload = {"kind": "function", "entry": "probe", "code": PROBE, "input": ["x"]}
        return sandbox.call(ScorerManifest(self._component, "code", FUEL), payload)


def attack_walls() -> tuple[Report, list[str]]:
    """Run native attempts behind the outer walls; return also which controls failed without walls."""
    report = Report()
    with canaries() as guarded:
        attempts, controls = native_attempts.run_in_process(guarded.folder, guarded.port)
        gained = guarded.touched()
    for kind, said in attempts.items():
        report.add(kind, [] if said == native_attempts.REFUSED else [said])
    if gained:
        report.add("all of them", gained)
    return report, [kind for kind, said in controls.items() if said != native_attempts.DONE]


def code_manifest(**options: Any) -> EnvironmentManifest:
    """Return a manifest of `code` with this machine's component."""
    default = default_manifest("code", local_component().hash)
    return EnvironmentManifest("code", default.version, {**default.options, **options}, default.weights, default.scorer)
