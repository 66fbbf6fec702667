// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { Juries } from "./Juries.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { DATA_MISSING, ISlashCourt } from "./interfaces/ISlashCourt.sol";
import { Payouts } from "./libraries/Payouts.sol";
import { Windows } from "./libraries/Windows.sol";

/// @title Juried cases; see ISlashCourt.
contract SlashCourt is Juries {
    // ------------------------------------------------------------------------------------------------------- types

    /// @dev The first and the last of the open cases against a node. `Case.earlier` leads from the last to the first.
    struct OpenCases {
        uint40 earliest;
        uint40 latest;
    }

    // --------------------------------------------------------------------------------------------------- constants

    bytes32 private constant RECEIPT_TYPEHASH = keccak256(
        "Receipt(uint32 run,address node,uint32 index,bytes32 root,bytes32 fileHash,uint64 size,uint64 storedAt)"
    );

    // -------------------------------------------------------------------------------------------------- immutables

    address public immutable REFUTATIONS;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc ISlashCourt
    uint256 public caseCount;

    mapping(address challenger => mapping(address node => mapping(bool missing => uint256 caseId))) private _openCases;
    mapping(address node => OpenCases) private _openAgainst;
    /// @dev The next later open case against the same node, of a case that is open.
    mapping(uint256 caseId => uint256) private _later;
    /// @dev Whether a node was fined for a file that came late.
    mapping(address node => bool) private _fined;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs, IRunTerms terms, address refutations) Juries(registry, runs, terms) {
        require(refutations != address(0), ZeroAddress());
        REFUTATIONS = refutations;
    }

    // ------------------------------------------------------------------------------------------------- juried cases

    /// @inheritdoc ISlashCourt
    function openCase(Target calldata target, uint8 kind, uint32 position, bytes32 evidenceHash)
        external
        returns (uint256 caseId)
    {
        // Check.
        address node = target.node;
        IRegistry.Node memory accused = _checkAccusable(target);
        uint256 committedAt = _checkInTime(node, target.index);
        uint256 open = _openCases[msg.sender][node][kind == DATA_MISSING];
        require(open == 0, CaseOpenAlready(msg.sender, node, open));

        // Effect.
        caseId = ++caseCount;
        _openCases[msg.sender][node][kind == DATA_MISSING] = caseId;
        Case storage case_ = _cases[caseId];
        case_.node = node;
        case_.index = target.index;
        case_.kind = kind;
        case_.position = position;
        case_.evidenceHash = evidenceHash;
        case_.charge = chargeOf(target, kind, position, evidenceHash);
        _link(caseId, case_);
        address payer = _empanel(case_, accused, committedAt);
        _announce(caseId, target.step, target.root);

        // Interaction.
        REGISTRY.hold(payer, case_.fee);
        RUNS.freeze(node);
    }

    /// @inheritdoc ISlashCourt
    function commitVote(uint256 caseId, bytes32 charge, bytes32 hash) external {
        Case storage case_ = _openCase(caseId);
        Ballot storage ballot_ = _ballots[caseId][msg.sender];

        // Check. A reorg may have given the number to another case since the judge looked.
        require(charge == case_.charge, OtherCharge(caseId, charge, case_.charge));
        require(block.timestamp < case_.commitEnds, CommitPhaseOver(caseId, case_.commitEnds, block.timestamp));
        bool again = ballot_.state == BallotState.Committed && case_.kind == DATA_MISSING;
        require(again || ballot_.state == BallotState.None, AlreadyVoted(caseId, msg.sender));
        if (!again) _requireJudge(caseId, msg.sender);

        // Effect.
        ballot_.state = BallotState.Committed;
        ballot_.hash = bytes30(hash);
        emit VoteCommitted(caseId, msg.sender, hash);
        if (again) return;
        case_.commits++;

        // Interaction.
        REGISTRY.hold(_operatorOf(msg.sender), case_.deposit);
    }

    /// @inheritdoc ISlashCourt
    function revealVote(uint256 caseId, bool guilty, bytes32 salt) external {
        Case storage case_ = _openCase(caseId);
        Ballot storage ballot_ = _ballots[caseId][msg.sender];

        // Check. A judge that was convicted meanwhile has no vote any more.
        require(ballot_.state == BallotState.Committed, NotVoted(caseId, msg.sender));
        _requireJudge(caseId, msg.sender);
        require(_committingOver(case_), RevealNotStarted(caseId, case_.commitEnds, block.timestamp));
        require(block.timestamp < case_.revealEnds, RevealPhaseOver(caseId, case_.revealEnds, block.timestamp));
        bytes32 hash = voteHash(caseId, msg.sender, guilty, salt);
        require(bytes30(hash) == ballot_.hash, WrongVote(caseId, msg.sender, hash, ballot_.hash));

        // Effect. The deposit stays until it is known who was right.
        ballot_.state = guilty ? BallotState.VotedGuilty : BallotState.VotedNotGuilty;
        case_.reveals++;
        if (guilty) case_.guiltyVotes++;
        _noteReveal(msg.sender);
        emit VoteRevealed(caseId, msg.sender, guilty);
    }

    /// @inheritdoc ISlashCourt
    function resolve(uint256 caseId) external returns (Outcome outcome) {
        Case storage case_ = _openCase(caseId);

        // Check.
        bool moot = _isJailed(case_.node);
        require(moot || _votingOver(case_), VotingNotOver(caseId, case_.revealEnds, block.timestamp));

        // Effect and interaction.
        outcome = moot ? Outcome.Moot : _verdict(case_);
        require(outcome != Outcome.Guilty || case_.earlier == 0, EarlierCaseOpen(caseId, case_.earlier));
        _end(caseId, case_, outcome, address(0));
    }

    /// @inheritdoc ISlashCourt
    function dismiss(uint256 caseId, Receipt calldata receipt, bytes calldata signature) external {
        Case storage case_ = _openCase(caseId);
        (address node, uint32 index, uint32 run) = (case_.node, case_.index, case_.run);

        // Check.
        require(case_.kind == DATA_MISSING, KindNotMissing(caseId, case_.kind));
        _checkAccusable(Target(node, index, receipt.step, receipt.root));
        uint256 committedAt = _committedAt(node, index);
        require(receipt.storedAt <= committedAt, ReceiptTooLate(receipt.storedAt, committedAt));
        address signer = ECDSA.recoverCalldata(receiptDigest(run, node, index, receipt), signature);
        address storageKey = TERMS.storageKeyAt(run, receipt.storedAt);
        require(signer == storageKey, ReceiptNotByStorage(signer, storageKey));

        // Effect and interaction. Only judges are paid: any other account may be the challenger's.
        address payee = _operatorOf(isJudge(caseId, msg.sender) ? msg.sender : node);
        _end(caseId, case_, Outcome.Dismissed, payee);
    }

    /// @inheritdoc ISlashCourt
    function collect(uint256 caseId, address judge) external returns (uint256 amount) {
        amount = collectable(caseId, judge);
        require(amount != 0, NothingToCollect(caseId, judge));

        _ballots[caseId][judge].collected = true;
        emit Collected(caseId, judge, amount);

        _release(_operatorOf(judge), amount);
    }

    // ------------------------------------------------------------------------------------------------ the house's call

    /// @inheritdoc ISlashCourt
    function convictProven(address node, address prover) external {
        // Check.
        require(msg.sender == REFUTATIONS, NotRefutations(msg.sender));
        uint32 run = _checkBound(node).run;

        // Effect and interaction: half of what the prover gets is for who accused first.
        (uint256 bounty,) = _convict(node, run, prover, 0);
        uint256 caseId = _openAgainst[node].earliest;
        if (caseId == 0) return;
        uint256 half = bounty / 2;
        emit BountyHalved(caseId, prover, half);
        REGISTRY.hold(prover, half);
        REGISTRY.release(_operatorOf(_cases[caseId].challenger), half);
    }

    // -------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc ISlashCourt
    function caseOf(uint256 caseId) external view returns (Case memory) {
        return _cases[caseId];
    }

    /// @inheritdoc ISlashCourt
    function ballot(uint256 caseId, address judge)
        external
        view
        returns (BallotState state, bool collected, bytes30 hash)
    {
        Ballot storage ballot_ = _ballots[caseId][judge];
        return (ballot_.state, ballot_.collected, ballot_.hash);
    }

    /// @inheritdoc ISlashCourt
    function isResolvable(uint256 caseId) external view returns (bool) {
        Case storage case_ = _cases[caseId];
        if (case_.node == address(0) || case_.outcome != Outcome.Open) return false;
        if (_isJailed(case_.node)) return true;
        return _votingOver(case_) && (_verdict(case_) != Outcome.Guilty || case_.earlier == 0);
    }

    /// @inheritdoc ISlashCourt
    function collectable(uint256 caseId, address judge) public view returns (uint256) {
        Case storage case_ = _cases[caseId];
        Ballot storage ballot_ = _ballots[caseId][judge];
        BallotState state = ballot_.state;
        if (case_.outcome == Outcome.Open || state == BallotState.None || ballot_.collected) return 0;
        if (state == BallotState.Committed) return Payouts.isVerdict(case_.outcome) ? 0 : case_.deposit;
        return _isRewarded(case_, state == BallotState.VotedGuilty) ? uint256(case_.deposit) + case_.share : 0;
    }

    /// @inheritdoc ISlashCourt
    function chargeOf(Target calldata target, uint8 kind, uint32 position, bytes32 evidenceHash)
        public
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(target, kind, position, evidenceHash));
    }

    /// @inheritdoc ISlashCourt
    function voteHash(uint256 caseId, address judge, bool guilty, bytes32 salt) public pure returns (bytes32) {
        return keccak256(abi.encode(caseId, judge, guilty, salt));
    }

    /// @inheritdoc ISlashCourt
    function receiptDigest(uint32 run, address node, uint32 index, Receipt calldata receipt)
        public
        view
        returns (bytes32)
    {
        bytes32 hash = keccak256(
            abi.encode(
                RECEIPT_TYPEHASH, run, node, index, receipt.root, receipt.fileHash, receipt.size, receipt.storedAt
            )
        );
        return _typedDigest(hash);
    }

    // ----------------------------------------------------------------------------------------------------- internal

    /// @return committedAt Second of the commitment.
    function _checkInTime(address node, uint32 index) private view returns (uint256 committedAt) {
        committedAt = _committedAt(node, index);
        uint256 deadline = Windows.challengeableUntil(Windows.hourOf(committedAt));
        require(block.timestamp < deadline, ChallengeTooLate(node, index, deadline, block.timestamp));
    }

    function _committedAt(address node, uint32 index) private view returns (uint256) {
        return RUNS.commitment(node, index).committedAt;
    }

    /// @dev Checks the challenger and fixes the jury and the phases. Owner and keys of a run cannot be its validators
    /// (RunTerms), so they never challenge.
    /// @return payer The challenger's operator.
    function _empanel(Case storage case_, IRegistry.Node memory accused, uint256 committedAt)
        private
        returns (address payer)
    {
        // Check.
        IRegistry.Node memory challenger = _node(msg.sender);
        bool served = challenger.role == IRegistry.Role.Validator && _isBound(challenger)
            && (challenger.retiredAt == 0 || challenger.retiredAt >= committedAt);
        require(served && challenger.run == accused.run, NotChallenger(msg.sender, accused.run));
        require(challenger.operator != accused.operator, OwnNode(msg.sender, case_.node, accused.operator));
        IRunTerms.CaseTerms memory terms = TERMS.caseTerms(accused.run);
        (uint256 seniorBefore, uint256 jury) = _seniors(accused, committedAt, terms.jurySeniority);
        require(jury >= MIN_JURY, TooFewJudges(jury, MIN_JURY));

        // Effect.
        uint256 commitEnds = block.timestamp + terms.commitPhase;
        case_.run = accused.run;
        case_.openedAt = uint40(block.timestamp);
        case_.challenger = msg.sender;
        case_.jury = uint16(jury);
        case_.fee = terms.caseFee;
        case_.deposit = terms.juryDeposit;
        case_.commitEnds = uint40(commitEnds);
        case_.revealEnds = uint40(commitEnds + terms.revealPhase);
        case_.seniorBefore = uint40(seniorBefore);
        return challenger.operator;
    }

    function _announce(uint256 caseId, uint32 step, bytes32 root) private {
        Case storage case_ = _cases[caseId];
        emit CaseOpened(
            caseId,
            case_.node,
            case_.challenger,
            case_.run,
            case_.index,
            step,
            root,
            case_.kind,
            case_.position,
            case_.evidenceHash,
            case_.jury,
            case_.commitEnds,
            case_.revealEnds
        );
    }

    /// @dev Puts a new case behind the open ones against its node.
    function _link(uint256 caseId, Case storage case_) private {
        OpenCases storage open = _openAgainst[case_.node];
        uint256 earlier = open.latest;
        case_.earlier = uint40(earlier);
        if (earlier == 0) open.earliest = uint40(caseId);
        else _later[earlier] = caseId;
        open.latest = uint40(caseId);
    }

    /// @dev Takes a case that ends out of the open ones, whatever their number.
    function _unlink(uint256 caseId, Case storage case_) private {
        OpenCases storage open = _openAgainst[case_.node];
        (uint256 earlier, uint256 later) = (case_.earlier, _later[caseId]);
        if (later == 0) open.latest = uint40(earlier);
        else _cases[later].earlier = uint40(earlier);
        if (earlier == 0) open.earliest = uint40(later);
        else _later[earlier] = later;
    }

    function _openCase(uint256 caseId) private view returns (Case storage case_) {
        case_ = _cases[caseId];
        require(case_.node != address(0), UnknownCase(caseId));
        require(case_.outcome == Outcome.Open, CaseEnded(caseId, case_.outcome));
    }

    /// @dev A whole jury that has committed need not wait, except about missing data: its cure has until the end.
    function _committingOver(Case storage case_) private view returns (bool) {
        if (block.timestamp >= case_.commitEnds) return true;
        return case_.commits == case_.jury && case_.kind != DATA_MISSING;
    }

    /// @dev No judge can commit or reveal any more.
    function _votingOver(Case storage case_) private view returns (bool) {
        if (block.timestamp >= case_.revealEnds) return true;
        return _committingOver(case_) && case_.reveals == case_.commits;
    }

    /// @dev Both majorities are of the whole jury. Guilt by a majority of those who turned up would let a third of a
    /// jury convict while the rest is offline; a larger quorum would let a third prevent every conviction by silence.
    function _verdict(Case storage case_) private view returns (Outcome) {
        uint256 jury = case_.jury;
        if (uint256(case_.reveals) * 2 <= jury) return Outcome.NoQuorum;
        if (uint256(case_.guiltyVotes) * 2 > jury) return Outcome.Guilty;
        return case_.kind == DATA_MISSING ? Outcome.Cured : Outcome.NotGuilty;
    }

    /// @param dismisser Who is paid for a receipt; zero if there was none.
    function _end(uint256 caseId, Case storage case_, Outcome outcome, address dismisser) private {
        // Effect.
        case_.outcome = outcome;
        delete _openCases[case_.challenger][case_.node][case_.kind == DATA_MISSING];
        _unlink(caseId, case_);
        emit CaseResolved(caseId, case_.node, outcome, case_.guiltyVotes, case_.reveals, case_.jury);

        // Interaction, and an effect that follows from it: what the accused has left decides what judges share.
        RUNS.thaw(case_.node);
        uint256 prize = _prize(case_, outcome);
        uint256 judges = _isRewarded(case_, false) ? case_.reveals - case_.guiltyVotes : 0;
        if (_isRewarded(case_, true)) judges += case_.guiltyVotes;
        uint256 burned = Payouts.isVerdict(outcome) ? (case_.commits - judges) * case_.deposit : 0;
        (uint256 share, uint256 toChallenger, uint256 rest) = Payouts.split(outcome, case_.fee, prize, judges);
        case_.share = uint96(share);
        _release(_operatorOf(case_.challenger), toChallenger);
        _release(dismisser == address(0) ? _operatorOf(case_.node) : dismisser, rest);
        if (burned != 0) REGISTRY.burn(burned);
    }

    /// @dev Returns the judges' prize: the fee, or as much from the accused if the fee goes back. Either verdict pays
    /// the same, so the pay favours neither vote. A node that was late with one file also loses its unsettled pay: it
    /// may have withheld many files, and few are ever asked for. It is fined once: it commits no more.
    function _prize(Case storage case_, Outcome outcome) private returns (uint256 prize) {
        if (outcome == Outcome.Guilty) {
            (, prize) = _convict(case_.node, case_.run, _operatorOf(case_.challenger), case_.fee);
            return prize;
        }
        if (outcome == Outcome.Cured) {
            RUNS.voidWork(case_.node);
            if (_fined[case_.node]) return 0;
            _fined[case_.node] = true;
            return REGISTRY.fine(case_.node, case_.fee);
        }
        return outcome == Outcome.Moot ? 0 : case_.fee;
    }

    /// @dev The pay of a worker that is not settled is void; a validator has none.
    /// @return bounty What `beneficiary` got.
    /// @return kept What judges get: `prize`, or the rest of the slash if that is less.
    function _convict(address node, uint32 run, address beneficiary, uint256 prize)
        private
        returns (uint256 bounty, uint256 kept)
    {
        IRunTerms.CaseTerms memory terms = TERMS.caseTerms(run);
        (bounty, kept) = REGISTRY.convict(node, terms.slashBps, terms.bountyBps, prize, beneficiary);
        RUNS.voidWork(node);
    }

    function _isRewarded(Case storage case_, bool votedGuilty) private view returns (bool) {
        return Payouts.isRewarded(case_.outcome, votedGuilty, case_.reveals - case_.guiltyVotes, case_.jury);
    }

    function _release(address operator, uint256 amount) private {
        if (amount != 0) REGISTRY.release(operator, amount);
    }

    function _isJailed(address node) private view returns (bool) {
        return _node(node).status == IRegistry.Status.Jailed;
    }
}
