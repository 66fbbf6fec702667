// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMasters } from "../../../contracts/interfaces/IMasters.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { GradeHouse } from "./GradeHouse.sol";

contract RevealMasterTest is GradeHouse {
    function _expectWithheld(uint256 epoch) private {
        vm.expectRevert(abi.encodeWithSelector(IMasters.MasterWithheld.selector, run, GRADES_SERIES, epoch));
    }

    function _revealNext(uint256 epoch) private {
        vm.prank(stranger);
        masters.revealMaster(run, GRADES_SERIES, _master(epoch));
    }

    // ---------------------------------------------------------------------------------------------------- what it does

    function test_RevealMaster_InOrder() public {
        (uint256 epochs, bytes32 latest) = masters.masters(run, GRADES_SERIES);
        vm.assertEq(epochs, 0);
        vm.assertEq(latest, bytes32(0));
        for (uint256 epoch = 1; epoch <= EPOCHS; epoch++) {
            vm.expectEmit(address(masters));
            emit IMasters.MasterRevealed(run, GRADES_SERIES, epoch, _master(epoch));
            _revealNext(epoch);
            (epochs, latest) = masters.masters(run, GRADES_SERIES);
            vm.assertEq(epochs, epoch);
            vm.assertEq(latest, _master(epoch));
        }
        vm.assertEq(latest, LAST_MASTER);
    }

    /// @dev Each run has its own, also where two have one tip.
    function test_RevealMaster_OfOneRun() public {
        uint32 other = _createRun(_sealedTerms());
        masters.revealMaster(other, GRADES_SERIES, _master(1));
        (uint256 epochs,) = masters.masters(run, GRADES_SERIES);
        vm.assertEq(epochs, 0);
    }

    /// @dev Each has its tip, its epochs and when what was shown; both bind the owner.
    function test_RevealMaster_OfOneSeries() public {
        IRunTerms.Series traps = IRunTerms.Series.Traps;
        IRunTerms.Terms memory terms = _sealedTerms();
        (terms.trapEpochs, terms.trapEpochSteps) = (2, 2);
        (terms.trapEvery, terms.trapPrize) = (20, terms.pay);
        terms.trapTip = keccak256(abi.encode(keccak256(abi.encode(bytes32("second")))));
        uint32 both = _createRun(terms);
        bytes32 first = keccak256(abi.encode(bytes32("second")));
        vm.expectRevert(
            abi.encodeWithSelector(IMasters.WrongMaster.selector, both, traps, 1, _master(0), terms.trapTip)
        );
        masters.revealMaster(both, traps, _master(1));
        masters.revealMaster(both, traps, first);
        (uint256 epochs,) = masters.masters(both, GRADES_SERIES);
        vm.assertEq(epochs, 0);
        vm.warp(block.timestamp + 7);
        masters.revealMaster(both, traps, bytes32("second"));
        (uint256 shown, bytes32 latest) = masters.masters(both, traps);
        vm.assertEq(shown, 2);
        vm.assertEq(latest, bytes32("second"));
        vm.assertEq(masters.masterOf(both, traps, 1).master, first);
        vm.assertEq(masters.masterOf(both, traps, 1).shownAt, block.timestamp - 7);
        vm.assertEq(masters.masterOf(both, traps, 2).shownAt, block.timestamp);
        vm.assertEq(masters.masterOf(both, GRADES_SERIES, 1).shownAt, 0);
    }

    /// @dev Of either series: for the traps' epochs of two steps each, the first master is due before step 4.
    function test_Withheld_TrapsBindTheOwnerToo() public {
        IRunTerms.Terms memory terms = _terms();
        terms.trapTip = keccak256(abi.encode(bytes32("only")));
        (terms.trapEpochs, terms.trapEpochSteps) = (2, 2);
        (terms.trapEvery, terms.trapPrize) = (20, terms.pay);
        uint32 trapped = _createRun(terms);
        masters.checkPublishable(trapped, 3);
        bytes memory withheld =
            abi.encodeWithSelector(IMasters.MasterWithheld.selector, trapped, IRunTerms.Series.Traps, 1);
        vm.expectRevert(withheld);
        masters.checkPublishable(trapped, 4);
        vm.expectRevert(withheld);
        masters.checkPayable(trapped, 1);
        masters.revealMaster(trapped, IRunTerms.Series.Traps, bytes32("only"));
        masters.checkPublishable(trapped, 4);
        masters.checkPayable(trapped, 2);
    }

    function test_RevealMaster_RevertWhen_NoSeries() public {
        uint32 plain = _createRun(_terms());
        vm.expectRevert(abi.encodeWithSelector(IMasters.NoSeries.selector, plain, GRADES_SERIES));
        masters.revealMaster(plain, GRADES_SERIES, _master(1));
        vm.expectRevert(abi.encodeWithSelector(IMasters.NoSeries.selector, 77, GRADES_SERIES));
        masters.revealMaster(77, GRADES_SERIES, _master(1));
    }

    function test_RevealMaster_RevertWhen_AllRevealed() public {
        for (uint256 epoch = 1; epoch <= EPOCHS; epoch++) {
            _revealNext(epoch);
        }
        vm.expectRevert(abi.encodeWithSelector(IMasters.AllMastersRevealed.selector, run, GRADES_SERIES, EPOCHS));
        masters.revealMaster(run, GRADES_SERIES, LAST_MASTER);
    }

    function testFuzz_RevealMaster_RevertWhen_Wrong(bytes32 master) public {
        for (uint256 epoch = 1; epoch <= EPOCHS; epoch++) {
            if (master == _master(epoch)) continue;
            bytes32 hash = keccak256(abi.encodePacked(master));
            vm.expectRevert(
                abi.encodeWithSelector(
                    IMasters.WrongMaster.selector, run, GRADES_SERIES, epoch, hash, _master(epoch - 1)
                )
            );
            masters.revealMaster(run, GRADES_SERIES, master);
            _revealNext(epoch);
        }
    }

    function test_RevealMaster_RevertWhen_OutOfOrder() public {
        bytes32 second = _master(2);
        vm.expectRevert(
            abi.encodeWithSelector(IMasters.WrongMaster.selector, run, GRADES_SERIES, 1, _master(1), _master(0))
        );
        masters.revealMaster(run, GRADES_SERIES, second);
        _revealNext(1);
        bytes32 again = _master(1);
        vm.expectRevert(abi.encodeWithSelector(IMasters.WrongMaster.selector, run, GRADES_SERIES, 2, _master(0), again));
        masters.revealMaster(run, GRADES_SERIES, again);
    }

    // --------------------------------------------------------------------------------------------- what it is good for

    /// @dev Steps 0 to 3 are of epoch 1, 4 to 7 of epoch 2, all from 8 on of epoch 3.
    function test_Withheld_AnEpochCannotBeginTwoMastersBehind() public {
        _publishSteps(8);
        vm.warp(block.timestamp + 60);
        _expectPublishWithheld(8, 1);
        _revealNext(1);
        _publishSteps(12);
        vm.warp(block.timestamp + 60);
        _expectPublishWithheld(12, 2);
        _revealNext(2);
        // The last epoch goes on for ever, without its master.
        _publishSteps(40);
        (uint256 epochs,) = masters.masters(run, GRADES_SERIES);
        vm.assertEq(epochs, 2);
    }

    function test_Withheld_NoWithdrawalWithoutTheMasterOfTheEpoch() public {
        _announce();
        vm.startPrank(owner);
        _expectWithheld(1);
        runs.withdrawEscrow(run, 100 ether);
        _expectWithheld(1);
        runs.close(run);
        vm.stopPrank();
        _revealNext(1);
        vm.prank(owner);
        vm.assertEq(runs.withdrawEscrow(run, 100 ether), 100 ether);
        vm.prank(owner);
        vm.assertEq(runs.close(run), FUNDS - 100 ether);
        _assertSolvent();
    }

    /// @dev After as many steps as chance has it: the masters of the epochs that have begun, and not one less.
    function testFuzz_Withheld_UntilAllEpochsThatBeganAreShown(uint256 steps) public {
        steps = _bound(steps, 1, 20);
        uint256 begun = steps <= 4 ? 1 : steps <= 8 ? 2 : 3;
        for (uint256 epoch = 1; epoch < begun; epoch++) {
            _revealNext(epoch);
        }
        _publishSteps(uint32(steps));
        _announce();
        vm.startPrank(owner);
        _expectWithheld(begun);
        runs.withdrawEscrow(run, 100 ether);
        _expectWithheld(begun);
        runs.close(run);
        vm.stopPrank();
        _revealNext(begun);
        vm.prank(owner);
        vm.assertEq(runs.close(run), FUNDS);
    }

    /// @dev Nothing has begun before the first step, and the owner of a run without private tests shows nothing.
    function test_Withheld_NothingWhereNothingIsDue() public {
        run = _createRun(_sealedTerms());
        _fund(run, FUNDS);
        _announce();
        vm.warp(block.timestamp + 7 days); // for it has no validators either
        vm.prank(owner);
        vm.assertEq(runs.withdrawEscrow(run, 100 ether), 100 ether);
        vm.prank(owner);
        vm.assertEq(runs.close(run), FUNDS - 100 ether);
        masters.checkPayable(1, 1_000);
        masters.checkPublishable(1, 1_000);
    }

    /// @dev What is missing keeps nobody else from anything: work is committed and paid, hours are sealed.
    function test_Withheld_NobodyElseIsKeptFromAnything() public {
        _publishSteps(8);
        _commit(WORKER);
        uint24 hour = uint24(block.timestamp / 1 hours);
        vm.warp((uint256(hour) + 1) * 1 hours);
        _seal(hour);
        vm.warp(block.timestamp + 24 hours);
        vm.assertEq(runs.claim(node(WORKER), 0), 1 ether);
        _assertSolvent();
    }

    function _expectPublishWithheld(uint32 step, uint256 epoch) private {
        _expectWithheld(epoch);
        vm.prank(trainer);
        runs.publishCheckpoint(run, step, bytes32(0), bytes32(0));
    }

    function _announce() private {
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.stopPrank();
        vm.warp(block.timestamp + NOTICE);
    }
}
