"""Set up everything Muster needs in this folder: Python packages, Node packages, built contracts, the scorer component.

Run by `make setup` through scripts/setup, with the standard library only; with --tests it sets up what only tests need
too. Each step keeps a stamp in .stamps/ with a hash of what it depends on and is skipped while that hash is the same,
so a second run ends at once. Nothing is written outside this folder but the package managers' caches, and compiled
components in the user's; --tests as root also installs Debian's Chromium. Everything said goes to stderr.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMPS = ROOT / ".stamps"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SERVERS = ROOT / ".servers"
CHARTS = ROOT / "explorer" / "static" / "vendor" / "uplot"
EXTRA = os.environ.get("MUSTER_EXTRA", "cpu")
PINS = "muster/console/pins"
CONSTRAINTS = f"{PINS}/constraints.txt"
OVERRIDES = (f"{PINS}/overrides.txt", *((f"{PINS}/overrides-cpu.txt",) if EXTRA == "cpu" else ()))
MACHINE = f"{platform.system()} {platform.machine()} {sys.version_info[:2]}"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Programs that the page's tests can run in, the best first (also testbed/browser.py)."""
INSTALL_BROWSER = ("apt-get", "install", "-y", "--no-install-recommends", "chromium")
APT_SECONDS = 600.0
GET_NGINX = "apt-get install -y --no-install-recommends nginx-light"
TESTS = "--tests"
LANES = 2
"""Steps that run side by side: building the component takes one core as long as most of the others together."""

IMPORTED = (
    "muster.console",
    "muster.swarm.demo",
    "muster.swarm.report",
    "explorer.service",
    "orchestrator.service",
    "trainer.launch",
    "validator.service",
    f"vllm.v1.worker.{EXTRA}_worker",
    "worker.sampler",
    "worker.service",
)
"""Modules that import nearly everything that Muster's processes do."""
IMPORTED_BY_TESTS = ("hypothesis", "playwright.async_api", "psycopg", "pytest", "schemathesis", "xdist")


NEWS_SECONDS = 20.0
"""After which set-up says that a command is still waited for, again and again."""
CALL_SECONDS = 3600.0
"""The longest that one may take: some gigabytes over a slow line."""


