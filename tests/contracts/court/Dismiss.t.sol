// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract DismissTest is House {
    uint256 private caseId;

    function setUp() public override {
        super.setUp();
        _open();
        _commit(WORKER);
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
    }

    function _dismiss(ISlashCourt.Receipt memory receipt, bytes memory signature) private {
        vm.prank(stranger);
        court.dismiss(caseId, receipt, signature);
    }

    function _free(uint256 i) private view returns (uint256) {
        return registry.freeBalance(operator(i));
    }

    function test_Dismiss_BeforeAnybodyVoted() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        vm.expectEmit(address(court));
        emit ISlashCourt.CaseResolved(caseId, node(WORKER), ISlashCourt.Outcome.Dismissed, 0, 0, 3);
        _dismiss(receipt, signature);
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Dismissed);
        vm.assertFalse(court.isResolvable(caseId));
        vm.assertEq(runs.work(node(WORKER)).openCases, 0);
        vm.assertEq(_free(0), 95 ether);
        vm.assertEq(_free(WORKER), 5 ether);
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }

    /// @dev Judges that committed have their deposits back, whatever they would have revealed.
    function test_Dismiss_AfterVotes() public {
        _vote(caseId, 1, true);
        _vote(caseId, 2, false);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        _dismiss(receipt, signature);
        for (uint256 i = 1; i < 3; i++) {
            vm.assertEq(court.collect(caseId, node(i)), DEPOSIT);
            vm.assertEq(_free(i), 100 ether);
        }
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NothingToCollect.selector, caseId, node(3)));
        court.collect(caseId, node(3));
        vm.assertEq(_free(WORKER), 5 ether);
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }

    /// @dev Even a jury that found it guilty gives way to the receipt, as long as nobody has resolved the case.
    function test_Dismiss_AfterReveals() public {
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, true);
        }
        vm.warp(court.caseOf(caseId).commitEnds);
        _reveal(caseId, 1, true);
        _reveal(caseId, 2, true);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        _dismiss(receipt, signature);
        vm.assertEq(court.collect(caseId, node(1)), DEPOSIT);
        vm.assertEq(court.collect(caseId, node(2)), DEPOSIT);
        vm.assertEq(court.collect(caseId, node(3)), DEPOSIT);
        vm.assertEq(_free(WORKER), 5 ether);
        vm.assertEq(registry.node(node(WORKER)).lock, 100 ether);
        vm.assertEq(registry.totalHeld(), 0);
        _assertSolvent();
    }

    /// @dev A judge that shows it has the fee. Any other account may be the challenger's, which would freeze pay for
    /// free: the fee goes to the accused then, and it also does if the challenger shows the receipt itself.
    function test_Dismiss_PaysAJudgeOrTheAccused() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        address[4] memory others = [stranger, operator(0), node(0), node(WORKER)];
        uint256 fork = vm.snapshotState();
        for (uint256 i = 0; i < 4; i++) {
            vm.prank(others[i]);
            court.dismiss(caseId, receipt, signature);
            vm.assertEq(registry.freeBalance(stranger), 0);
            vm.assertEq(_free(0), 95 ether);
            vm.assertEq(_free(WORKER), 5 ether);
            vm.assertTrue(vm.revertToState(fork));
        }
        vm.prank(node(1));
        court.dismiss(caseId, receipt, signature);
        vm.assertEq(_free(1), 105 ether);
        vm.assertEq(_free(WORKER), 0);
        _assertSolvent();
    }

    function test_Dismiss_RevertWhen_AnotherKind() public {
        caseId = _accuse(WORKER, 0);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        uint8 kind = Kind.SAMPLING_MISMATCH;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.KindNotMissing.selector, caseId, kind));
        _dismiss(receipt, signature);
    }

    function test_Dismiss_RevertWhen_SignedBySomebodyElse() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(NODE + WORKER, WORKER, 0);
        address storageKey = vm.addr(STORAGE);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.ReceiptNotByStorage.selector, node(WORKER), storageKey));
        _dismiss(receipt, signature);
    }

    /// @dev Up to the second of the commitment, and not one later.
    function testFuzz_Dismiss_RevertWhen_TooLate(uint64 storedAt) public {
        uint64 committedAt = uint64(START + 24 hours);
        storedAt = uint64(_bound(storedAt, committedAt + 1, type(uint64).max));
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receiptAt(STORAGE, WORKER, 0, storedAt);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.ReceiptTooLate.selector, storedAt, committedAt));
        _dismiss(receipt, signature);
        (receipt, signature) = _receiptAt(STORAGE, WORKER, 0, committedAt);
        _dismiss(receipt, signature);
    }

    /// @dev The second is under the signature: nobody makes a late receipt an early one.
    function test_Dismiss_RevertWhen_TheSecondIsChanged() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) =
            _receiptAt(STORAGE, WORKER, 0, uint64(START + 24 hours + 1));
        receipt.storedAt--;
        vm.prank(stranger);
        (bool done, bytes memory reason) =
            address(court).call(abi.encodeCall(ISlashCourt.dismiss, (caseId, receipt, signature)));
        vm.assertFalse(done);
        vm.assertEq(uint256(uint32(bytes4(reason))), uint256(uint32(ISlashCourt.ReceiptNotByStorage.selector)));
    }

    /// @dev A receipt for the file of another root says nothing about this commitment.
    function test_Dismiss_RevertWhen_OfAnotherRoot() public {
        _commit(WORKER);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 1);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 0, 0, _root(WORKER, 1)));
        _dismiss(receipt, signature);
    }

    function test_Dismiss_RevertWhen_UnknownOrEnded() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        _dismiss(receipt, signature);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.CaseEnded.selector, caseId, ISlashCourt.Outcome.Dismissed));
        _dismiss(receipt, signature);
        caseId = 9;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.UnknownCase.selector, 9));
        _dismiss(receipt, signature);
    }

    /// @dev Who was convicted of something else does not collect the fee of a case that is moot.
    function test_Dismiss_RevertWhen_Convicted() public {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        _dismiss(receipt, signature);
        _commit(WORKER);
        caseId = _accuseBy(1, WORKER, 1, Kind.WRONG_REWARD);
        uint256[3] memory judges = [uint256(0), 2, 3];
        for (uint256 i = 0; i < 3; i++) {
            _vote(caseId, judges[i], true);
        }
        for (uint256 i = 0; i < 3; i++) {
            _reveal(caseId, judges[i], true);
        }
        uint256 missing = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        court.resolve(caseId);
        caseId = missing;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
        _dismiss(receipt, signature);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Moot);
        _assertSolvent();
    }
}
