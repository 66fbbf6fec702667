// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IWages } from "../../../contracts/interfaces/IWages.sol";
import { Provers } from "./Provers.sol";

/// @title The owner that funds wages and takes them back, the trainer that posts them, and those who claim.
/// @dev The trainer mostly posts what validators earned; sometimes its sum is less than its totals, as of one that lies.
abstract contract Payers is Provers {
    /// @dev A root that was posted, over totals in the order of the validators of then.
    struct Roll {
        bytes32 root;
        uint256[] totals;
    }

    Roll[] internal _rolls;
    mapping(uint256 validator => uint256) public earnedWages;
    mapping(uint256 validator => uint256) public paidWages;
    /// @dev The most that a root ever said of it.
    mapping(uint256 validator => uint256) public promisedWages;
    uint256 public wagesFunded;
    uint256 public wagesPosted;
    uint256 public wagesPaid;
    uint256 internal _wagesAnnounced;
    uint256 internal _wagesFrom;

    // --------------------------------------------------------------------------------------------------------- owner

    function fundWages(uint256 amount) external {
        amount = _bound(amount, 1, 2 ether);
        _fundWages(amount);
        wagesFunded += amount;
        _did("fund wages");
    }

    /// @dev Announces to take wages back, or takes what it may: never what is posted, and nothing without notice.
    function takeWages(uint256 pick, uint256 amount) external {
        bool open = _wagesFrom != 0 && block.timestamp >= _wagesFrom && block.timestamp < _wagesFrom + 24 hours;
        if (!open && pick % 4 == 0) {
            _wagesAnnounced = _bound(amount, 1, 50 ether);
            _wagesFrom = block.timestamp + 24 hours;
            vm.prank(owner);
            wages.announceTakeBack(run, _wagesAnnounced);
            _did("announce to take wages");
            return;
        }
        if (!open) {
            vm.expectRevert(abi.encodeWithSelector(IWages.NotTakeable.selector, run, _wagesFrom, block.timestamp));
            vm.prank(owner);
            wages.takeBack(run);
            _did("take wages without notice");
            return;
        }
        uint256 left = wagesFunded - wagesPosted;
        uint256 expected = left < _wagesAnnounced ? left : _wagesAnnounced;
        uint256 before = token.balanceOf(owner);
        vm.prank(owner);
        vm.assertEq(wages.takeBack(run), expected, "wages taken");
        vm.assertEq(token.balanceOf(owner), before + expected, "wages to the owner");
        wagesFunded -= expected;
        (_wagesAnnounced, _wagesFrom) = (0, 0);
        _did("take wages");
    }

    // ------------------------------------------------------------------------------------------------------- trainer

    /// @dev A validator looks, and the trainer posts what all have earned so far, or less than that.
    function postWages(uint256 pick, uint256 amount) external {
        earnedWages[_pick(validators, pick)] += _bound(amount, 0, 0.5 ether);
        uint256 sum = 0;
        uint256[] memory totals = new uint256[](validators.length);
        for (uint256 k = 0; k < totals.length; k++) {
            totals[k] = earnedWages[validators[k]];
            sum += totals[k];
        }
        if (pick % 8 == 0) sum = wagesPosted;
        bytes32 root = _wagesRoot(totals);
        trainer = _trainerOf(_keysAt(block.timestamp));
        if (sum > wagesFunded) {
            vm.expectRevert(abi.encodeWithSelector(IWages.SumUnfunded.selector, run, sum, wagesFunded));
            _post(root, sum);
            _did("post what is not there");
            return;
        }
        if (pick % 8 == 1 && wagesPosted != 0) {
            vm.expectRevert(abi.encodeWithSelector(IWages.SumFalls.selector, run, wagesPosted - 1, wagesPosted));
            _post(root, wagesPosted - 1);
            _did("post less");
        }
        _post(root, sum);
        wagesPosted = sum;
        _rolls.push(Roll(root, totals));
        for (uint256 k = 0; k < totals.length; k++) {
            if (totals[k] > promisedWages[validators[k]]) promisedWages[validators[k]] = totals[k];
        }
        _did("post wages");
    }

    // -------------------------------------------------------------------------------------------------------- anyone

    /// @dev Somebody claims for a validator by any root that was ever posted: it is paid what it was not yet, and no more
    /// than is left.
    function claimWages(uint256 which, uint256 pick) external {
        if (_rolls.length == 0) return;
        Roll storage roll = _rolls[which % _rolls.length];
        uint256 k = pick % roll.totals.length;
        _claimWage(roll, k);
        _forgeWage(roll, k);
    }

    function _claimWage(Roll storage roll, uint256 k) private {
        uint256 i = validators[k];
        uint256 total = roll.totals[k];
        uint256 due = total < paidWages[i] ? 0 : total - paidWages[i];
        if (due > wagesPosted - wagesPaid) due = wagesPosted - wagesPaid;
        bytes32[] memory proof = _wagesProof(roll.totals, k);
        uint256 before = token.balanceOf(operator(i));
        if (due == 0) vm.expectRevert(abi.encodeWithSelector(IWages.NothingOwed.selector, run, node(i)));
        vm.prank(stranger);
        uint256 paid_ = wages.claim(run, roll.root, node(i), total, proof);
        if (due == 0) return _did("claim no wage");
        vm.assertEq(paid_, due, "the difference");
        vm.assertEq(token.balanceOf(operator(i)), before + due, "to the operator");
        paidWages[i] += due;
        wagesPaid += due;
        _did(due == total ? "claim a first wage" : "claim a wage");
    }

    /// @dev Another total than the root says, and a root that nobody posted.
    function _forgeWage(Roll storage roll, uint256 k) private {
        (address validator, uint256 total) = (node(validators[k]), roll.totals[k] + 1);
        bytes32[] memory proof = _wagesProof(roll.totals, k);
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(run, validator, total))));
        vm.expectRevert(abi.encodeWithSelector(IWages.WageNotInRoot.selector, leaf, roll.root));
        wages.claim(run, roll.root, validator, total, proof);
        vm.expectRevert(abi.encodeWithSelector(IWages.RootNotPosted.selector, run, ~roll.root));
        wages.claim(run, ~roll.root, validator, total, proof);
    }

    // ----------------------------------------------------------------------------------------------------- the end

    /// @dev The owner takes all that it can; then every validator is paid all that it earned and that was posted for it.
    function settleWages() external {
        vm.prank(owner);
        wages.announceTakeBack(run, 1_000 ether);
        vm.warp(block.timestamp + 24 hours);
        vm.prank(owner);
        wagesFunded -= wages.takeBack(run);
        vm.assertEq(wagesFunded, wagesPosted, "what is posted stays");
        uint256[] memory totals = new uint256[](validators.length);
        uint256 sum = 0;
        for (uint256 k = 0; k < totals.length; k++) {
            totals[k] = promisedWages[validators[k]];
            sum += totals[k];
        }
        if (sum > wagesFunded) {
            // What a lying root promised beyond its sum, the owner adds.
            _fundWages(sum - wagesFunded);
            wagesFunded = sum;
        }
        trainer = _trainerOf(_keysAt(block.timestamp));
        bytes32 root = _wagesRoot(totals);
        _post(root, wagesFunded);
        wagesPosted = wagesFunded;
        for (uint256 k = 0; k < totals.length; k++) {
            uint256 i = validators[k];
            if (paidWages[i] == totals[k]) continue;
            uint256 due = totals[k] - paidWages[i];
            vm.assertEq(
                wages.claim(run, root, node(i), totals[k], _wagesProof(totals, k)), due, "all that was promised"
            );
            (paidWages[i], wagesPaid) = (totals[k], wagesPaid + due);
        }
    }

    /// @notice What was paid is what the books say, once; it is never more than what is posted, nor that than what came in
    /// and was not taken back; and nobody has more than a root ever said.
    function assertWagesAddUp() external view {
        IWages.Pot memory pot = wages.pot(run);
        vm.assertEq(pot.funded, wagesFunded, "funded");
        vm.assertEq(pot.posted, wagesPosted, "posted");
        vm.assertEq(pot.claimed, wagesPaid, "claimed");
        vm.assertLe(pot.claimed, pot.posted, "more is paid than posted");
        vm.assertLe(pot.posted, pot.funded, "more is posted than there is");
        uint256 sum = 0;
        for (uint256 k = 0; k < validators.length; k++) {
            uint256 i = validators[k];
            uint256 had = wages.paidTo(run, node(i));
            vm.assertEq(had, paidWages[i], "paid");
            vm.assertLe(had, promisedWages[i], "more than promised");
            sum += had;
        }
        vm.assertEq(sum, pot.claimed, "paid once");
        for (uint256 k = 0; k < _rolls.length; k++) {
            vm.assertTrue(wages.isPosted(run, _rolls[k].root), "a root is gone");
        }
    }

    // -------------------------------------------------------------------------------------------------- internal: tree

    /// @dev One leaf after the other is combined with all before it.
    function _wagesRoot(uint256[] memory totals) private view returns (bytes32 root) {
        root = _wage(validators[0], totals[0]);
        for (uint256 k = 1; k < totals.length; k++) {
            root = _pair(root, _wage(validators[k], totals[k]));
        }
    }

    function _wagesProof(uint256[] memory totals, uint256 k) private view returns (bytes32[] memory proof) {
        proof = new bytes32[](k == 0 ? totals.length - 1 : totals.length - k);
        uint256 next = 0;
        if (k != 0) {
            proof[next++] = _wage(validators[0], totals[0]);
            for (uint256 m = 1; m < k; m++) {
                proof[0] = _pair(proof[0], _wage(validators[m], totals[m]));
            }
        }
        for (uint256 m = k + 1; m < totals.length; m++) {
            proof[next++] = _wage(validators[m], totals[m]);
        }
    }

    function _pair(bytes32 a, bytes32 b) private pure returns (bytes32) {
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }
}
