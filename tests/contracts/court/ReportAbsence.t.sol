// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract ReportAbsenceTest is House {
    uint256 private caseId;

    function setUp() public override {
        super.setUp();
        _open();
        _commit(WORKER);
    }

    /// @dev A case in which judges 1 and 2 reveal and judge 3 does not.
    function _caseWithoutThird() private returns (uint256 id) {
        id = _accuse(WORKER, 0);
        _vote(id, 1, false);
        _vote(id, 2, false);
        vm.warp(court.caseOf(id).commitEnds);
        _reveal(id, 1, false);
        _reveal(id, 2, false);
        court.resolve(id);
    }

    function _expectRefused(uint256 judge, bytes memory reason) private {
        vm.expectRevert(reason);
        court.reportAbsence(caseId, node(judge));
    }

    function _lock(uint256 i) private view returns (uint256) {
        return registry.node(node(i)).lock;
    }

    function test_ReportAbsence_TakesTheDeposit() public {
        caseId = _caseWithoutThird();
        uint256 supply = token.totalSupply();
        vm.expectEmit(address(court));
        emit ISlashCourt.AbsenceReported(caseId, node(3), stranger, false);
        vm.prank(stranger);
        court.reportAbsence(caseId, node(3));
        vm.assertEq(_lock(3), 190 ether);
        vm.assertEq(registry.freeBalance(stranger), 2 ether);
        vm.assertEq(token.totalSupply(), supply - 8 ether);
        vm.assertTrue(registry.node(node(3)).status == IRegistry.Status.Active);
        _assertSolvent();
        _expectRefused(
            3,
            abi.encodeWithSelector(
                ISlashCourt.AbsentAlready.selector,
                node(3),
                START + 24 hours + 13 hours + 24 hours,
                START + 24 hours + 13 hours
            )
        );
    }

    /// @dev A validator that reports is paid where its fees come from.
    function test_ReportAbsence_PaysTheReportersOperator() public {
        caseId = _caseWithoutThird();
        uint256 before = registry.freeBalance(operator(1));
        vm.prank(node(1));
        court.reportAbsence(caseId, node(3));
        vm.assertEq(registry.freeBalance(operator(1)), before + 2 ether);
    }

    /// @dev Who committed and did not reveal was no help either, also when it has its deposit back.
    function test_ReportAbsence_CommittedAndReturned() public {
        caseId = _accuse(WORKER, 0);
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        vm.warp(court.caseOf(caseId).revealEnds);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.NoQuorum);
        court.collect(caseId, node(1));
        for (uint256 i = 1; i < 4; i++) {
            court.reportAbsence(caseId, node(i));
            vm.assertEq(_lock(i), 190 ether);
        }
        _assertSolvent();
    }

    function test_ReportAbsence_RevertWhen_NoDuty() public {
        caseId = 9;
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.NoDuty.selector, 9, ISlashCourt.Outcome.Open));
        caseId = _accuseBy(0, WORKER, 0, Kind.DATA_MISSING);
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.NoDuty.selector, caseId, ISlashCourt.Outcome.Open));
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, WORKER, 0);
        court.dismiss(caseId, receipt, signature);
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.NoDuty.selector, caseId, ISlashCourt.Outcome.Dismissed));
        _commit(WORKER);
        caseId = _accuseBy(1, WORKER, 1, Kind.WRONG_REWARD);
        vm.prank(address(court));
        registry.convict(node(WORKER), 5_000, 2_000, 0, stranger);
        court.resolve(caseId);
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.NoDuty.selector, caseId, ISlashCourt.Outcome.Moot));
    }

    function test_ReportAbsence_RevertWhen_NotJudge() public {
        caseId = _caseWithoutThird();
        uint256[3] memory others = [uint256(0), WORKER, 99];
        for (uint256 i = 0; i < 3; i++) {
            _expectRefused(others[i], abi.encodeWithSelector(ISlashCourt.NotJudge.selector, caseId, node(others[i])));
        }
    }

    function test_ReportAbsence_RevertWhen_NotAbsent() public {
        caseId = _caseWithoutThird();
        court.collect(caseId, node(1));
        for (uint256 i = 1; i < 3; i++) {
            _expectRefused(i, abi.encodeWithSelector(ISlashCourt.NotAbsent.selector, caseId, node(i)));
        }
    }

    /// @dev Whatever number of cases end in a day: an outage of a day costs one deposit.
    function test_ReportAbsence_ADayCostsOneDeposit() public {
        caseId = _accuse(WORKER, 0);
        uint256 second = _accuseBy(1, WORKER, 0, Kind.WRONG_REWARD);
        vm.warp(block.timestamp + 24 hours - 1);
        uint256 third = _accuseBy(2, WORKER, 0, Kind.WRONG_PROMPT);
        vm.warp(court.caseOf(third).revealEnds);
        uint256[3] memory ids = [caseId, second, third];
        for (uint256 k = 0; k < 3; k++) {
            court.resolve(ids[k]);
        }
        court.reportAbsence(caseId, node(3));
        uint256 from = court.caseOf(caseId).commitEnds + 24 hours;
        caseId = second;
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.AbsentAlready.selector, node(3), from, from - 24 hours));
        caseId = third;
        _expectRefused(3, abi.encodeWithSelector(ISlashCourt.AbsentAlready.selector, node(3), from, from - 1));
        vm.assertEq(_lock(3), 190 ether);
    }

    /// @dev Three absences with a vote in between cost three deposits and no seat, in whatever order they are reported.
    function test_ReportAbsence_AVoteInBetweenKeepsTheSeat() public {
        uint256[3] memory ids;
        for (uint256 k = 0; k < 3; k++) {
            if (k == 2) {
                uint256 voted = _accuseBy(1, WORKER, uint32(k - 1), Kind.WRONG_REWARD);
                _vote(voted, 3, false);
                vm.warp(court.caseOf(voted).commitEnds);
                _reveal(voted, 3, false);
            }
            ids[k] = _accuse(WORKER, uint32(k));
            vm.warp(court.caseOf(ids[k]).revealEnds);
            court.resolve(ids[k]);
            _commit(WORKER);
        }
        for (uint256 k = 0; k < 3; k++) {
            court.reportAbsence(ids[k], node(3));
        }
        vm.assertEq(_lock(3), 170 ether);
        vm.assertTrue(registry.node(node(3)).status == IRegistry.Status.Active);
        _assertSolvent();
    }
}
