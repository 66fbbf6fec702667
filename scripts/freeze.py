"""Rewrite muster/console/pins/constraints.txt from .venv: the exact version of every package Muster leads to.

    .venv/bin/python scripts/freeze.py [--check]

Walks the requirements of this project and of everything below it, so that packages which merely happen to be
installed are left out. No host, path or local version label is written: the file serves with any mirror. What only
a GPU set-up installs (NVIDIA's packages, the CUDA vLLM) is bound by their own exact requirements.
With --check nothing is written, and the exit status is 3 when the file is not what it would be.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "muster"
EXTRAS = ("cpu", "dev")
TOOLS = ("uv",)
PINS = Path("muster/console/pins")
OVERRIDES = (PINS / "overrides.txt", PINS / "overrides-cpu.txt")

HEADER = """\
# Exact versions of everything Muster installs. Written by scripts/freeze.py; used by make setup.
# It names no host and no file: any index or mirror serves.
"""


def excluded() -> set[str]:
    """Return the packages that OVERRIDES keep out: those they ask for nowhere."""
    lines = [line for name in OVERRIDES for line in (ROOT / name).read_text().splitlines()]
    overrides = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name) for one in overrides if one.marker and not one.marker.evaluate()}


def project_requirements() -> list[Requirement]:
    """Return the requirements of pyproject.toml, with its own extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found: list[Requirement] = []
    waiting = ["", *EXTRAS]
    while waiting:
        for requirement in map(Requirement, groups[waiting.pop()]):
            if requirement.name == PROJECT:
                waiting += requirement.extras
            else:
                found.append(requirement)
    return found


def closure(requirements: list[Requirement], skip: set[str]) -> dict[str, str]:
    """Installed versions of everything the requirements lead to, by canonical name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(one.name), extra) for one in requirements for extra in ("", *one.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name in skip:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            print(f"freeze: {name} is required and not installed", file=sys.stderr)
            continue
        found[name] = Version(package.version).public
        for requirement in map(Requirement, package.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                below = canonicalize_name(requirement.name)
                waiting += [(below, inner) for inner in ("", *requirement.extras)]
    return found


def main() -> int:
    pins = closure(project_requirements(), excluded())
    for tool in TOOLS:
        pins[tool] = distribution(tool).version
    text = HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))
    path = ROOT / PINS / "constraints.txt"
    if "--check" in sys.argv[1:]:
        same = path.exists() and path.read_text() == text
        print("freeze: constraints.txt is up to date" if same else "freeze: constraints.txt is stale", file=sys.stderr)
        return 0 if same else 3
    path.write_text(text)
    print(f"freeze: {len(pins)} packages pinned", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
