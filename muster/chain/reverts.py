"""Revert data into RevertError: the custom error's name, its values, and a sentence a person can read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address

from muster.chain.abi import CONTRACTS, artifact, selector, types
from muster.chain.contracts.court import Outcome
from muster.chain.contracts.registry import Status
from muster.chain.sentences import HINTS, SENTENCES
from muster.constants import HOUR_SECONDS
from muster.errors import RevertError

_ERROR: Final = {"type": "error", "name": "Error", "inputs": [{"name": "message", "type": "string"}]}
_PANIC: Final = {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]}
_PANICS: Final = {
    0x01: "an assertion is false",
    0x11: "arithmetic overflow",
    0x12: "division by zero",
    0x21: "no such enum value",
    0x32: "index out of bounds",
    0x41: "too much memory",
}


@cache
def known_errors() -> dict[bytes, dict[str, Any]]:
    """ABI entries of all errors our contracts can raise, by selector."""
    items = [item for contract in CONTRACTS for item in artifact(contract).items("error")]
    return {selector(item): item for item in [*items, _ERROR, _PANIC]}


def decode_revert(data: bytes, what: str) -> RevertError:
    """The error that `data` encodes; `what` names the call that reverted. Never raises, whatever the bytes are."""
    item = known_errors().get(data[:4])
    if item is None:
        return _undecoded(data, what)
    try:
        decoded = decode(types(item["inputs"]), data[4:])
    except (DecodingError, UnicodeDecodeError, OverflowError):
        return _undecoded(data, what)
    name = item["name"]
    values: dict[str, Any] = {
        parameter["name"]: to_checksum_address(value) if parameter["type"] == "address" else value
        for parameter, value in zip(item["inputs"], decoded, strict=True)
    }
    if name == "Panic":
        values["meaning"] = _PANICS.get(values["code"], f"panic {values['code']:#x}")
    return RevertError(f"{what}: {sentence(name, values)}", name=name, values=values, hint=HINTS.get(name, ""))


def sentence(name: str, values: dict[str, Any]) -> str:
    """The error in words."""
    template = SENTENCES.get(name)
    if template is None:
        listed = ", ".join(f"{key} {_Shown(value)}" for key, value in values.items())
        return f"{name} ({listed})" if listed else name
    return template.format(**{key: _Shown(value) for key, value in values.items()})


def _undecoded(data: bytes, what: str) -> RevertError:
    if not data:
        return RevertError(f"{what}: reverted without a reason", name="", values={})
    return RevertError(
        f"{what}: reverted with an error that is none of ours, 0x{data[:4].hex()}",
        name="",
        values={"data": "0x" + data.hex()},
        hint="does chain.addresses belong to this version of the contracts? muster doctor",
    )


@dataclass(frozen=True)
class _Shown:
    """A value that knows the format specifications of `muster.chain.sentences`."""

    value: Any

    def __format__(self, spec: str) -> str:
        if spec == "time":
            return _moment(self.value)
        if spec == "hour":
            return _moment(self.value * HOUR_SECONDS)
        if spec == "tokens":
            return f"{Decimal(self.value).scaleb(-18).normalize():f}"
        if spec == "text":
            return self.value.rstrip(b"\0").decode("ascii", "replace")
        if spec == "status":
            return _member(Status, self.value)
        if spec == "outcome":
            return _member(Outcome, self.value)
        return str(self)

    def __str__(self) -> str:
        return "0x" + self.value.hex() if isinstance(self.value, bytes) else str(self.value)


def _moment(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"


def _member(enum: type[Status] | type[Outcome], value: int) -> str:
    try:
        return enum(value).name.lower().replace("_", " ")
    except ValueError:
        return str(value)
