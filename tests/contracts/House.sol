// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IMusterToken } from "../../contracts/interfaces/IMusterToken.sol";
import { IRefutations } from "../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../contracts/interfaces/IRunTerms.sol";
import { IRuns } from "../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { IWages } from "../../contracts/interfaces/IWages.sol";
import { Draws } from "../../contracts/libraries/Draws.sol";
import { Leaves } from "../../contracts/libraries/Leaves.sol";
import { Kind } from "./Kind.sol";
import { Vm } from "./Vm.sol";

/// @title The deployed contracts, a cast of actors, and the steps that tests take.
/// @dev Operator i has key OPERATOR + i; its node has key NODE + i. Validators are 0 to 3, workers from 4.
abstract contract House {
    Vm internal constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    uint256 internal constant OPERATOR = 0x0e00;
    uint256 internal constant NODE = 0x0d00;
    uint256 internal constant STORAGE = 0x5709;
    /// @dev A full hour, so that tests can count from it.
    uint256 internal constant START = 486_000 hours;
    uint24 internal constant HOUR = 486_000;

    uint256 internal constant WORKER = 4;
    uint256 internal constant OTHER_WORKER = 5;
    uint256 internal constant FUNDS = 1_000 ether;
    /// @dev Of `_terms`: its eight step intervals would be eight minutes.
    uint256 internal constant NOTICE = 1 hours;
    /// @dev Of `_terms`, the least that a judge can be asked for: four times what class 1 is paid.
    uint256 internal constant DEPOSIT = 10 ether;

    IMusterToken internal token;
    IRegistry internal registry;
    IRunTerms internal runTerms;
    IRuns internal runs;
    ISlashCourt internal court;
    IRefutations internal refutations;
    IWages internal wages;

    address internal owner = address(0xa11ce);
    address internal trainer = address(0x7a1);
    address internal stranger = address(0xbad);
    address internal guardian = address(0x6a4d);
    uint32 internal run;

    // ------------------------------------------------------------------------------------------------------- set-up

    function setUp() public virtual {
        vm.warp(START);
        vm.roll(1_000);
        _deploy();
        run = _createRun(_terms());
        _fund(run, FUNDS);
    }

    function _deploy() internal {
        uint256 nonce = vm.getNonce(address(this));
        address runsAt = vm.computeCreateAddress(address(this), nonce + 3);
        address courtAt = vm.computeCreateAddress(address(this), nonce + 4);
        address refutationsAt = vm.computeCreateAddress(address(this), nonce + 5);
        token = IMusterToken(vm.deployCode(_tokenArtifact()));
        registry = IRegistry(vm.deployCode("Registry.sol:Registry", abi.encode(token, runsAt, courtAt)));
        runTerms = IRunTerms(vm.deployCode("RunTerms.sol:RunTerms", abi.encode(runsAt)));
        runs = IRuns(_deployRuns(courtAt, guardian));
        court = ISlashCourt(
            vm.deployCode("SlashCourt.sol:SlashCourt", abi.encode(registry, runs, runTerms, refutationsAt))
        );
        refutations = IRefutations(vm.deployCode("Refutations.sol:Refutations", abi.encode(runs, runTerms, court)));
        wages = IWages(vm.deployCode("Wages.sol:Wages", abi.encode(token, registry, runTerms, runs)));
        vm.assertEq(address(refutations), refutationsAt);
        vm.assertEq(address(runs), runsAt);
        vm.assertEq(address(court), courtAt);
    }

    function _deployRuns(address court_, address guardian_) internal returns (address) {
        return vm.deployCode("Runs.sol:Runs", abi.encode(token, registry, runTerms, court_, guardian_));
    }

    function _tokenArtifact() internal pure virtual returns (string memory) {
        return "MusterToken.sol:MusterToken";
    }

    function _terms() internal pure returns (IRunTerms.Terms memory t) {
        t.pay = 1 ether;
        t.workerStake = 100 ether;
        t.validatorStake = 200 ether;
        t.caseFee = 5 ether;
        t.juryDeposit = uint96(DEPOSIT);
        t.slashBps = 5_000;
        t.bountyBps = 2_000;
        t.groupSize = 8;
        t.groupsPerCommitment = 16;
        t.commitmentsPerHour = 3;
        t.asyncLevel = 2;
        t.acceptsRequired = 1;
        t.sealQuorum = 2;
        t.minStepInterval = 60;
        t.wageBps = 625;
        t.lookRows = 12;
        t.commitPhase = 13 hours;
        t.revealPhase = 14 hours;
        t.jurySeniority = 24 hours;
        t.temperatureMicro = 1_000_000;
        t.maxPromptTokens = 64;
        t.maxCompletionTokens = 128;
        t.taskCount = 1_000;
        t.taskRoot = keccak256("tasks");
        t.modelHash = keccak256("model");
        t.tokenizerHash = keccak256("tokenizer");
        t.profile = keccak256("profile");
        t.classes = new uint256[](2);
        // Budgets 8 and 24 (mean 16) at weight 1; budget 40 at weight 2.5.
        t.classes[0] = 10_000 | (2 << 16) | (8 << 32) | (24 << 48);
        t.classes[1] = 25_000 | (1 << 16) | (40 << 32);
    }

    function _keys() internal view returns (IRunTerms.Keys memory) {
        return IRunTerms.Keys({ trainer: trainer, storageKey: vm.addr(STORAGE), admitter: address(0) });
    }

    // ------------------------------------------------------------------------------------------------------- actors

    function operator(uint256 i) internal pure virtual returns (address) {
        return vm.addr(OPERATOR + i);
    }

    function node(uint256 i) internal pure returns (address) {
        return vm.addr(NODE + i);
    }

    // -------------------------------------------------------------------------------------------------- money steps

    /// @dev Draws at least `amount` from the faucet, moving no clock: strangers with addresses of their own pass it on.
    function _mint(address account, uint256 amount) internal {
        while (token.balanceOf(account) < amount) {
            address giver = address(uint160(uint256(keccak256(abi.encode("giver", address(this), ++_givers)))));
            vm.startPrank(giver);
            token.faucet();
            vm.assertTrue(token.transfer(account, token.balanceOf(giver)));
            vm.stopPrank();
        }
    }

    uint256 private _givers;

    function _deposit(address account, uint256 amount) internal {
        _mint(account, amount);
        vm.startPrank(account);
        token.approve(address(registry), amount);
        registry.deposit(amount);
        vm.stopPrank();
    }

    function _createRun(IRunTerms.Terms memory terms) internal returns (uint32) {
        return _createRun(terms, _keys());
    }

    function _createRun(IRunTerms.Terms memory terms, IRunTerms.Keys memory keys) internal returns (uint32) {
        vm.prank(owner);
        return runTerms.createRun(terms, keys);
    }

    function _fund(uint32 run_, uint256 amount) internal {
        _mint(owner, amount);
        vm.startPrank(owner);
        token.approve(address(runs), amount);
        runs.fund(run_, runTerms.runHash(run_), amount);
        vm.stopPrank();
    }

    /// @dev Goes to the second before a notice is over: the owner gets nothing yet.
    function _warpToLastSecondOfNotice(uint256 readyAt) internal {
        vm.warp(readyAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IRuns.NoticeRunning.selector, run, readyAt, readyAt - 1));
        vm.prank(owner);
        runs.withdrawEscrow(run, FUNDS);
    }

    // -------------------------------------------------------------------------------------------------- wages' steps

    function _fundWages(uint256 amount) internal {
        _mint(owner, amount);
        vm.startPrank(owner);
        token.approve(address(wages), amount);
        wages.fund(run, amount);
        vm.stopPrank();
    }

    function _post(bytes32 root, uint256 sum) internal {
        vm.prank(trainer);
        wages.post(run, root, sum);
    }

    function _wage(uint256 i, uint256 total) internal view returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(run, node(i), total))));
    }

    /// @dev Root over the totals of validators 0 and 1, and the proof of each.
    function _wageTree(uint256 first, uint256 second)
        internal
        view
        returns (bytes32 root, bytes32[] memory proof, bytes32[] memory otherProof)
    {
        (bytes32 a, bytes32 b) = (_wage(0, first), _wage(1, second));
        root = a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
        (proof, otherProof) = (new bytes32[](1), new bytes32[](1));
        (proof[0], otherProof[0]) = (b, a);
    }

    // --------------------------------------------------------------------------------------------------- node steps

    function _registration(uint256 i, IRegistry.Role role) internal view returns (IRegistry.Registration memory) {
        return IRegistry.Registration({
            node: node(i),
            run: run,
            runHash: runTerms.runHash(run),
            role: role,
            workClass: 0,
            drawTip: role == IRegistry.Role.Validator ? _link(i, uint24(block.timestamp / 1 hours) - 1) : bytes32(0),
            deadline: block.timestamp + 1 hours
        });
    }

    function _consent(uint256 i, IRegistry.Registration memory registration) internal view returns (bytes memory) {
        bytes32 digest = registry.consentDigest(operator(i), registration);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + i, digest);
        return abi.encodePacked(r, s, v);
    }

    function _permit(uint256 i, uint256 amount) internal view returns (IRegistry.Permit memory permit) {
        permit.amount = amount;
        permit.deadline = block.timestamp + 1 hours;
        bytes32 digest = keccak256(
            abi.encodePacked(
                "\x19\x01",
                token.DOMAIN_SEPARATOR(),
                keccak256(
                    abi.encode(
                        keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"),
                        operator(i),
                        address(registry),
                        amount,
                        token.nonces(operator(i)),
                        permit.deadline
                    )
                )
            )
        );
        (permit.v, permit.r, permit.s) = vm.sign(OPERATOR + i, digest);
    }

    /// @dev Deposits `extra` beyond the stake, for fees and deposits.
    function _join(uint256 i, IRegistry.Role role, uint256 extra) internal {
        IRunTerms.Terms memory terms = runTerms.terms(run);
        uint256 stake = role == IRegistry.Role.Worker ? terms.workerStake : terms.validatorStake;
        _deposit(operator(i), stake + extra);
        IRegistry.Registration memory registration = _registration(i, role);
        bytes memory consent = _consent(i, registration);
        vm.prank(operator(i));
        registry.register(registration, consent);
    }

    /// @dev Four validators, a worker, the first checkpoint, and time enough for the validators to judge.
    function _open() internal {
        for (uint256 i = 0; i < 4; i++) {
            _join(i, IRegistry.Role.Validator, 100 ether);
        }
        _join(WORKER, IRegistry.Role.Worker, 0);
        vm.warp(START + 24 hours);
        _publish();
    }

    /// @dev `_open`'s hour.
    function _firstHour() internal pure returns (uint24) {
        return HOUR + 24;
    }

    /// @dev Publishes the run's next checkpoint a block later.
    function _publish() internal returns (uint32 step) {
        step = runs.runState(run).steps;
        vm.roll(block.number + 1);
        vm.prank(trainer);
        runs.publishCheckpoint(run, step, keccak256(abi.encode("manifest", step)), keccak256(abi.encode("batch", step)));
    }

    /// @dev Publishes until node i, who joined in the middle, may work on the latest step: a minute a step.
    function _publishFor(uint256 i) internal {
        while (runs.runState(run).steps <= runs.work(node(i)).joinedStep) {
            vm.warp(block.timestamp + 60);
            _publish();
        }
    }

    function _latest() internal view returns (uint32) {
        return runs.runState(run).steps - 1;
    }

    function _root(uint256 i, uint32 index) internal pure returns (bytes32) {
        return keccak256(abi.encode("root", i, index));
    }

    /// @dev Commits node i's next index at the latest step to `_root`.
    function _commit(uint256 i) internal returns (uint32 index) {
        index = runs.work(node(i)).next;
        _commitRoot(i, _root(i, index));
    }

    function _commitRoot(uint256 i, bytes32 root) internal {
        _commitAt(i, _latest(), root);
    }

    function _commitAt(uint256 i, uint32 step, bytes32 root) internal {
        uint32 index = runs.work(node(i)).next;
        bytes32 anchor = runs.checkpoint(run, step).anchor;
        vm.prank(node(i));
        runs.commitWork(run, step, anchor, index, root);
    }

    /// @dev Two validators seal an hour.
    function _seal(uint24 hour) internal {
        for (uint256 i = 0; i < 2; i++) {
            _sealAs(i, hour, keccak256(abi.encode("vouch", i, hour)));
        }
    }

    function _sealAs(uint256 i, uint24 hour, bytes32 vouched) internal {
        vm.prank(node(i));
        runs.seal(run, hour, vouched, _link(i, hour));
    }

    /// @dev What validator i shows as its link of an hour; no contract looks at it.
    function _link(uint256 i, uint24 hour) internal pure returns (bytes32) {
        return keccak256(abi.encode("link", i, hour));
    }

    // -------------------------------------------------------------------------------------------------- court steps

    /// @dev Validator 0 accuses node i of commitment `index`, made at the latest step to `_root`.
    function _accuse(uint256 i, uint32 index) internal returns (uint256 caseId) {
        return _accuseBy(0, i, index, Kind.SAMPLING_MISMATCH);
    }

    function _accuseBy(uint256 challenger, uint256 i, uint32 index, uint8 kind) internal returns (uint256 caseId) {
        uint32 step = _latest();
        vm.prank(node(challenger));
        return court.openCase(ISlashCourt.Target(node(i), index, step, _root(i, index)), kind, 7, keccak256("evidence"));
    }

    /// @dev The same is refused.
    function _expectNoCase(uint256 challenger, uint256 i, uint32 index, uint8 kind, bytes memory reason) internal {
        uint32 step = _latest();
        vm.expectRevert(reason);
        vm.prank(node(challenger));
        court.openCase(ISlashCourt.Target(node(i), index, step, _root(i, index)), kind, 7, keccak256("evidence"));
    }

    function _salt(uint256 judge) internal pure returns (bytes32) {
        return keccak256(abi.encode("salt", judge));
    }

    function _vote(uint256 caseId, uint256 judge, bool guilty) internal {
        _voteOn(court.caseOf(caseId).charge, caseId, judge, guilty);
    }

    /// @dev As who looked into a case with this charge when it had the number.
    function _voteOn(bytes32 charge, uint256 caseId, uint256 judge, bool guilty) internal {
        bytes32 hash = court.voteHash(caseId, node(judge), guilty, _salt(judge));
        vm.prank(node(judge));
        court.commitVote(caseId, charge, hash);
    }

    function _reveal(uint256 caseId, uint256 judge, bool guilty) internal {
        vm.prank(node(judge));
        court.revealVote(caseId, guilty, _salt(judge));
    }

    /// @dev Judges 1 to 3 commit and reveal.
    function _decide(uint256 caseId, bool[3] memory votes) internal {
        for (uint256 i = 0; i < 3; i++) {
            _vote(caseId, i + 1, votes[i]);
        }
        for (uint256 i = 0; i < 3; i++) {
            _reveal(caseId, i + 1, votes[i]);
        }
    }

    /// @dev Convicts node i for commitment `index`.
    function _convictNode(uint256 i, uint32 index) internal returns (uint256 caseId) {
        caseId = _accuse(i, index);
        _decide(caseId, [true, true, true]);
        court.resolve(caseId);
    }

    // --------------------------------------------------------------------------------------------------- leaf steps

    /// @dev The leaf that the draw asks of a position at any step, computed apart from the court.
    function _honestLeaf(uint256 i, uint32 index, uint32, uint32 position)
        internal
        view
        returns (Leaves.Leaf memory leaf)
    {
        IRunTerms.DrawTerms memory t = runTerms.drawTerms(node(i));
        bytes32 base = Draws.base(address(runs), run, t.entropy, node(i), index);
        leaf.position = position;
        (leaf.task, leaf.budget) = Draws.group(base, position / t.groupSize, t.taskCount, t.workClass);
        leaf.seed = Draws.seed(base, position);
        leaf.length = 17;
        leaf.taskReward = 1_000_000;
        leaf.completionHash = keccak256(abi.encode("completion", position));
        leaf.proofHash = keccak256(abi.encode("proof", position));
        leaf.rowHash = keccak256(abi.encode("row", position));
    }

    /// @dev Root over two leaves, and the proof of the first.
    function _tree(Leaves.Leaf memory first, Leaves.Leaf memory second)
        internal
        pure
        returns (bytes32 root, bytes32[] memory proof)
    {
        (bytes32 a, bytes32 b) = (Leaves.hash(first), Leaves.hash(second));
        proof = new bytes32[](1);
        proof[0] = b;
        root = a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    function _opening(Leaves.Leaf memory leaf, bytes32[] memory proof)
        internal
        pure
        returns (IRefutations.Opening memory)
    {
        return IRefutations.Opening(leaf, proof);
    }

    function _one(IRefutations.Opening memory opening) internal pure returns (IRefutations.Opening[] memory openings) {
        openings = new IRefutations.Opening[](1);
        openings[0] = opening;
    }

    function _two(IRefutations.Opening memory first, IRefutations.Opening memory second)
        internal
        pure
        returns (IRefutations.Opening[] memory openings)
    {
        openings = new IRefutations.Opening[](2);
        (openings[0], openings[1]) = (first, second);
    }

    /// @dev Shows the court a leaf of a commitment of node i.
    function _prove(uint256 i, uint32 index, uint32 step, bytes32 root, Leaves.Leaf memory leaf, bytes32[] memory proof)
        internal
    {
        refutations.prove(ISlashCourt.Target(node(i), index, step, root), _one(_opening(leaf, proof)));
    }

    /// @dev The storage's receipt for commitment `index` of node i, made at the latest step to `_root`, signed by `key`: the
    /// file came in the very second of the commitment.
    function _receipt(uint256 key, uint256 i, uint32 index)
        internal
        view
        returns (ISlashCourt.Receipt memory receipt, bytes memory signature)
    {
        return _receiptAt(key, i, index, uint64(runs.commitment(node(i), index).committedAt));
    }

    /// @dev The same of a file that the storage had at a second.
    function _receiptAt(uint256 key, uint256 i, uint32 index, uint64 storedAt)
        internal
        view
        returns (ISlashCourt.Receipt memory receipt, bytes memory signature)
    {
        receipt = ISlashCourt.Receipt(_latest(), _root(i, index), keccak256("file"), 12_345, storedAt);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, court.receiptDigest(run, node(i), index, receipt));
        signature = abi.encodePacked(r, s, v);
    }

    // -------------------------------------------------------------------------------------------------------- checks

    /// @dev Every token is in exactly one book.
    function _assertSolvent() internal view {
        vm.assertEq(
            token.balanceOf(address(registry)),
            registry.totalLocked() + registry.totalFree() + registry.totalHeld(),
            "registry's books"
        );
        uint256 escrows = 0;
        for (uint32 i = 1; i <= runTerms.runCount(); i++) {
            escrows += runs.runState(i).balance;
        }
        vm.assertEq(token.balanceOf(address(runs)), escrows, "runs' books");
        vm.assertEq(token.balanceOf(address(court)), 0, "the court holds nothing");
        uint256 unclaimed = 0;
        for (uint32 i = 1; i <= runTerms.runCount(); i++) {
            unclaimed += wages.pot(i).funded - wages.pot(i).claimed;
        }
        vm.assertEq(token.balanceOf(address(wages)), unclaimed, "wages' books");
    }

    function _bound(uint256 value, uint256 minimum, uint256 maximum) internal pure returns (uint256) {
        return minimum + value % (maximum - minimum + 1);
    }
}
