"""Load settings: a flag overrides the environment, which overrides the TOML file, which overrides the default.

What can be set is in `muster.settings.schema`. Relative paths of a settings file, and the defaults of what it leaves
out, are relative to its folder; those of flags and the environment, and of a process without a file, to the current
directory.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from muster.errors import ConfigError
from muster.settings.recipes import RECIPES
from muster.settings.schema import Section, Settings


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, and where each value came from: `flag`, `MUSTER_X__Y`, the file's path, `recipe X` or `default`."""

    settings: Settings
    sources: dict[str, str]
    """By dotted key; keys that are not listed have their default."""

    def source(self, key: str) -> str:
        """Return where the value of a key came from."""
        section, _, name = key.partition(".")
        recipe = self.settings.trainer.recipe
        unset = f"recipe {recipe}" if section == "trainer" and name in RECIPES[recipe] else "default"
        return self.sources.get(key, unset)


PROCESS_VARIABLES: Final = {
    "MUSTER_CONFIG": "settings file, where no --config is given",
    "MUSTER_DEBUG": "show tracebacks",
    "MUSTER_EXTRA": "what `make setup` installs: cpu (default) or gpu",
    "MUSTER_FAILPOINT": "where a test kills the process",
    "MUSTER_FAILPOINT_DIR": "makes each failpoint fire once",
}
"""All environment variables that are no settings."""


