// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract ChangeKeysTest is House {
    address private constant NEW_TRAINER = address(0x7a2);
    address private constant NEW_STORAGE = address(0x5702);
    address private constant NEW_ADMITTER = address(0xad2);

    function _newKeys() private pure returns (IRunTerms.Keys memory) {
        return IRunTerms.Keys(NEW_TRAINER, NEW_STORAGE, NEW_ADMITTER);
    }

    /// @return from Second from which they are in force.
    function _change(IRunTerms.Keys memory keys) private returns (uint256 from) {
        vm.prank(owner);
        runTerms.changeKeys(run, keys);
        return block.timestamp + runs.noticePeriod(run);
    }

    function _expectOneOfValidator(IRunTerms.Keys memory keys, address account) private {
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.KeyOfValidator.selector, run, account));
        vm.prank(owner);
        runTerms.changeKeys(run, keys);
    }

    function _assertPublishes(address account, uint32 step) private {
        vm.prank(account);
        runs.publishCheckpoint(run, step, keccak256("manifest"), 0);
    }

    function _assertNotTrainer(address account, uint32 step) private {
        vm.expectRevert(abi.encodeWithSelector(IRuns.NotTrainer.selector, run, account));
        _assertPublishes(account, step);
    }

    function test_ChangeKeys_TakesTheRunsNotice() public {
        IRunTerms.Terms memory terms = _terms();
        terms.minStepInterval = 1 days;
        run = _createRun(terms);
        uint256 from = START + 8 days;
        vm.expectEmit(address(runTerms));
        emit IRunTerms.KeysChanged(run, NEW_TRAINER, NEW_STORAGE, NEW_ADMITTER, from);
        vm.assertEq(_change(_newKeys()), from);

        vm.warp(from - 1);
        vm.assertEq(runTerms.trainerOf(run), trainer);
        vm.assertTrue(runTerms.isAdmitted(run, stranger));
        vm.warp(from);
        vm.assertEq(runTerms.trainerOf(run), NEW_TRAINER);
        vm.assertFalse(runTerms.isAdmitted(run, stranger));
        vm.assertEq(abi.encode(runTerms.terms(run)), abi.encode(terms));
    }

    function test_ChangeKeys_TrainerPublishes() public {
        _open();
        uint32 step = runs.runState(run).steps;
        uint256 from = _change(_newKeys());
        vm.warp(from - 1);
        _assertNotTrainer(NEW_TRAINER, step);
        _assertPublishes(trainer, step);
        vm.warp(from + 1 hours);
        _assertNotTrainer(trainer, step + 1);
        _assertPublishes(NEW_TRAINER, step + 1);
    }

    function test_ChangeKeys_AdmitterAdmits() public {
        uint256 from = _change(_newKeys());
        vm.warp(from);
        vm.prank(NEW_ADMITTER);
        runTerms.admit(run, operator(0), true);
        IRunTerms.Keys memory keys = _newKeys();
        keys.admitter = stranger;
        vm.warp(_change(keys));
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotAdmitter.selector, run, NEW_ADMITTER));
        vm.prank(NEW_ADMITTER);
        runTerms.admit(run, operator(1), true);
        // The list stays, also while the run admits anyone.
        vm.assertTrue(runTerms.isAdmitted(run, operator(0)));
        vm.assertFalse(runTerms.isAdmitted(run, operator(1)));
    }

    function test_ChangeKeys_KeepsWhatWasInForce() public {
        address first = vm.addr(STORAGE);
        uint256 second = _change(_newKeys());
        vm.warp(second + 1 days);
        IRunTerms.Keys memory keys = _keys();
        keys.storageKey = stranger;
        uint256 third = _change(keys);
        for (uint256 i = 0; i < 2; i++) {
            vm.assertEq(runTerms.storageKeyAt(run, START - 1), address(0));
            vm.assertEq(runTerms.storageKeyAt(run, START), first);
            vm.assertEq(runTerms.storageKeyAt(run, second - 1), first);
            vm.assertEq(runTerms.storageKeyAt(run, second), NEW_STORAGE);
            vm.assertEq(runTerms.storageKeyAt(run, third - 1), NEW_STORAGE);
            vm.assertEq(runTerms.storageKeyAt(run, third), stranger);
            vm.warp(third + 365 days);
        }
        IRunTerms.Tenure[] memory tenures = runTerms.tenures(run);
        vm.assertEq(tenures.length, 3);
        vm.assertEq(tenures[0].from, START);
        vm.assertEq(tenures[1].from, second);
        vm.assertEq(tenures[2].from, third);
        vm.assertEq(tenures[2].keys.storageKey, stranger);
        vm.assertEq(runTerms.storageKeyAt(9, START), address(0));
    }

    function test_ChangeKeys_ReplacesWhatIsAnnounced() public {
        uint256 from = _change(_newKeys());
        vm.warp(from - 1);
        uint256 later = _change(_keys());
        vm.assertEq(runTerms.tenures(run).length, 2);
        vm.warp(later + 1);
        vm.assertEq(runTerms.trainerOf(run), trainer);
        vm.assertEq(runTerms.storageKeyAt(run, from), vm.addr(STORAGE));
        // In force from its second: from then on it is no announcement that could be replaced.
        vm.warp(_change(_newKeys()));
        _change(_keys());
        vm.assertEq(runTerms.trainerOf(run), NEW_TRAINER);
        vm.assertEq(runTerms.tenures(run).length, 4);
    }

    function test_ChangeKeys_RevertWhen_NotOwner() public {
        address[2] memory others = [trainer, stranger];
        for (uint256 i = 0; i < 2; i++) {
            vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotOwner.selector, run, others[i]));
            vm.prank(others[i]);
            runTerms.changeKeys(run, _newKeys());
        }
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.NotOwner.selector, 9, owner));
        vm.prank(owner);
        runTerms.changeKeys(9, _newKeys());
    }

    function test_ChangeKeys_RevertWhen_ZeroAddress() public {
        IRunTerms.Keys memory keys = _newKeys();
        (keys.trainer, keys.admitter) = (address(0), address(0));
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.ZeroAddress.selector));
        vm.prank(owner);
        runTerms.changeKeys(run, keys);
        (keys.trainer, keys.storageKey) = (NEW_TRAINER, address(0));
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.ZeroAddress.selector));
        vm.prank(owner);
        runTerms.changeKeys(run, keys);
        keys.storageKey = NEW_STORAGE;
        _change(keys);
    }

    function test_ChangeKeys_RevertWhen_KeyOfValidator() public {
        _open();
        // Validator 0 serves; validator 1 has left, and may still judge.
        vm.prank(operator(1));
        registry.retire(node(1));
        address[4] memory involved = [node(0), operator(0), node(1), operator(1)];
        for (uint256 i = 0; i < 4; i++) {
            _expectOneOfValidator(IRunTerms.Keys(involved[i], NEW_STORAGE, NEW_ADMITTER), involved[i]);
            _expectOneOfValidator(IRunTerms.Keys(NEW_TRAINER, involved[i], NEW_ADMITTER), involved[i]);
            _expectOneOfValidator(IRunTerms.Keys(NEW_TRAINER, NEW_STORAGE, involved[i]), involved[i]);
        }
        // A worker, or a validator of another run, judges nothing here.
        _change(IRunTerms.Keys(node(WORKER), operator(WORKER), NEW_ADMITTER));
        run = _createRun(_terms());
        _change(IRunTerms.Keys(node(0), operator(0), NEW_ADMITTER));
    }

    /// @dev Nor may an announced key become a validator. Nobody registers another's key, so nobody stops a change by it.
    function test_ChangeKeys_AnnouncedKeyIsNoValidator() public {
        IRunTerms.Keys memory keys = _keys();
        keys.trainer = operator(0);
        uint256 from = _change(keys);
        _deposit(operator(0), 200 ether);
        _expectNoValidator(operator(0));
        vm.warp(from);
        _expectNoValidator(operator(0));
        vm.warp(_change(_keys()) - 1);
        _expectNoValidator(operator(0));
        vm.warp(block.timestamp + 1);
        _join(0, IRegistry.Role.Validator, 0);
        vm.assertEq(runs.runState(run).validators, 1);
    }

    function _expectNoValidator(address account) private {
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.OwnerOrKey.selector, run, account));
        vm.prank(address(runs));
        runTerms.validatorTerms(run, node(0), account);
    }
}
