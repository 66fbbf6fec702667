// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { House } from "./House.sol";

/// @title Whole stories, money counted to the last wei.
contract StoryTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    function test_Story_HonestWorkerIsPaidAndLeaves() public {
        _commit(WORKER);
        _commit(WORKER);
        vm.warp(START + 25 hours);
        _commit(WORKER);
        _seal(_firstHour());

        vm.warp(START + 49 hours);
        runs.claim(node(WORKER), 1);
        vm.assertEq(token.balanceOf(operator(WORKER)), 9_900 ether + 2 ether);

        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        vm.warp(START + 25 hours + 73 hours);
        runs.claim(node(WORKER), 2);

        vm.warp(START + 49 hours + 7 days);
        registry.withdraw(node(WORKER));
        vm.assertEq(token.balanceOf(operator(WORKER)), 10_000 ether + 3 ether);
        vm.assertEq(runs.runState(run).reserved, 0);
        vm.assertEq(runs.runState(run).balance, FUNDS - 3 ether);
        _assertSolvent();
    }

    function test_Story_CheaterIsConvictedAndEarnsNothing() public {
        uint256 supply = token.totalSupply();
        _join(OTHER_WORKER, IRegistry.Role.Worker, 0);
        supply = token.totalSupply();
        _commit(WORKER);
        _commit(WORKER);
        uint256 challengerBefore = registry.freeBalance(operator(0));

        uint256 caseId = _accuse(WORKER, 0);
        vm.assertEq(registry.totalHeld(), 5 ether);
        _decide(caseId, [true, true, false]);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Guilty);

        // Half of 100 is slashed; a fifth of that is the bounty, the rest is burned; the fee is back.
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        vm.assertEq(registry.freeBalance(operator(0)), challengerBefore + 10 ether);
        vm.assertEq(token.totalSupply(), supply - 45 ether);

        // The two who saw it share as much as the fee; the deposit of the one who did not is burned.
        vm.assertEq(registry.totalHeld(), 25 ether);
        vm.assertEq(court.collect(caseId, node(1)), 12.5 ether);
        vm.assertEq(court.collect(caseId, node(2)), 12.5 ether);
        vm.assertEq(registry.totalHeld(), 0);

        // Both commitments are void, and the owner cannot take what they would have paid.
        vm.assertEq(runs.runState(run).reserved, 0);
        vm.assertEq(runs.unreserved(run), FUNDS);
        vm.assertEq(runs.withdrawable(run), FUNDS - 2 ether);
        vm.warp(START + 24 hours + 73 hours);
        vm.expectRevert(abi.encodeWithSignature("AlreadySettled(address,uint32,uint32)", node(WORKER), 1, 2));
        runs.claim(node(WORKER), 1);
        _assertSolvent();
    }
}
