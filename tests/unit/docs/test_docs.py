"""What a page shows is there: commands with their options, settings, and what its links and the code's lead to."""

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
from testbed.printed import REASONS, TABLE, lines_of, reason_not_to_run
from testbed.suite.sources import PRODUCTION, sources
from tests.unit.docs.pages import DOCS, FENCE, LINK, PAGES, anchors, label, prose, read

COMMAND = re.compile(r"`(muster [^`]+)`")
DECISIONS = sorted(page for page in (DOCS / "decisions").glob("*.md") if page.name != "README.md")
HINT = re.compile(r"\bmuster ([a-z]+)(?: ([a-z]+(?:-[a-z]+)*))?")
PROSE = frozenset({"that"})
"""What follows the name of the software where it is no command."""
ROOMS = (*PRODUCTION, "scripts")
NAMES_PAGES = (*ROOMS, "contracts", "benchmarks", "testbed", "tests")
"""Rooms whose files name pages."""
SUFFIXES = (".py", ".sol", ".html", ".js", ".toml", ".c")
PAGE = re.compile(r"(?<![\w/.])docs/[\w/-]+\.(?:md|svg|png)\b")


def shown(page: Path) -> list[str]:
    """Commands in code blocks and in backticks."""
    blocks = "\n".join(block for language, block in FENCE.findall(read(page)) if not language)
    lines = [part.split("#")[0] for line in blocks.splitlines() for part in line.split("&&")]
    inline = COMMAND.findall(prose(page))
    return [line.strip() for line in [*lines, *inline] if line.strip().startswith("muster ")]


def the_command() -> click.Command:
    root = typer.main.get_command(cli.app)
    root.commands = {noun: cli.noun_command(noun) for noun in cli.NOUNS}  # type: ignore[attr-defined]
    return root


@pytest.mark.parametrize("page", PAGES, ids=label)
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


INSTALL = re.compile(r"pip3? install (?:--?[\w-]+ )*[\"'`]*([^\s\"'`]+)")


def test_no_install_line_takes_the_name_that_another_project_has() -> None:
    """The package index has another `muster`: it is installed from a file or a checkout, by a path."""
    texts = [(label(page), read(page)) for page in PAGES]
    texts += [(one.name, "\n".join(one.texts)) for one in sources(ROOMS)]
    found = {(name, wanted) for name, text in texts for wanted in INSTALL.findall(text)}
    assert {"uv", "./dist/muster-0.1.0-py3-none-any.whl"} <= {wanted for _, wanted in found}
    assert [one for one in found if re.match(r"muster\b", one[1])] == []


def test_every_line_of_a_guide_is_typed_somewhere_or_says_why_not() -> None:
    """tests/integration/test_printed.py types them: by testbed/printed.toml."""
    guides = [label(page) for page in PAGES if page.parent == DOCS / "use" and lines_of(label(page))]
    assert sorted(guides) == sorted(TABLE)
    nouns = the_command().commands  # type: ignore[attr-defined]
    for page, kinds in TABLE.items():
        lines = lines_of(page)
        assert {*kinds} <= {"placeholders", "more", "ctrl_c", "status", "not_run"}, page
        for start in (start for starts in kinds.values() for start in starts):
            assert any(start in line for line in lines), f"{page} shows no {start}"
        for line in lines:
            reason = reason_not_to_run(page, line)
            if reason is None or reason in REASONS:
                continue
            story = read(ROOT / reason)
            words = line.split()[1 : 3 if hasattr(nouns[line.split()[1]], "commands") else 2]
            assert all(f'"{word}"' in story or f" {word}" in story for word in words), f"{reason} types no {line}"


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
    settings = 0
    for page in PAGES:
        for block in [block for language, block in FENCE.findall(read(page)) if language == "toml"]:
            (tmp_path / "muster.toml").write_text(block)
            load_settings(tmp_path / "muster.toml")
            settings += 1
    assert settings >= 3


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=label)
def test_links_and_their_anchors_lead_somewhere(page: Path) -> None:
    links = [(target, anchor) for target, anchor in LINK.findall(prose(page)) if "://" not in target]
    for target, anchor in links:
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{label(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{label(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_no_heading_is_on_a_page_twice(page: Path) -> None:
    headings = re.findall(r"^#+ .+", prose(page), re.MULTILINE)
    assert [title for title in headings if headings.count(title) > 1] == []


def test_every_page_is_on_the_map_or_in_the_index_of_decisions() -> None:
    indexes = (DOCS / "README.md", DOCS / "decisions" / "README.md")
    links = [(index.parent, target) for index in indexes for target, _ in LINK.findall(prose(index))]
    linked = {(folder / target).resolve() for folder, target in links}
    assert set(DOCS.rglob("*.md")) - linked == {indexes[0]}


@pytest.mark.parametrize("page", DECISIONS, ids=label)
def test_a_decision_says_context_decision_and_consequences_under_the_title_of_the_index(page: Path) -> None:
    [title] = re.findall(r"^# (.+)$", prose(page), re.MULTILINE)
    assert f"[{title}]({page.name})" in read(DOCS / "decisions" / "README.md")
    parts = re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\*", prose(page), re.MULTILINE)
    assert parts[:2] == ["Context", "Decision"]
    assert parts[-1] == "Consequences"


def test_the_design_is_short_enough_to_read() -> None:
    assert len(read(DOCS / "understand" / "design.md").splitlines()) <= 350


def test_every_page_that_code_names_exists() -> None:
    folders = [path for room in NAMES_PAGES for path in (ROOT / room).rglob("*") if path.suffix in SUFFIXES]
    files = [*folders, *(path for path in ROOT.iterdir() if path.is_file() and path.suffix in (".toml", ""))]
    named = [(path, page) for path in files for page in PAGE.findall(path.read_text(encoding="utf-8"))]
    assert len(named) > 50
    assert [(label(path), page) for path, page in named if not (ROOT / page).exists()] == []


def test_an_entry_of_the_changelog_is_a_line_or_two() -> None:
    entries = re.split(r"^- ", read(ROOT / "CHANGELOG.md"), flags=re.MULTILINE)[1:]
    lines = [entry.split("\n\n")[0].rstrip().splitlines() for entry in entries]
    assert len(lines) > 100
    assert [entry for entry in lines if len(entry) > 2 or max(map(len, entry)) > 118] == []


def test_hooks_before_a_commit_run_the_tools_of_make_lint_and_download_nothing() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"repo: (.+)", hooks) == ["local"]
    recipe = read(ROOT / "Makefile").split("\nlint: ", 1)[1].split("\n\n", 1)[0]
    tools = {tuple(line.split()[:2]) for line in recipe.splitlines()[1:]}
    entries = [tuple(entry.split()) for entry in re.findall(r"entry: (?:\.venv/bin/)?(.+)", hooks)]
    assert {entry[:2] for entry in entries if entry[0] == "ruff"} == {tool for tool in tools if tool[0] == "ruff"}
    assert [entry for entry in entries if entry[0] != "ruff"] == [("make", "--no-print-directory", "lint")]


def test_the_next_step_of_an_error_has_one_word() -> None:
    """Where an error is printed, "next:" comes before the command to type, and no other word does."""
    texts = [text for module in sources() for text in module.texts]
    labels = {found for text in texts for found in re.findall(r"\n\s*(next:|try:|hint:|tip:|fix:|→) $", text)}
    assert labels == {"next:"}
