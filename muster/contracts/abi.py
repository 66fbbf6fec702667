"""What the build knows of our contracts: ABI, bytecode, and where constructor arguments sit in deployed code."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from muster.errors import ConfigError

CONTRACTS: Final = {
    "token": "MusterToken",
    "registry": "Registry",
    "run_terms": "RunTerms",
    "runs": "Runs",
    "court": "SlashCourt",
    "refutations": "Refutations",
    "wages": "Wages",
}
"""Our contracts by the names an address book calls them."""

FOLDER: Final = Path(__file__).parent / "abi"


@dataclass(frozen=True)
class Artifact:
    """One compiled contract."""

    name: str
    abi: list[dict[str, Any]]
    bytecode: bytes
    """Creation code, without constructor arguments."""
    deployed_bytecode: bytes
    """Code as it lies on chain, with zeros where immutables go."""
    immutables: tuple[tuple[int, int], ...]
    """(start, length) of every immutable in the deployed code."""

    def items(self, kind: str) -> list[Any]:
        """Return the ABI entries of a kind: function, event, error, constructor."""
        return [item for item in self.abi if item["type"] == kind]


@cache
def artifact(contract: str) -> Artifact:
    """Load the build of one of CONTRACTS. Raises ConfigError when the contracts were not built."""
    path = FOLDER / f"{CONTRACTS[contract]}.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path.name} was not built", hint="python scripts/build_contracts.py") from error
    references = document["immutable_references"].values()
    return Artifact(
        name=CONTRACTS[contract],
        abi=document["abi"],
        bytecode=bytes.fromhex(document["bytecode"].removeprefix("0x")),
        deployed_bytecode=bytes.fromhex(document["deployed_bytecode"].removeprefix("0x")),
        immutables=tuple(sorted((spot["start"], spot["length"]) for spots in references for spot in spots)),
    )


def snake(name: str) -> str:
    """Return Python's spelling of a Solidity name: maturesAt → matures_at; a keyword gets an underscore."""
    text = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower().strip("_")
    return text + "_" if keyword.iskeyword(text) else text
