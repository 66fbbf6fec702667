"""The documentation and the command line agree: every command that a page shows exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from muster.cli import app as cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"`(muster [^`]+)`")


def shown(page: Path) -> list[str]:
    """Commands in code blocks and in backticks."""
    text = page.read_text()
    blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL))
    lines = [part.split("#")[0] for line in blocks.splitlines() for part in line.split("&&")]
    inline = COMMAND.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.strip() for line in [*lines, *inline] if line.strip().startswith("muster ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Path) -> None:
    cli._add_nouns()
    root = typer.main.get_command(cli.app)
    for line in shown(page):
        words = shlex.split(line.replace("|", " "))[1:]
        command, known = root, {"--help"}
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: {line}"  # type: ignore[attr-defined]
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        known |= {name for parameter in command.params for name in parameter.opts}
        for word in words:
            assert not word.startswith("--") or word in known, f"{page.name}: {line}: no {word}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
