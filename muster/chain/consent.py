"""Signatures that a registration needs: the node's consent, and the operator's permit for its stake.

A key cannot be registered without its consent. A consent counts for one operator, chain, run, role and class.
"""

from __future__ import annotations

from typing import Final

from muster.contracts.registry import Permit, Registration
from muster.protocol.eip712 import Domain, Struct, TypedSigner

CONSENT_SECONDS: Final = 3600
"""How long a consent or permit counts, on the chain's clock."""


CONSENT: Final = Struct.parse(
    "Consent(address operator,address node,uint32 run,uint8 role,uint8 workClass,bytes32 drawTip,uint256 deadline)"
)
PERMIT: Final = Struct.parse("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)")


def sign_consent(node: TypedSigner, registration: Registration, operator: str, chain_id: int, registry: str) -> bytes:
    """Sign with the node's key that it serves `operator` as the registration says. Returns 65 bytes."""
    message = {
        "operator": operator,
        "node": registration.node,
        "run": registration.run,
        "role": int(registration.role),
        "workClass": registration.work_class,
        "drawTip": registration.draw_tip,
        "deadline": registration.deadline,
    }
    return node.sign_typed(Domain(chain_id, registry).as_dict(), CONSENT.types, message)


def sign_permit(
    owner: TypedSigner, token_domain: dict[str, object], spender: str, amount: int, nonce: int, deadline: int
) -> Permit:
    """Sign that `spender` may take `amount` of the owner's tokens (ERC-2612), under the token's EIP-712 domain."""
    message = {"owner": owner.address, "spender": spender, "value": amount, "nonce": nonce, "deadline": deadline}
    raw = owner.sign_typed(token_domain, PERMIT.types, message)
    return Permit(amount, deadline, raw[64], raw[:32], raw[32:64])
