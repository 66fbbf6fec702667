"""Judge evidence against a node, so that an accusation can be checked without trust in the accuser.

Each kind of evidence has a pure judge, which gets all that it takes. `validator.evidence` gathers that, for a juror,
an accuser and `muster slash verify`: from a bundle (`muster.verification.bundles`), the chain and the document of the
run's task set. None of them fetches a shard of tasks.

The accuser is not trusted: everything in a bundle is checked against the chain, and what is not bound to the accused
by a root or a signature counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from muster.errors import CheckError, MalformedError, MismatchError
from muster.protocol.draws import Draw
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import hash_bytes, hex_hash, keccak
from muster.protocol.keys import RunKeys
from muster.protocol.kinds import kind_of, reason_of
from muster.protocol.messages import Upload
from muster.protocol.reasons import REASONS, Reason
from muster.protocol.receipts import check_receipt, check_upload
from muster.protocol.terms import Terms
from muster.rollouts.leaves import leaf_hash, leaf_of
from muster.rollouts.schema import Rollout
from muster.verification.bundles import EvidenceBundle, Inspection, ReplayedRow, is_about, parse_bundle
from muster.verification.checks import CheckedRow, Finding, check_draw, check_place, check_root, check_rows, check_shape
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_tasks import ShownTask, read_tasks


class VoidEvidenceError(CheckError):
    """The evidence shows nothing, whatever the accused did."""


@contextmanager
def voiding(what: str) -> Iterator[None]:
    """Turn a CheckError into a VoidEvidenceError that begins with `what`."""
    try:
        yield
    except CheckError as error:
        raise VoidEvidenceError(f"{what}: {error}") from error


@dataclass(frozen=True)
class ShownRows:
    """Rows that evidence shows of a commitment, and what they are judged by."""

    commitment: CommittedWork
    draw: Draw
    rules: Rules
    rows: Sequence[Rollout]
    proofs: Sequence[Sequence[str]]
    """A Merkle proof per row."""
    tasks: Sequence[ShownTask]

    @cached_property
    def rules_shown(self) -> Rules:
        """Return the rules of the step with the tasks shown and no others. Raises VoidEvidenceError."""
        rules = self.rules.at(self.commitment.step)
        with voiding("the tasks shown do not count"):
            return replace(rules, shown=read_tasks(self.tasks, self.rows, rules.task_set))


def parse_evidence(
    data: bytes, kind: int, commitment: CommittedWork, rules: Rules, where: Domain, keys: RunKeys
) -> EvidenceBundle:
    """Parse a bundle. Raises VoidEvidenceError unless it is of this kind and about this commitment.

    A bundle about a whole file has an upload that the node signed.
    """
    try:
        bundle = parse_bundle(data)
    except MalformedError as error:
        raise VoidEvidenceError(str(error)) from error
    if kind_of(bundle.reason) != kind:
        raise VoidEvidenceError(f"the evidence is of {bundle.reason}, the case of {reason_of(kind)}")
    if not is_about(bundle, commitment, rules):
        raise VoidEvidenceError("the evidence is about another commitment")
    if REASONS[bundle.reason].shown_by == "file":
        if bundle.upload is None:
            raise VoidEvidenceError("there is no upload that the node signed")
        with voiding("the upload shown is not the node's"):
            check_signatures(bundle.upload, commitment, keys, where)
    return bundle


def judge_missing(refusal: str | None) -> Inspection:
    """Judge a commitment by what the storage says where it has no file of it; None where it has one."""
    if refusal is None:
        return Inspection(why="the file is there")
    return Inspection(Finding("data_missing", detail=refusal), "the storage has no file for this commitment")


def judge_file(file: Sequence[Rollout] | MalformedError, commitment: CommittedWork, terms: Terms) -> Inspection:
    """Judge a node's file by its rows, or by the error of parsing it."""
    if isinstance(file, MalformedError):
        return _guilty(Finding("malformed", detail=str(file)))
    finding = check_shape(file, commitment, terms) or check_root(file, commitment)
    return _guilty(finding) if finding else Inspection(why="the file is well-formed and under the committed root")


def judge_rows(shown: ShownRows, reason: Reason) -> Inspection | None:
    """Judge rows by the static checks; None where a replay decides. Raises VoidEvidenceError."""
    if finding := check_shown(shown):
        return _guilty(finding)
    return None if REASONS[reason].shown_by == "replay" else Inspection(why="the rows pass every static check")


def judge_replay(replayed: Sequence[ReplayedRow]) -> Inspection:
    """Judge rows that pass the static checks by what the replay of each one found."""
    findings = [row.finding for row in replayed if row.finding]
    if beyond := next((finding for finding in findings if finding.accuse), None):
        return _guilty(beyond)
    return Inspection(findings[0] if findings else None, "no row is beyond the accusing thresholds")


def check_shown(shown: ShownRows) -> Finding | None:
    """Run the static checks on rows. Raises VoidEvidenceError where the rows or their tasks do not count."""
    rows, commitment, terms = shown.rows, shown.commitment, shown.rules.terms
    with voiding("the rows shown do not count"):
        for row, proof in zip(rows, shown.proofs, strict=True):
            if not _is_under(row, proof, commitment.root):
                raise MismatchError(f"row {row.position} is not under the committed root")
    for row in rows:
        # A row beyond the commitment is in the wrong place at any position, the last one included.
        position = min(row.position, terms.positions - 1)
        place = check_place(row, position, commitment, terms)
        if finding := place or check_draw(CheckedRow(row, shown.draw, shown.rules)):
            return finding
    return check_rows(rows, shown.draw, shown.rules_shown)


def check_signatures(upload: Upload, commitment: CommittedWork, keys: RunKeys, where: Domain) -> None:
    """Check that the run's storage promised an upload of this commitment and the node signed it. Raises CheckError."""
    receipt = upload.receipt
    named = (receipt.run, receipt.node.lower(), receipt.index, receipt.root)
    if named != (commitment.run, commitment.node.lower(), commitment.index, hex_hash(commitment.root)):
        raise MismatchError("the upload is of another commitment")
    check_receipt(where, receipt, keys)
    check_upload(where, upload)


def _is_under(rollout: Rollout, proof: Sequence[str], root: bytes) -> bool:
    """Verify a Merkle proof as OpenZeppelin's MerkleProof.verify does."""
    node = leaf_hash(leaf_of(rollout))
    for sibling in map(hash_bytes, proof):
        node = keccak(min(node, sibling) + max(node, sibling))
    return node == root


def _guilty(finding: Finding) -> Inspection:
    return Inspection(finding, f"{finding.reason}: {finding.detail}")
