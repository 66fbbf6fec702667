"""What docs and page tell people to type, typed as it stands: by a reader with an empty home and an installed package.

`printed.toml` says of each page of the docs what its placeholders are here, which lines end otherwise than with 0 or
only by Ctrl-C, and which are not run, each with one of REASONS. What it does not mention is run as it stands.
"""

from __future__ import annotations

import html
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.chain.keys import write_secret
from muster.errors import ConfigError
from muster.runtime.files import cache_folder
from testbed.http import get
from testbed.paths import ROOT
from testbed.processes import Process, clean_environment
from testbed.runs.swarms import LiveSwarm
from testbed.waiting import BOUND

REASONS: Final = ("hours", "needs root", "needs a public chain", "needs the internet", "typed by make release")
"""Why a printed line is not run. A path of a test is one too: that story types it."""
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND: Final = re.compile(r'<div class="command">.*?<code>(.*?)</code>', re.DOTALL)
ON_THE_PAGE: Final = {
    "ctrl_c": {"muster serve": "/v1"},
    "more": {"muster serve": "--port 0"},
    "status": {"muster validator verify": 3},  # on the page of what convicted the cheater
}
PARTS: Final = (
    *("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "scripts"),
    *("adversary", "explorer", "muster", "orchestrator", "trainer", "validator", "worker"),
)
"""What a wheel is made of."""
LINE_SECONDS: Final = 300.0
PASSWORD: Final = "a reader's password"
TABLE: Final[dict[str, dict[str, Any]]] = tomllib.loads((ROOT / "testbed" / "printed.toml").read_text())


@dataclass(frozen=True)
class Typed:
    """A line and what came of it."""

    line: str
    typed: str
    status: int
    expected: int
    seconds: float
    said: str

    @property
    def is_true(self) -> bool:
        return self.status == self.expected and "Traceback" not in self.said


@dataclass
class Reader:
    """A user with an empty home and an empty folder, and the wheel of this tree installed."""

    home: Path
    package: Path | None = None
    """The unpacked wheel, or what else comes first on the path of modules."""
    values: Mapping[str, object] = field(default_factory=dict)
    """What placeholders stand for: url, run, case, node, index."""
    python: Path = Path(sys.executable)
    """Of the environment that the package is installed in."""
    shares_components: bool = True
    """Whether the sandbox's component, which takes long to compile, is that of this machine's user."""
    has_engine: bool = True
    """Without one nothing can be served: the command says what to install."""

    def __post_init__(self) -> None:
        self.program = self.home / "bin" / "muster"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        self.program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(self.python))} -P -m muster "$@"\n')
        self.program.chmod(0o755)
        self.password = self.home.with_suffix(".password")
        if not self.password.exists():
            write_secret(self.password, PASSWORD)
        path = f"{self.program.parent}:{self.python.parent}:{clean_environment()['PATH']}"
        cache = self.home / ".cache"
        self.environment = {"HOME": str(self.home), "XDG_CACHE_HOME": str(cache), "PATH": path}
        self.environment["PYTHONPATH"] = str(self.package or "")
        if self.shares_components:
            (cache / "muster").mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (cache / "muster" / "components").symlink_to(cache_folder("components"))

    def follow(self, page: str, lines: Sequence[str] | None = None) -> list[Typed]:
        """Type the lines of a page of the docs in its order, or some of them."""
        options = TABLE[page]
        return [
            self.type(line, options)
            for line in (lines_of(page) if lines is None else lines)
            if reason_not_to_run(page, line) is None
        ]

    def type(self, line: str, options: Mapping[str, Any] | None = None) -> Typed:
        """Type one line into a shell; end it by Ctrl-C once it says what `options` names."""
        options, typed = options or {}, line
        values = {"password": self.password, **self.values}
        for shown, meant in options.get("placeholders", {}).items():
            typed = typed.replace(shown, meant.format(**values))
        for words, more in options.get("more", {}).items():
            typed = f"{typed} {more.format(**values)}" if typed.startswith(words) else typed
        ends_at = next((words for start, words in options.get("ctrl_c", {}).items() if line.startswith(start)), None)
        expected = next((status for start, status in options.get("status", {}).items() if line.startswith(start)), 0)
        if not self.has_engine and line.startswith("muster serve"):
            ends_at, expected = None, ConfigError.exit_code
        begun = time.monotonic()
        if ends_at is not None:
            log = self.home / "ctrl-c.log"
            words = [self.program, *shlex.split(typed)[1:]]
            with Process(words, log, folder=self.home, environment=self.environment) as process:
                process.wait_until(lambda: ends_at in process.said, ends_at, LINE_SECONDS)
                status, said = process.stop(signal.SIGINT)
        else:
            done = subprocess.run(
                ["bash", "-c", typed],
                cwd=self.home,
                env=clean_environment(**self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LINE_SECONDS,
                check=False,
            )
            status, said = done.returncode, done.stdout + done.stderr
        return Typed(line, typed, status, expected, time.monotonic() - begun, said)


def conviction(swarm: LiveSwarm) -> dict[str, object]:
    """Return what the docs' placeholders stand for, by the newest conviction of a swarm; {} before there is one."""
    for case in swarm.get("/v1/runs/1/cases?limit=100").get("cases", ()):
        if case["outcome"] == "guilty":
            placeholders = {
                "case": case["id"],
                "node": case["node"],
                "index": case["index"],
                "evidence": case["evidence"],
            }
            return {"url": swarm.url, "run": 1, **placeholders}
    return {}


def type_as_visitor(swarm: LiveSwarm, reader: Reader) -> list[Typed]:
    """Type the tour, and what the pages of the reader's case and commitment, and of the weights, show to everybody."""
    typed = reader.follow("docs/use/tour.md")
    values = reader.values
    for path in (f"/court/{values['case']}", f"/nodes/{values['node']}/{values['index']}", "/steps", "/steps/0"):
        shown = list(commands_on(swarm.url, path))
        assert shown, f"{path} shows no command"
        assert all(swarm.url in line for line in shown), shown
        typed += [reader.type(line, ON_THE_PAGE) for line in shown]
    return typed


def unpacked_wheel(folder: Path) -> Path:
    """Build the wheel of this tree, and return the folder that it is unpacked into."""
    tree, made = folder / "tree", folder / "made"
    tree.mkdir(parents=True)
    for name in PARTS:  # what the build leaves beside its sources stays out of this tree
        (tree / name).symlink_to(ROOT / name)
    code = "import sys; sys.path[:0] = ['scripts', '.']; import build_backend; build_backend.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(made)], cwd=tree, check=True, capture_output=True, timeout=BOUND)
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "package")
    return folder / "package"


def lines_of(page: str) -> list[str]:
    """Return what a page's blocks of commands tell people to type, in its order, without the comments."""
    blocks = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    lines = [re.sub(r"\s+#.*$", "", line) for kind, block in blocks if not kind for line in block.splitlines()]
    return [line for line in lines if re.match(r"(muster|pip|loginctl) ", line)]


def reason_not_to_run(page: str, line: str) -> str | None:
    """Return why a line of a page is not run; None where it is."""
    options = TABLE[page]
    return next((reason for start, reason in options.get("not_run", {}).items() if line.startswith(start)), None)


def commands_on(url: str, path: str) -> Iterator[str]:
    """Yield the commands that a page of a running explorer shows, in its order."""
    status, body = get(url + path)
    assert status == 200, (path, status)
    for command in COMMAND.findall(body.decode()):
        yield html.unescape(command).strip()