class SetupError(Exception):
    """Set-up cannot go on; `hint` is the next thing to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Step:
    name: str
    says: str
    inputs: tuple[str, ...]
    """Files whose content decides whether the step is up to date."""
    product: Path
    """A path whose absence forces the step, even if its stamp is fresh."""
    action: Callable[[], None]
    also: str = ""
    """Anything else the step depends on."""
    needs: tuple[str, ...] = ("python",)
    """Names of the steps that must be done before."""

    @property
    def wanted(self) -> str:
        digest = hashlib.sha256(f"{self.name}\n{self.also}\n".encode())
        for name in self.inputs:
            digest.update((ROOT / name).read_bytes())
        return digest.hexdigest()

    @property
    def stamp(self) -> Path:
        return STAMPS / self.name

    def is_done(self) -> bool:
        return self.product.exists() and self.stamp.exists() and self.stamp.read_text() == self.wanted


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def call(command: Sequence[str | Path], *, hint: str, env: dict[str, str] | None = None) -> None:
    """Run a command with its output on stderr; say now and then that it is waited for.

    Raises SetupError when it fails, or takes longer than CALL_SECONDS.
    """
    words = [str(word) for word in command]
    begun, name = time.monotonic(), " ".join([Path(words[0]).name, *words[1:3]])
    try:
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=sys.stderr)
    except FileNotFoundError as error:
        raise SetupError(f"{words[0]} is missing", hint) from error
    try:
        while (status := _status(process)) is None:
            passed = time.monotonic() - begun
            if passed > CALL_SECONDS:
                raise SetupError(f"`{name}` did not end in {passed / 60:.0f} minutes", hint)
            say(f"still waits for `{name}`, {passed:.0f} s so far")
    finally:
        process.kill()  # nothing where it has ended
        process.wait()
    if status:
        raise SetupError(f"`{' '.join(words)}` failed with status {status}", hint)


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Return how a process has ended; None where it runs on after NEWS_SECONDS."""
    try:
        return process.wait(NEWS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def pinned(package: str) -> str:
    """Return the line of constraints.txt that pins a package."""
    found = re.search(rf"^{package}==\S+", (ROOT / CONSTRAINTS).read_text(), re.MULTILINE)
    if not found:
        raise SetupError(f"constraints.txt does not pin {package}", "python scripts/freeze.py")
    return found.group()


def make_venv() -> None:
    if VENV.exists() and not _runs(PYTHON):
        say(".venv has no working Python (was the folder moved?); making it anew")
        shutil.rmtree(VENV)
    if not PYTHON.exists():
        hint = "install the venv module (for example: apt install python3-venv), or name another Python: make PYTHON=…"
        call([sys.executable, "-m", "venv", VENV], hint=hint)
    network = "check the network and pip's settings (pip config list), then run it again"
    call([PYTHON, "-m", "pip", "install", "--quiet", pinned("uv")], hint=network)


def _runs(python: Path) -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def install_python_packages() -> None:
    command = [VENV / "bin" / "uv", "pip", "install", "--python", PYTHON]
    command += ["--constraints", CONSTRAINTS]
    command += [word for name in OVERRIDES for word in ("--overrides", name)]
    command += ["--editable", f".[{EXTRA},dev]"]
    call(command, hint="check the network, then run it again", env=uv_environment())


def install_servers() -> None:
    """Install the servers that the tests start: no package of theirs is one of ours."""
    uv = VENV / "bin" / "uv"
    if not _runs(SERVERS / "bin" / "python"):
        shutil.rmtree(SERVERS, ignore_errors=True)
        call([PYTHON, "-m", "venv", "--without-pip", SERVERS], hint="install the venv module, then run it again")
    command = [uv, "pip", "sync", "--quiet", "--python", SERVERS / "bin" / "python", "tests/servers.txt"]
    call(command, hint="check the network, then run it again", env=uv_environment())


def browser() -> Path | None:
    """Return the first of BROWSERS that is installed."""
    return next(map(Path, filter(None, map(shutil.which, BROWSERS))), None)


def install_browser() -> None:
    """Install Debian's Chromium where root may; say how else. Only MUSTER_BROWSER=required makes its lack an error."""
    if browser():
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        update = ("apt-get", "update")
        done = _apt(INSTALL_BROWSER) or (_apt(update) and _apt(INSTALL_BROWSER))
        if done and browser():
            return
    lack, hint = "no browser here runs the page's tests", f"install one (for example: {' '.join(INSTALL_BROWSER)})"
    if os.environ.get("MUSTER_BROWSER") == "required":
        raise SetupError(lack, hint)
    say(f"{lack}: they are skipped. To run them too, {hint}")


def nginx() -> Path | None:
    """Return where nginx is installed (also testbed/servers/nginx.py)."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    return Path(found) if found else None


def ask_for_nginx() -> None:
    """Say how to get nginx. It is not installed unasked: Debian's package begins to serve on port 80."""
    say(f"no nginx here runs the tests of deploy/: they are skipped. To run them too, install it: {GET_NGINX}")


def _apt(command: Sequence[str]) -> bool:
    """Return whether the command succeeded; its output goes to stderr."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, env=environment, stdout=sys.stderr, timeout=APT_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def uv_environment() -> dict[str, str]:
    """Return the environment for uv. The function is the package's, which cannot be imported before it is installed."""
    return runpy.run_path(str(ROOT / "muster/console/uv_settings.py"))["uv_environment"](PYTHON)


def install_node_packages() -> None:
    version = node_version()
    if version < 20:
        found = f"Node {version} is too old" if version else "Node is missing"
        raise SetupError(f"{found}; Foundry and the Solidity compiler come from npm", "install Node 20 or newer")
    call(["npm", "ci", "--no-progress", "--loglevel=error"], hint="check the network, then run it again")


def node_version() -> int:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return 0
    text = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    found = re.match(r"v(\d+)\.", text)
    return int(found.group(1)) if found else 0


def copy_charts() -> None:
    """Copy the page's chart library to where the explorer serves it from, and wheels take it from."""
    source = ROOT / "node_modules" / "uplot"
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name in ("LICENSE", "dist/uPlot.esm.js", "dist/uPlot.min.css"):
        shutil.copyfile(source / name, CHARTS / Path(name).name)


def build_contracts() -> None:
    call([PYTHON, "scripts/build_contracts.py"], hint="read the compiler's message above")


def compile_contract_tests() -> None:
    forge = ROOT / "node_modules" / ".bin" / "forge"
    unlinted = os.environ | {"FOUNDRY_LINT_LINT_ON_BUILD": "false"}  # what forge finds dangerous is a test's purpose
    call([forge, "build"], hint="read the compiler's message above", env=unlinted)


def build_component() -> None:
    """Build the component that scores, and compile it once: every test and process uses it."""
    hint = "check the network: it is built from packages of the index"
    call([PYTHON, "scripts/build_component.py"], hint=hint, env=uv_environment())
    compile_it = "from muster.sandbox.component import *; compiled(local_component())"
    call([PYTHON, "-c", compile_it], hint="read the message above")


def compile_bytecode() -> None:
    """Import once, in one process, what the others import: a dozen that start together would each compile torch.

    That is a third of what is installed. What cannot be imported here is compiled where it is used.
    """
    names = "\n".join(f"import {name}" for name in (*IMPORTED, *IMPORTED_BY_TESTS))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([PYTHON, "-c", names], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        say(f"the first start will be slow, for not all can be imported here: {done.stderr.strip()[-300:]}")


def steps(*, tests: bool = False) -> list[Step]:
    """Return what is to be done, in an order in which it can be; with `tests`, also what only `make test` needs."""
    return [*_steps(), *(_test_steps() if tests else ())]


def _test_steps() -> list[Step]:
    missing = ROOT / "no-browser"
    solidity = [path for part in ("contracts", "tests/contracts") for path in (ROOT / part).rglob("*.sol")]
    return [
        Step(
            "contract tests",
            "the contracts' tests",
            ("foundry.toml", "package-lock.json", *sorted(str(path.relative_to(ROOT)) for path in solidity)),
            ROOT / "out" / "Story.t.sol" / "StoryTest.json",
            compile_contract_tests,
            needs=("contracts",),
        ),
        Step("browser", "a browser for the page's tests", (), browser() or missing, install_browser, needs=()),
        Step("nginx", "nginx for the tests of deploy/", (), nginx() or missing, ask_for_nginx, needs=()),
        Step(
            "servers",
            "S3 servers for the tests, in an environment of their own",
            ("tests/servers.txt",),
            SERVERS / "bin" / "moto_server",
            install_servers,
            MACHINE + str(ROOT),
        ),
    ]


def _steps() -> list[Step]:
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "contracts").rglob("*.sol"))
    guest = sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "muster" / "sandbox" / "guest").iterdir() if path.is_file()
    )
    sources += ["scripts/build_contracts.py", "scripts/bindings.py", "muster/contracts/abi.py"]
    return [
        Step("venv", "a Python environment in .venv", (), VENV / "bin" / "uv", make_venv, MACHINE + pinned("uv"), ()),
        Step(
            "python",
            f"Python packages (the {EXTRA} set, 2 to 6 GB, a minute or more)",
            ("pyproject.toml", CONSTRAINTS, *OVERRIDES),
            VENV / "bin" / "muster",
            install_python_packages,
            EXTRA + str(ROOT),
            ("venv",),
        ),
        Step(
            "node",
            "Node packages (Foundry, solc, OpenZeppelin, uPlot, axe-core)",
            ("package.json", "package-lock.json"),
            ROOT / "node_modules" / ".bin" / "forge",
            install_node_packages,
            needs=(),
        ),
        Step(
            "charts",
            "the page's chart library",
            ("package-lock.json", "scripts/set_up.py"),
            CHARTS / "uPlot.min.css",
            copy_charts,
            needs=("node",),
        ),
        Step(
            "component",
            "the component that scores",
            ("scripts/build_component.py", *guest),
            ROOT / "muster" / "sandbox" / "built" / "scorer.sha256",
            build_component,
        ),
        Step(
            "contracts",
            "the contracts",
            ("foundry.toml", "package-lock.json", *sources),
            ROOT / "muster" / "contracts" / "court.py",
            build_contracts,
            needs=("python", "node"),
        ),
        Step(
            "bytecode",
            "Python's bytecode of what the processes import",
            (CONSTRAINTS, *OVERRIDES, "scripts/set_up.py"),
            VENV / "bin" / "muster",
            compile_bytecode,
            MACHINE + EXTRA + str(ROOT),
            ("python", "contracts"),
        ),
    ]


