// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { IRunTerms } from "../interfaces/IRunTerms.sol";

/// @title The bounds of a run's terms. Everything a run may promise or demand is between these constants.
library TermBounds {
    uint256 internal constant MAX_CLASSES = 8;
    uint256 internal constant MAX_BUDGETS = 14;
    uint256 internal constant MAX_POSITIONS = 4096;
    uint256 internal constant MAX_BOUNTY_BPS = 2_000;
    uint256 internal constant BASIS_POINTS = 10_000;
    /// @dev A judge's deposit, in commitments of the best-paid class. If one case in twenty is guilty, an unseen vote
    /// is wrong once in twenty cases: that costs more than the replay of a fifth of a commitment.
    uint256 internal constant DEPOSIT_COMMITMENTS = 4;
    /// @dev Of a class, in basis points of the run's pay; and the run's pay in token wei, so that no class's is nothing.
    uint256 internal constant MIN_WEIGHT = 1_000;
    uint256 internal constant MIN_PAY = BASIS_POINTS;
    /// @dev A look costs less than the work that it is about.
    uint256 internal constant MAX_WAGE_BPS = 5_000;

    /// @dev A phase is long enough that no operator must stay awake, and two of them fit the unbonding time (Registry).
    uint256 internal constant MIN_PHASE = 13 hours;
    uint256 internal constant MAX_PHASE = 36 hours;
    /// @dev Shorter than the 72 hours in which a case may be opened: a run's first validators can still judge its first
    /// commitments.
    uint256 internal constant MAX_SENIORITY = 48 hours;
    uint256 internal constant MIN_SENIORITY = 24 hours;
    uint256 internal constant MIN_STEP_INTERVAL = 60;
    /// @dev Eight of them are the owner's notice, which starts over when a pause ends: it is over, and its announcement
    /// has lapsed, before the guardian may pause again (Guarded).
    uint256 internal constant MAX_STEP_INTERVAL = 3 days;
    /// @dev Anvil: a run on one machine may use seconds.
    uint256 internal constant LOCAL_CHAIN = 31_337;

    /// @notice Reverts unless every term is within its bounds.
    function check(IRunTerms.Terms calldata terms) internal view {
        _checkSizes(terms);
        _checkTimes(terms);
        _checkGrades(terms);
        _checkMoney(terms, _checkClasses(terms));
    }

    /// @notice Token wei per commitment of a node of a class.
    function payOf(uint256 pay, uint256 class) internal pure returns (uint256) {
        return pay * (class & 0xffff) / BASIS_POINTS;
    }

    /// @notice What a conviction takes from a stake for good: a convict may have the bounty paid to itself.
    function burned(uint256 stake, uint256 slashBps, uint256 bountyBps) internal pure returns (uint256) {
        uint256 slashed = stake * slashBps / BASIS_POINTS;
        return slashed - slashed * bountyBps / BASIS_POINTS;
    }

    /// @param best Pay of a commitment of the best-paid class.
    function _checkMoney(IRunTerms.Terms calldata terms, uint256 best) private pure {
        _bound("pay", terms.pay, MIN_PAY, type(uint96).max);
        _bound("workerStake", terms.workerStake, 1, type(uint96).max);
        _bound("validatorStake", terms.validatorStake, 1, type(uint96).max);
        _bound("slashBps", terms.slashBps, 1, BASIS_POINTS);
        // The bounty is at least the pay of one commitment, so a bribe of that pay cannot hide a false one. The bounty
        // is a fifth of the slash at most, so a conviction burns four times that.
        uint256 slashed = uint256(terms.workerStake) * terms.slashBps / BASIS_POINTS;
        _bound("pay", best, 1, slashed * MAX_BOUNTY_BPS / BASIS_POINTS);
        _bound("bountyBps", terms.bountyBps, Math.ceilDiv(best * BASIS_POINTS, slashed), MAX_BOUNTY_BPS);
        _bound("juryDeposit", terms.juryDeposit, DEPOSIT_COMMITMENTS * best, type(uint88).max);
        // A case is never cheaper than the work that it is about. A conviction pays its judges as much as the fee, out of
        // what the slash leaves of the smaller stake. A fee fits the 96 bits of a judge's share.
        uint256 left = burned(Math.min(terms.workerStake, terms.validatorStake), terms.slashBps, terms.bountyBps);
        _bound("caseFee", terms.caseFee, best, Math.min(left, type(uint88).max));
    }

    function _checkSizes(IRunTerms.Terms calldata terms) private pure {
        _bound("groupSize", terms.groupSize, 1, MAX_POSITIONS);
        _bound("groupsPerCommitment", terms.groupsPerCommitment, 1, MAX_POSITIONS / terms.groupSize);
        _bound("wageBps", terms.wageBps, 0, MAX_WAGE_BPS);
        _bound("lookRows", terms.lookRows, 1, uint256(terms.groupSize) * terms.groupsPerCommitment);
        _bound("commitmentsPerHour", terms.commitmentsPerHour, 1, type(uint8).max);
        _bound("acceptsRequired", terms.acceptsRequired, 1, type(uint8).max);
        _bound("sealQuorum", terms.sealQuorum, 2, type(uint8).max);
        _bound("temperatureMicro", terms.temperatureMicro, 1, type(uint32).max);
        _bound("maxPromptTokens", terms.maxPromptTokens, 1, type(uint32).max);
        _bound("maxCompletionTokens", terms.maxCompletionTokens, 1, type(uint32).max);
        _bound("taskCount", terms.taskCount, 1, type(uint32).max);
    }

    function _checkTimes(IRunTerms.Terms calldata terms) private view {
        bool local = block.chainid == LOCAL_CHAIN;
        _bound("commitPhase", terms.commitPhase, local ? 1 : MIN_PHASE, MAX_PHASE);
        _bound("revealPhase", terms.revealPhase, local ? 1 : MIN_PHASE, MAX_PHASE);
        _bound("jurySeniority", terms.jurySeniority, local ? 1 : MIN_SENIORITY, MAX_SENIORITY);
        _bound("minStepInterval", terms.minStepInterval, local ? 1 : MIN_STEP_INTERVAL, MAX_STEP_INTERVAL);
    }

    /// @dev Private tests have a tip, epochs and their steps, or nothing of these.
    function _checkGrades(IRunTerms.Terms calldata terms) private pure {
        uint256 any = terms.gradeTip == 0 ? 0 : 1;
        _bound("gradeEpochs", terms.gradeEpochs, any, any * type(uint16).max);
        _bound("gradeEpochSteps", terms.gradeEpochSteps, any, any * type(uint32).max);
    }

    /// @return best Pay of a commitment of the best-paid class.
    function _checkClasses(IRunTerms.Terms calldata terms) private pure returns (uint256 best) {
        _bound("classes", terms.classes.length, 1, MAX_CLASSES);
        for (uint256 i = 0; i < terms.classes.length; i++) {
            _checkClass(terms, i);
            best = Math.max(best, payOf(terms.pay, terms.classes[i]));
        }
    }

    /// @dev A class pays in proportion to the mean of its budgets, so claiming other hardware does not earn faster. For
    /// rounding the weight may be less than a basis point off: the whole number below or above the exact value, and the
    /// exact value if it is whole. Weights are no smaller than `MIN_WEIGHT`, so that this is less than a thousandth.
    function _checkClass(IRunTerms.Terms calldata terms, uint256 i) private pure {
        (uint256 weight, uint256 count, uint256 total) = _unpack(terms.classes[i], terms.maxCompletionTokens);
        (uint256 firstWeight, uint256 firstCount, uint256 firstTotal) =
            _unpack(terms.classes[0], terms.maxCompletionTokens);
        (uint256 exact, uint256 unit) = (firstWeight * total * firstCount, count * firstTotal);
        bool near = weight * unit < exact + unit && exact < (weight + 1) * unit;
        require(near, IRunTerms.ClassWeightOff(i, weight, exact / unit));
    }

    function _unpack(uint256 word, uint256 maxBudget)
        private
        pure
        returns (uint256 weight, uint256 count, uint256 total)
    {
        weight = word & 0xffff;
        count = (word >> 16) & 0xffff;
        _bound("weight", weight, MIN_WEIGHT, type(uint16).max);
        _bound("budgets", count, 1, MAX_BUDGETS);
        for (uint256 i = 0; i < count; i++) {
            uint256 budget = (word >> (32 + 16 * i)) & 0xffff;
            _bound("budget", budget, 1, maxBudget);
            total += budget;
        }
        // Nothing above the last budget, so that equal classes are equal words.
        if (count < MAX_BUDGETS) _bound("classes", word >> (32 + 16 * count), 0, 0);
    }

    function _bound(bytes32 name, uint256 value, uint256 minimum, uint256 maximum) private pure {
        require(value >= minimum && value <= maximum, IRunTerms.TermOutOfBounds(name, value, minimum, maximum));
    }
}
