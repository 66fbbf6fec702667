"""Every command that a page of the documentation shows, or a hint of the code names, exists, with its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer.main

from muster.console import app as cli
from muster.settings.sources import load_settings
from testbed.paths import ROOT
from testbed.suite.sources import PRODUCTION, sources

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"`(muster [^`]+)`")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HINT = re.compile(r"\bmuster ([a-z]+)(?: ([a-z]+(?:-[a-z]+)*))?")
PROSE = frozenset({"that"})
"""What follows the name of the software where it is no command."""
ROOMS = (*PRODUCTION, "scripts")


def shown(page: Path) -> list[str]:
    """Commands in code blocks and in backticks."""
    text = page.read_text()
    blocks = "\n".join(block for language, block in BLOCK.findall(text) if not language)
    lines = [part.split("#")[0] for line in blocks.splitlines() for part in line.split("&&")]
    inline = COMMAND.findall(BLOCK.sub("", text))
    return [line.strip() for line in [*lines, *inline] if line.strip().startswith("muster ")]


def the_command() -> click.Command:
    root = typer.main.get_command(cli.app)
    root.commands = {noun: cli.noun_command(noun) for noun in cli.NOUNS}  # type: ignore[attr-defined]
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Path) -> None:
    root = the_command()
    for line in shown(page):
        words = shlex.split(line.replace("|", " "))[1:]
        command, known = root, {"--help"}
        while words and hasattr(command, "commands") and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: {line}"  # type: ignore[attr-defined]
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        known |= {name for parameter in command.params for name in parameter.opts}
        for word in words:
            assert not word.startswith("--") or word in known, f"{page.name}: {line}: no {word}"


def test_every_command_that_the_code_tells_people_to_type_exists() -> None:
    nouns = the_command().commands  # type: ignore[attr-defined]
    named = 0
    for module in sources(ROOMS):
        for noun, verb in (match.groups() for text in module.texts for match in HINT.finditer(text)):
            if noun not in nouns and noun in PROSE:
                continue
            assert noun in nouns, f"{module.name}: muster {noun}"
            verbs = getattr(nouns[noun], "commands", None)
            assert not verbs or verb in verbs, f"{module.name}: muster {noun} {verb}"
            named += 1
    assert named > 50


def test_every_settings_file_of_a_page_can_be_read(tmp_path: Path) -> None:
    read = 0
    for page in PAGES:
        for block in [block for language, block in BLOCK.findall(page.read_text()) if language == "toml"]:
            (tmp_path / "muster.toml").write_text(block)
            load_settings(tmp_path / "muster.toml")
            read += 1
    assert read >= 3


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_next_step_of_an_error_has_one_word() -> None:
    """Where an error is printed, "next:" comes before the command to type, and no other word does."""
    texts = [text for module in sources() for text in module.texts]
    labels = {found for text in texts for found in re.findall(r"\n\s*(next:|try:|hint:|tip:|fix:|→) $", text)}
    assert labels == {"next:"}
