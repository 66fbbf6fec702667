"""Which tools there are. To add one, write its module and name its class here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.environments.tools.base import Tool
from muster.environments.tools.calculator import Calculator

TOOLS: Final[Mapping[str, Tool]] = MappingProxyType({tool.name: tool for tool in (Calculator(),)})
"""Every tool by its name."""
