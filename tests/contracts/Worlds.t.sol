// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { IWages } from "../../contracts/interfaces/IWages.sol";
import { Leaves } from "../../contracts/libraries/Leaves.sol";
import { House } from "./House.sol";
import { Kind } from "./Kind.sol";

/// @title A world with 10 of everything and one with 1,000, in a quick run 100: every external function costs the same
/// in both, or no more than the bound that is named here.
/// @dev Everything: cases, nodes, validators, tenures of keys, seals and hours. `make test-rest` has the thousand.
/// @dev Left out is what only another of our contracts may call: its caller's cost has it.
/// tests/unit/docs/test_trust_docs.py checks that no other function is missing.
/// forge-config: default.isolate = true
contract WorldsTest is House {
    uint256 private constant FEW = 10;
    /// @dev Gas by which a call may differ: zero bytes in what is hashed, bits of a counter.
    uint256 private constant SLACK = 300;
    /// @dev Of one step in the history of a run's validators, a bisection: a cold word and what reads it.
    uint256 private constant BISECTION = 2_500;
    /// @dev Of a tenure that a view returns: four cold words and the memory for them.
    uint256 private constant TENURE = 10_000;
    /// @dev Workers: the first are measured, those from CROWD on make the number.
    uint256 private constant FIRST = 5_000;
    uint256 private constant CROWD = 5_100;
    /// @dev Validators that come and go.
    uint256 private constant GUESTS = 10_000;
    uint256 private constant LATE = 4_000;

    mapping(string name => uint256 gas)[2] private _gas;
    string[] private _names;
    uint256 private _world;

    function setUp() public override {
        super.setUp();
        _open();
    }

    function test_World_TenOfEverythingAndAThousand() public {
        _build(FEW);
        _measure();
        _world = 1;
        setUp();
        uint256 many = vm.envOr("WORLD", uint256(100));
        _build(many);
        _measure();
        // 2,000 entries in the history of validators are seven bisections more than 20.
        _assertSame("SlashCourt.openCase", 7 * BISECTION);
        _assertSame("Registry.validatorsAt", 7 * BISECTION);
        _assertSame("RunTerms.tenures", (many - FEW) * TENURE);
        for (uint256 i = 0; i < _names.length; i++) {
            _assertSame(_names[i], 0);
        }
    }

    /// @dev What it cost in the large world is what it cost in the small one, and at most so much more. Once a name.
    function _assertSame(string memory name, uint256 bound) private {
        vm.assertLe(_gas[1][name], _gas[0][name] + bound + SLACK, name);
        _gas[1][name] = 0;
    }

    // ---------------------------------------------------------------------------------------------------- the worlds

    function _build(uint256 count) private {
        _fund(run, 10_000 ether);
        _joinMany(FIRST, 20);
        _joinMany(CROWD, count);
        _publishFor(FIRST);
        for (uint256 i = CROWD; i < CROWD + count; i++) {
            _commit(i);
        }
        for (uint256 i = 0; i < count; i++) {
            vm.prank(owner);
            runTerms.changeKeys(run, _keys());
            vm.warp(block.timestamp + 1 hours);
            _seal(_hour() - 1);
        }
        vm.assertEq(runs.runState(run).sealedThrough, _hour() - 1);
        for (uint256 i = 0; i < count; i++) {
            vm.warp(block.timestamp + 1);
            _joinGuest(GUESTS + i);
            vm.warp(block.timestamp + 1);
            vm.prank(operator(GUESTS + i));
            registry.retire(node(GUESTS + i));
        }
        _bringCases(FIRST, count);
        _bringCases(FIRST + 9, count);
        vm.assertEq(runTerms.tenures(run).length, count + 1);
    }

    /// @dev All under one operator, which makes this test quicker and their claims and exits no dearer or cheaper.
    function _joinMany(uint256 from, uint256 count) private {
        _deposit(operator(FIRST), count * 100 ether);
        for (uint256 i = from; i < from + count; i++) {
            IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
            (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + i, registry.consentDigest(operator(FIRST), registration));
            vm.prank(operator(FIRST));
            registry.register(registration, abi.encodePacked(r, s, v));
        }
    }

    function _joinGuest(uint256 i) private {
        _deposit(operator(i), 200 ether);
        IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
        (registration.role, registration.drawTip) = (IRegistry.Role.Validator, keccak256("tip"));
        bytes memory consent = _consent(i, registration);
        vm.prank(operator(i));
        registry.register(registration, consent);
    }

    /// @dev So many cases about missing data against node i begin, each while another is open, and end.
    function _bringCases(uint256 i, uint256 count) private {
        _commit(i);
        uint256 last = _accuseBy(2, i, 0, Kind.DATA_MISSING);
        for (uint256 k = 1; k < count; k++) {
            uint256 next = _accuseBy(2 - k % 2, i, 0, Kind.DATA_MISSING);
            _dismiss(last, i, 2 - k % 2);
            last = next;
        }
        _dismiss(last, i, 2 - count % 2);
    }

    function _dismiss(uint256 caseId, uint256 i, uint256 friend) private {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, i, 0);
        vm.prank(node(friend));
        court.dismiss(caseId, receipt, signature);
    }

    function _hour() private view returns (uint24) {
        return uint24(block.timestamp / 1 hours);
    }

    // --------------------------------------------------------------------------------------------------- what it costs

    /// @dev Notes what the latest call cost, as a transaction.
    function _cost(string memory name) private {
        if (_world == 0) _names.push(name);
        _gas[_world][name] = vm.lastCallGas().gasTotalUsed;
    }

    function _look(string memory name, address place, bytes memory question) private {
        (bool answered,) = place.staticcall(question);
        _cost(name);
        vm.assertTrue(answered, name);
    }

    function _measure() private {
        _measureMoney();
        _measureNodes();
        _measureWork();
        _measureCourt();
        _measureWages();
        _viewRegistry();
        _viewTerms();
        _viewRuns();
        _viewCourt();
        _measureOwner();
    }

    function _measureMoney() private {
        address somebody = operator(LATE);
        vm.startPrank(somebody);
        token.faucet();
        _cost("MusterToken.faucet");
        token.burn(1 ether);
        _cost("MusterToken.burn");
        vm.assertTrue(token.transfer(stranger, 1 ether));
        _cost("MusterToken.transfer");
        token.approve(address(registry), 10 ether);
        _cost("MusterToken.approve");
        registry.deposit(10 ether);
        _cost("Registry.deposit");
        registry.withdrawFree(1 ether);
        _cost("Registry.withdrawFree");
        registry.depositWithPermit(_permit(LATE, 1 ether));
        _cost("Registry.depositWithPermit");
        token.approve(stranger, 1 ether);
        vm.stopPrank();
        vm.prank(stranger);
        vm.assertTrue(token.transferFrom(somebody, stranger, 1 ether));
        _cost("MusterToken.transferFrom");
        IRegistry.Permit memory permit = _permit(LATE, 1 ether);
        token.permit(somebody, address(registry), 1 ether, permit.deadline, permit.v, permit.r, permit.s);
        _cost("MusterToken.permit");
    }

    function _measureNodes() private {
        _deposit(operator(LATE), 200 ether);
        IRegistry.Registration memory registration = _registration(LATE, IRegistry.Role.Worker);
        bytes memory consent = _consent(LATE, registration);
        vm.prank(operator(LATE));
        registry.register(registration, consent);
        _cost("Registry.register");

        _mint(operator(LATE + 1), 100 ether);
        registration = _registration(LATE + 1, IRegistry.Role.Worker);
        consent = _consent(LATE + 1, registration);
        IRegistry.Permit memory permit = _permit(LATE + 1, 100 ether);
        vm.prank(operator(LATE + 1));
        registry.registerWithPermit(registration, consent, permit);
        _cost("Registry.registerWithPermit");

        vm.prank(operator(FIRST));
        registry.retire(node(FIRST + 1));
        _cost("Registry.retire");
        uint256 now_ = block.timestamp;
        vm.warp(now_ + 7 days);
        registry.withdraw(node(FIRST + 1));
        _cost("Registry.withdraw");
        vm.warp(now_);
    }

    function _measureWork() private {
        // FIRST + 2 has worked before, so that no word is new to it.
        _commit(FIRST + 2);
        uint32 step = _latest();
        bytes32 anchor = runs.checkpoint(run, step).anchor;
        vm.prank(node(FIRST + 2));
        runs.commitWork(run, step, anchor, 1, keccak256("root"));
        _cost("Runs.commitWork");

        uint24 hour = _hour();
        vm.warp((uint256(hour) + 1) * 1 hours);
        _seal(hour);
        vm.warp(block.timestamp + 1 hours);
        _sealAs(0, hour + 1, keccak256("vouched"));
        _cost("Runs.seal");
        _sealAs(1, hour + 1, keccak256("vouched"));

        vm.warp(block.timestamp + 24 hours);
        _look("Runs.claimable", address(runs), abi.encodeCall(IRuns.claimable, (node(FIRST + 2))));
        runs.claim(node(FIRST + 2), 0);
        runs.claim(node(FIRST + 2), 1);
        _cost("Runs.claim");
        _proveWrong();
    }

    function _proveWrong() private {
        (ISlashCourt.Target memory target, Leaves.Leaf memory leaf, bytes32[] memory proof) = _wrongWork(FIRST + 3);
        vm.prank(stranger);
        refutations.prove(target, _one(_opening(leaf, proof)));
        _cost("Refutations.prove");
    }

    /// @dev A commitment of node i with a wrong task, and what shows it.
    function _wrongWork(uint256 i)
        private
        returns (ISlashCourt.Target memory target, Leaves.Leaf memory leaf, bytes32[] memory proof)
    {
        uint32 step = _latest();
        leaf = _honestLeaf(i, 0, step, 3);
        leaf.task += 1;
        bytes32 root;
        (root, proof) = _tree(leaf, _honestLeaf(i, 0, step, 4));
        _commitRoot(i, root);
        target = ISlashCourt.Target(node(i), 0, step, root);
    }

    function _measureCourt() private {
        // 1. One more case against a node that had so many: the receipt ends it.
        _commit(FIRST + 9);
        uint256 caseId = _accuseBy(0, FIRST + 9, 1, Kind.DATA_MISSING);
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, FIRST + 9, 1);
        vm.prank(node(1));
        court.dismiss(caseId, receipt, signature);
        _cost("SlashCourt.dismiss");

        // 2. The conviction of another that had so many, after one of a node that had none.
        _commit(FIRST);
        _commit(FIRST + 4);
        _convictNode(FIRST + 4, 0);
        caseId = _accuse(FIRST, 1);
        _cost("SlashCourt.openCase");
        _vote(caseId, 1, true);
        _vote(caseId, 2, true);
        _vote(caseId, 3, true);
        _cost("SlashCourt.commitVote");
        _reveal(caseId, 1, true);
        _reveal(caseId, 2, true);
        _reveal(caseId, 3, true);
        _cost("SlashCourt.revealVote");
        court.resolve(caseId);
        _cost("SlashCourt.resolve");
        court.collect(caseId, node(2));
        _cost("SlashCourt.collect");

        // 3. A judge that stays silent.
        _commit(FIRST + 6);
        caseId = _accuse(FIRST + 6, 0);
        _vote(caseId, 1, false);
        _vote(caseId, 2, false);
        vm.warp(court.caseOf(caseId).commitEnds);
        _reveal(caseId, 1, false);
        _reveal(caseId, 2, false);
        court.resolve(caseId);
        court.reportAbsence(caseId, node(3));
        _cost("SlashCourt.reportAbsence");
    }

    function _measureWages() private {
        _fundWages(20 ether);
        (bytes32 root, bytes32[] memory proof,) = _wageTree(1 ether, 2 ether);
        _post(root, 3 ether);
        wages.claim(run, root, node(0), 1 ether, proof);
        (root, proof,) = _wageTree(2 ether, 3 ether);
        _post(root, 5 ether);
        _cost("Wages.post");
        wages.claim(run, root, node(0), 2 ether, proof);
        _cost("Wages.claim");
        uint256 now_ = block.timestamp;
        _mint(owner, 1 ether);
        vm.startPrank(owner);
        token.approve(address(wages), 1 ether);
        wages.fund(run, 1 ether);
        _cost("Wages.fund");
        wages.announceTakeBack(run, 1 ether);
        _cost("Wages.announceTakeBack");
        vm.warp(now_ + 24 hours);
        wages.takeBack(run);
        _cost("Wages.takeBack");
        vm.stopPrank();
        vm.warp(now_);
        _look("Wages.pot", address(wages), abi.encodeCall(IWages.pot, (run)));
        _look("Wages.paidTo", address(wages), abi.encodeCall(IWages.paidTo, (run, node(0))));
        _look("Wages.isPosted", address(wages), abi.encodeCall(IWages.isPosted, (run, root)));
    }

    // ----------------------------------------------------------------------------------------------------------- views

    function _viewRegistry() private {
        address place = address(registry);
        (address worker, address validator) = (node(FIRST), node(1));
        _look("Registry.node", place, abi.encodeCall(IRegistry.node, (worker)));
        _look("Registry.operatorOf", place, abi.encodeCall(IRegistry.operatorOf, (worker)));
        _look("Registry.validatorOf", place, abi.encodeCall(IRegistry.validatorOf, (operator(1), run)));
        _look("Registry.validatorsAt", place, abi.encodeCall(IRegistry.validatorsAt, (run, block.timestamp - 2 days)));
        _look("Registry.validatesSince", place, abi.encodeCall(IRegistry.validatesSince, (validator, run)));
        _look("Registry.wasValidator", place, abi.encodeCall(IRegistry.wasValidator, (validator, run, START + 1)));
        _look("Registry.withdrawableAt", place, abi.encodeCall(IRegistry.withdrawableAt, (worker)));
        _look("Registry.freeBalance", place, abi.encodeCall(IRegistry.freeBalance, (operator(1))));
        _look("Registry.totalLocked", place, abi.encodeCall(IRegistry.totalLocked, ()));
        _look("Registry.totalFree", place, abi.encodeCall(IRegistry.totalFree, ()));
        _look("Registry.totalHeld", place, abi.encodeCall(IRegistry.totalHeld, ()));
        IRegistry.Registration memory registration = _registration(9_000, IRegistry.Role.Worker);
        _look("Registry.consentDigest", place, abi.encodeCall(IRegistry.consentDigest, (operator(1), registration)));
        _look("Registry.domainSeparator", place, abi.encodeCall(IRegistry.domainSeparator, ()));
    }

    function _viewTerms() private {
        address place = address(runTerms);
        _look("RunTerms.runCount", place, abi.encodeCall(IRunTerms.runCount, ()));
        _look("RunTerms.terms", place, abi.encodeCall(IRunTerms.terms, (run)));
        bytes32 runHash = runTerms.runHash(run);
        _look("RunTerms.runHash", place, abi.encodeCall(IRunTerms.runHash, (run)));
        _look("RunTerms.checkRun", place, abi.encodeCall(IRunTerms.checkRun, (run, runHash)));
        _look("RunTerms.caseTerms", place, abi.encodeCall(IRunTerms.caseTerms, (run)));
        _look("RunTerms.tenures", place, abi.encodeCall(IRunTerms.tenures, (run)));
        _look("RunTerms.storageKeyAt", place, abi.encodeCall(IRunTerms.storageKeyAt, (run, block.timestamp)));
        _look("RunTerms.drawTerms", place, abi.encodeCall(IRunTerms.drawTerms, (node(FIRST))));
        _look("RunTerms.isAdmitted", place, abi.encodeCall(IRunTerms.isAdmitted, (run, operator(1))));
        _look("RunTerms.trainerOf", place, abi.encodeCall(IRunTerms.trainerOf, (run)));
        _look("RunTerms.workerTerms", place, abi.encodeCall(IRunTerms.workerTerms, (run, 0)));
        bytes memory question = abi.encodeCall(IRunTerms.validatorTerms, (run, node(9_000), operator(9_000)));
        _look("RunTerms.validatorTerms", place, question);
        _look("RunTerms.votingSeconds", place, abi.encodeCall(IRunTerms.votingSeconds, (run)));
        _look("RunTerms.sealTerms", place, abi.encodeCall(IRunTerms.sealTerms, (run)));
    }

    function _viewRuns() private {
        address place = address(runs);
        address worker = node(FIRST);
        _look("Runs.runState", place, abi.encodeCall(IRuns.runState, (run)));
        _look("Runs.runInfo", place, abi.encodeCall(IRuns.runInfo, (run)));
        _look("Runs.ownerOf", place, abi.encodeCall(IRuns.ownerOf, (run)));
        _look("Runs.drawSource", place, abi.encodeCall(IRuns.drawSource, (worker)));
        _look("Runs.openCases", place, abi.encodeCall(IRuns.openCases, (worker)));
        _look("Runs.checkpoint", place, abi.encodeCall(IRuns.checkpoint, (run, 0)));
        _look("Runs.work", place, abi.encodeCall(IRuns.work, (worker)));
        _look("Runs.commitment", place, abi.encodeCall(IRuns.commitment, (worker, 0)));
        bytes32 root = _root(FIRST, 0);
        _look("Runs.isCommitted", place, abi.encodeCall(IRuns.isCommitted, (worker, 0, _latest(), root)));
        _look("Runs.maturesAt", place, abi.encodeCall(IRuns.maturesAt, (worker, 0)));
        _look("Runs.payableAt", place, abi.encodeCall(IRuns.payableAt, (worker, 0)));
        _look("Runs.challengeableUntil", place, abi.encodeCall(IRuns.challengeableUntil, (worker, 0)));
        _look("Runs.sealedThrough", place, abi.encodeCall(IRuns.sealedThrough, (run)));
        _look("Runs.vouchRoot", place, abi.encodeCall(IRuns.vouchRoot, (node(0), _hour())));
        _look("Runs.sealerOf", place, abi.encodeCall(IRuns.sealerOf, (node(0))));
        _look("Runs.sealCount", place, abi.encodeCall(IRuns.sealCount, (run, _hour())));
        _look("Runs.unreserved", place, abi.encodeCall(IRuns.unreserved, (run)));
        _look("Runs.withdrawable", place, abi.encodeCall(IRuns.withdrawable, (run)));
        _look("Runs.noticePeriod", place, abi.encodeCall(IRuns.noticePeriod, (run)));
        _look("Runs.pausedUntil", place, abi.encodeCall(IRuns.pausedUntil, ()));
    }

    function _viewCourt() private {
        address place = address(court);
        uint256 caseId = court.caseCount();
        _look("SlashCourt.caseCount", place, abi.encodeCall(ISlashCourt.caseCount, ()));
        _look("SlashCourt.caseOf", place, abi.encodeCall(ISlashCourt.caseOf, (caseId)));
        _look("SlashCourt.ballot", place, abi.encodeCall(ISlashCourt.ballot, (caseId, node(1))));
        _look("SlashCourt.isJudge", place, abi.encodeCall(ISlashCourt.isJudge, (caseId, node(1))));
        _look("SlashCourt.isResolvable", place, abi.encodeCall(ISlashCourt.isResolvable, (caseId)));
        _look("SlashCourt.collectable", place, abi.encodeCall(ISlashCourt.collectable, (caseId, node(1))));
        ISlashCourt.Target memory target = ISlashCourt.Target(node(FIRST), 0, _latest(), _root(FIRST, 0));
        _look("SlashCourt.chargeOf", place, abi.encodeCall(ISlashCourt.chargeOf, (target, 1, 7, bytes32(0))));
        _look("SlashCourt.voteHash", place, abi.encodeCall(ISlashCourt.voteHash, (1, node(1), true, bytes32(0))));
        (ISlashCourt.Receipt memory receipt,) = _receipt(STORAGE, FIRST, 0);
        bytes memory question = abi.encodeCall(ISlashCourt.receiptDigest, (run, node(FIRST), 0, receipt));
        _look("SlashCourt.receiptDigest", place, question);
        question = abi.encodeCall(IRefutations.vouchLeaf, (target, bytes32(0)));
        _look("Refutations.vouchLeaf", address(refutations), question);
    }

    // ----------------------------------------------------------------------------------------------- what ends a world

    function _measureOwner() private {
        _mint(owner, 1 ether);
        bytes32 runHash = runTerms.runHash(run);
        vm.startPrank(owner);
        token.approve(address(runs), 1 ether);
        runs.fund(run, runHash, 1 ether);
        _cost("Runs.fund");
        runs.announceWithdrawal(run);
        _cost("Runs.announceWithdrawal");
        runTerms.createRun(_terms(), _keys());
        _cost("RunTerms.createRun");
        vm.stopPrank();
        vm.roll(block.number + 1);
        uint32 step = _latest() + 1;
        vm.prank(trainer);
        runs.publishCheckpoint(run, step, keccak256("manifest"), keccak256("batch"));
        _cost("Runs.publishCheckpoint");
        _convictSealer();

        vm.warp(block.timestamp + 2 hours);
        IRunTerms.Keys memory keys = _keys();
        keys.admitter = stranger;
        vm.startPrank(owner);
        runTerms.changeKeys(run, keys);
        _cost("RunTerms.changeKeys");
        _look("Runs.noticedAt", address(runs), abi.encodeCall(IRuns.noticedAt, (run)));
        runs.withdrawEscrow(run, 1 ether);
        _cost("Runs.withdrawEscrow");
        runs.close(run);
        _cost("Runs.close");
        vm.stopPrank();
        vm.warp(block.timestamp + 2 hours);
        vm.prank(stranger);
        runTerms.admit(run, operator(1), true);
        _cost("RunTerms.admit");
        vm.startPrank(guardian);
        runs.pause();
        _cost("Runs.pause");
        runs.unpause();
        _cost("Runs.unpause");
        vm.stopPrank();
    }

    /// @dev Validator 3 vouches for wrong work, and loses its seat to another: with three the run would stand still.
    function _convictSealer() private {
        _join(LATE + 2, IRegistry.Role.Validator, 0);
        (ISlashCourt.Target memory target, Leaves.Leaf memory leaf, bytes32[] memory proof) = _wrongWork(FIRST + 8);
        uint24 hour = _hour();
        bytes32 vouched = refutations.vouchLeaf(target, runs.checkpoint(run, target.step).anchor);
        vm.warp((uint256(hour) + 1) * 1 hours);
        _sealAs(3, hour, vouched);
        vm.prank(stranger);
        refutations.proveVouched(node(3), hour, new bytes32[](0), target, _one(_opening(leaf, proof)));
        _cost("Refutations.proveVouched");
    }
}