def load_settings(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Merge defaults, TOML file, environment and `overrides` (key → value, or section → key → value).

    Raises ConfigError naming the key and where its value came from.
    """
    return read_settings(path, overrides).settings


def read_settings(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> LoadedSettings:
    """Load settings as `load_settings` does, with the source of every value."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in _flatten(_read_toml(path)).items():
        _put(values, sources, key, value if path is None else _beside(path, key, value), str(path))
    for name, value in sorted(os.environ.items()):
        if name.startswith("MUSTER_") and (key := _environment_key(name)):
            _put(values, sources, key, _from_text(key, value), name)
    for key, value in _flatten(overrides or {}).items():
        _put(values, sources, key, value, "flag")
    if path is not None and path.parent != Path():
        _put_defaults_beside(path, values, sources)
    try:
        return LoadedSettings(Settings.model_validate(values), sources)
    except ValidationError as error:
        raise _explain(error, sources) from error


RENAMED: Final = {"chain.explorer_url": "chain.block_explorer_url"}
"""Settings of earlier versions, by their names then."""
GONE: Final = {"orchestrator.public_port": "leave it out: orchestrator.port answers all requests"}
"""Settings of earlier versions that have no new name: what to do about each."""

URL_KEYS: Final = ("orchestrator.database_url", "orchestrator.storage_url")
"""Settings whose URL may hold a relative path: sqlite:///FILE, file:FOLDER."""


def _put_defaults_beside(path: Path, values: dict[str, Any], sources: Mapping[str, str]) -> None:
    """Set the paths that no source sets to their defaults, relative to the settings file's folder."""
    defaults = Settings()
    for key in known_keys():
        default = value_of(defaults, key)
        if key in sources or not (isinstance(default, Path) or key in URL_KEYS):
            continue
        section, _, name = key.partition(".")
        if isinstance(inner := values.setdefault(section, {}), dict):
            inner[name] = _beside(path, key, str(default))


def _beside(path: Path, key: str, value: object) -> object:
    """Return a value of the settings file at `path`: if it is a relative path, relative to that file's folder."""
    if not isinstance(value, str) or path.parent == Path():
        return value
    info = known_keys().get(key)
    if info is not None and Path in (info.annotation, *get_args(info.annotation)):
        return value if value.startswith("~") or not value else str(path.parent / value)
    return url_beside(path.parent, value) if key in URL_KEYS else value


def url_beside(folder: Path, url: str) -> str:
    """Return the URL with its relative path below `folder`; other URLs as they are."""
    url = expand_home(url)
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        inside = rest.removeprefix("//")
        return f"file:{folder / inside}" if inside else url
    inside = rest.removeprefix("///")
    # In memory, or in SQLite's own form of URLs: no path of ours.
    if scheme.partition("+")[0] != "sqlite" or inside == rest or not inside or inside.startswith((":memory:", "file:")):
        return url
    return url if inside.startswith("/") else f"{scheme}:///{folder / inside}"


def expand_home(url: str) -> str:
    """Return file:~/FOLDER and sqlite:///~/FILE with the home folder in place of ~; other URLs as they are."""
    found = re.fullmatch(r"(file:(?://)?|sqlite(?:\+pysqlite)?:///)(~[^/]*)((?:/.*)?)", url)
    if found is None:
        return url
    return f"{found[1]}{os.path.expanduser(found[2])}{found[3]}"


def known_keys() -> dict[str, FieldInfo]:
    """Return every setting by dotted key, in the order of the sections."""
    keys: dict[str, FieldInfo] = {}
    for name, info in Settings.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            keys |= {f"{name}.{inner}": field for inner, field in info.annotation.model_fields.items()}
        else:
            keys[name] = info
    return keys


def value_of(settings: Settings, key: str) -> object:
    """Return the value at a dotted key."""
    return reduce(getattr, key.split("."), settings)


SECRET_KEYS: Final = frozenset({"notify.webhook"})
"""Settings whose URL is itself a secret, whatever it looks like."""


def mask_setting(key: str, value: object) -> str:
    """Return the value of a setting as a person may see it: of a secret URL, no more than its host."""
    if key not in SECRET_KEYS or not value:
        return mask(value)
    try:
        host = urlsplit(str(value)).hostname
    except ValueError:
        host = None
    return f"{str(value).partition('://')[0]}://{host}/…" if host else "…"


def mask(value: object) -> str:
    """Return a value as a person may see it: user names, passwords, queries and long path parts of URLs are hidden."""
    if isinstance(value, list):
        return "[" + ", ".join(mask(item) for item in value) + "]"
    text = "" if value is None else str(value)
    if "://" not in text:
        return text
    scheme, _, rest = text.partition("://")
    if scheme.startswith("postgres"):
        rest = re.sub("^[^@/]*:[^@]*@", "…@", rest)  # a password may hold what ends a place or a path elsewhere
    rest, _, query = rest.partition("?")
    place, slash, tail = rest.partition("/")
    if "@" in place:
        place = "…@" + place.rpartition("@")[2]
    if not scheme.startswith("sqlite"):
        tail = "/".join("…" if len(part) >= 20 else part for part in tail.split("/"))
    return f"{scheme}://{place}{slash}{tail}" + ("?…" if query else "")


def _read_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no settings file at {path}", hint=f"muster config init --config {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def _flatten(tree: Mapping[str, object]) -> dict[str, object]:
    """Return sections and their keys as dotted keys; what is nested deeper stays a value."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and (value or name in Settings.model_fields):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _put(values: dict[str, Any], sources: dict[str, str], key: str, value: object, source: str) -> None:
    """Set one dotted key. Raises ConfigError for a key that does not exist, with the nearest that does."""
    if new := RENAMED.get(key):
        raise ConfigError(f"the setting {key} (from {source}) is now called {new}", hint=f"write {new} there")
    if hint := GONE.get(key):
        raise ConfigError(f"the setting {key} (from {source}) is gone", hint=hint)
    if key not in known_keys():
        raise ConfigError(f"unknown setting {key} (from {source})", hint=_nearest(key))
    if key in URL_KEYS and isinstance(value, str):
        value = expand_home(value)
    section, dot, inner = key.partition(".")
    if dot:
        values.setdefault(section, {})[inner] = value
    else:
        values[section] = value
    sources[key] = source


def _nearest(key: str) -> str:
    known = list(known_keys())
    by_tail = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    tail = difflib.get_close_matches(key.rpartition(".")[2], list(by_tail), n=1, cutoff=0.75)
    found = close[0] if close else by_tail[tail[0]] if tail else ""
    return f"did you mean {found}?" if found else "muster config show lists all settings"


def _environment_key(name: str) -> str:
    """Return the dotted key of `MUSTER_SECTION__KEY` or `MUSTER_KEY`; "" for variables that are no settings.

    Raises ConfigError where one underscore was probably meant as two, since it would be ignored silently.
    """
    text = name.removeprefix("MUSTER_").lower()
    if "__" in text:
        return text.replace("__", ".", 1)
    if name in PROCESS_VARIABLES:
        return ""
    if text in known_keys():
        return text
    meant = {key.replace(".", "_"): key for key in known_keys()}.get(text)
    if meant:
        raise ConfigError(
            f"{name} sets nothing: a section and its key are joined by two underscores",
            hint=f"set MUSTER_{meant.replace('.', '__').upper()} instead",
        )
    return ""


def _from_text(key: str, text: str) -> object:
    """Return the value of an environment variable; lists are separated by commas."""
    info = known_keys().get(key)
    if info is not None and get_origin(info.annotation) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _explain(error: ValidationError, sources: Mapping[str, str]) -> ConfigError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    key = next((name for name in (".".join(path[:2]), path[0]) if name in known_keys()), ".".join(path))
    given = mask_setting(key, first["input"]) if not isinstance(first["input"], dict) else "a table"
    return ConfigError(
        f"setting {key} = {given!r} (from {sources.get(key, 'default')}): {first['msg']}",
        hint="correct it there, or leave it out for the default",
    )
