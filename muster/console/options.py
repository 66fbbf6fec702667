"""The options of a command as one model: their names, types, bounds and help are those of its fields.

A command that takes a `Request` has an option for each of its fields, with the field's docstring as help. typer reads
the line, the model validates it, and the function gets one instance.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from datetime import date
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Final, Self, Union, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from typer.models import ArgumentInfo, OptionInfo

from muster.console.session import parse_numbers
from muster.errors import UsageError


def _from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


NUMBERS: Final = _from_text(parse_numbers)
Numbers = Annotated[tuple[int, ...], NUMBERS]
"""Whole numbers, typed with commas between them."""
Day = Annotated[date, _from_text(date.fromisoformat)]
"""A day, typed like 2024-08-01."""


class Request(BaseModel):
    """What a person typed: each field is an option of its name, unless typer.Option or typer.Argument differs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], command: str) -> Self:
        """Validate what was typed. Raises UsageError, which names the option."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            name, reason = first_fault(error)
            raise UsageError(f"{cls.option(name)}: {reason}", hint=f"{command} --help") from error

    @classmethod
    def option(cls, name: str) -> str:
        """Return what a person types for a field; another name as it is."""
        if name not in cls.model_fields:
            return name
        info = _typed(cls, name)[1]
        typed = name.upper() if isinstance(info, ArgumentInfo) else next(iter(info.param_decls or ()), name)
        return typed.partition("/")[0]

    def given(self, *names: str) -> list[str]:
        """Return those of these options that were given."""
        fields = type(self).model_fields
        return [self.option(name) for name in names if getattr(self, name) != fields[name].default]


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the field and the reason of the first fault of a model."""
    first = error.errors()[0]
    return str(first["loc"][0]) if first["loc"] else "", first["msg"].removeprefix("Value error, ")


def parameters_of(request: type[Request], usual: object) -> list[inspect.Parameter]:
    """Return a parameter for typer of each field. usual: an instance whose values are the defaults, if there is one."""
    parameters = []
    for name, field in request.model_fields.items():
        kind, info = _typed(request, name)
        default = inspect.Parameter.empty if field.is_required() else field.default
        if isinstance(usual, request):
            default = getattr(usual, name)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info]))
    return parameters


def _typed(request: type[Request], name: str) -> tuple[Any, OptionInfo | ArgumentInfo]:
    """Return the type that typer reads for a field, and how the field is typed."""
    field = request.model_fields[name]
    kind, metadata = _plain(field.annotation)
    metadata += field.metadata
    info = next((copy(one) for one in metadata if isinstance(one, (OptionInfo, ArgumentInfo))), typer.Option())
    info.help = field.description or info.help
    if isinstance(info, OptionInfo):  # whose first declaration stands where typer also takes a default
        declared = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
        info.default, info.param_decls = ..., declared or [f"--{name.replace('_', '-')}"]
    for bound in metadata:
        if isinstance(bound, Ge):
            info.min = bound.ge  # type: ignore[assignment]
        if isinstance(bound, Le):
            info.max = bound.le  # type: ignore[assignment]
    return kind, info


def _plain(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type of a hint as typer knows it, and what else the hint says. Numbers and days are typed as text."""
    if get_origin(hint) is Annotated:
        kind, metadata = _plain(hint.__origin__)
        more = [inner for one in hint.__metadata__ for inner in getattr(one, "metadata", (one,))]
        return kind, [*metadata, *more]
    if get_origin(hint) in (Union, UnionType):
        plain = [_plain(one) for one in get_args(hint)]
        return reduce(or_, (kind for kind, _ in plain)), [one for _, metadata in plain for one in metadata]
    if get_origin(hint) is tuple:
        kind = _plain(get_args(hint)[0])[0]
        return str if kind is int else list[kind], []
    return str if hint is date else hint, []
