"""What the pages name is there: paths, tests, log lines, custom errors, exit codes, functions of the contracts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster import errors
from muster.chain.error_messages import MESSAGES
from muster.settings.schema import Settings
from muster.settings.sources import known_keys
from testbed.paths import ROOT
from testbed.suite.sources import PRODUCTION, sources
from tests.unit.docs.pages import DOCS, PAGES, first_cells, label, read, section, ticked

TOP = (*PRODUCTION, "contracts", "tests", "scripts", "testbed", "benchmarks", "examples", "deploy", "docs")
PATH = re.compile(rf"^(?:{'|'.join(TOP)})/[\w./*<>-]*(?:::\w+)?$")
TEST = re.compile(r"^(?:test|testFuzz|check|invariant)_\w+$")
SETTING = re.compile(r"^[a-z]+\.[a-z_]+$")
CALL = re.compile(r"`(Registry|RunTerms|Runs|SlashCourt|Refutations|Wages)\.([a-z]\w*)`")


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_path_and_test_of_a_page_exists(page: Path) -> None:
    missing = []
    for name in ticked(read(page)):
        if not PATH.match(name) or "<" in name:
            continue
        path, _, test = name.partition("::")
        there = any(ROOT.glob(path.rstrip("/"))) if "*" in path else (ROOT / path).exists()
        if not there or (test and f"def {test}(" not in (ROOT / path).read_text(encoding="utf-8")):
            missing.append(name)
    assert missing == []


def test_every_test_that_a_page_names_alone_exists() -> None:
    files = [path for suffix in ("py", "sol") for path in (ROOT / "tests").rglob(f"*.{suffix}")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    known = set(re.findall(r"\b(?:def|function) (\w+)\(", text))
    named = {name for page in PAGES for name in ticked(read(page)) if TEST.match(name)}
    assert len(named) > 40
    assert {name for name in named if name not in known and not name.endswith("_")} == set()


def test_every_function_of_the_contracts_on_a_page_exists() -> None:
    interfaces = ROOT / "contracts" / "interfaces"
    texts = {
        name: (interfaces / f"I{name}.sol").read_text()
        for name in ("Registry", "RunTerms", "Runs", "SlashCourt", "Refutations", "Wages")
    }
    for page in PAGES:
        for contract, function in CALL.findall(read(page)):
            known = re.search(rf"\bfunction {function}\(", texts[contract])
            assert known, f"{page.name}: {contract}.{function}"


def test_every_log_line_of_the_troubleshooting_page_is_in_the_code() -> None:
    texts = {text for module in sources(PRODUCTION) for text in module.texts}
    kinds = ("a worker", "a validator", "an explorer", "an orchestrator or trainer")
    events = [
        event for kind in kinds for event in first_cells(section("use/troubleshooting.md", f"Log lines of {kind}"))
    ]
    assert len(events) > 15
    assert [event for event in events if event not in texts] == []


def test_every_custom_error_of_the_troubleshooting_page_exists() -> None:
    names = first_cells(section("use/troubleshooting.md", "What the chain says"))
    assert len(names) > 10
    assert [name for name in names if name not in MESSAGES] == []


def test_the_exit_codes_of_the_troubleshooting_page_are_those_of_help() -> None:
    codes = re.findall(r"^\| (\d+) \|", section("use/troubleshooting.md", "Exit codes"), re.MULTILINE)
    assert codes == re.findall(r"\d+", errors.EXIT_CODES)


def test_the_front_of_verification_says_what_its_tables_say() -> None:
    page = "understand/verification.md"
    front, tables = section(page, "What a run can detect"), section(page, "Appendix: tables")
    [(tokens, rollouts)] = re.findall(r"of ([\d,]+) tokens in ([\d,]+) rollouts", front)
    assert f"{tokens} honest tokens in {rollouts} rollouts; rejected 0, accused 0." in tables
    [least] = re.findall(r"The least margin is ([\d.]+),", front)
    margins = re.findall(r"\| ([\d.]+) × \|$", tables, re.MULTILINE)
    assert min(map(float, margins)) == float(least)


def settings_in(text: str) -> set[str]:
    """Return what a text may name as settings: what it has in backticks, and the keys of its settings files."""
    found = {name.partition(" = ")[0] for name in ticked(text)}
    group = ""
    for line in text.splitlines():
        if header := re.match(r" *\[(\w+)\]$", line):
            group = f"{header[1]}."
        elif key := re.match(r" *(\w+) = ", line):
            found.add(group + key[1])
        elif line.startswith("#"):
            group = ""
    return found


def test_every_setting_has_a_line_for_those_who_set_it() -> None:
    named = set[str]().union(*(settings_in(read(page)) for page in (DOCS / "use").glob("*.md")))
    assert sorted(known_keys().keys() - named) == [], "make it a constant, or say in docs/use who sets it and why"


def test_every_setting_that_a_page_names_exists() -> None:
    known = {*known_keys(), *Settings.model_fields}
    groups = {name.partition(".")[0] for name in known if "." in name}
    named = {name for page in PAGES for name in ticked(read(page)) if SETTING.match(name)}
    settings = {name for name in named if name.partition(".")[0] in groups and not name.endswith((".toml", ".jsonl"))}
    assert len(settings) > 30
    assert settings - known == set()
