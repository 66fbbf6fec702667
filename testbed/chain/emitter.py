"""Let a contract on an Anvil emit any event: what members do whom only an orchestrator's database knows.

The code of the contract moves to another address. In its place stands a proxy that passes every call on to it, in the
contract's own storage, and that emits what `emission` made as a log.
"""

from __future__ import annotations

from typing import Final

from eth_abi.abi import encode

from muster.contracts.codec import EventAbi
from testbed.chain.anvil import Anvil

_SELECTOR: Final = "feedbeef"
"""Of no function of ours."""
_MOVED: Final = "0x" + "e1" * 20
_PROXY: Final = bytes.fromhex(
    f"5f3560e01c63{_SELECTOR}14603b57"  # calls with the selector go to the last line
    f"365f80375f5f365f73{_MOVED[2:]}5af4"  # others to the code that was moved
    "3d5f803e6037573d5ffd5b3d5ff3"  # which may revert
    "5b608436038060845f37606435604435602435600435845fa400"  # LOG4: four words of topics, then the data
)


def let_emit(anvil: Anvil, contract: str) -> None:
    """Put the proxy in the place of a contract."""
    code = anvil.request("eth_getCode", contract, "latest")
    anvil.request("anvil_setCode", _MOVED, code)
    anvil.request("anvil_setCode", contract, f"0x{_PROXY.hex()}")


def emission(event: EventAbi, **fields: object) -> str:
    """Return the data of a call by which a proxy emits an event with three indexed fields."""
    topics = [encode([kind], [fields[name]]) for name, kind in event.indexed]
    data = encode([kind for _, kind in event.plain], [fields[name] for name, _ in event.plain])
    return f"0x{_SELECTOR}{(event.topic + b''.join(topics) + data).hex()}"
