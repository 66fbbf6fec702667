// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract RegisterTest is House {
    function _expectRejected(uint256 i, IRegistry.Registration memory registration, bytes memory reason) private {
        bytes memory consent = _consent(i, registration);
        vm.expectRevert(reason);
        vm.prank(operator(i));
        registry.register(registration, consent);
    }

    // ------------------------------------------------------------------------------------------------------ workers

    function test_Register_Worker() public {
        _deposit(operator(WORKER), 101 ether);
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        registration.workClass = 1;
        bytes memory consent = _consent(WORKER, registration);

        vm.expectEmit(address(registry));
        emit IRegistry.Registered(node(WORKER), operator(WORKER), run, IRegistry.Role.Worker, 1, 100 ether, bytes32(0));
        vm.prank(operator(WORKER));
        registry.register(registration, consent);

        IRegistry.Node memory n = registry.node(node(WORKER));
        vm.assertEq(n.operator, operator(WORKER));
        vm.assertEq(n.run, run);
        vm.assertTrue(n.role == IRegistry.Role.Worker);
        vm.assertTrue(n.status == IRegistry.Status.Active);
        vm.assertEq(n.workClass, 1);
        vm.assertEq(n.registeredAt, START);
        vm.assertEq(n.lock, 100 ether);
        vm.assertEq(n.retiredAt, 0);
        vm.assertEq(registry.freeBalance(operator(WORKER)), 1 ether);
        vm.assertEq(registry.totalLocked(), 100 ether);

        IRuns.Work memory w = runs.work(node(WORKER));
        vm.assertEq(w.pay, 2.5 ether);
        vm.assertEq(w.joinedStep, 0);
        vm.assertEq(w.operator, operator(WORKER));
        vm.assertEq(w.run, run);
        _assertSolvent();
    }

    function test_Register_RevertWhen_ClassUnknown() public {
        _deposit(operator(WORKER), 100 ether);
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        registration.workClass = 2;
        _expectRejected(WORKER, registration, abi.encodeWithSelector(IRunTerms.WorkClassUnknown.selector, run, 2));
    }

    function test_Register_RevertWhen_StakeShort() public {
        _deposit(operator(WORKER), 99 ether);
        _expectRejected(
            WORKER,
            _registration(WORKER, IRegistry.Role.Worker),
            abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(WORKER), 99 ether, 100 ether)
        );
    }

    function test_Register_RevertWhen_RoleNone() public {
        _expectRejected(
            WORKER, _registration(WORKER, IRegistry.Role.None), abi.encodeWithSelector(IRegistry.RoleUnknown.selector)
        );
    }

    function test_Register_RevertWhen_RunUnknown() public {
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        registration.run = 9;
        _expectRejected(WORKER, registration, abi.encodeWithSelector(IRuns.UnknownRun.selector, 9));
    }

    function test_Register_RevertWhen_RunClosed() public {
        vm.prank(owner);
        runs.announceWithdrawal(run);
        vm.warp(START + NOTICE + 7 days);
        vm.prank(owner);
        runs.close(run);
        _expectRejected(
            WORKER,
            _registration(WORKER, IRegistry.Role.Worker),
            abi.encodeWithSelector(IRuns.RunIsClosed.selector, run)
        );
    }

    // ------------------------------------------------------------------------------------------------------ consent

    function test_Register_RevertWhen_KeyUsed() public {
        _join(WORKER, IRegistry.Role.Worker, 0);
        bytes memory used = abi.encodeWithSelector(IRegistry.NodeKeyUsed.selector, node(WORKER));
        _expectRejected(WORKER, _registration(WORKER, IRegistry.Role.Validator), used);

        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        _expectRejected(WORKER, _registration(WORKER, IRegistry.Role.Worker), used);

        vm.warp(START + 7 days);
        registry.withdraw(node(WORKER));
        _expectRejected(WORKER, _registration(WORKER, IRegistry.Role.Worker), used);
    }

    function test_Register_RevertWhen_ConsentExpired() public {
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        vm.warp(START + 1 hours + 1);
        _expectRejected(
            WORKER,
            registration,
            abi.encodeWithSelector(IRegistry.ConsentExpired.selector, START + 1 hours, START + 1 hours + 1)
        );
    }

    function test_Register_RevertWhen_ConsentByAnotherKey() public {
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(NODE + OTHER_WORKER, registry.consentDigest(operator(WORKER), registration));
        bytes memory consent = abi.encodePacked(r, s, v);
        vm.expectRevert(abi.encodeWithSelector(IRegistry.ConsentNotByNode.selector, node(OTHER_WORKER), node(WORKER)));
        vm.prank(operator(WORKER));
        registry.register(registration, consent);
    }

    /// @dev A consent that leaked is of no use to anybody but the operator that it names.
    function testFuzz_Register_RevertWhen_ConsentForAnotherOperator(address thief) public {
        vm.assume(thief != operator(WORKER) && thief != address(0));
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        bytes memory consent = _consent(WORKER, registration);
        vm.prank(thief);
        (bool done, bytes memory reason) =
            address(registry).call(abi.encodeCall(registry.register, (registration, consent)));
        vm.assertFalse(done);
        vm.assertEq(bytes32(bytes4(reason)), bytes32(IRegistry.ConsentNotByNode.selector));
    }

    function test_Register_RevertWhen_ConsentFromAnotherChain() public {
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        vm.chainId(84_532);
        bytes memory consent = _consent(WORKER, registration);
        vm.chainId(31_337);
        vm.prank(operator(WORKER));
        (bool done, bytes memory reason) =
            address(registry).call(abi.encodeCall(registry.register, (registration, consent)));
        vm.assertFalse(done);
        vm.assertEq(bytes32(bytes4(reason)), bytes32(IRegistry.ConsentNotByNode.selector));
    }

    // --------------------------------------------------------------------------------------------------- validators

    function test_Register_Validator() public {
        _join(0, IRegistry.Role.Validator, 7 ether);
        IRegistry.Node memory n = registry.node(node(0));
        vm.assertTrue(n.role == IRegistry.Role.Validator);
        vm.assertEq(n.lock, 200 ether);
        vm.assertEq(n.drawTip, _link(0, HOUR - 1));
        vm.assertEq(registry.freeBalance(operator(0)), 7 ether);
        vm.assertEq(registry.validatorOf(operator(0), run), node(0));
        vm.assertEq(runs.runState(run).validators, 1);

        vm.assertEq(registry.validatorsAt(run, START - 1), 0);
        vm.assertEq(registry.validatorsAt(run, START), 1);
        vm.assertFalse(registry.wasValidator(node(0), run, START - 1));
        vm.assertTrue(registry.wasValidator(node(0), run, START));
        vm.assertFalse(registry.wasValidator(node(0), run + 1, START));
        _assertSolvent();
    }

    function test_Register_RevertWhen_NotAdmitted() public {
        IRunTerms.Keys memory keys = _keys();
        keys.admitter = owner;
        run = _createRun(_terms(), keys);
        _deposit(operator(0), 200 ether);
        _expectRejected(
            0,
            _registration(0, IRegistry.Role.Validator),
            abi.encodeWithSelector(IRunTerms.NotAdmitted.selector, run, operator(0))
        );
        vm.prank(owner);
        runTerms.admit(run, operator(0), true);
        _join(0, IRegistry.Role.Validator, 0);
        vm.assertEq(runs.runState(run).validators, 1);
    }

    function test_Register_RevertWhen_OwnerOrKey() public {
        address[2] memory involved = [operator(0), node(0)];
        for (uint256 i = 0; i < 6; i++) {
            IRunTerms.Keys memory keys = _keys();
            if (i < 2) keys.trainer = involved[i];
            else if (i < 4) keys.storageKey = involved[i - 2];
            else keys.admitter = involved[i - 4];
            run = _createRun(_terms(), keys);
            if (i >= 4) {
                vm.prank(involved[i - 4]);
                runTerms.admit(run, operator(0), true);
            }
            _expectRejected(
                0,
                _registration(0, IRegistry.Role.Validator),
                abi.encodeWithSelector(IRunTerms.OwnerOrKey.selector, run, involved[i % 2])
            );
        }
        owner = operator(0);
        run = _createRun(_terms());
        _expectRejected(
            0,
            _registration(0, IRegistry.Role.Validator),
            abi.encodeWithSelector(IRunTerms.OwnerOrKey.selector, run, operator(0))
        );
    }

    function test_Register_RevertWhen_SecondValidator() public {
        _join(0, IRegistry.Role.Validator, 200 ether);
        IRegistry.Registration memory registration = _registration(1, IRegistry.Role.Validator);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + 1, registry.consentDigest(operator(0), registration));
        vm.expectRevert(abi.encodeWithSelector(IRegistry.ValidatorExists.selector, operator(0), run, node(0)));
        vm.prank(operator(0));
        registry.register(registration, abi.encodePacked(r, s, v));
    }

    function test_Register_RevertWhen_DrawTipMissing() public {
        _deposit(operator(0), 200 ether);
        IRegistry.Registration memory registration = _registration(0, IRegistry.Role.Validator);
        registration.drawTip = bytes32(0);
        _expectRejected(0, registration, abi.encodeWithSelector(IRegistry.DrawTipMissing.selector, node(0)));
    }

    function test_Register_RevertWhen_TooManyValidators() public {
        IRunTerms.Terms memory terms = _terms();
        (terms.pay, terms.validatorStake, terms.caseFee) = (10_000, 62_500, 25_000);
        run = _createRun(terms);
        for (uint256 i = 100; i < 355; i++) {
            _join(i, IRegistry.Role.Validator, 0);
        }
        vm.assertEq(registry.validatorsAt(run, block.timestamp), 255);
        _expectRejected(
            0, _registration(0, IRegistry.Role.Validator), abi.encodeWithSelector(IRuns.TooManyValidators.selector, run)
        );
    }

    // ------------------------------------------------------------------------------------------------------- permit

    function testFuzz_RegisterWithPermit_RestStaysFree(uint256 extra) public {
        extra = _bound(extra, 0, 500 ether);
        _mint(operator(WORKER), 100 ether + extra);
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        bytes memory consent = _consent(WORKER, registration);
        IRegistry.Permit memory permit = _permit(WORKER, 100 ether + extra);
        vm.prank(operator(WORKER));
        registry.registerWithPermit(registration, consent, permit);
        vm.assertEq(registry.freeBalance(operator(WORKER)), extra);
        vm.assertEq(registry.node(node(WORKER)).lock, 100 ether);
        _assertSolvent();
    }

    function testFuzz_RegisterWithPermit_TakesTheRestFromFree(uint256 permitted) public {
        permitted = _bound(permitted, 40 ether, 100 ether);
        _deposit(operator(WORKER), 60 ether);
        IRegistry.Registration memory registration = _registration(WORKER, IRegistry.Role.Worker);
        bytes memory consent = _consent(WORKER, registration);
        IRegistry.Permit memory permit = _permit(WORKER, permitted);
        vm.prank(operator(WORKER));
        registry.registerWithPermit(registration, consent, permit);
        vm.assertEq(registry.freeBalance(operator(WORKER)), permitted - 40 ether);
        _assertSolvent();
    }
}
