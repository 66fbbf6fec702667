// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IWages } from "../../../contracts/interfaces/IWages.sol";
import { House } from "../House.sol";

contract WagesTest is House {
    function setUp() public override {
        super.setUp();
        _open();
        _fundWages(20 ether);
    }

    function _pot() private view returns (IWages.Pot memory) {
        return wages.pot(run);
    }

    function _expectPostRefused(uint256 sum, bytes memory reason) private {
        vm.expectRevert(reason);
        _post(keccak256("root"), sum);
    }

    function _expectNotTakeable(uint256 from) private {
        vm.expectRevert(abi.encodeWithSelector(IWages.NotTakeable.selector, run, from, block.timestamp));
        vm.prank(owner);
        wages.takeBack(run);
    }

    function _announce(uint256 amount) private returns (uint256 from) {
        from = block.timestamp + 24 hours;
        vm.expectEmit(address(wages));
        emit IWages.TakeBackAnnounced(run, amount, from);
        vm.prank(owner);
        wages.announceTakeBack(run, amount);
        vm.assertEq(_pot().announced, amount);
        vm.assertEq(_pot().takeFrom, from);
    }

    // ---------------------------------------------------------------------------------------------------------- fund

    function testFuzz_Fund_AddsToTheWagesAlone(uint256 amount) public {
        amount = _bound(amount, 1, 100 ether);
        uint256 escrow = runs.runState(run).balance;
        _mint(stranger, amount);
        vm.startPrank(stranger);
        token.approve(address(wages), amount);
        vm.expectEmit(address(wages));
        emit IWages.Funded(run, stranger, amount);
        wages.fund(run, amount);
        vm.stopPrank();
        vm.assertEq(_pot().funded, 20 ether + amount);
        vm.assertEq(runs.runState(run).balance, escrow);
        _assertSolvent();
    }

    function test_Fund_RevertWhen_NoRunOrNothing() public {
        vm.expectRevert(abi.encodeWithSelector(IWages.UnknownRun.selector, run + 1));
        wages.fund(run + 1, 1);
        vm.expectRevert(abi.encodeWithSelector(IWages.AmountZero.selector));
        wages.fund(run, 0);
    }

    // ----------------------------------------------------------------------------------------------------- take back

    function test_TakeBack_PaysWhatWasAnnouncedOnce() public {
        uint256 from = _announce(5 ether);
        vm.warp(from - 1);
        _expectNotTakeable(from);
        vm.warp(from);
        uint256 before = token.balanceOf(owner);
        vm.expectEmit(address(wages));
        emit IWages.TakenBack(run, 5 ether);
        vm.prank(owner);
        vm.assertEq(wages.takeBack(run), 5 ether);
        vm.assertEq(token.balanceOf(owner), before + 5 ether);
        vm.assertEq(_pot().funded, 15 ether);
        vm.assertEq(_pot().announced, 0);
        _expectNotTakeable(0);
        _assertSolvent();
    }

    /// @dev What is announced today is not a right for ever: a day later it has lapsed, and the next takes a notice again.
    function test_TakeBack_RevertWhen_NotAnnouncedOrLapsed() public {
        _expectNotTakeable(0);
        uint256 from = _announce(5 ether);
        vm.warp(from + 24 hours);
        _expectNotTakeable(from);
        from = _announce(6 ether);
        vm.warp(from + 24 hours - 1);
        vm.prank(owner);
        vm.assertEq(wages.takeBack(run), 6 ether);
    }

    function test_Announce_ReplacesTheOneBefore() public {
        uint256 from = _announce(5 ether);
        vm.warp(from - 1);
        uint256 later = _announce(2 ether);
        vm.warp(from);
        _expectNotTakeable(later);
        vm.warp(later);
        vm.prank(owner);
        vm.assertEq(wages.takeBack(run), 2 ether);
    }

    function test_TakeBack_RevertWhen_NotOwner() public {
        vm.expectRevert(abi.encodeWithSelector(IWages.NotOwner.selector, run, trainer));
        vm.prank(trainer);
        wages.announceTakeBack(run, 1);
        vm.warp(_announce(5 ether));
        vm.expectRevert(abi.encodeWithSelector(IWages.NotOwner.selector, run, trainer));
        vm.prank(trainer);
        wages.takeBack(run);
        vm.expectRevert(abi.encodeWithSelector(IWages.AmountZero.selector));
        vm.prank(owner);
        wages.announceTakeBack(run, 0);
    }

    /// @dev Whatever is announced, what is posted by then stays, and is claimed after it.
    function testFuzz_TakeBack_LeavesWhatIsPosted(uint256 announced, uint256 first, uint256 second) public {
        announced = _bound(announced, 1, 100 ether);
        first = _bound(first, 1, 12 ether);
        second = _bound(second, 1, 8 ether);
        uint256 from = _announce(announced);
        vm.warp(from);
        (bytes32 root, bytes32[] memory proof, bytes32[] memory other) = _wageTree(first, second);
        _post(root, first + second);
        uint256 left = 20 ether - first - second;
        vm.prank(owner);
        vm.assertEq(wages.takeBack(run), announced < left ? announced : left);
        vm.assertEq(wages.claim(run, root, node(0), first, proof), first);
        vm.assertEq(wages.claim(run, root, node(1), second, other), second);
        _assertSolvent();
    }

    // ---------------------------------------------------------------------------------------------------------- post

    function test_Post_NotesRootAndSum() public {
        bytes32 root = keccak256("root");
        vm.expectEmit(address(wages));
        emit IWages.Posted(run, root, 20 ether);
        _post(root, 20 ether);
        vm.assertTrue(wages.isPosted(run, root));
        vm.assertFalse(wages.isPosted(run + 1, root));
        vm.assertEq(_pot().posted, 20 ether);
        // A root after it may be of as much.
        _post(keccak256("next"), 20 ether);
        vm.assertTrue(wages.isPosted(run, root));
    }

    function test_Post_RevertWhen_SumOutOfBounds() public {
        _expectPostRefused(
            20 ether + 1, abi.encodeWithSelector(IWages.SumUnfunded.selector, run, 20 ether + 1, 20 ether)
        );
        _post(keccak256("root"), 3 ether);
        _expectPostRefused(3 ether - 1, abi.encodeWithSelector(IWages.SumFalls.selector, run, 3 ether - 1, 3 ether));
        vm.assertEq(_pot().posted, 3 ether);
    }

    /// @dev A key that was replaced posts no more, and one that is announced not yet.
    function test_Post_RevertWhen_NotTrainer() public {
        vm.expectRevert(abi.encodeWithSelector(IWages.NotTrainer.selector, run, owner));
        vm.prank(owner);
        wages.post(run, keccak256("root"), 1);
        IRunTerms.Keys memory keys = _keys();
        (address old, address next) = (trainer, address(0x7a2));
        keys.trainer = next;
        vm.prank(owner);
        runTerms.changeKeys(run, keys);
        trainer = next;
        _expectPostRefused(1, abi.encodeWithSelector(IWages.NotTrainer.selector, run, next));
        vm.warp(block.timestamp + NOTICE);
        _post(keccak256("root"), 1);
        trainer = old;
        _expectPostRefused(1, abi.encodeWithSelector(IWages.NotTrainer.selector, run, old));
    }

    // --------------------------------------------------------------------------------------------------------- claim

    /// @dev Each is paid what a root says beyond what it had, by whichever root, old or new.
    function test_Claim_PaysTheDifference() public {
        (bytes32 root, bytes32[] memory proof,) = _wageTree(3 ether, 2 ether);
        _post(root, 5 ether);
        uint256 before = token.balanceOf(operator(0));
        vm.expectEmit(address(wages));
        emit IWages.Claimed(run, node(0), 3 ether);
        vm.prank(stranger);
        vm.assertEq(wages.claim(run, root, node(0), 3 ether, proof), 3 ether);
        vm.assertEq(token.balanceOf(operator(0)), before + 3 ether);
        _expectNothingOwed(root, 3 ether, proof);

        (bytes32 later, bytes32[] memory laterProof, bytes32[] memory otherProof) = _wageTree(7 ether, 4 ether);
        _post(later, 11 ether);
        vm.assertEq(wages.claim(run, later, node(0), 7 ether, laterProof), 4 ether);
        vm.assertEq(wages.claim(run, later, node(1), 4 ether, otherProof), 4 ether);
        _expectNothingOwed(root, 3 ether, proof);
        _expectNothingOwed(later, 7 ether, laterProof);
        vm.assertEq(wages.paidTo(run, node(0)), 7 ether);
        vm.assertEq(wages.paidTo(run, node(1)), 4 ether);
        vm.assertEq(_pot().claimed, 11 ether);
        _assertSolvent();
    }

    function _expectNothingOwed(bytes32 root, uint256 total, bytes32[] memory proof) private {
        vm.expectRevert(abi.encodeWithSelector(IWages.NothingOwed.selector, run, node(0)));
        wages.claim(run, root, node(0), total, proof);
    }

    /// @dev Totals of more than the sum pay the sum, to whoever comes first; the rest when more is posted.
    function testFuzz_Claim_NeverMoreThanIsPosted(uint256 sum, uint256 first, uint256 second) public {
        sum = _bound(sum, 1, 20 ether);
        first = _bound(first, 1, type(uint128).max);
        second = _bound(second, 1, type(uint128).max);
        (bytes32 root, bytes32[] memory proof, bytes32[] memory other) = _wageTree(first, second);
        _post(root, sum);
        uint256 paid = wages.claim(run, root, node(0), first, proof);
        vm.assertEq(paid, first < sum ? first : sum);
        if (paid == sum) {
            vm.expectRevert(abi.encodeWithSelector(IWages.NothingOwed.selector, run, node(1)));
            wages.claim(run, root, node(1), second, other);
        } else {
            paid += wages.claim(run, root, node(1), second, other);
        }
        vm.assertEq(_pot().claimed, paid);
        vm.assertTrue(paid <= sum);
        _post(root, 20 ether);
        if (paid == sum && sum < 20 ether) {
            uint256 rest = wages.claim(run, root, node(1), second, other);
            vm.assertEq(rest, _pot().claimed - paid);
        }
        vm.assertTrue(_pot().claimed <= 20 ether);
        _assertSolvent();
    }

    function test_Claim_RevertWhen_RootNotPosted() public {
        (bytes32 root, bytes32[] memory proof,) = _wageTree(3 ether, 2 ether);
        vm.expectRevert(abi.encodeWithSelector(IWages.RootNotPosted.selector, run, root));
        wages.claim(run, root, node(0), 3 ether, proof);
        // It was posted for this run, not for another of the same owner.
        _post(root, 5 ether);
        uint32 other = _createRun(_terms());
        vm.expectRevert(abi.encodeWithSelector(IWages.RootNotPosted.selector, other, root));
        wages.claim(other, root, node(0), 3 ether, proof);
    }

    function testFuzz_Claim_RevertWhen_NotInRoot(uint256 total, bytes32 sibling) public {
        (bytes32 root, bytes32[] memory proof,) = _wageTree(3 ether, 2 ether);
        _post(root, 5 ether);
        vm.assume(total != 3 ether && sibling != proof[0]);
        vm.expectRevert(abi.encodeWithSelector(IWages.WageNotInRoot.selector, _wage(0, total), root));
        wages.claim(run, root, node(0), total, proof);
        vm.expectRevert(abi.encodeWithSelector(IWages.WageNotInRoot.selector, _wage(2, 3 ether), root));
        wages.claim(run, root, node(2), 3 ether, proof);
        proof[0] = sibling;
        vm.expectRevert(abi.encodeWithSelector(IWages.WageNotInRoot.selector, _wage(0, 3 ether), root));
        wages.claim(run, root, node(0), 3 ether, proof);
    }

    /// @dev A stranger in a list has no operator: nobody is paid for it.
    function test_Claim_RevertWhen_NeverRegistered() public {
        bytes32 root = _wage(99, 1 ether);
        _post(root, 1 ether);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.NodeNotRegistered.selector, node(99)));
        wages.claim(run, root, node(99), 1 ether, new bytes32[](0));
    }

    /// @dev What it earned it is paid after it has left, in a run that is closed.
    function test_Claim_AfterEverythingIsOver() public {
        (bytes32 root, bytes32[] memory proof,) = _wageTree(3 ether, 2 ether);
        vm.prank(operator(0));
        registry.retire(node(0));
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.warp(block.timestamp + NOTICE + 7 days);
        runs.close(run);
        vm.stopPrank();
        registry.withdraw(node(0));
        _post(root, 5 ether);
        vm.assertEq(wages.claim(run, root, node(0), 3 ether, proof), 3 ether);
        _assertSolvent();
    }

    /// @dev Pay that a conviction voids stays in the escrow: no wage comes out of it.
    function test_Wages_VoidedPayBecomesNone() public {
        _commit(WORKER);
        _convictNode(WORKER, 0);
        vm.assertEq(runs.runInfo(run).kept, 1 ether);
        _expectPostRefused(
            20 ether + 1, abi.encodeWithSelector(IWages.SumUnfunded.selector, run, 20 ether + 1, 20 ether)
        );
        vm.assertEq(_pot().funded, 20 ether);
        vm.assertEq(token.balanceOf(address(wages)), 20 ether);
    }
}
