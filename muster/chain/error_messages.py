"""Revert data into RevertError: the custom error's name, its values, and a message that a person can read.

MESSAGES has one template per custom error of the contracts. Format specifications: `time` a moment, `tokens` an
amount of token wei, `hour` an hour since the epoch, `text` ASCII in a bytes32, `status` and `outcome` the names of
those enums. tests/unit/chain/test_tables.py holds the table and the ABIs equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.abi import function_abi_to_4byte_selector, get_abi_input_types
from eth_utils.address import to_checksum_address

from muster.constants import HOUR_SECONDS
from muster.contracts.abi import CONTRACTS, artifact, snake
from muster.contracts.court import Outcome
from muster.contracts.registry import Status
from muster.errors import RevertError
from muster.protocol.terms_file import MONEY
from muster.runtime.units import Moment, Tokens

MESSAGES: Final[dict[str, str]] = {
    # MusterToken and OpenZeppelin
    "FaucetNotReady": "the faucet gives to {account} again at {readyAt:time}",
    "ERC20InsufficientBalance": "{sender} has {balance:tokens} and needs {needed:tokens}",
    "ERC20InsufficientAllowance": "{spender} may spend {allowance:tokens} and needs {needed:tokens}",
    "ERC20InvalidSender": "tokens cannot come from {sender}",
    "ERC20InvalidReceiver": "tokens cannot go to {receiver}",
    "ERC20InvalidApprover": "{approver} cannot approve",
    "ERC20InvalidSpender": "{spender} cannot be approved",
    "ERC2612ExpiredSignature": "the permit expired at {deadline:time}",
    "ERC2612InvalidSigner": "the permit is signed by {signer} and not by {owner}",
    "ECDSAInvalidSignature": "the signature recovers to no key",
    "ECDSAInvalidSignatureLength": "the signature is {length} bytes long and not 65",
    "ECDSAInvalidSignatureS": "the signature has the upper s",
    "InvalidAccountNonce": "the permit's nonce of {account} must be {currentNonce}",
    "SafeERC20FailedOperation": "the token {token} refused a transfer",
    "CheckpointUnorderedInsertion": "the contract's history would go back in time",
    "SafeCastOverflowedUintDowncast": "{value} does not fit {bits} bits",
    "InvalidShortString": "a string is empty or longer than 31 bytes",
    "StringTooLong": "a string is too long: {str}",
    "ERC5267ExtensionsNotSupported": "a domain for signatures would have extensions",
    # Registry
    "ZeroAddress": "an address is zero",
    "NotCourt": "{caller} is not the court",
    "NotRegistry": "{caller} is not the registry",
    "NotRefutations": "{caller} is not the contract of refutations",
    "NotRunTerms": "{caller} is not the contract of terms",
    "NotOperator": "{caller} is not the node's operator {operator}",
    "NodeKeyUsed": "the key {node} was registered before; a key serves once, ever",
    "NodeNotRegistered": "{node} is no registered node",
    "RoleUnknown": "a node is a worker or a validator",
    "ConsentExpired": "the node's consent expired at {deadline:time}",
    "ConsentNotByNode": "the consent is signed by {signer} and not by the node {node}",
    "ValidatorExists": "{operator} has had validator {node} in run {run}; one per operator and run, ever",
    "DrawTipMissing": "validator {node} must fix its hash chain when it registers",
    "FreeBalanceShort": "{operator} has {balance:tokens} free in the registry and needs {needed:tokens}",
    "HeldShort": "the court holds {held:tokens} and needs {needed:tokens}",
    "NotActive": "{node} is {status:status} and not active",
    "NotLeaving": "{node} is {status:status}; only a retired or jailed node's lock can be withdrawn",
    "StillUnbonding": "the lock of {node} can be withdrawn from {withdrawableAt:time}",
    "NothingLocked": "nothing of {node}'s lock is left",
    "CaseOpen": "{openCases} cases against {node} are open",
    "NotSlashable": "{node} is {status:status} and cannot be slashed",
    # Runs
    "NotOwner": "{caller} does not own run {run}",
    "NotTrainer": "{caller} is not the trainer of run {run}",
    "NotAdmitter": "{caller} does not keep the list of validators of run {run}",
    "UnknownRun": "there is no run {run}",
    "RunIsClosed": "run {run} is closed",
    "RunIsSuspended": "run {run} takes no work until its next checkpoint; it has {validators} validators",
    "OtherRun": "run {run} is {expected} and not {runHash}: a reorg gave its number to another",
    "TermOutOfBounds": "the term {name:text} is {value} and must be {minimum} to {maximum}",
    "ClassWeightOff": "the weight of class {class} is {weight} and its mean budget demands {expected}",
    "AmountZero": "the amount is zero",
    "NothingAnnounced": "nothing was announced for run {run}",
    "NoticeLapsed": "the announcement for run {run} lapsed at {lapsedAt:time}",
    "NoticeStands": "run {run} has an announcement; the next can be made from {againAt:time}",
    "NoticeRunning": "the notice of run {run} ends at {readyAt:time}",
    "WorkClassUnknown": "run {run} has no work class {workClass}",
    "NotAdmitted": "{operator} is not admitted as a validator of run {run}",
    "OwnerOrKey": "{account} owns run {run} or is one of its keys, now or announced, and cannot validate in it",
    "KeyOfValidator": "{account} is, was or operates a validator of run {run} and can be none of its keys",
    "StepOutOfOrder": "step {step} cannot be published in run {run}: the next is {expected}",
    "StepTooSoon": "run {run} takes its next checkpoint from {readyAt:time}",
    "NotWorking": "{node} is no worker in service",
    "WrongRun": "{node} works for run {nodeRun} and not for run {run}",
    "TooFewValidators": "run {run} has {validators} validators and takes no work before {needed}",
    "ValidatorsTooNew": "run {run} got its last validator at {workableSince:time}, in this very second",
    "WrongIndex": "the next commitment of {node} is {next} and not {index}",
    "StepUnpublished": "run {run} has published {steps} steps, and step {step} is not among them",
    "StepBeforeJoined": "{node} may work from step {joinedStep} on, and this is step {step}",
    "StepTooOld": "step {step} of run {run} is too old: the oldest that counts is {oldest}",
    "StepBeforeLast": "{node} committed at step {lastStep} already and cannot go back to step {step}",
    "WrongAnchor": "step {step} of run {run} has another anchor: {expected}",
    "HourFull": "{node} has made its {limit} commitments of this hour",
    "CoverShort": "{node} has {unsettled} unsettled commitments, and its stake covers {cover}",
    "EscrowShort": "run {run} has {unreserved:tokens} left in escrow and needs {needed:tokens}",
    "NotCommitted": "{node} has not made this commitment {index}",
    "AlreadySettled": "{node} was settled below commitment {settled} already",
    "WindowOpen": "commitment {index} of {node} is still open to challenges, until {maturesAt:time}",
    "PayFrozen": "{openCases} cases against {node} are open: this pay is frozen until they end or {payableAt:time}",
    "TooManyCases": "too many cases against {node} are open",
    "TooManyValidators": "run {run} has 255 active validators, and takes no more",
    "NotValidator": "{caller} is no active validator of run {run}",
    "TooJunior": "{validator} may do this from {readyAt:time}",
    "HourBeforeJoined": "the hour {hour:hour} ended before {validator} registered at {registeredAt:time}",
    "HourNotEnded": "the hour {hour:hour} ends at {endsAt:time}",
    "SealTooLate": "the hour {hour:hour} could be sealed until {deadline:time}",
    "SealNotRising": "{validator} has sealed through {lastHour:hour}, which is not before {hour:hour}",
    "NotGuardian": "{caller} is not the guardian",
    "CommitmentsPaused": "new commitments are paused until {until:time}",
    "PauseTooSoon": "commitments can be paused again from {readyAt:time}",
    "NotPaused": "commitments are not paused: the latest pause ended at {until:time}",
    # SlashCourt
    "UnknownCase": "there is no case {caseId}",
    "CaseEnded": "case {caseId} has ended: {outcome:outcome}",
    "NodeGone": "the lock of {node} was withdrawn or slashed already",
    "NotChallenger": "{caller} is no active validator of run {run} and cannot open a case",
    "OwnNode": "{challenger} and {node} belong to the same operator {operator}",
    "ChallengeTooLate": "commitment {index} of {node} could be challenged until {deadline:time}",
    "TooFewJudges": "the run has {jury} eligible judges and a case needs {needed}",
    "NotJudge": "{caller} is not on the jury of case {caseId}",
    "CommitPhaseOver": "votes in case {caseId} could be committed until {commitEnds:time}",
    "RevealNotStarted": "votes in case {caseId} can be revealed from {startsAt:time}",
    "RevealPhaseOver": "votes in case {caseId} could be revealed until {revealEnds:time}",
    "OtherCharge": "case {caseId} is about {expected} and not about {charge}: a reorg gave its number to another",
    "AlreadyVoted": "{judge} has voted in case {caseId} already",
    "NotVoted": "{judge} has not voted in case {caseId}",
    "WrongVote": "this vote and salt are not what {judge} committed to in case {caseId}",
    "EarlierCaseOpen": "case {earlier} about the commitment of case {caseId} was opened before it and is not over",
    "VotingNotOver": "case {caseId} cannot be resolved before {revealEnds:time}",
    "NothingToCollect": "case {caseId} owes {judge} nothing",
    "LeafNotInRoot": "the leaf {leaf} is not under the root {root}",
    "PositionsDiffer": "the leaves are of two positions, {first} and {second}",
    "LeafShownTwice": "both proofs show the leaf {leaf} at one place of the tree",
    "OpeningsWrong": "{openings} leaves are shown; one refutes, or two of one position",
    "NotVouched": "{validator} did not vouch for {leaf} when it sealed {hour:hour}",
    "NothingRefuted": "nothing is wrong with row {position} of commitment {index} of {node}",
    "ReceiptTooLate": "the storage had the file at second {storedAt}, after the commitment at second {committedAt}",
    "ChallengerTooJunior": "{challenger} was not yet a validator at second {seniorBefore}, so it cannot accuse",
    "CaseOpenAlready": "case {caseId} of {challenger} against {node} for the same kind is open",
    "NoDuty": "case {caseId} is {outcome}: its judges had no duty to reveal a vote",
    "NotAbsent": "{judge} revealed its vote in case {caseId}",
    "AbsentAlready": "{judge} was fined of late: only cases whose voting ends from second {from} on count, not {ended}",
    "KindNotMissing": "case {caseId} is not about missing data, so a receipt does not end it",
    "ReceiptNotByStorage": "the receipt is signed by {signer} and not by the run's storage key {storageKey}",
    # Wages
    "NotTakeable": "wages of run {run} can be taken back for a day from {from:time} on, where that was announced",
    "SumFalls": "the wages of run {run} came to {posted:tokens} and cannot fall to {sum:tokens}",
    "SumUnfunded": "run {run} has {funded:tokens} for wages, and {sum:tokens} are to be posted",
    "RootNotPosted": "{root} was never posted as a root of wages in run {run}",
    "WageNotInRoot": "the wage {leaf} is not under the root {root}",
    "NothingOwed": "run {run} owes {validator} no wage, or nothing of what was posted is left",
    # Solidity itself
    "Error": "{message}",
    "Panic": "the contract failed an internal check: {meaning}",
}

HINTS: Final[dict[str, str]] = {
    "FreeBalanceShort": "muster wallet deposit AMOUNT --operator NAME",
    "ERC20InsufficientBalance": "muster faucet",
    "TermOutOfBounds": "which terms depend on others is in docs/use/own-a-run.md, Money",
    "WindowOpen": "muster worker status shows when it matures",
    "OtherRun": "read its terms (muster run show), then run the command again",
    "NotAdmitted": "ask the run's owner to admit your operator address",
    "NodeKeyUsed": "muster wallet new makes a fresh node key",
    "NoticeLapsed": "announce it again, a day later: run the same command",
    "CoverShort": "muster worker claim, once more has matured",
    "EscrowShort": "the run's owner can add to the escrow: muster run fund",
    "ConsentExpired": "run the command again: it signs a new consent",
    "CommitmentsPaused": "nothing is lost: what has matured can be claimed meanwhile, muster worker claim",
}
"""The next thing to do, for errors a person can do something about."""

_ERROR: Final[Any] = {"type": "error", "name": "Error", "inputs": [{"name": "message", "type": "string"}]}
_PANIC: Final[Any] = {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]}
_PANICS: Final = {
    0x01: "an assertion is false",
    0x11: "arithmetic overflow",
    0x12: "division by zero",
    0x21: "no such enum value",
    0x32: "index out of bounds",
    0x41: "too much memory",
}


@cache
def known_errors() -> dict[bytes, Any]:
    """Return the ABI entries of all errors that our contracts can raise, by selector."""
    items = [item for contract in CONTRACTS for item in artifact(contract).items("error")]
    return {function_abi_to_4byte_selector(item): item for item in [*items, _ERROR, _PANIC]}


def decode_revert(data: bytes, what: str) -> RevertError:
    """Return the error that `data` encodes; `what` names the call. Never raises, whatever the bytes are."""
    item = known_errors().get(data[:4])
    if item is None:
        return _undecoded(data, what)
    try:
        decoded = decode(get_abi_input_types(item), data[4:])
    except (DecodingError, UnicodeDecodeError, OverflowError):
        return _undecoded(data, what)
    name = item["name"]
    values: dict[str, Any] = {
        parameter["name"]: to_checksum_address(value) if parameter["type"] == "address" else value
        for parameter, value in zip(item["inputs"], decoded, strict=True)
    }
    if name == "Panic":
        values["meaning"] = _PANICS.get(values["code"], f"panic {values['code']:#x}")
    return RevertError(f"{what}: {error_message(name, values)}", name=name, values=values, hint=HINTS.get(name, ""))


def error_message(name: str, values: dict[str, Any]) -> str:
    """Return the error as a sentence."""
    template = MESSAGES.get(name)
    if template is None:
        listed = ", ".join(f"{key} {_Shown(value)}" for key, value in values.items())
        return f"{name} ({listed})" if listed else name
    shown = dict(values)
    if name == "TermOutOfBounds" and snake(_Shown(values["name"]).__format__("text")) in MONEY:
        shown |= {key: Tokens(values[key]) for key in ("value", "minimum", "maximum")}
    return template.format(**{key: _Shown(value) for key, value in shown.items()})


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
    """A value that knows the format specifications of `muster.chain.error_messages`."""

    value: Any

    def __format__(self, spec: str) -> str:
        return _FORMATS[spec](self.value) if spec else str(self)

    def __str__(self) -> str:
        return "0x" + self.value.hex() if isinstance(self.value, bytes) else str(self.value)


_FORMATS: Final[dict[str, Callable[[Any], str]]] = {
    "time": lambda value: str(Moment(value)),
    "hour": lambda value: str(Moment(value * HOUR_SECONDS)),
    "tokens": lambda value: str(Tokens(value)),
    "text": lambda value: value.rstrip(b"\0").decode("ascii", "replace"),
    "status": lambda value: _member(Status, value),
    "outcome": lambda value: _member(Outcome, value),
}


def _member(enum: type[Status] | type[Outcome], value: int) -> str:
    try:
        return enum(value).name.lower().replace("_", " ")
    except ValueError:
        return str(value)
