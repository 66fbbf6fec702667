// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Payouts } from "../../../contracts/libraries/Payouts.sol";
import { House } from "../House.sol";

/// @title What every run makes dearer than honesty, whatever its owner chose: of terms that the contract takes.
/// @dev Terms are drawn from all that fits their types, half of them close to a bound, so that some are taken and some
/// are not. What each class then pays, stakes and risks is counted here anew.
contract TermIncentivesTest is House {
    uint256 private constant BASIS = 10_000;
    uint256 private constant WAD = 1e18;
    /// @dev Of one fuzz run.
    uint256 private constant DRAWS = 24;
    /// @dev Where honest work is the rule: one case in this many is about a cheat.
    uint256 private constant CASES = 20;
    /// @dev The dearest replay that a judge's deposit is meant for, as a part of what the commitment pays.
    uint256 private constant REPLAY = 5;

    /// @dev What the terms give of one class.
    struct Stakes {
        uint256 pay;
        uint256 slashed;
        uint256 bounty;
        uint256 burned;
    }

    uint256 private _seed;

    // -------------------------------------------------------------------------------------------------- what holds

    function testFuzz_TermIncentives_HonestyIsNeverDearer(uint256 seed) public {
        _seed = seed;
        uint256 taken = 0;
        uint256 refused = 0;
        for (uint256 k = 0; k < DRAWS; k++) {
            IRunTerms.Terms memory terms = _drawTerms();
            try runTerms.createRun(terms, _keys()) returns (uint32 created) {
                taken++;
                _checkRun(created, terms);
            } catch (bytes memory reason) {
                refused++;
                _checkReason(reason);
            }
        }
        vm.assertGe(taken, DRAWS / 12, "hardly any terms are taken");
        vm.assertGe(refused, DRAWS / 12, "hardly any terms are refused");
    }

    function _checkRun(uint32 created, IRunTerms.Terms memory terms) private {
        (, uint256 leftOfWorker) = _slashOf(terms.workerStake, terms);
        (, uint256 leftOfValidator) = _slashOf(terms.validatorStake, terms);
        vm.assertLe(terms.caseFee, leftOfWorker, "a slash of a worker pays no judges");
        vm.assertLe(terms.caseFee, leftOfValidator, "a slash of a validator pays no judges");
        for (uint8 class = 0; class < terms.classes.length; class++) {
            _checkClass(created, terms, class);
        }
    }

    function _checkClass(uint32 created, IRunTerms.Terms memory terms, uint8 class) private {
        Stakes memory stakes;
        (stakes.slashed, stakes.burned) = _slashOf(terms.workerStake, terms);
        stakes.bounty = stakes.slashed - stakes.burned;
        stakes.pay = uint256(terms.pay) * (terms.classes[class] & 0xffff) / BASIS;
        vm.assertGe(stakes.pay, 1, "work is worth nothing");

        // What a node may have unsettled, as the contract has it, costs it as much; one commitment is always covered.
        address key = address(uint160(uint256(keccak256(abi.encode("key", created, class)))));
        bytes32 hash = runTerms.runHash(created);
        vm.prank(address(registry));
        runs.enrolWorker(created, hash, key, stranger, class);
        IRuns.Work memory work = runs.work(key);
        vm.assertEq(work.pay, stakes.pay);
        vm.assertGe(stakes.burned, stakes.pay, "a conviction costs less than a commitment pays");
        vm.assertGe(work.cover, 1, "no commitment is covered");
        vm.assertLe(work.cover * stakes.pay, stakes.burned, "more can be bound than a conviction costs");

        vm.assertGe(terms.juryDeposit, 4 * stakes.pay, "a wrong vote costs a judge too little");
        vm.assertGe(terms.caseFee, stakes.pay, "an unfounded case costs less than a commitment pays");
        vm.assertGe(stakes.bounty, stakes.pay, "who knows of a false commitment gains by silence");
        _checkJudges(terms, stakes.pay);
        _checkRows(terms, stakes);
    }

    /// @dev Of a jury whose others look and are a majority without it, one judge saves the replay and votes the same in
    /// every case. In a jury of two there is no majority without it: whatever it votes, both are paid.
    function _checkJudges(IRunTerms.Terms memory terms, uint256 pay) private {
        uint256 jury = 3 + _draw(253);
        int256 replay = int256(pay / REPLAY);
        (int256 convicted, int256 acquitted) = (_income(terms, jury, true, true), _income(terms, jury, false, true));
        int256 looking = convicted + int256(CASES - 1) * acquitted - int256(CASES) * replay;
        int256 acquitting = _income(terms, jury, true, false) + int256(CASES - 1) * acquitted;
        int256 convicting = convicted + int256(CASES - 1) * _income(terms, jury, false, false);
        vm.assertTrue(looking >= acquitting, "acquitting unseen pays");
        vm.assertTrue(looking >= convicting, "convicting unseen pays");
        // Whatever share of the cases is guilty, as long as it is a twentieth at least.
        vm.assertTrue(_income(terms, jury, true, false) <= convicted - int256(CASES) * replay, "a wrong vote is cheap");
    }

    /// @dev What one judge gains by a case, the others having voted for what is true.
    function _income(IRunTerms.Terms memory terms, uint256 jury, bool guilty, bool right)
        private
        pure
        returns (int256)
    {
        ISlashCourt.Outcome outcome = guilty ? ISlashCourt.Outcome.Guilty : ISlashCourt.Outcome.NotGuilty;
        uint256 others = jury - 1;
        bool vote = guilty == right;
        uint256 acquittals = (guilty ? 0 : others) + (vote ? 0 : 1);
        bool rewarded = Payouts.isRewarded(outcome, vote, acquittals, jury);
        uint256 judges = rewarded ? jury : others;
        (uint256 share,,) = Payouts.split(outcome, terms.caseFee, terms.caseFee, judges);
        return rewarded ? int256(share) : -int256(uint256(terms.juryDeposit));
    }

    /// @dev A worker makes j of n rows up and saves as much of the pay. One inspector who samples s rows finds one with a
    /// chance that is j of n at least, and what that costs the worker is more than it saved.
    function _checkRows(IRunTerms.Terms memory terms, Stakes memory stakes) private {
        uint256 n = uint256(terms.groupSize) * terms.groupsPerCommitment;
        uint256 j = 1 + _draw(n);
        uint256 s = 1 + _draw(n < 8 ? n : 8);
        uint256 missed = WAD;
        for (uint256 k = 0; k < s; k++) {
            missed = k < n - j ? _ceil(missed * (n - j - k), n - k) : 0;
        }
        uint256 found = WAD - missed;
        vm.assertGe(found * n + n, WAD * j, "a sample finds less than one row does");
        vm.assertGe(found * stakes.burned * n, stakes.pay * j * WAD, "false rows pay");
    }

    /// @dev The bounds that are broken are these terms' own.
    function _checkReason(bytes memory reason) private pure {
        bytes4 selector = bytes4(reason);
        vm.assertTrue(
            selector == IRunTerms.TermOutOfBounds.selector || selector == IRunTerms.ClassWeightOff.selector,
            "terms are refused without a reason"
        );
    }

    // ---------------------------------------------------------------------------------------------------- the draws

    function _drawTerms() private returns (IRunTerms.Terms memory t) {
        t = _terms();
        t.groupSize = uint16(1 + _draw(64));
        t.groupsPerCommitment = uint16(1 + _draw(64));
        t.classes = new uint256[](1 + _draw(8));
        t.classes[0] = (1_000 + _draw(9_001)) | (1 << 16) | ((16 + _draw(32)) << 32);
        for (uint256 i = 1; i < t.classes.length; i++) {
            t.classes[i] = _drawClass(t.classes[0]);
        }
        t.pay = uint96(_magnitude(13, 90));
        uint256 best = 0;
        for (uint256 i = 0; i < t.classes.length; i++) {
            uint256 pay = uint256(t.pay) * (t.classes[i] & 0xffff) / BASIS;
            if (pay > best) best = pay;
        }
        t.slashBps = uint16(_draw(4) == 0 ? BASIS : _draw(BASIS + 2));
        t.bountyBps = uint16(_draw(4) == 0 ? 2_000 : _draw(2_002));
        // The smallest stake whose bounty is the best pay, or the smallest whose burned part is, or any.
        uint256 share = _draw(4) == 0 ? BASIS - t.bountyBps : t.bountyBps;
        uint256 edge = _ceil(best * BASIS * BASIS, uint256(t.slashBps) * share);
        t.workerStake = uint96(_around(edge, 96));
        t.validatorStake = uint96(_draw(2) == 0 ? t.workerStake : _around(edge, 96));
        t.juryDeposit = uint96(_around(4 * best, 88));
        (, uint256 left) = _slashOf(t.workerStake < t.validatorStake ? t.workerStake : t.validatorStake, t);
        t.caseFee = uint96(_draw(8) == 0 ? left + _draw(2) : 1 + _draw(left == 0 ? 1 : left));
    }

    /// @dev In proportion to the first, but for one in 64.
    function _drawClass(uint256 first) private returns (uint256) {
        uint256 budget = 16 + _draw(32);
        uint256 weight = (first & 0xffff) * budget / (first >> 32);
        if (weight < 1_000) return first;
        return (weight + (_draw(64) == 0 ? 2 : 0)) | (1 << 16) | (budget << 32);
    }

    /// @dev At a bound or a step beside it, above it by a factor of up to 16, or anything of up to so many bits.
    function _around(uint256 edge, uint256 bits) private returns (uint256 value) {
        uint256 kind = _draw(16);
        if (kind == 0) return _magnitude(1, bits - 1);
        if (kind == 1) value = edge == 0 ? 0 : edge - 1;
        else if (kind < 6) value = edge + _draw(3);
        else value = edge + edge / 4 * _draw(60);
        return value < 1 << bits ? value : (1 << bits) - 1;
    }

    /// @dev Of from `low` to `high` bits beyond the first, each length as likely.
    function _magnitude(uint256 low, uint256 high) private returns (uint256) {
        uint256 most = 1 << (low + _draw(high - low + 1));
        return most + _draw(most);
    }

    function _draw(uint256 below) private returns (uint256) {
        _seed = uint256(keccak256(abi.encode(_seed)));
        return _seed % below;
    }

    /// @return slashed What a conviction takes from a stake.
    /// @return left Of that, less the bounty.
    function _slashOf(uint256 stake, IRunTerms.Terms memory terms)
        private
        pure
        returns (uint256 slashed, uint256 left)
    {
        slashed = stake * terms.slashBps / BASIS;
        left = slashed - slashed * terms.bountyBps / BASIS;
    }

    function _ceil(uint256 value, uint256 divisor) private pure returns (uint256) {
        return divisor == 0 ? type(uint96).max : (value + divisor - 1) / divisor;
    }
}