def check_machine() -> None:
    """Check early that set-up can work. Raises SetupError."""
    if platform.system() != "Linux":
        raise SetupError(f"{platform.system()} is not supported: vLLM runs on Linux", "use Linux, or WSL 2 on Windows")
    if EXTRA not in ("cpu", "gpu"):
        raise SetupError(f"MUSTER_EXTRA is {EXTRA!r}", "set it to cpu or gpu")
    temporary = os.environ.get("TMPDIR")
    if temporary and not os.access(temporary, os.W_OK):
        say(f"TMPDIR={temporary} cannot be written to; using {tempfile.gettempdir()}")
        os.environ["TMPDIR"] = tempfile.gettempdir()


def run_all(steps: Sequence[Step]) -> None:
    """Do the steps that are not done, each once what it needs is, in their order. Raises SetupError.

    After an error those that run are waited for, and no other begins.
    """
    waiting, done = list(steps), set[str]()
    running: dict[Future[None], Step] = {}
    with ThreadPoolExecutor(LANES) as pool:
        while waiting or running:
            ready = [step for step in waiting if done.issuperset(step.needs)]
            for step in ready[: LANES - len(running)]:
                waiting.remove(step)
                running[pool.submit(run_step, step)] = step
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done.add(running.pop(future).name)
                future.result()


def run_step(step: Step) -> None:
    """Do a step unless it is done. Raises SetupError."""
    if step.is_done():
        return
    say(f"{step.says} …")
    begun = time.monotonic()
    step.stamp.unlink(missing_ok=True)
    step.action()
    step.stamp.write_text(step.wanted)
    say(f"{step.says}: done in {time.monotonic() - begun:.0f} s")


def main(arguments: Sequence[str]) -> int:
    started = time.monotonic()
    try:
        if arguments not in ([], [TESTS]):
            raise SetupError(f"unknown arguments: {' '.join(arguments)}", f"scripts/setup, or scripts/setup {TESTS}")
        check_machine()
        STAMPS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="muster-setup-") as folder:
            os.environ["TMPDIR"] = folder  # uv leaves its locks there, torch a folder
            run_all(steps(tests=TESTS in arguments))
    except SetupError as error:
        print(f"setup: {error}\n  next: {error.hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    say(f"ready ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
