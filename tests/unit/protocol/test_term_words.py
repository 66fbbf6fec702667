"""The terms in plain words: one table for the page, the command line and the comments of a terms file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from muster.constants import HOUR_SECONDS, TOKEN
from muster.protocol.keys import ZERO_ADDRESS, Keys
from muster.protocol.term_words import WORDS, term_lines, term_text
from muster.protocol.terms import NO_HASH, Terms, WorkClass
from muster.protocol.terms_file import HASHES, MONEY, PUBLIC_DEFAULTS, read_terms, write_terms

ADDRESS = "0x00000000000000000000000000000000000000A1"
KEYS = Keys(ADDRESS, ADDRESS, ADDRESS)
TERMS = Terms(
    **PUBLIC_DEFAULTS,
    task_count=1_200,
    **{name: bytes([number]) * 32 for number, name in enumerate(HASHES[:4], 1)},
    classes=(WorkClass(10_000, (512, 1_024)), WorkClass(5_000, (256,))),
)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("slash_bps", 5_000, "half of the stake"),
        ("slash_bps", 3_333, "33.33 % of the stake"),
        ("bounty_bps", 2_000, "a fifth of what a conviction takes"),
        ("wage_bps", 625, "6.25 % of the pay"),
        ("temperature_micro", 1_000_000, "1"),
        ("temperature_micro", 650_000, "0.65"),
        ("pay", TOKEN // 4, "0.25 MUST"),
        ("commit_phase", 13 * HOUR_SECONDS, "13 hours"),
        ("max_completion_tokens", 4_096, "4,096 tokens"),
        ("task_root", bytes([0xE1, 0x7D, *range(30)]), "0xe17d…1c1d"),
        ("tools_root", NO_HASH, "none"),
        ("task_count", 1_200, "1,200"),
    ],
)
def test_a_value_has_its_unit_and_is_in_plain_words(name: str, value: Any, text: str) -> None:
    assert term_text(name, value) == text


def test_every_term_is_in_the_table_once() -> None:
    assert [*WORDS, "classes"] == [field.name for field in fields(Terms)]
    assert MONEY == ("pay", "worker_stake", "validator_stake", "case_fee", "jury_deposit")
    assert HASHES == ("task_root", "model_hash", "tokenizer_hash", "profile", "tools_root", "grade_tip")
    lines = list(term_lines(TERMS))
    assert [line.name for line in lines] == [*WORDS, "class 0", "class 1"]
    assert lines[-2].value == "1 × pay for 512, 1,024 tokens"
    hashed = next(line for line in lines if line.name == "task_root")
    assert (hashed.value, hashed.exact) == ("0x0101…0101", "0x" + "01" * 32)


def test_each_term_of_a_file_has_a_comment(tmp_path: Any) -> None:
    text = write_terms(TERMS, KEYS)
    lines = text.splitlines()
    assert f'# who publishes the steps\ntrainer = "{ADDRESS}"\n' in text
    for name in WORDS:
        place = next(number for number, line in enumerate(lines) if line.startswith(f"{name} = "))
        assert lines[place - 1].startswith(f"# {WORDS[name][1]}"), name
    assert "# what a conviction takes of a stake (basis points): half of the stake\nslash_bps = 5000\n" in text
    assert "# temperature at which answers are sampled (millionths): 1\ntemperature_micro = 1000000\n" in text
    assert '# pay for one commitment of a class of weight 1 (MUST)\npay = "0.25"\n' in text
    assert "# a class of work: 0.5 × pay for 256 tokens\n[[classes]]\nweight_bps = 5000\n" in text
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    assert read_terms(path) == (TERMS, KEYS)
    path.write_text(text.replace("admitter = ", "# "), encoding="utf-8")
    assert read_terms(path).keys.admitter == ZERO_ADDRESS
