// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { GradeHouse } from "./GradeHouse.sol";
import { Kind } from "../Kind.sol";

contract OpenGradeCaseTest is GradeHouse {
    uint256 private constant ACCUSED = 3;

    ISlashCourt.Target private target;

    function setUp() public override {
        super.setUp();
        _commit(WORKER);
        target = _targetOf(WORKER, 0);
    }

    function _expectRejected(uint256 challenger, uint256 accused, bytes memory reason) private {
        bytes memory statement = _statement(target, accused, GRADES);
        vm.expectRevert(reason);
        vm.prank(node(challenger));
        court.openGradeCase(target, node(accused), GRADES, _gradeSalt(accused), statement, bytes32(0));
    }

    /// @dev The statement is not ACCUSED's about `target`, `GRADES` and its salt: it was signed by another key or over
    /// another digest.
    function _expectForged(uint256 key, bytes32 digest) private {
        bytes32 own = _digest(registry.domainSeparator(), run, target, ACCUSED, GRADES);
        bytes memory statement = _signed(key, digest);
        vm.prank(node(0));
        (bool done, bytes memory reason) = address(court)
            .call(
                abi.encodeCall(
                    ISlashCourt.openGradeCase,
                    (target, node(ACCUSED), GRADES, _gradeSalt(ACCUSED), statement, bytes32(0))
                )
            );
        vm.assertFalse(done);
        if (digest == own) {
            address signer = vm.addr(key);
            vm.assertEq(reason, abi.encodeWithSelector(ISlashCourt.GradeNotByValidator.selector, signer, node(ACCUSED)));
        } else {
            vm.assertEq(uint256(uint32(bytes4(reason))), uint256(uint32(ISlashCourt.GradeNotByValidator.selector)));
        }
        vm.assertEq(court.caseCount(), 0);
    }

    // ---------------------------------------------------------------------------------------------------- what it does

    function test_OpenGradeCase_KeepsTheCase() public {
        vm.expectEmit(address(court));
        emit ISlashCourt.CaseOpened(
            1,
            node(ACCUSED),
            node(0),
            run,
            0,
            0,
            _root(WORKER, 0),
            Kind.WRONG_GRADE,
            0,
            keccak256("evidence"),
            2,
            START + 24 hours + 13 hours,
            START + 24 hours + 27 hours
        );
        vm.expectEmit(address(court));
        emit ISlashCourt.GradeAccused(1, node(ACCUSED), node(WORKER), GRADES);
        uint256 caseId = _accuseGrader(0, target, ACCUSED);

        ISlashCourt.Case memory c = court.caseOf(caseId);
        vm.assertEq(c.node, node(ACCUSED));
        vm.assertEq(c.run, run);
        vm.assertTrue(c.kind == Kind.WRONG_GRADE);
        vm.assertEq(c.challenger, node(0));
        vm.assertEq(c.index, 0);
        vm.assertEq(c.position, 0);
        vm.assertEq(c.jury, 2);
        vm.assertEq(c.fee, 5 ether);
        vm.assertEq(c.deposit, DEPOSIT);
        vm.assertEq(c.seniorBefore, START);
        vm.assertEq(c.evidenceHash, keccak256("evidence"));
        bytes32 words = keccak256(
            abi.encode(
                node(WORKER),
                uint256(0),
                uint256(0),
                _root(WORKER, 0),
                uint256(12),
                node(ACCUSED),
                GRADES,
                c.evidenceHash
            )
        );
        vm.assertEq(c.charge, words);

        vm.assertFalse(court.isJudge(caseId, node(0)));
        vm.assertTrue(court.isJudge(caseId, node(1)));
        vm.assertTrue(court.isJudge(caseId, node(2)));
        vm.assertFalse(court.isJudge(caseId, node(ACCUSED)));
        vm.assertEq(registry.freeBalance(operator(0)), 95 ether);
        vm.assertEq(runs.work(node(ACCUSED)).openCases, 1);
        vm.assertEq(runs.work(node(WORKER)).openCases, 0);
        _assertSolvent();
    }

    function test_OpenGradeCase_Guilty() public {
        uint256 caseId = _accuseGrader(0, target, ACCUSED);
        uint256 supply = token.totalSupply();
        _voteOfTwo(caseId, true);
        vm.expectEmit(address(registry));
        emit IRegistry.Convicted(node(ACCUSED), run, 100 ether, 20 ether, operator(0));
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Guilty);

        IRegistry.Node memory convicted = registry.node(node(ACCUSED));
        vm.assertTrue(convicted.status == IRegistry.Status.Jailed);
        vm.assertEq(convicted.lock, 100 ether);
        vm.assertEq(registry.freeBalance(operator(0)), 120 ether);
        vm.assertEq(token.totalSupply(), supply - 75 ether);
        vm.assertEq(court.collectable(caseId, node(1)), 12.5 ether);
        vm.assertEq(runs.runState(run).validators, 3);
        vm.assertEq(runs.work(node(ACCUSED)).openCases, 0);

        // Whose work it was is in service, and its pay is reserved.
        vm.assertTrue(registry.node(node(WORKER)).status == IRegistry.Status.Active);
        vm.assertFalse(runs.work(node(WORKER)).left);
        vm.assertEq(runs.runState(run).reserved, 1 ether);
        _assertSolvent();
    }

    function test_OpenGradeCase_NotGuilty() public {
        uint256 caseId = _accuseGrader(0, target, ACCUSED);
        _voteOfTwo(caseId, false);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.NotGuilty);
        vm.assertEq(registry.node(node(ACCUSED)).lock, 200 ether);
        vm.assertEq(registry.freeBalance(operator(0)), 95 ether);
        vm.assertEq(court.collectable(caseId, node(1)), 12.5 ether);
        vm.assertEq(court.collectable(caseId, node(2)), 12.5 ether);
        _assertSolvent();
    }

    /// @dev The worker is convicted of something else meanwhile; the grade was wrong all the same.
    function test_OpenGradeCase_AfterTheNodeIsGone() public {
        _convictNode(WORKER, 0);
        uint256 caseId = _accuseGrader(0, target, ACCUSED);
        _voteOfTwo(caseId, true);
        vm.assertTrue(court.resolve(caseId) == ISlashCourt.Outcome.Guilty);
        vm.assertEq(registry.node(node(WORKER)).lock, 50 ether);
        vm.assertEq(registry.node(node(ACCUSED)).lock, 100 ether);
        _assertSolvent();
    }

    /// @dev A validator that has retired is within reach until its lock is paid out, and a case holds it back.
    function test_OpenGradeCase_HoldsTheLockOfTheRetired() public {
        vm.prank(operator(ACCUSED));
        registry.retire(node(ACCUSED));
        vm.warp(block.timestamp + 72 hours);
        _accuseGrader(0, target, ACCUSED);
        vm.warp(registry.withdrawableAt(node(ACCUSED)));
        vm.expectRevert(abi.encodeWithSelector(IRegistry.CaseOpen.selector, node(ACCUSED), 1));
        registry.withdraw(node(ACCUSED));
        vm.assertTrue(court.resolve(1) == ISlashCourt.Outcome.NoQuorum);
        registry.withdraw(node(ACCUSED));
        _expectRejected(0, ACCUSED, abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(ACCUSED)));
        _assertSolvent();
    }

    // ------------------------------------------------------------------------------------------------------- reverts

    function test_OpenGradeCase_RevertWhen_NotCommitted() public {
        ISlashCourt.Target memory made = target;
        ISlashCourt.Target[3] memory others = [made, made, made];
        others[0] = ISlashCourt.Target(made.node, 1, made.step, made.root);
        others[1] = ISlashCourt.Target(made.node, made.index, 1, made.root);
        others[2] = ISlashCourt.Target(made.node, made.index, made.step, ~made.root);
        for (uint256 k = 0; k < 3; k++) {
            target = others[k];
            bytes memory reason = abi.encodeWithSelector(
                ISlashCourt.NotCommitted.selector, target.node, target.index, target.step, target.root
            );
            _expectRejected(0, ACCUSED, reason);
        }
    }

    function test_OpenGradeCase_RevertWhen_NodeGone() public {
        _voteOfTwo(_accuseGrader(0, target, ACCUSED), true);
        court.resolve(1);
        _expectRejected(1, ACCUSED, abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(ACCUSED)));
        _expectRejected(1, 99, abi.encodeWithSelector(ISlashCourt.NodeGone.selector, node(99)));
    }

    function test_OpenGradeCase_RevertWhen_NotGrader() public {
        _expectRejected(0, WORKER, abi.encodeWithSelector(ISlashCourt.NotGrader.selector, node(WORKER), run));
        uint32 first = run;
        run = _createRun(_sealedTerms());
        _join(8, IRegistry.Role.Validator, 100 ether);
        run = first;
        _expectRejected(0, 8, abi.encodeWithSelector(ISlashCourt.NotGrader.selector, node(8), run));
    }

    function test_OpenGradeCase_RevertWhen_GradeNotByValidator() public {
        bytes32 domain = registry.domainSeparator();
        bytes32 own = _digest(domain, run, target, ACCUSED, GRADES);
        _expectForged(NODE + 1, own);
        _expectForged(OPERATOR + ACCUSED, own);
        _expectForged(NODE + ACCUSED, _digest(domain, run, target, ACCUSED, ~GRADES));
        _expectForged(NODE + ACCUSED, _digest(domain, run + 1, target, ACCUSED, GRADES));
        _expectForged(NODE + ACCUSED, _digest(~domain, run, target, ACCUSED, GRADES));
        _expectForged(NODE + ACCUSED, _digest(domain, run, target, 1, GRADES));
        ISlashCourt.Target memory other = target;
        other.index = 1;
        _expectForged(NODE + ACCUSED, _digest(domain, run, other, ACCUSED, GRADES));
    }

    /// @dev With another salt than the statement's.
    function testFuzz_OpenGradeCase_RevertWhen_AnotherSalt(bytes32 salt) public {
        bytes memory statement = _statement(target, ACCUSED, GRADES);
        vm.assume(salt != _gradeSalt(ACCUSED));
        vm.prank(node(0));
        (bool done, bytes memory reason) = address(court)
            .call(
                abi.encodeCall(ISlashCourt.openGradeCase, (target, node(ACCUSED), GRADES, salt, statement, bytes32(0)))
            );
        vm.assertFalse(done);
        vm.assertEq(uint256(uint32(bytes4(reason))), uint256(uint32(ISlashCourt.GradeNotByValidator.selector)));
    }

    function test_OpenGradeCase_RevertWhen_NoSignature() public {
        vm.startPrank(node(0));
        vm.expectRevert(abi.encodeWithSignature("ECDSAInvalidSignatureLength(uint256)", 3));
        court.openGradeCase(target, node(ACCUSED), GRADES, _gradeSalt(ACCUSED), hex"010203", bytes32(0));
        vm.expectRevert(abi.encodeWithSignature("ECDSAInvalidSignature()"));
        court.openGradeCase(target, node(ACCUSED), GRADES, _gradeSalt(ACCUSED), new bytes(65), bytes32(0));
    }

    function test_OpenGradeCase_RevertWhen_NotChallenger() public {
        _expectRejected(9, ACCUSED, abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(9), run));
        _expectRejected(WORKER, ACCUSED, abi.encodeWithSelector(ISlashCourt.NotChallenger.selector, node(WORKER), run));
    }

    function test_OpenGradeCase_RevertWhen_OwnNode() public {
        _expectRejected(
            ACCUSED,
            ACCUSED,
            abi.encodeWithSelector(ISlashCourt.OwnNode.selector, node(ACCUSED), node(ACCUSED), operator(ACCUSED))
        );
    }

    function test_OpenGradeCase_RevertWhen_TooLate() public {
        uint256 deadline = START + 25 hours + 72 hours;
        vm.warp(deadline);
        bytes memory reason =
            abi.encodeWithSelector(ISlashCourt.ChallengeTooLate.selector, node(WORKER), 0, deadline, deadline);
        _expectRejected(0, ACCUSED, reason);
        vm.warp(deadline - 1);
        _accuseGrader(0, target, ACCUSED);
    }

    /// @dev A run whose validators came an hour apart: the accused and one other are its only seniors.
    function test_OpenGradeCase_RevertWhen_TooFewJudges() public {
        run = _createRun(_sealedTerms());
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
        target = _targetOf(40, 0);
        _expectRejected(31, 30, abi.encodeWithSelector(ISlashCourt.TooFewJudges.selector, 0, 2));
    }

    function test_OpenGradeCase_RevertWhen_FeeShort() public {
        vm.prank(operator(0));
        registry.withdrawFree(96 ether);
        _expectRejected(
            0, ACCUSED, abi.encodeWithSelector(IRegistry.FreeBalanceShort.selector, operator(0), 4 ether, 5 ether)
        );
    }

    /// @dev Judges 1 and 2, who are all of the jury.
    function _voteOfTwo(uint256 caseId, bool guilty) private {
        for (uint256 i = 1; i < 3; i++) {
            _vote(caseId, i, guilty);
        }
        for (uint256 i = 1; i < 3; i++) {
            _reveal(caseId, i, guilty);
        }
    }
}
