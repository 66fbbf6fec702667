"""A run's terms and keys as a TOML file that its owner writes and everybody can read, and as JSON.

One line per field of `muster.protocol.terms.Terms` and `Keys`; what has a default may be left out. Money is in tokens
(a string, so that no digit is lost), hashes are 0x-hex, classes are tables. The template computes the hashes from the
task set and the model that the run begins with.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from muster.constants import HOUR_SECONDS, MICRO, TOKEN
from muster.errors import ConfigError
from muster.protocol.keys import KEY_WORDS, ZERO_ADDRESS, Keys
from muster.protocol.term_words import WORDS, class_text, term_text
from muster.protocol.terms import Terms, WorkClass
from muster.runtime.units import decimal_amount, parse_amount
from muster.settings.toml import toml_value

MONEY: Final = tuple(name for name, (unit, _) in WORDS.items() if unit == "MUST")
HASHES: Final = tuple(name for name, (unit, _) in WORDS.items() if unit == "hash")

PUBLIC_DEFAULTS: Final[Mapping[str, Any]] = {
    "pay": TOKEN // 4,
    "worker_stake": 1_000 * TOKEN,
    "validator_stake": 1_000 * TOKEN,
    "case_fee": 10 * TOKEN,
    "jury_deposit": 10 * TOKEN,
    "slash_bps": 5_000,
    "bounty_bps": 2_000,
    "group_size": 16,
    "groups_per_commitment": 8,
    "commitments_per_hour": 60,
    "async_level": 2,
    "accepts_required": 2,
    "seal_quorum": 3,
    "min_step_interval": 60,
    "wage_bps": 625,
    "look_rows": 12,
    "commit_phase": 13 * HOUR_SECONDS,
    "reveal_phase": 13 * HOUR_SECONDS,
    "jury_seniority": 24 * HOUR_SECONDS,
    "temperature_micro": MICRO,
    "max_prompt_tokens": 1_024,
    "max_completion_tokens": 4_096,
}
"""A start for a public run; every value is the owner's to choose within the contract's bounds.

A conviction costs a worker half its stake, of which a fifth may come back to it as the bounty: 400 tokens for good.
That covers 1,600 commitments, which is how many may be unsettled at a time (`Terms.cover_of`): 26 hours at 60 an hour.
A sealed hour is paid 25 hours after it began, so an honest worker never waits for its stake while hours are sealed.
A look at 12 of 128 rows costs about 1/24 of a commitment's pay; its wage is one and a half times that.
"""

LOCAL_DEFAULTS: Final[Mapping[str, Any]] = {
    **PUBLIC_DEFAULTS,
    "pay": TOKEN // 20,
    "commitments_per_hour": 255,
    "min_step_interval": 1,
    "commit_phase": 60,
    "reveal_phase": 60,
    "jury_seniority": 1,
    "max_prompt_tokens": 64,
    "max_completion_tokens": 32,
}
"""The same for a run on Anvil, where a case may take seconds. Of 255 commitments an hour, 31 hours are covered."""


class NewRun(NamedTuple):
    """What a run is created from."""

    terms: Terms
    keys: Keys
    """That it begins with."""


def fit_context(values: Mapping[str, Any], context: int | None) -> dict[str, Any]:
    """Return terms whose rollouts fit a model's context (tokens; None: unknown), a fifth of it for prompts."""
    if context is None or values["max_prompt_tokens"] + values["max_completion_tokens"] <= context:
        return dict(values)
    prompt = context // 5
    return {**values, "max_prompt_tokens": prompt, "max_completion_tokens": context - prompt}


def write_terms(terms: Terms, keys: Keys) -> str:
    """Return the file's text: above each key its meaning; above each term that, its unit, and its value in words."""
    lines = ["# Keys of a run: its owner changes them by muster run keys, after a notice."]
    for name, words in KEY_WORDS.items():
        lines += ["", f"# {words}", f"{name} = {toml_value(getattr(keys, name))}"]
    lines += ["", "", "# Terms of a run: they cannot be changed once it is created."]
    for field in fields(terms):
        value = getattr(terms, field.name)
        if field.name == "classes":
            continue
        unit, words = WORDS[field.name]
        said = "" if unit in ("", "hash", "MUST", "tokens") else f": {term_text(field.name, value)}"
        lines += ["", f"# {words}{f' ({unit})' if unit not in ('', 'hash') else ''}{said}"]
        if field.name in MONEY:
            value = decimal_amount(value)
        elif field.name in HASHES:
            value = "0x" + value.hex()
        lines.append(f"{field.name} = {toml_value(value)}")
    for work_class in terms.classes:
        lines += ["", f"# a class of work: {class_text(work_class)}", "[[classes]]"]
        lines += [f"weight_bps = {work_class.weight_bps}", f"budgets = {list(work_class.budgets)}"]
    return "\n".join(lines) + "\n"


def terms_document(terms: Terms) -> dict[str, Any]:
    """Return the terms as JSON: hashes in hex, classes as objects, money in token wei (JSON integers have no bound)."""
    document: dict[str, Any] = {}
    for field in fields(terms):
        value = getattr(terms, field.name)
        document[field.name] = "0x" + value.hex() if isinstance(value, bytes) else value
    document["classes"] = [{"weight_bps": c.weight_bps, "budgets": list(c.budgets)} for c in terms.classes]
    return document


def read_terms(path: Path) -> NewRun:
    """Read the terms and the keys in a file; without an admitter, anyone may validate.

    Raises ConfigError naming what is missing, unknown or of the wrong form.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no terms at {path}", hint="muster run template writes a file to start from") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    raw.setdefault("admitter", ZERO_ADDRESS)
    names = {field.name for field in fields(Terms)} | KEY_WORDS.keys()
    needed = {field.name for field in fields(Terms) if field.default is MISSING} | KEY_WORDS.keys()
    if unknown := sorted(raw.keys() - names):
        raise ConfigError(f"{path}: unknown term {unknown[0]}", hint="muster run template shows them all")
    if missing := sorted(needed - raw.keys()):
        raise ConfigError(f"{path}: {missing[0]} is missing", hint="muster run template shows them all")
    values = {name: _read_one(path, name, value) for name, value in raw.items()}
    keys = Keys(**{name: values.pop(name) for name in KEY_WORDS})
    return NewRun(Terms(**values), keys)


def _read_one(path: Path, name: str, value: Any) -> Any:
    try:
        if name in MONEY:
            return parse_amount(str(value))
        if name in HASHES:
            return _hash(value)
        if name == "classes":
            return tuple(WorkClass(int(one["weight_bps"]), tuple(map(int, one["budgets"]))) for one in value)
        if name in KEY_WORDS:
            return _address(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number is needed")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: {name} = {value!r}: {error}") from error
    return value


def _hash(value: str) -> bytes:
    data = bytes.fromhex(value.removeprefix("0x"))
    if len(data) != 32:
        raise ValueError("32 bytes in hex are needed")
    return data


def _address(value: str) -> str:
    from eth_utils.address import is_address, to_checksum_address

    if not is_address(value):
        raise ValueError("an address is needed")
    return to_checksum_address(value)
