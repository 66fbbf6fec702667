// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { House } from "../House.sol";
import { Kind } from "../Kind.sol";

contract OpenCaseTest is House {
    function setUp() public override {
        super.setUp();
        _open();
        _commit(WORKER);
    }

    function _expectRejected(uint256 challenger, bytes memory reason) private {
        vm.expectRevert(reason);
        vm.prank(node(challenger));
        court.openCase(ISlashCourt.Target(node(WORKER), 0, 0, _root(WORKER, 0)), Kind.WRONG_REWARD, 0, bytes32(0));
    }

    function test_OpenCase_KeepsTheCase() public {
        vm.expectEmit(address(court));
        emit ISlashCourt.CaseOpened(
            1,
            node(WORKER),
            node(0),
            run,
            0,
            0,
            _root(WORKER, 0),
            Kind.SAMPLING_MISMATCH,
            7,
            keccak256("evidence"),
            3,
            START + 24 hours + 13 hours,
            START + 24 hours + 27 hours
        );
        uint256 caseId = _accuse(WORKER, 0);
        vm.assertEq(caseId, 1);
        vm.assertEq(court.caseCount(), 1);

        ISlashCourt.Case memory c = court.caseOf(caseId);
        vm.assertEq(c.node, node(WORKER));
        vm.assertEq(c.run, run);
        vm.assertEq(c.openedAt, START + 24 hours);
        vm.assertTrue(c.kind == Kind.SAMPLING_MISMATCH);
        vm.assertTrue(c.outcome == ISlashCourt.Outcome.Open);
        vm.assertEq(c.challenger, node(0));
        vm.assertEq(c.index, 0);
        vm.assertEq(c.position, 7);
        vm.assertEq(c.jury, 3);
        vm.assertEq(c.fee, 5 ether);
        vm.assertEq(c.deposit, DEPOSIT);
        vm.assertEq(c.seniorBefore, START);
        vm.assertEq(c.evidenceHash, keccak256("evidence"));
        ISlashCourt.Target memory target = ISlashCourt.Target(node(WORKER), 0, 0, _root(WORKER, 0));
        vm.assertEq(c.charge, court.chargeOf(target, c.kind, 7, c.evidenceHash));

        vm.assertEq(registry.freeBalance(operator(0)), 95 ether);
        vm.assertEq(registry.totalHeld(), 5 ether);
        vm.assertEq(runs.work(node(WORKER)).openCases, 1);
        vm.assertFalse(court.isResolvable(caseId));
        _assertSolvent();
    }

    function test_OpenCase_CasesRunSideBySide() public {
        _accuse(WORKER, 0);
        _accuseBy(1, WORKER, 0, Kind.WRONG_PROMPT);
        vm.assertEq(court.caseCount(), 2);
        vm.assertEq(runs.work(node(WORKER)).openCases, 2);
        vm.assertTrue(court.isJudge(1, node(1)));
        vm.assertFalse(court.isJudge(2, node(1)));
        vm.assertTrue(court.isJudge(2, node(0)));
    }

    function test_OpenCase_RevertWhen_NotCommitted() public {
        uint8 kind = Kind.WRONG_REWARD;
        bytes32 root = _root(WORKER, 0);
        vm.startPrank(node(0));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 1, 0, root));
        court.openCase(ISlashCourt.Target(node(WORKER), 1, 0, root), kind, 0, bytes32(0));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 0, 1, root));
        court.openCase(ISlashCourt.Target(node(WORKER), 0, 1, root), kind, 0, bytes32(0));
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, node(WORKER), 0, 0, ~root));
        court.openCase(ISlashCourt.Target(node(WORKER), 0, 0, ~root), kind, 0, bytes32(0));
    }

    /// @dev A kind is a number that only accusers and judges read.
    function testFuzz_OpenCase_OfAnyKind(uint8 kind) public {
        ISlashCourt.Case memory c = court.caseOf(_accuseBy(0, WORKER, 0, kind));
        vm.assertEq(c.kind, kind);
        vm.assertEq(
            c.charge,
            keccak256(abi.encode(node(WORKER), uint32(0), uint32(0), _root(WORKER, 0), kind, uint32(7), c.evidenceHash))
        );
    }

    function test_OpenCase_RevertWhen_NodeGone() public {
        _convictNode(WORKER, 0);
        _expectRejected(1, abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(WORKER)));
    }

    function test_OpenCase_RevertWhen_NotChallenger() public {
        _expectRejected(9, abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(9), run));
        _join(OTHER_WORKER, IRegistry.Role.Worker, 100 ether);
        _expectRejected(
            OTHER_WORKER, abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(OTHER_WORKER), run)
        );
        _join(7, IRegistry.Role.Validator, 100 ether);
        vm.prank(operator(3));
        registry.retire(node(3));
        vm.warp(block.timestamp + 1);
        bytes memory left = abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(3), run);
        _expectNoCase(3, WORKER, _commit(WORKER), Kind.ACTIVATION_MISMATCH, left);
        uint32 first = run;
        run = _createRun(_terms());
        _join(8, IRegistry.Role.Validator, 100 ether);
        _expectRejected(8, abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(8), first));
    }

    /// @dev Operator 5 works and validates; its validator neither accuses nor judges its worker.
    function test_OpenCase_AccusedOperatorsValidator() public {
        _deposit(operator(WORKER), 300 ether);
        IRegistry.Registration memory registration = _registration(8, IRegistry.Role.Validator);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + 8, registry.consentDigest(operator(WORKER), registration));
        vm.prank(operator(WORKER));
        registry.register(registration, abi.encodePacked(r, s, v));
        vm.warp(block.timestamp + 1);
        _commit(WORKER);
        vm.warp(block.timestamp + 24 hours);

        _expectRejected(
            8, abi.encodeWithSelector(ISlashCourt.OwnNode.selector, node(8), node(WORKER), operator(WORKER))
        );
        uint256 caseId = _accuse(WORKER, 1);
        vm.assertEq(court.caseOf(caseId).jury, 3);
        vm.assertEq(registry.validatorsAt(run, court.caseOf(caseId).seniorBefore), 5);
        vm.assertFalse(court.isJudge(caseId, node(8)));
        bytes32 hash = court.voteHash(caseId, node(8), false, bytes32(0));
        bytes32 charge = court.caseOf(caseId).charge;
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.NotJudge.selector, caseId, node(8)));
        vm.prank(node(8));
        court.commitVote(caseId, charge, hash);
    }

    function test_OpenCase_RevertWhen_TooLate() public {
        uint256 deadline = START + 25 hours + 72 hours;
        vm.assertEq(runs.challengeableUntil(node(WORKER), 0), deadline);
        vm.warp(deadline);
        _expectRejected(
            0, abi.encodeWithSelector(ISlashCourt.ChallengeTooLate.selector, node(WORKER), 0, deadline, deadline)
        );
        vm.warp(deadline - 1);
        _accuse(WORKER, 0);
    }

    /// @dev A settled commitment can still cost its node the stake.
    function test_OpenCase_AfterTheClaim() public {
        vm.warp(START + 25 hours);
        _seal(_firstHour());
        vm.warp(START + 49 hours);
        runs.claim(node(WORKER), 0);
        _convictNode(WORKER, 0);
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        _assertSolvent();
    }

    function test_OpenCase_RevertWhen_FeeShort() public {
        vm.prank(operator(0));
        registry.withdrawFree(96 ether);
        _expectRejected(0, abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(0), 4 ether, 5 ether));
    }

    /// @dev One at a time against a node about missing data, and one about anything else; then the next.
    function test_OpenCase_RevertWhen_OpenAlready() public {
        _commit(WORKER);
        uint256 caseId = _accuse(WORKER, 0);
        _expectNoCase(
            0,
            WORKER,
            1,
            Kind.WRONG_REWARD,
            abi.encodeWithSelector(ISlashCourt.CaseOpenAlready.selector, node(0), node(WORKER), caseId)
        );
        _accuseBy(1, WORKER, 1, Kind.SAMPLING_MISMATCH);
        _accuseBy(0, WORKER, 1, Kind.DATA_MISSING);
        vm.warp(court.caseOf(caseId).commitEnds);
        court.resolve(caseId);
        vm.assertEq(_accuse(WORKER, 1), 4);
    }

    /// @dev Who joined after the commitment never judges it, however senior; the next commitment it does, when senior.
    function test_OpenCase_JuniorsDoNotJudge() public {
        for (uint256 i = 10; i < 20; i++) {
            _join(i, IRegistry.Role.Validator, 100 ether);
        }
        vm.warp(block.timestamp + 1);
        _commit(WORKER);
        vm.warp(block.timestamp + 24 hours - 2);
        vm.assertEq(court.caseOf(_accuseBy(1, WORKER, 1, Kind.SAMPLING_MISMATCH)).jury, 3);
        vm.warp(block.timestamp + 1);
        uint256 caseId = _accuse(WORKER, 0);
        vm.assertEq(court.caseOf(caseId).seniorBefore, START + 24 hours - 1);
        vm.assertEq(court.caseOf(caseId).jury, 3);
        vm.assertFalse(court.isJudge(caseId, node(10)));
        caseId = _accuseBy(2, WORKER, 1, Kind.SAMPLING_MISMATCH);
        vm.assertEq(court.caseOf(caseId).seniorBefore, START + 24 hours);
        vm.assertEq(court.caseOf(caseId).jury, 13);
        vm.assertTrue(court.isJudge(caseId, node(10)));
    }

    /// @dev Who may not judge may not accuse: it would be on no jury that it could be taken off.
    function test_OpenCase_RevertWhen_ChallengerTooJunior() public {
        _join(10, IRegistry.Role.Validator, 100 ether);
        uint256 joinedAt = block.timestamp;
        vm.warp(joinedAt + 1);
        _commit(WORKER);
        vm.warp(joinedAt + 24 hours - 1);
        _expectNoCase(
            10,
            WORKER,
            1,
            Kind.WRONG_REWARD,
            abi.encodeWithSelector(ISlashCourt.ChallengerTooJunior.selector, node(10), joinedAt - 1)
        );
        vm.warp(joinedAt + 24 hours);
        vm.assertEq(court.caseOf(_accuseBy(10, WORKER, 1, Kind.WRONG_REWARD)).jury, 4);
        // Of work that was there before it came it never accuses.
        vm.warp(joinedAt + 48 hours);
        _expectNoCase(
            10,
            WORKER,
            0,
            Kind.DATA_MISSING,
            abi.encodeWithSelector(ISlashCourt.ChallengerTooJunior.selector, node(10), joinedAt - 1)
        );
    }

    function test_OpenCase_TheRetiredStillJudge() public {
        vm.prank(operator(3));
        registry.retire(node(3));
        uint256 caseId = _accuse(WORKER, 0);
        vm.assertEq(court.caseOf(caseId).jury, 3);
        _decide(caseId, [true, true, true]);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Guilty);
    }

    /// @dev A run whose validators came an hour apart: for that hour its first two are the only seniors.
    function test_OpenCase_RevertWhen_TooFewJudges() public {
        run = _createRun(_terms());
        _fund(run, FUNDS);
        _join(40, IRegistry.Role.Worker, 0);
        for (uint256 i = 30; i < 34; i++) {
            if (i == 32) vm.warp(block.timestamp + 1 hours);
            _join(i, IRegistry.Role.Validator, 100 ether);
        }
        vm.warp(block.timestamp + 1);
        _publish();
        _commit(40);
        vm.warp(block.timestamp + 23 hours);
        bytes32 root = _root(40, 0);
        vm.expectRevert(abi.encodeWithSelector(ISlashCourt.TooFewJudges.selector, 1, 2));
        vm.prank(node(30));
        court.openCase(ISlashCourt.Target(node(40), 0, 0, root), Kind.WRONG_REWARD, 0, bytes32(0));
        vm.warp(block.timestamp + 1 hours);
        vm.assertEq(court.caseOf(_accuseBy(32, 40, 0, Kind.WRONG_REWARD)).jury, 3);
    }
}
