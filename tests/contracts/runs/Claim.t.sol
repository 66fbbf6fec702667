// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract ClaimTest is House {
    function setUp() public override {
        super.setUp();
        _open();
    }

    /// @dev End of the hour in which `_open` leaves us.
    uint256 private constant END = START + 25 hours;

    function test_Claim_AfterSealedWindow() public {
        _commit(WORKER);
        vm.warp(END);
        _seal(_firstHour());
        vm.assertEq(runs.maturesAt(node(WORKER), 0), END + 24 hours);

        vm.warp(END + 24 hours - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WindowOpen.selector, node(WORKER), 0, END + 24 hours));
        runs.claim(node(WORKER), 0);

        vm.warp(END + 24 hours);
        uint256 before = token.balanceOf(operator(WORKER));
        vm.expectEmit(address(runs));
        emit IRuns.Claimed(run, node(WORKER), 0, 1 ether);
        vm.prank(stranger);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        vm.assertEq(token.balanceOf(operator(WORKER)), before + 1 ether);
        vm.assertEq(runs.runState(run).reserved, 0);
        vm.assertEq(runs.runState(run).balance, FUNDS - 1 ether);
        _assertSolvent();
    }

    function test_Claim_AfterUnsealedWindow() public {
        _commit(WORKER);
        vm.warp(END + 72 hours - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WindowOpen.selector, node(WORKER), 0, END + 72 hours));
        runs.claim(node(WORKER), 0);
        vm.warp(END + 72 hours);
        runs.claim(node(WORKER), 0);
        _assertSolvent();
    }

    /// @dev Whatever minute of the hour it was made in, at least 24 full hours pass.
    function testFuzz_Claim_NeverBefore24FullHours(uint256 minute, uint256 later) public {
        vm.warp(END - 1 hours + _bound(minute, 0, 3599));
        uint256 committedAt = block.timestamp;
        _commit(WORKER);
        vm.warp(END);
        _seal(_firstHour());
        vm.warp(END + _bound(later, 0, 48 hours));
        (bool paid,) = address(runs).call(abi.encodeCall(runs.claim, (node(WORKER), 0)));
        vm.assertTrue(paid == (block.timestamp >= END + 24 hours));
        if (paid) vm.assertGe(block.timestamp, committedAt + 24 hours, "paid too early");
    }

    function test_Claim_RevertWhen_NotCommitted() public {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotCommitted.selector, node(WORKER), 0, 0));
        runs.claim(node(WORKER), 0);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotCommitted.selector, node(WORKER), 0, 0));
        runs.maturesAt(node(WORKER), 0);
    }

    function test_Claim_RevertWhen_AlreadySettled() public {
        _commit(WORKER);
        vm.warp(END + 72 hours);
        runs.claim(node(WORKER), 0);
        vm.expectRevert(abi.encodeWithSelector(IRuns.AlreadySettled.selector, node(WORKER), 0, 1));
        runs.claim(node(WORKER), 0);
    }

    /// @dev Who claims a little, or is overtaken by the hour while claiming, is paid that, and the rest when it likes.
    function test_Claim_LessThanHasMatured() public {
        for (uint256 i = 0; i < 3; i++) {
            _commit(WORKER);
        }
        vm.warp(END + 72 hours);
        vm.expectEmit(address(runs));
        emit IRuns.Claimed(run, node(WORKER), 0, 1 ether);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        vm.assertEq(runs.work(node(WORKER)).settled, 1);
        vm.assertEq(runs.runState(run).reserved, 2 ether);
        vm.assertEq(runs.claim(node(WORKER), 2), 2 ether);
        _assertSolvent();
    }

    function test_Claim_RevertWhen_PayFrozen() public {
        _commit(WORKER);
        vm.warp(END + 71 hours);
        uint256 caseId = _accuse(WORKER, 0);
        vm.warp(END + 72 hours);
        vm.expectRevert(abi.encodeWithSelector(IRuns.PayFrozen.selector, node(WORKER), 1, END + 123 hours));
        runs.claim(node(WORKER), 0);
        (, uint256 amount) = runs.claimable(node(WORKER));
        vm.assertEq(amount, 0);

        _decide(caseId, [false, false, false]);
        court.resolve(caseId);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        _assertSolvent();
    }

    /// @dev What cases can be about no more is paid although one is open: 72 hours, phases of 13 and 14, and a day.
    function test_Claim_WhileACaseIsOpen() public {
        _commit(WORKER);
        vm.warp(END);
        _commit(WORKER);
        vm.warp(END + 73 hours - 1);
        _accuse(WORKER, 1);
        vm.assertEq(runs.payableAt(node(WORKER), 0), END + 123 hours);
        vm.assertEq(runs.payableAt(node(WORKER), 1), END + 124 hours);
        vm.warp(END + 123 hours - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.PayFrozen.selector, node(WORKER), 1, END + 123 hours));
        runs.claim(node(WORKER), 0);
        vm.warp(END + 123 hours);
        vm.expectRevert(abi.encodeWithSelector(IRuns.PayFrozen.selector, node(WORKER), 1, END + 124 hours));
        runs.claim(node(WORKER), 1);
        (uint32 through, uint256 amount) = runs.claimable(node(WORKER));
        vm.assertEq(through, 0);
        vm.assertEq(amount, 1 ether);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        vm.warp(END + 124 hours);
        vm.assertEq(runs.claim(node(WORKER), 1), 1 ether);
        _assertSolvent();
    }

    function test_Claim_PaysTheClass() public {
        _deposit(operator(OTHER_WORKER), 100 ether);
        IRegistry.Registration memory registration = _registration(OTHER_WORKER, IRegistry.Role.Worker);
        registration.workClass = 1;
        bytes memory consent = _consent(OTHER_WORKER, registration);
        vm.prank(operator(OTHER_WORKER));
        registry.register(registration, consent);
        _publishFor(OTHER_WORKER);
        _commit(OTHER_WORKER);
        vm.warp(END + 72 hours);
        vm.assertEq(runs.claim(node(OTHER_WORKER), 0), 2.5 ether);
        _assertSolvent();
    }

    /// @dev Commits over some hours, then claims `claimable` every hour: everything is paid once, nothing early.
    /// forge-config: default.fuzz.runs = 24
    function testFuzz_Claim_EverythingOnce(uint256 seed) public {
        uint256 paid = 0;
        uint256 made = 0;
        for (uint256 hour = 0; hour < 110; hour++) {
            // As many as its stake covers.
            uint256 count = hour < 30 && made < paid / 1 ether + 38 ? uint256(keccak256(abi.encode(seed, hour))) % 4 : 0;
            for (uint256 i = 0; i < count; i++) {
                _commit(WORKER);
            }
            made += count;
            vm.warp(END + hour * 1 hours);
            if (uint256(keccak256(abi.encode(seed, "seal", hour))) % 3 == 0) _seal(_firstHour() + uint24(hour));
            (uint32 through, uint256 amount) = runs.claimable(node(WORKER));
            if (amount != 0) {
                vm.assertEq(runs.claim(node(WORKER), through), amount);
                paid += amount;
            }
            vm.assertEq(runs.runState(run).reserved, made * 1 ether - paid);
        }
        vm.assertEq(paid, made * 1 ether);
        _assertSolvent();
    }
}
