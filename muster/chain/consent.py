"""Signatures that a registration needs: the node's consent, and the operator's permit for its stake.

Nobody can register a key without its consent, and a consent counts for one operator, chain, run, role and class.
"""

from __future__ import annotations

from typing import Final

from muster.chain.contracts.registry import Permit, Registration
from muster.signing import TypedSigner, domain

CONSENT_SECONDS: Final = 3600
"""How long a consent or permit counts, on the chain's clock."""

CONSENT_TYPES: Final = {
    "Consent": [
        {"name": "operator", "type": "address"},
        {"name": "node", "type": "address"},
        {"name": "run", "type": "uint32"},
        {"name": "role", "type": "uint8"},
        {"name": "workClass", "type": "uint8"},
        {"name": "drawTip", "type": "bytes32"},
        {"name": "deadline", "type": "uint256"},
    ]
}
PERMIT_TYPES: Final = {
    "Permit": [
        {"name": "owner", "type": "address"},
        {"name": "spender", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "nonce", "type": "uint256"},
        {"name": "deadline", "type": "uint256"},
    ]
}


def sign_consent(node: TypedSigner, registration: Registration, operator: str, chain_id: int, registry: str) -> bytes:
    """The node's key agrees to serve `operator` as the registration says. 65 bytes."""
    message = {
        "operator": operator,
        "node": registration.node,
        "run": registration.run,
        "role": int(registration.role),
        "workClass": registration.work_class,
        "drawTip": registration.draw_tip,
        "deadline": registration.deadline,
    }
    return node.sign_typed(domain(chain_id, registry).as_dict(), CONSENT_TYPES, message)


def sign_permit(
    owner: TypedSigner, token_domain: dict[str, object], spender: str, amount: int, nonce: int, deadline: int
) -> Permit:
    """The owner lets `spender` take `amount` of its tokens (ERC-2612). `token_domain` is the token's EIP-712 domain."""
    message = {"owner": owner.address, "spender": spender, "value": amount, "nonce": nonce, "deadline": deadline}
    raw = owner.sign_typed(token_domain, PERMIT_TYPES, message)
    return Permit(amount, deadline, raw[64], raw[:32], raw[32:64])
