// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { ISlashCourt } from "./interfaces/ISlashCourt.sol";
import { Payouts } from "./libraries/Payouts.sol";
import { TermBounds } from "./libraries/TermBounds.sol";

/// @title The court's part about judges and the accused: who judges a case, what silence costs, and who can be convicted;
/// see ISlashCourt.
abstract contract Juries is ISlashCourt {
    // ------------------------------------------------------------------------------------------------------- types

    /// @dev What a judge has done, and the first 30 bytes of the vote it committed to.
    struct Ballot {
        BallotState state;
        bool collected;
        bytes30 hash;
    }

    /// @dev How a judge does its duty: the end of committing in the latest case that it was reported absent from, when it last
    /// revealed a vote, and how many reported cases ended since.
    struct Duty {
        uint40 absentAt;
        uint40 revealedAt;
        uint8 absences;
    }

    // --------------------------------------------------------------------------------------------------- constants

    /// @dev Judges without whom no case can be opened. Runs asks for four validators, so three judge when one accuses;
    /// two when the accused's operator also validates, for such a node must not be out of reach. One alone never
    /// convicts.
    uint256 internal constant MIN_JURY = 2;

    /// @inheritdoc ISlashCourt
    uint256 public constant ABSENCE_REST = 24 hours;
    /// @dev Absences in a row that cost a validator its seat.
    uint256 internal constant MAX_ABSENCES = 3;

    // -------------------------------------------------------------------------------------------------- immutables

    IRegistry public immutable REGISTRY;
    IRuns public immutable RUNS;
    IRunTerms public immutable TERMS;

    // ----------------------------------------------------------------------------------------------------- storage

    mapping(uint256 caseId => Case) internal _cases;
    mapping(uint256 caseId => mapping(address judge => Ballot)) internal _ballots;
    mapping(address judge => Duty) private _duties;
    /// @dev The end of committing in a case that a judge was fined for; two are a rest apart, so a day has one at most.
    mapping(address judge => mapping(uint256 day => uint256 ended)) private _absences;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs, IRunTerms terms) {
        require(address(registry) != address(0) && address(runs) != address(0), ZeroAddress());
        require(address(terms) != address(0), ZeroAddress());
        REGISTRY = registry;
        RUNS = runs;
        TERMS = terms;
    }

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @inheritdoc ISlashCourt
    function reportAbsence(uint256 caseId, address judge) external {
        Case storage case_ = _cases[caseId];
        Duty memory duty = _duties[judge];
        uint256 ended = case_.commitEnds;

        // Check: the case took a decision or lacked a quorum, and the judge had a vote and did not show it.
        Outcome outcome = case_.outcome;
        require(outcome == Outcome.NoQuorum || Payouts.isVerdict(outcome), NoDuty(caseId, outcome));
        _requireJudge(caseId, judge);
        require(_ballots[caseId][judge].state <= BallotState.Committed, NotAbsent(caseId, judge));
        uint256 day = ended / ABSENCE_REST;
        for (uint256 d = day - 1; d <= day + 1; d++) {
            uint256 other = _absences[judge][d];
            bool apart = ended >= other + ABSENCE_REST || ended + ABSENCE_REST <= other;
            require(apart, AbsentAlready(judge, other + ABSENCE_REST, ended));
        }

        // Effect. What it missed before it last revealed costs it a deposit and counts no further.
        if (ended > duty.revealedAt) duty.absences = duty.absentAt > duty.revealedAt ? duty.absences + 1 : 1;
        if (ended > duty.absentAt) duty.absentAt = uint40(ended);
        _duties[judge] = duty;
        _absences[judge][day] = ended;
        bool expelled = ended > duty.revealedAt && duty.absences >= MAX_ABSENCES;
        emit AbsenceReported(caseId, judge, msg.sender, expelled);

        // Interaction.
        uint256 taken = REGISTRY.fine(judge, case_.deposit);
        uint256 bounty = taken * TERMS.caseTerms(case_.run).bountyBps / TermBounds.BASIS_POINTS;
        REGISTRY.release(_payeeOf(msg.sender), bounty);
        REGISTRY.burn(taken - bounty);
        if (expelled) REGISTRY.expel(judge);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc ISlashCourt
    function isJudge(uint256 caseId, address judge) public view returns (bool) {
        Case storage case_ = _cases[caseId];
        if (judge == case_.challenger || !_wasValidator(judge, case_.run, case_.seniorBefore)) return false;
        IRegistry.Node memory node_ = _node(judge);
        return _isBound(node_) && node_.operator != _operatorOf(case_.node);
    }

    // ----------------------------------------------------------------------------------------------------- internal

    function _requireJudge(uint256 caseId, address judge) internal view {
        require(isJudge(caseId, judge), NotJudge(caseId, judge));
    }

    function _noteReveal(address judge) internal {
        _duties[judge].revealedAt = uint40(block.timestamp);
    }

    /// @dev The second by which judges and challenger were validators, and how many judges there are: without the
    /// challenger and without the accused's operator's own.
    function _seniors(IRegistry.Node memory accused, uint256 committedAt, uint256 seniority)
        internal
        view
        returns (uint256 seniorBefore, uint256 jury)
    {
        uint32 run = accused.run;
        seniorBefore = Math.min(block.timestamp - seniority, committedAt - 1);
        bool senior = _wasValidator(msg.sender, run, seniorBefore);
        require(senior, ChallengerTooJunior(msg.sender, seniorBefore));
        jury = REGISTRY.validatorsAt(run, seniorBefore) - 1;
        address own = REGISTRY.validatorOf(accused.operator, run);
        if (own != address(0) && _wasValidator(own, run, seniorBefore)) jury--;
    }

    /// @dev The commitment exists and its node's lock is still there.
    function _checkAccusable(Target memory target) internal view returns (IRegistry.Node memory accused) {
        bool committed = RUNS.isCommitted(target.node, target.index, target.step, target.root);
        require(committed, NotCommitted(target.node, target.index, target.step, target.root));
        return _checkBound(target.node);
    }

    function _node(address key) internal view returns (IRegistry.Node memory) {
        return REGISTRY.node(key);
    }

    function _checkBound(address key) internal view returns (IRegistry.Node memory bound) {
        bound = _node(key);
        require(_isBound(bound), NodeGone(key));
    }

    /// @dev Its lock is still there.
    function _isBound(IRegistry.Node memory node_) internal pure returns (bool) {
        return node_.status == IRegistry.Status.Active || node_.status == IRegistry.Status.Retired;
    }

    /// @dev What is signed of a struct with this hash, under the Registry's EIP-712 domain.
    function _typedDigest(bytes32 hash) internal view returns (bytes32) {
        return MessageHashUtils.toTypedDataHash(REGISTRY.domainSeparator(), hash);
    }

    function _operatorOf(address node) internal view returns (address) {
        return REGISTRY.operatorOf(node);
    }

    /// @dev A node's operator, or an account that is no node.
    function _payeeOf(address account) internal view returns (address) {
        address operator = _node(account).operator;
        return operator == address(0) ? account : operator;
    }

    function _wasValidator(address key, uint32 run, uint256 timestamp) internal view returns (bool) {
        return REGISTRY.wasValidator(key, run, timestamp);
    }
}
