// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { MerkleProof } from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { ISlashCourt } from "./interfaces/ISlashCourt.sol";
import { Draws } from "./libraries/Draws.sol";
import { Leaves } from "./libraries/Leaves.sol";

/// @title Objective proofs and juried cases; see ISlashCourt.
contract SlashCourt is ISlashCourt {
    // ------------------------------------------------------------------------------------------------------- types

    /// @dev What a judge has done, and the first 31 bytes of the vote it committed to.
    struct Ballot {
        BallotState state;
        bytes31 hash;
    }

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc ISlashCourt
    /// @dev Runs asks for four validators, so three judge when one accuses; two when the accused's operator also
    /// validates, for such a node must not be out of reach. One alone never convicts.
    uint256 public constant MIN_JURY = 2;

    // -------------------------------------------------------------------------------------------------- immutables

    IRegistry public immutable REGISTRY;
    IRuns public immutable RUNS;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc ISlashCourt
    uint256 public caseCount;

    mapping(uint256 caseId => Case) private _cases;
    mapping(uint256 caseId => mapping(address judge => Ballot)) private _ballots;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs) {
        require(address(registry) != address(0) && address(runs) != address(0), ZeroAddress());
        REGISTRY = registry;
        RUNS = runs;
    }

    // ------------------------------------------------------------------------------------------------- juried cases

    /// @inheritdoc ISlashCourt
    function openCase(
        address node,
        uint32 index,
        uint32 step,
        bytes32 root,
        Kind kind,
        uint32 position,
        bytes32 evidenceHash
    ) external returns (uint256 caseId) {
        // Check.
        IRegistry.Node memory accused = _checkCommitted(node, index, step, root);
        _checkInTime(node, index);

        // Effect.
        caseId = ++caseCount;
        Case storage case_ = _cases[caseId];
        case_.node = node;
        case_.index = index;
        case_.kind = kind;
        case_.position = position;
        case_.evidenceHash = evidenceHash;
        address payer = _empanel(case_, accused);
        _announce(caseId, step, root);

        // Interaction.
        REGISTRY.hold(payer, case_.fee);
        RUNS.freeze(node);
    }

    /// @inheritdoc ISlashCourt
    function commitVote(uint256 caseId, bytes32 hash) external {
        Case storage case_ = _openCase(caseId);
        Ballot storage ballot_ = _ballots[caseId][msg.sender];

        // Check.
        require(block.timestamp < case_.commitEnds, CommitPhaseOver(caseId, case_.commitEnds, block.timestamp));
        require(ballot_.state == BallotState.None, AlreadyVoted(caseId, msg.sender));
        require(isJudge(caseId, msg.sender), NotJudge(caseId, msg.sender));

        // Effect.
        ballot_.state = BallotState.Committed;
        ballot_.hash = bytes31(hash);
        case_.commits++;
        emit VoteCommitted(caseId, msg.sender, hash);

        // Interaction.
        REGISTRY.hold(REGISTRY.operatorOf(msg.sender), case_.deposit);
    }

    /// @inheritdoc ISlashCourt
    function revealVote(uint256 caseId, bool guilty, bytes32 salt) external {
        Case storage case_ = _openCase(caseId);
        Ballot storage ballot_ = _ballots[caseId][msg.sender];

        // Check.
        require(ballot_.state == BallotState.Committed, NotVoted(caseId, msg.sender));
        require(_committingOver(case_), RevealNotStarted(caseId, case_.commitEnds, block.timestamp));
        require(block.timestamp < case_.revealEnds, RevealPhaseOver(caseId, case_.revealEnds, block.timestamp));
        bytes32 hash = voteHash(caseId, msg.sender, guilty, salt);
        require(bytes31(hash) == ballot_.hash, WrongVote(caseId, msg.sender, hash, ballot_.hash));

        // Effect.
        ballot_.state = BallotState.Revealed;
        case_.reveals++;
        if (guilty) case_.guiltyVotes++;
        emit VoteRevealed(caseId, msg.sender, guilty);

        // Interaction.
        REGISTRY.release(REGISTRY.operatorOf(msg.sender), case_.deposit);
    }

    /// @inheritdoc ISlashCourt
    function resolve(uint256 caseId) external returns (Outcome outcome) {
        Case storage case_ = _openCase(caseId);

        // Check.
        bool moot = _isJailed(case_.node);
        require(moot || _votingOver(case_), VotingNotOver(caseId, case_.revealEnds, block.timestamp));

        // Effect: what came in is the fee and a deposit per commit; a deposit per reveal has gone back already.
        outcome = moot ? Outcome.Moot : _verdict(case_);
        uint256 forfeited = uint256(case_.commits - case_.reveals) * case_.deposit;
        (uint256 pot, uint256 refund) = (0, 0);
        if (outcome == Outcome.Guilty) (pot, refund) = (forfeited, case_.fee);
        else if (outcome == Outcome.NotGuilty) pot = case_.fee + forfeited;
        else if (outcome == Outcome.NoQuorum) pot = case_.fee;
        else refund = case_.fee;
        uint256 share = case_.reveals == 0 ? 0 : pot / case_.reveals;
        case_.outcome = outcome;
        case_.share = uint96(share);
        emit CaseResolved(caseId, case_.node, outcome, case_.guiltyVotes, case_.reveals, case_.jury);

        // Interaction. What does not divide among the revealers goes to the party that the outcome favours.
        uint256 rest = pot - share * case_.reveals;
        RUNS.thaw(case_.node);
        _settle(case_, outcome, refund, rest);
    }

    /// @inheritdoc ISlashCourt
    function collect(uint256 caseId, address judge) external returns (uint256 amount) {
        amount = collectable(caseId, judge);
        require(amount != 0, NothingToCollect(caseId, judge));

        _ballots[caseId][judge].state = BallotState.Collected;
        emit Collected(caseId, judge, amount);

        REGISTRY.release(REGISTRY.operatorOf(judge), amount);
    }

    // ---------------------------------------------------------------------------------------------- objective proofs

    /// @inheritdoc ISlashCourt
    function proveWrongDraw(
        address node,
        uint32 index,
        uint32 step,
        bytes32 root,
        Leaves.Leaf calldata leaf,
        bytes32[] calldata merkleProof
    ) external {
        // Check.
        _checkCommitted(node, index, step, root);
        bytes32 hash = Leaves.hash(leaf);
        require(MerkleProof.verifyCalldata(merkleProof, root, hash), LeafNotInRoot(hash, root));
        IRuns.DrawTerms memory terms = RUNS.drawTerms(node, step);
        require(!_isAsDrawn(node, index, step, terms, leaf), LeafIsAsDrawn(node, index, leaf.position));

        // Effect and interaction.
        emit Refuted(node, index, msg.sender, Kind.WrongDraw, leaf.position);
        _convict(node, terms.run, msg.sender);
    }

    // -------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc ISlashCourt
    function caseOf(uint256 caseId) external view returns (Case memory) {
        return _cases[caseId];
    }

    /// @inheritdoc ISlashCourt
    function ballot(uint256 caseId, address judge) external view returns (BallotState state, bytes31 hash) {
        Ballot storage ballot_ = _ballots[caseId][judge];
        return (ballot_.state, ballot_.hash);
    }

    /// @inheritdoc ISlashCourt
    function isJudge(uint256 caseId, address judge) public view returns (bool) {
        Case storage case_ = _cases[caseId];
        if (judge == case_.challenger || !REGISTRY.wasValidator(judge, case_.run, case_.seniorBefore)) return false;
        IRegistry.Node memory node_ = REGISTRY.node(judge);
        bool bound = node_.status == IRegistry.Status.Active || node_.status == IRegistry.Status.Retired;
        return bound && node_.operator != REGISTRY.operatorOf(case_.node);
    }

    /// @inheritdoc ISlashCourt
    function isResolvable(uint256 caseId) external view returns (bool) {
        Case storage case_ = _cases[caseId];
        if (case_.node == address(0) || case_.outcome != Outcome.Open) return false;
        return _isJailed(case_.node) || _votingOver(case_);
    }

    /// @inheritdoc ISlashCourt
    function collectable(uint256 caseId, address judge) public view returns (uint256) {
        Case storage case_ = _cases[caseId];
        Outcome outcome = case_.outcome;
        BallotState state = _ballots[caseId][judge].state;
        if (outcome == Outcome.Open) return 0;
        if (state == BallotState.Revealed) return case_.share;
        bool depositBack = outcome == Outcome.NoQuorum || outcome == Outcome.Moot;
        return state == BallotState.Committed && depositBack ? case_.deposit : 0;
    }

    /// @inheritdoc ISlashCourt
    function voteHash(uint256 caseId, address judge, bool guilty, bytes32 salt) public pure returns (bytes32) {
        return keccak256(abi.encode(caseId, judge, guilty, salt));
    }

    // ----------------------------------------------------------------------------------------------------- internal

    /// @dev The commitment exists and its node's lock is still there.
    function _checkCommitted(address node, uint32 index, uint32 step, bytes32 root)
        private
        view
        returns (IRegistry.Node memory accused)
    {
        require(RUNS.isCommitted(node, index, step, root), NotCommitted(node, index, step, root));
        accused = REGISTRY.node(node);
        bool bound = accused.status == IRegistry.Status.Active || accused.status == IRegistry.Status.Retired;
        require(bound, NodeGone(node));
    }

    function _checkInTime(address node, uint32 index) private view {
        uint256 deadline = RUNS.challengeableUntil(node, index);
        require(block.timestamp <= deadline, ChallengeTooLate(node, index, deadline, block.timestamp));
    }

    /// @dev Checks the challenger and fixes the jury and the phases. Owner and trainer of a run cannot be its validators
    /// (Runs), so they never challenge.
    /// @return payer The challenger's operator.
    function _empanel(Case storage case_, IRegistry.Node memory accused) private returns (address payer) {
        // Check.
        IRegistry.Node memory challenger = REGISTRY.node(msg.sender);
        bool serves = challenger.role == IRegistry.Role.Validator && challenger.status == IRegistry.Status.Active;
        require(serves && challenger.run == accused.run, NotChallenger(msg.sender, accused.run));
        require(challenger.operator != accused.operator, OwnNode(msg.sender, case_.node, accused.operator));
        IRuns.CaseTerms memory terms = RUNS.caseTerms(accused.run);
        uint256 seniorBefore = block.timestamp - terms.jurySeniority;
        uint256 jury = _jury(accused, seniorBefore);
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

    /// @dev Validators that were active then, without the challenger and without the accused's operator's own.
    function _jury(IRegistry.Node memory accused, uint256 seniorBefore) private view returns (uint256 jury) {
        uint32 run = accused.run;
        jury = REGISTRY.validatorsAt(run, seniorBefore);
        if (REGISTRY.wasValidator(msg.sender, run, seniorBefore)) jury--;
        address own = REGISTRY.validatorOf(accused.operator, run);
        if (own != address(0) && REGISTRY.wasValidator(own, run, seniorBefore)) jury--;
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

    function _openCase(uint256 caseId) private view returns (Case storage case_) {
        case_ = _cases[caseId];
        require(case_.node != address(0), UnknownCase(caseId));
        require(case_.outcome == Outcome.Open, CaseEnded(caseId, case_.outcome));
    }

    /// @dev A whole jury that has committed need not wait, except about missing data: its cure has until the end.
    function _committingOver(Case storage case_) private view returns (bool) {
        if (block.timestamp >= case_.commitEnds) return true;
        return case_.commits == case_.jury && case_.kind != Kind.DataMissing;
    }

    /// @dev Nobody is left who could still commit or reveal.
    function _votingOver(Case storage case_) private view returns (bool) {
        if (block.timestamp >= case_.revealEnds) return true;
        return _committingOver(case_) && case_.reveals == case_.commits;
    }

    /// @dev Both majorities are of the whole jury. Guilt by a majority of those who turned up would let a third of a
    /// jury convict while the rest is offline; a larger quorum would let a third prevent every conviction by silence.
    function _verdict(Case storage case_) private view returns (Outcome) {
        uint256 jury = case_.jury;
        if (uint256(case_.reveals) * 2 <= jury) return Outcome.NoQuorum;
        return uint256(case_.guiltyVotes) * 2 > jury ? Outcome.Guilty : Outcome.NotGuilty;
    }

    function _settle(Case storage case_, Outcome outcome, uint256 refund, uint256 rest) private {
        address challenger = REGISTRY.operatorOf(case_.challenger);
        if (outcome == Outcome.Guilty) {
            REGISTRY.release(challenger, refund + rest);
            _convict(case_.node, case_.run, challenger);
        } else if (outcome == Outcome.Moot) {
            REGISTRY.release(challenger, refund);
        } else if (rest != 0) {
            REGISTRY.release(REGISTRY.operatorOf(case_.node), rest);
        }
    }

    function _convict(address node, uint32 run, address beneficiary) private {
        IRuns.CaseTerms memory terms = RUNS.caseTerms(run);
        REGISTRY.convict(node, terms.slashBps, terms.bountyBps, beneficiary);
        RUNS.voidWork(node);
    }

    function _isJailed(address node) private view returns (bool) {
        return REGISTRY.node(node).status == IRegistry.Status.Jailed;
    }

    /// @dev Whether task, seed and budget of the leaf are what the draw says for its position.
    function _isAsDrawn(
        address node,
        uint32 index,
        uint32 step,
        IRuns.DrawTerms memory terms,
        Leaves.Leaf calldata leaf
    ) private view returns (bool) {
        uint256 positions = uint256(terms.groupSize) * terms.groupsPerCommitment;
        require(leaf.position < positions, PositionBeyond(leaf.position, positions));
        uint32 position = uint32(leaf.position);
        bytes32 base = Draws.base(address(RUNS), terms.run, step, terms.entropy, node, index);
        (uint256 task, uint256 budget) = Draws.group(base, position / terms.groupSize, terms.taskCount, terms.workClass);
        return leaf.task == task && leaf.budget == budget && leaf.seed == Draws.seed(base, position);
    }
}
