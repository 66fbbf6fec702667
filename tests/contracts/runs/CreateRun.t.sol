// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { House } from "../House.sol";

contract CreateRunTest is House {
    function _expectOutOfBounds(IRunTerms.Terms memory terms, bytes32 name, uint256 value, uint256 low, uint256 high)
        private
    {
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.TermOutOfBounds.selector, name, value, low, high));
        runTerms.createRun(terms, _keys());
    }

    function test_CreateRun_KeepsTheTerms() public {
        IRunTerms.Terms memory terms = _terms();
        terms.toolsRoot = keccak256("tools");
        terms.gradeTip = keccak256("tip");
        terms.gradeEpochs = type(uint16).max;
        terms.gradeEpochSteps = type(uint32).max;
        vm.expectEmit(address(runTerms));
        emit IRunTerms.RunCreated(2, owner);
        vm.expectEmit(address(runTerms));
        emit IRunTerms.KeysChanged(2, address(1), address(2), address(3), START);
        uint32 created = _createRun(terms, IRunTerms.Keys(address(1), address(2), address(3)));

        vm.assertEq(created, 2);
        vm.assertEq(runTerms.runCount(), 2);
        vm.assertEq(abi.encode(runTerms.terms(created)), abi.encode(terms));
        bytes memory run_ = abi.encode(owner, terms, IRunTerms.Keys(address(1), address(2), address(3)));
        vm.assertEq(runTerms.runHash(created), keccak256(run_));
        vm.assertEq(runTerms.runHash(created + 1), bytes32(0));
        IRuns.RunState memory state = runs.runState(created);
        vm.assertEq(state.asyncLevel, 2);
        vm.assertEq(state.commitmentsPerHour, 3);
        vm.assertEq(runs.runInfo(created).owner, owner);
        vm.assertEq(runs.MIN_NOTICE(), 1 hours);
        vm.assertEq(runs.noticePeriod(created), 1 hours);
        terms.minStepInterval = 451 seconds;
        vm.assertEq(runs.noticePeriod(_createRun(terms)), 8 * 451 seconds);
    }

    function test_CreateRun_RevertWhen_ZeroAddress() public {
        IRunTerms.Keys memory keys = _keys();
        keys.trainer = address(0);
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.ZeroAddress.selector));
        runTerms.createRun(_terms(), keys);
        keys = _keys();
        keys.storageKey = address(0);
        vm.expectRevert(abi.encodeWithSelector(IRunTerms.ZeroAddress.selector));
        runTerms.createRun(_terms(), keys);
    }

    function test_CreateRun_RevertWhen_MoneyOutOfBounds() public {
        uint256 most = type(uint96).max;
        IRunTerms.Terms memory terms = _terms();
        terms.pay = 9_999;
        _expectOutOfBounds(terms, "pay", 9_999, 10_000, most);
        terms = _terms();
        terms.workerStake = 0;
        _expectOutOfBounds(terms, "workerStake", 0, 1, most);
        terms = _terms();
        terms.validatorStake = 0;
        _expectOutOfBounds(terms, "validatorStake", 0, 1, most);
        terms = _terms();
        terms.caseFee = 2.5 ether - 1; // class 1 is paid 2.5
        _expectOutOfBounds(terms, "caseFee", 2.5 ether - 1, 2.5 ether, 40 ether);
        terms.caseFee = 40 ether + 1;
        _expectOutOfBounds(terms, "caseFee", terms.caseFee, 2.5 ether, 40 ether);
        terms.validatorStake = 50 ether + 3;
        terms.caseFee = 20 ether + 2;
        _expectOutOfBounds(terms, "caseFee", terms.caseFee, 2.5 ether, 20 ether + 1);
        (terms.workerStake, terms.validatorStake) = (type(uint96).max, type(uint96).max);
        terms.caseFee = uint96(type(uint88).max) + 1;
        _expectOutOfBounds(terms, "caseFee", terms.caseFee, 2.5 ether, type(uint88).max);
        terms = _terms();
        terms.juryDeposit = 0;
        _expectOutOfBounds(terms, "juryDeposit", 0, 10 ether, type(uint88).max);
        terms.juryDeposit = uint96(type(uint88).max) + 1;
        _expectOutOfBounds(terms, "juryDeposit", terms.juryDeposit, 10 ether, type(uint88).max);
        terms = _terms();
        terms.slashBps = 10_001;
        _expectOutOfBounds(terms, "slashBps", 10_001, 1, 10_000);
        terms = _terms();
        terms.bountyBps = 2_001;
        _expectOutOfBounds(terms, "bountyBps", 2_001, 500, 2_000);
    }

    /// @dev Class 1 is paid 2.5 times `pay`, and a wrong vote costs a judge four commitments of it.
    function test_CreateRun_RevertWhen_TheDepositIsBelowFourCommitments() public {
        IRunTerms.Terms memory terms = _terms();
        terms.juryDeposit = 10 ether;
        runTerms.createRun(terms, _keys());
        terms.juryDeposit = 10 ether - 1;
        _expectOutOfBounds(terms, "juryDeposit", 10 ether - 1, 10 ether, type(uint88).max);
        // Of two wei more of pay, class 1 gains five.
        (terms.pay, terms.juryDeposit) = (1 ether + 2, 10 ether + 19);
        _expectOutOfBounds(terms, "juryDeposit", 10 ether + 19, 10 ether + 20, type(uint88).max);
        terms.juryDeposit = 10 ether + 20;
        runTerms.createRun(terms, _keys());
        // Whichever class is the best paid.
        (terms.classes[0], terms.classes[1]) = (terms.classes[1], terms.classes[0]);
        runTerms.createRun(terms, _keys());
        terms.juryDeposit = 10 ether + 19;
        _expectOutOfBounds(terms, "juryDeposit", 10 ether + 19, 10 ether + 20, type(uint88).max);
    }

    /// @dev A worker's slash is 50, so the smallest share of it that is worth the 2.5 of class 1 is a twentieth.
    function test_CreateRun_RevertWhen_TheBountyIsBelowOneCommitment() public {
        IRunTerms.Terms memory terms = _terms();
        terms.bountyBps = 500;
        runTerms.createRun(terms, _keys());
        terms.bountyBps = 499;
        _expectOutOfBounds(terms, "bountyBps", 499, 500, 2_000);
        terms.bountyBps = 0;
        _expectOutOfBounds(terms, "bountyBps", 0, 500, 2_000);
        // What a basis point of the slash exceeds the pay by makes no whole basis point.
        (terms.pay, terms.juryDeposit) = (1 ether + 1, 11 ether);
        terms.bountyBps = 500;
        _expectOutOfBounds(terms, "bountyBps", 500, 501, 2_000);
        terms.bountyBps = 501;
        runTerms.createRun(terms, _keys());
        // A smaller share of the stake, the same bounty.
        (terms.slashBps, terms.bountyBps) = (2_500, 1_001);
        runTerms.createRun(terms, _keys());
        terms.bountyBps = 1_000;
        _expectOutOfBounds(terms, "bountyBps", 1_000, 1_001, 2_000);
    }

    /// @dev No share of the slash that is allowed would be worth the pay: 50 at most give 10.
    function test_CreateRun_RevertWhen_NoBountyIsWorthThePay() public {
        IRunTerms.Terms memory terms = _terms();
        (terms.pay, terms.caseFee, terms.juryDeposit) = (4 ether, 10 ether, 40 ether);
        runTerms.createRun(terms, _keys());
        (terms.pay, terms.juryDeposit) = (4 ether + 1, 41 ether);
        _expectOutOfBounds(terms, "pay", 10 ether + 2, 1, 10 ether);
        terms.pay = 4 ether;
        terms.slashBps = 4_999;
        _expectOutOfBounds(terms, "pay", 10 ether, 1, 9.998 ether);
        terms.workerStake = 4;
        _expectOutOfBounds(terms, "pay", 10 ether, 1, 0);
    }

    /// @dev Products of the largest values fit.
    function test_CreateRun_LargestMoney() public {
        IRunTerms.Terms memory terms = _terms();
        (terms.workerStake, terms.validatorStake) = (type(uint96).max, type(uint96).max);
        terms.slashBps = 10_000;
        terms.pay = type(uint96).max;
        _expectOutOfBounds(
            terms, "pay", uint256(terms.pay) * 25_000 / 10_000, 1, uint256(terms.workerStake) * 2_000 / 10_000
        );
        terms.juryDeposit = type(uint88).max;
        terms.pay = uint96(terms.juryDeposit) / 10;
        terms.caseFee = terms.juryDeposit;
        runTerms.createRun(terms, _keys());
    }

    function test_CreateRun_RevertWhen_SizesOutOfBounds() public {
        uint256 most = type(uint32).max;
        IRunTerms.Terms memory terms = _terms();
        terms.groupSize = 0;
        _expectOutOfBounds(terms, "groupSize", 0, 1, 4_096);
        terms = _terms();
        terms.groupsPerCommitment = 513;
        _expectOutOfBounds(terms, "groupsPerCommitment", 513, 1, 512);
        terms = _terms();
        terms.commitmentsPerHour = 256;
        _expectOutOfBounds(terms, "commitmentsPerHour", 256, 1, 255);
        terms = _terms();
        terms.acceptsRequired = 0;
        _expectOutOfBounds(terms, "acceptsRequired", 0, 1, 255);
        terms = _terms();
        terms.sealQuorum = 1;
        _expectOutOfBounds(terms, "sealQuorum", 1, 2, 255);
        terms = _terms();
        terms.temperatureMicro = 0;
        _expectOutOfBounds(terms, "temperatureMicro", 0, 1, most);
        terms = _terms();
        terms.maxPromptTokens = 0;
        _expectOutOfBounds(terms, "maxPromptTokens", 0, 1, most);
        terms = _terms();
        terms.maxCompletionTokens = 0;
        _expectOutOfBounds(terms, "maxCompletionTokens", 0, 1, most);
        terms = _terms();
        terms.taskCount = 0;
        _expectOutOfBounds(terms, "taskCount", 0, 1, most);
    }

    function test_CreateRun_RevertWhen_TimesOutOfBounds() public {
        IRunTerms.Terms memory terms = _terms();
        terms.commitPhase = 36 hours + 1;
        _expectOutOfBounds(terms, "commitPhase", 36 hours + 1, 1, 36 hours);
        terms = _terms();
        terms.revealPhase = 0;
        _expectOutOfBounds(terms, "revealPhase", 0, 1, 36 hours);
        terms = _terms();
        terms.jurySeniority = 48 hours + 1;
        _expectOutOfBounds(terms, "jurySeniority", 48 hours + 1, 1, 48 hours);
        terms = _terms();
        terms.minStepInterval = 0;
        _expectOutOfBounds(terms, "minStepInterval", 0, 1, 3 days);
        terms.minStepInterval = 3 days + 1;
        _expectOutOfBounds(terms, "minStepInterval", 3 days + 1, 1, 3 days);
    }

    /// @dev All of what private tests need, or none.
    function test_CreateRun_RevertWhen_GradesOutOfBounds() public {
        IRunTerms.Terms memory terms = _terms();
        terms.gradeEpochs = 1;
        _expectOutOfBounds(terms, "gradeEpochs", 1, 0, 0);
        terms = _terms();
        terms.gradeEpochSteps = 1;
        _expectOutOfBounds(terms, "gradeEpochSteps", 1, 0, 0);
        terms.gradeTip = keccak256("tip");
        _expectOutOfBounds(terms, "gradeEpochs", 0, 1, type(uint16).max);
        (terms.gradeEpochs, terms.gradeEpochSteps) = (1, 0);
        _expectOutOfBounds(terms, "gradeEpochSteps", 0, 1, type(uint32).max);
        terms.gradeEpochSteps = 1;
        uint32 created = runTerms.createRun(terms, _keys());
        IRunTerms.Terms memory kept = runTerms.terms(created);
        vm.assertEq(kept.gradeTip, keccak256("tip"));
        vm.assertEq(kept.gradeEpochs, 1);
        vm.assertEq(kept.gradeEpochSteps, 1);
    }

    /// @dev A look costs at most half of the pay, and replays rows of one commitment.
    function test_CreateRun_RevertWhen_LooksOutOfBounds() public {
        IRunTerms.Terms memory terms = _terms();
        terms.wageBps = 5_001;
        _expectOutOfBounds(terms, "wageBps", 5_001, 0, 5_000);
        (terms.wageBps, terms.lookRows) = (5_000, 0);
        _expectOutOfBounds(terms, "lookRows", 0, 1, 128);
        terms.lookRows = 129;
        _expectOutOfBounds(terms, "lookRows", 129, 1, 128);
        terms.lookRows = 128;
        uint32 created = runTerms.createRun(terms, _keys());
        vm.assertEq(runTerms.terms(created).wageBps, 5_000);
        vm.assertEq(runTerms.terms(created).lookRows, 128);
        (terms.wageBps, terms.lookRows) = (0, 1);
        created = runTerms.createRun(terms, _keys());
        vm.assertEq(runTerms.terms(created).wageBps, 0);
        vm.assertEq(runTerms.terms(created).lookRows, 1);
    }

    /// @dev A local run may use seconds; a public one may not.
    function test_CreateRun_PublicChainsTakeTheirTime() public {
        IRunTerms.Terms memory terms = _terms();
        (terms.commitPhase, terms.revealPhase, terms.jurySeniority, terms.minStepInterval) = (1, 1, 1, 1);
        runTerms.createRun(terms, _keys());

        vm.chainId(84_532);
        runTerms.createRun(_terms(), _keys());
        terms = _terms();
        terms.commitPhase = 13 hours - 1;
        _expectOutOfBounds(terms, "commitPhase", 13 hours - 1, 13 hours, 36 hours);
        terms = _terms();
        terms.revealPhase = 13 hours - 1;
        _expectOutOfBounds(terms, "revealPhase", 13 hours - 1, 13 hours, 36 hours);
        terms = _terms();
        terms.jurySeniority = 24 hours - 1;
        _expectOutOfBounds(terms, "jurySeniority", 24 hours - 1, 24 hours, 48 hours);
        terms = _terms();
        terms.minStepInterval = 59;
        _expectOutOfBounds(terms, "minStepInterval", 59, 60, 3 days);
    }

    function test_CreateRun_RevertWhen_ClassesOutOfBounds() public {
        IRunTerms.Terms memory terms = _terms();
        terms.classes = new uint256[](0);
        _expectOutOfBounds(terms, "classes", 0, 1, 8);
        terms.classes = new uint256[](9);
        _expectOutOfBounds(terms, "classes", 9, 1, 8);
        terms.classes = new uint256[](1);
        _expectOutOfBounds(terms, "weight", 0, 1_000, type(uint16).max);
        terms.classes[0] = 999 | (1 << 16) | (40 << 32);
        _expectOutOfBounds(terms, "weight", 999, 1_000, type(uint16).max);
        terms.classes[0] = 10_000;
        _expectOutOfBounds(terms, "budgets", 0, 1, 14);
        terms.classes[0] = 10_000 | (15 << 16);
        _expectOutOfBounds(terms, "budgets", 15, 1, 14);
        terms.classes[0] = 10_000 | (1 << 16);
        _expectOutOfBounds(terms, "budget", 0, 1, 128);
        terms.classes[0] = 10_000 | (1 << 16) | (129 << 32);
        _expectOutOfBounds(terms, "budget", 129, 1, 128);
        terms.classes[0] = 10_000 | (1 << 16) | (128 << 32) | (1 << 48);
        _expectOutOfBounds(terms, "classes", 1, 0, 0);
    }

    /// @dev Class 1 thinks 2.5 times as long as class 0 on average, and so is paid 2.5 times as much.
    function testFuzz_CreateRun_ClassesPayInProportion(uint16 weight) public {
        weight = uint16(_bound(weight, weight % 4 == 0 ? 24_998 : 1_000, weight % 4 == 0 ? 25_002 : type(uint16).max));
        IRunTerms.Terms memory terms = _terms();
        terms.classes[1] = (terms.classes[1] & ~uint256(0xffff)) | weight;
        if (weight != 25_000) {
            vm.expectRevert(abi.encodeWithSelector(IRunTerms.ClassWeightOff.selector, 1, weight, 25_000));
        }
        runTerms.createRun(terms, _keys());
    }

    /// @dev Where what is exact is no whole number, the one below and the one above will do: 1,000 × 50 / 48 = 1,041.67.
    function test_CreateRun_ClassesAreRounded() public {
        IRunTerms.Terms memory terms = _terms();
        terms.classes[0] = 1_000 | (1 << 16) | (48 << 32);
        for (uint256 weight = 1_040; weight < 1_044; weight++) {
            terms.classes[1] = weight | (1 << 16) | (50 << 32);
            if (weight < 1_041 || weight > 1_042) {
                vm.expectRevert(abi.encodeWithSelector(IRunTerms.ClassWeightOff.selector, 1, weight, 1_041));
            }
            runTerms.createRun(terms, _keys());
        }
    }
}
