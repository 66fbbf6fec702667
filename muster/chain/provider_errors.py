"""What an endpoint's error means: one table for every provider and node, since neither codes nor wordings are standard.

The first row that matches counts. A code decides only where no wording does: nodes and gateways use the same codes for
different things.
"""

from __future__ import annotations

import re
from typing import Final, Literal

ErrorKind = Literal[
    "reverted",  # the call, or the transaction in it, reverts
    "known",  # the endpoint has this transaction already
    "nonce_used",  # a mined transaction has this nonce: perhaps this one
    "taken",  # a waiting transaction has this nonce, and this one does not outbid it
    "cheap",  # the fees are too low
    "unfunded",  # the sender cannot pay
    "wide",  # a log query covers too many blocks or results
    "busy",  # too many requests: the same one later is answered
    "unclear",  # says nothing of the request: a transaction may be on its way
    "refused",  # anything else
]

_WORDINGS: Final[dict[ErrorKind, str]] = {
    "reverted": r"revert",
    "known": r"already ?(known|imported|exists|mined|in)\b|\bknown transaction|same hash",
    "nonce_used": r"nonce( is)? ?too ?low|old ?nonce",
    "taken": r"replac.*underpriced|could not replace|replacement ?not|same nonce|nonce ?already ?used",
    "cheap": r"underpriced|base ?fee|fee ?cap\b|fee ?too ?low|gas ?price .*(too low|below)",
    "unfunded": r"insufficient ?(funds|balance)|exceeds account balance|not enough funds",
    "refused": r"block gas limit|gas ?limit ?exceeded",
    "wide": r"\branges?\b|\bresults\b|response (size|(is )?too)|blocks? distance|many (blocks|logs)|\d blocks"
    r"|logs matched",
    "busy": r"rate.?(limit|exceed)|(count|quota) exceed|too many requests?\b|request (rate|limit|count)|compute units"
    r"|capacity|\brps\b|per second|/sec|credits|throttl",
    "unclear": r"internal (server )?error|try again|time-?d? ?out|deadline|unavailable|overload|gateway|no backend"
    r"|connection",
}
_CODES: Final[dict[ErrorKind, frozenset[int]]] = {
    "busy": frozenset({429, -32005, -32016, -32029, -32090}),
    "refused": frozenset({-32700, -32600, -32601, -32602, -32000, -32003, -32004, -32010}),
}


def error_kind(code: int, text: str, revert_data: bytes = b"") -> ErrorKind:
    """Return what an error means. `text`: its message, with whatever it explains in `data`."""
    if revert_data or code == 3:
        return "reverted"
    plain = text.lower().replace("_", " ")
    for kind, words in _WORDINGS.items():
        if re.search(words, plain):
            return kind
    for kind, codes in _CODES.items():
        if code in codes:
            return kind
    return "unclear"
