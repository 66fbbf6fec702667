"""The masters of a run's private tests and of its traps: epochs, hash chains, and a validator's statement of grades.

Epoch e of a series, counted from 1, covers the steps from (e - 1) * epoch_steps up to e * epoch_steps; the last of its
epochs goes on for ever. Masters are a hash chain: m_e = keccak256(m_(e+1)), and the series' tip is keccak256(m_1), so a
master yields all earlier ones, and can be checked against the chain. Each function here is pure, and those about
epochs have a twin in `contracts/libraries/Epochs.sol`.
"""

from __future__ import annotations

from eth_abi.abi import encode

from muster.errors import MalformedError, MismatchError
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.hashes import hash_bytes, hex_hash, keccak
from muster.protocol.messages import Grade, Verdict
from muster.protocol.terms import NO_HASH, MasterSeries


def epoch_of(series: MasterSeries, step: int) -> int:
    """Return the epoch, from 1, that a step is in; 0 where the run has no such masters."""
    if series.tip == NO_HASH:
        return 0
    return min(step // series.epoch_steps + 1, series.epochs)


def epochs_begun(series: MasterSeries, steps: int) -> int:
    """Return how many epochs have begun after `steps` published steps: the owner is paid when it has shown all."""
    return epoch_of(series, steps - 1) if steps > 0 else 0


def epochs_over(series: MasterSeries, steps: int) -> int:
    """Return how many epochs have ended after `steps` published steps; the last ends with the run."""
    return max(epochs_begun(series, steps) - 1, 0)


def earlier_master(master: bytes, epoch: int, wanted: int) -> bytes:
    """Return the master of epoch `wanted`, out of that of the same or a later epoch; for epoch 0, the tip.

    Raises MalformedError when the wanted epoch is later: its master does not follow.
    """
    if not 0 <= wanted <= epoch:
        raise MalformedError(f"the master of epoch {wanted} does not follow from that of epoch {epoch}")
    for _ in range(epoch - wanted):
        master = keccak(master)
    return master


def check_master(series: MasterSeries, epoch: int, master: bytes) -> None:
    """Raise MismatchError unless `master` is that of an epoch of the series."""
    if not 1 <= epoch <= series.epochs or earlier_master(master, epoch, 0) != series.tip:
        raise MismatchError(f"this is not the master of epoch {epoch}: it does not lead to the tip in the run's terms")


def grades_commitment(grades: str, salt: str, validator: str) -> str:
    """Return what `Verdict.grades` holds: keccak256(abi.encode(grades, salt, validator)), hashes as we write them.

    The salt keeps grades of few values from being guessed, the address keeps a commitment from being copied.
    """
    words = [hash_bytes(grades), hash_bytes(salt), validator]
    return hex_hash(keccak(encode(["bytes32", "bytes32", "address"], words)))


def check_grade(where: Domain, grade: Grade, verdict: Verdict) -> None:
    """Raise MismatchError unless `grade` is its validator's own statement and opens what its verdict committed to."""
    signer = recover_signer(where, grade)
    if signer.lower() != grade.validator.lower():
        raise MismatchError(f"the grade is signed by {signer}, not by its validator {grade.validator}")
    for name in ("run", "step", "node", "index", "root", "validator"):
        ours, theirs = getattr(grade, name), getattr(verdict, name)
        if str(ours).lower() != str(theirs).lower():
            raise MismatchError(f"the grade's {name} is {ours} and that of the verdict is {theirs}")
    if verdict.grades != grades_commitment(grade.grades, grade.salt, grade.validator):
        raise MismatchError(f"the grade does not open what {grade.validator} committed to in its verdict")
