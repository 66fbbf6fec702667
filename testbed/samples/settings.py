"""Settings of a model that a program may read, found in the source of what is installed, and other values for them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_HOLDER: Final = re.compile(r"config|cfg")
"""In the name of what a configuration's settings are read from."""
_BY_NAME: Final = frozenset({"getattr", "hasattr", "getattr_iter"})
_ENGINE: Final = (
    *("config/model.py", "transformers_utils/config.py", "transformers_utils/model_arch_config_convertor.py"),
    *(f"model_executor/models/transformers/{name}.py" for name in ("base", "causal", "utils")),
)
"""Of vLLM, beside the file of a type of model."""
_OF_TYPE: Final = {
    "ernie4_5": ("ernie45", "llama"),
    "gemma": ("gemma",),
    "gemma3_text": ("gemma3",),
    "glm": ("llama",),
    "glm4": ("glm4",),
    "llama": ("llama",),
    "mistral": ("mistral", "llama"),
    "ministral": ("mistral", "llama"),
    "phi3": ("phi3", "llama"),
    "qwen2": ("qwen2",),
    "qwen3": ("qwen3", "qwen2"),
}
"""Files of vLLM's models, by type; it runs the other types by transformers' own."""


def settings_read(kind: str) -> list[str]:
    """Return the names of settings that transformers' classes of a type of model or vLLM read, and those they know."""
    from transformers import AutoConfig

    of_type = type(AutoConfig.for_model(kind))
    own = Path(str(sys.modules[of_type.__module__].__file__))
    engine, library = _folder("vllm"), _folder("transformers")
    files = [own, own.with_name(own.name.replace("configuration", "modeling"))]
    files += [library / name for name in ("modeling_rope_utils.py", "configuration_utils.py")]
    files += [engine / name for name in _ENGINE]
    files += [engine / f"model_executor/models/{name}.py" for name in _OF_TYPE.get(kind, ())]
    found = {name for file in files for name in _read_in(file)} | of_type().to_dict().keys()
    return sorted(found - {"model_type"})


def other_values(value: object) -> list[Any]:
    """Return other values of a setting: of its type, then of others."""
    same: list[Any] = []
    match value:
        case bool():
            same = [not value]
        case int():
            same = [value + 1, value * 2]
        case float():
            same = [value * 2 or 0.5]
        case str():
            same = ["other"]
        case list():
            same = [value[:-1], value[::-1], [*value, *value]]
        case dict():
            same = [{}, {**value, "other": 1}]
        case _:
            pass
    others = (True, False, 3, 0.5, "x", ["x"], [1], {"x": 1})
    return [one for one in same if one != value] + [one for one in others if type(one) is not type(value)]


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@lru_cache
def _read_in(file: Path) -> frozenset[str]:
    """Return the names that a file reads of what it calls a configuration."""
    return frozenset(name for node in ast.walk(ast.parse(file.read_text())) for name in _read_by(node))


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and _HOLDER.search(_last_name(node.value)):
        yield node.attr
    if isinstance(node, ast.Call) and node.args:
        called = _last_name(node.func)
        of = node.func.value if called == "get" and isinstance(node.func, ast.Attribute) else node.args[0]
        names = node.args[:1] if called == "get" else node.args[1:2]
        if called in _BY_NAME | {"get"} and _HOLDER.search(_last_name(of)):
            constants = (one for name in names for one in ast.walk(name) if isinstance(one, ast.Constant))
            yield from (one.value for one in constants if isinstance(one.value, str))


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return _last_name(node.func)
        case _:
            return ""
