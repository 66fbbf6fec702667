// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../contracts/libraries/Leaves.sol";
import { House } from "./House.sol";

/// @title What the operations cost as transactions of their own, and the most that they may.
/// @dev `make -s gas` runs these and reads the Samples (benchmarks/gas.py).
/// forge-config: default.isolate = true
contract GasTest is House {
    /// @dev What an operation cost, each time it was done.
    event Samples(string name, uint256[] gas);

    uint256 internal constant OPERATORS = 10;
    uint256 internal constant NODES = 10;
    uint256 internal constant HOURS = 30;
    uint256 internal constant FIRST = 100;

    mapping(string name => uint256[]) private _samples;

    function setUp() public override {
        super.setUp();
        _open();
    }

    /// @dev What the latest call cost.
    function _sample(string memory name, uint256 limit) private {
        uint256 used = vm.lastCallGas().gasTotalUsed;
        vm.assertLe(used, limit, name);
        _samples[name].push(used);
    }

    function _tell(string memory name) private {
        emit Samples(name, _samples[name]);
    }

    // ---------------------------------------------------------------------------------------------------- every day

    /// @dev Ten operators with ten nodes each commit every hour, 16 groups of 8 samples, and claim every hour what has
    /// matured since.
    function test_Gas_CommitAndClaim() public {
        _fund(run, 10_000 ether);
        _joinAll();
        _publishFor(FIRST);
        vm.warp(block.timestamp + 60);
        _publish();
        _sample("publish", 170_000);
        for (uint256 hour = 0; hour < HOURS; hour++) {
            for (uint256 i = FIRST; i < FIRST + OPERATORS * NODES; i++) {
                _commit(i);
                _sample("commit", 68_000);
            }
            vm.warp(block.timestamp + 1 hours);
            _seal(_firstHour() + uint24(hour));
            _sample("seal", 98_000);
            _claimAll();
        }
        vm.warp(block.timestamp + 73 hours);
        _claimAll();
        vm.assertEq(_samples["commit"].length, OPERATORS * NODES * HOURS);
        vm.assertEq(runs.runState(run).reserved, 0);
        _assertSolvent();
        _tell("publish");
        _tell("commit");
        _tell("seal");
        _tell("claim");
    }

    /// @dev The first claim of all to a wallet that holds no tokens, of a node that has more to come and of one that has
    /// not: the token's books gain a word for it.
    function test_Gas_ClaimToAnEmptyWallet() public {
        for (uint256 i = FIRST; i < FIRST + 2; i++) {
            _deposit(operator(i), 100 ether);
            IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
            bytes memory consent = _consent(i, registration);
            vm.prank(operator(i));
            registry.register(registration, consent);
            uint256 rest = token.balanceOf(operator(i));
            vm.prank(operator(i));
            vm.assertTrue(token.transfer(stranger, rest));
        }
        _publishFor(FIRST);
        for (uint256 i = FIRST; i < FIRST + 2; i++) {
            _commit(i);
            _commit(i);
        }
        vm.warp(block.timestamp + 1 hours);
        _commit(FIRST);
        vm.warp(START + 97 hours);
        for (uint256 i = FIRST; i < FIRST + 2; i++) {
            vm.assertEq(token.balanceOf(operator(i)), 0);
            vm.assertEq(runs.claim(node(i), 1), 2 ether);
            _sample("claim_first", 75_000);
        }
        _tell("claim_first");
    }

    /// @dev A commitment after everything that may have happened before costs what all cost, within what an estimate
    /// adds: the first of all, several in an hour, after a month of idle hours, cases, claims, steps, convictions.
    function test_Gas_CommitWhateverHappenedBefore() public {
        _joinNode(FIRST);
        _joinNode(FIRST + 1);
        _publishFor(FIRST);
        _commitSampled(FIRST);
        _commitSampled(FIRST);
        _commitSampled(FIRST);
        vm.warp(block.timestamp + 30 days);
        _commitSampled(FIRST);
        runs.claim(node(FIRST), 2);
        _commitSampled(FIRST);
        _publish();
        _commitSampled(FIRST);
        uint256 caseId = _accuseLast(FIRST);
        vm.warp(block.timestamp + 1 hours);
        _commitSampled(FIRST);
        vm.warp(block.timestamp + 26 hours);
        court.resolve(caseId);
        _commitSampled(FIRST);
        _commitSampled(FIRST + 1);
        _convictNode(FIRST + 1, 0);
        _commitSampled(FIRST);
        vm.prank(guardian);
        runs.pause();
        vm.warp(runs.pausedUntil());
        _commitSampled(FIRST);
        _fund(run, 1 ether);
        vm.prank(owner);
        runs.announceWithdrawal(run);
        _commitSampled(FIRST);
        _tell("commit");
    }

    /// @dev A worker with as much unsettled as its stake covers commits on while a case keeps matured pay from it: the
    /// contract reads when the oldest that counts was committed, and when its hour matures.
    function test_Gas_CommitBeyondTheCover() public {
        _joinNode(FIRST);
        _publishFor(FIRST);
        uint32 cover = runs.work(node(FIRST)).cover;
        for (uint32 index = 0; index < cover; index++) {
            if (index != 0 && index % 3 == 0) vm.warp(block.timestamp + 1 hours);
            _commit(FIRST);
        }
        _accuseLast(FIRST);
        vm.warp(block.timestamp + 73 hours);
        for (uint256 k = 0; k < 3; k++) {
            _commit(FIRST);
            _sample("commit_beyond_cover", 74_000);
        }
        vm.assertEq(runs.work(node(FIRST)).next - runs.work(node(FIRST)).settled, cover + 3);
        _tell("commit_beyond_cover");
    }

    function _commitSampled(uint256 i) private {
        _commit(i);
        _sample("commit", 74_000);
    }

    function _accuseLast(uint256 i) private returns (uint256) {
        return _accuse(i, runs.work(node(i)).next - 1);
    }

    function _claimAll() private {
        for (uint256 i = FIRST; i < FIRST + OPERATORS * NODES; i++) {
            (uint32 through, uint256 amount) = runs.claimable(node(i));
            if (amount == 0) continue;
            runs.claim(node(i), through);
            _sample("claim", 62_000);
        }
    }

    // ------------------------------------------------------------------------------------------------ coming and going

    function _ownerOf(uint256 i) private pure returns (uint256) {
        return FIRST + (i - FIRST) / NODES;
    }

    function _joinAll() private {
        for (uint256 i = FIRST; i < FIRST + OPERATORS * NODES; i++) {
            _joinNode(i);
        }
    }

    /// @dev Node i joins under its operator, who has several, with a stake from the free balance.
    function _joinNode(uint256 i) private {
        uint256 by = _ownerOf(i);
        _deposit(operator(by), 100 ether);
        IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE + i, registry.consentDigest(operator(by), registration));
        vm.prank(operator(by));
        registry.register(registration, abi.encodePacked(r, s, v));
    }

    function test_Gas_JoinWithPermit() public {
        for (uint256 i = 20; i < 25; i++) {
            _mint(operator(i), 100 ether);
            IRegistry.Registration memory registration = _registration(i, IRegistry.Role.Worker);
            bytes memory consent = _consent(i, registration);
            IRegistry.Permit memory permit = _permit(i, 100 ether);
            vm.prank(operator(i));
            registry.registerWithPermit(registration, consent, permit);
            _sample("join", 240_000);
        }
        _tell("join");
    }

    function test_Gas_Leave() public {
        vm.prank(operator(WORKER));
        registry.retire(node(WORKER));
        _sample("retire", 80_000);
        vm.warp(block.timestamp + 7 days);
        registry.withdraw(node(WORKER));
        _sample("withdraw", 80_000);
        _tell("retire");
        _tell("withdraw");
    }

    // ------------------------------------------------------------------------------------------------------ the court

    /// @dev Convicts node i by a proof seven deep: 128 positions.
    function _objectiveSlash(uint256 i) private {
        Leaves.Leaf memory leaf = _honestLeaf(i, 0, 0, 100);
        leaf.task += 1;
        bytes32 root = Leaves.hash(leaf);
        bytes32[] memory proof = new bytes32[](7);
        for (uint256 k = 0; k < 7; k++) {
            proof[k] = keccak256(abi.encode("sibling", k));
            root = root < proof[k] ? keccak256(abi.encode(root, proof[k])) : keccak256(abi.encode(proof[k], root));
        }
        _commitRoot(i, root);
        address prover = address(uint160(0xbad000 + i));
        vm.prank(prover);
        _prove(i, 0, 0, root, leaf, proof);
        _sample("objective_slash", 190_000);
        vm.assertTrue(registry.node(node(i)).status == IRegistry.Status.Jailed);
        vm.assertEq(registry.freeBalance(prover), 10 ether);
    }

    function test_Gas_ObjectiveSlash() public {
        run = _createRun(_terms());
        _fund(run, FUNDS);
        for (uint256 i = 30; i < 34; i++) {
            _join(i, IRegistry.Role.Validator, 0);
        }
        for (uint256 i = 40; i < 45; i++) {
            _join(i, IRegistry.Role.Worker, 0);
        }
        vm.warp(block.timestamp + 1);
        _publish();
        for (uint256 i = 40; i < 45; i++) {
            _objectiveSlash(i);
        }
        _tell("objective_slash");
    }

    function test_Gas_JuriedCase() public {
        _commit(WORKER);
        uint256 caseId = _accuse(WORKER, 0);
        _sample("open_case", 335_000);
        for (uint256 i = 1; i < 4; i++) {
            _vote(caseId, i, true);
            _sample("commit_vote", 170_000);
        }
        for (uint256 i = 1; i < 4; i++) {
            _reveal(caseId, i, true);
            _sample("reveal_vote", 110_000);
        }
        court.resolve(caseId);
        _sample("resolve_guilty", 250_000);
        vm.assertTrue(court.caseOf(caseId).outcome == ISlashCourt.Outcome.Guilty);
        _tell("open_case");
        _tell("commit_vote");
        _tell("reveal_vote");
        _tell("resolve_guilty");
    }

    // ---------------------------------------------------------------------------------------------------------- wages

    /// @dev A root of 16 validators an hour; the very first gives the run's books a word. Half of the first claims go to
    /// wallets that hold no tokens, whose first costs a word of the token's. Later ones come as often as there is something
    /// to claim: of how many looks is in the total, and costs nothing.
    function test_Gas_PostAndClaimWages() public {
        _fundWages(100 ether);
        for (uint256 i = 0; i < 2; i++) {
            uint256 rest = token.balanceOf(operator(i));
            vm.prank(operator(i));
            vm.assertTrue(token.transfer(stranger, rest));
        }
        for (uint256 hour = 1; hour <= 8; hour++) {
            for (uint256 i = 0; i < 4; i++) {
                _payWage(i, hour);
            }
        }
        _tell("post_first");
        _tell("post");
        _tell("wage_empty");
        _tell("wage_first");
        _tell("wage");
    }

    function _payWage(uint256 i, uint256 hour) private {
        bytes32 root = _wage(i, hour * 1 ether);
        bytes32[] memory proof = new bytes32[](4);
        for (uint256 k = 0; k < 4; k++) {
            proof[k] = keccak256(abi.encode("sibling", k));
            root = root < proof[k] ? keccak256(abi.encode(root, proof[k])) : keccak256(abi.encode(proof[k], root));
        }
        _post(root, ((hour - 1) * 4 + i + 1) * 1 ether);
        if (hour == 1 && i == 0) _sample("post_first", 86_000);
        else _sample("post", 80_000);
        wages.claim(run, root, node(i), hour * 1 ether, proof);
        if (hour > 1) _sample("wage", 60_000);
        else if (i < 2) _sample("wage_empty", 98_000);
        else _sample("wage_first", 95_000);
    }

    // ------------------------------------------------------------------------------------------------------ deployment

    function test_Gas_Deploy() public {
        uint256 nonce = vm.getNonce(address(this));
        address runsAt = vm.computeCreateAddress(address(this), nonce + 3);
        address courtAt = vm.computeCreateAddress(address(this), nonce + 4);
        address refutationsAt = vm.computeCreateAddress(address(this), nonce + 5);
        (address tokenAt, uint256 sum) = _create("MusterToken.sol:MusterToken", "");
        (address registryAt, uint256 used) = _create("Registry.sol:Registry", abi.encode(tokenAt, runsAt, courtAt));
        sum += used;
        address termsAt;
        (termsAt, used) = _create("RunTerms.sol:RunTerms", abi.encode(runsAt));
        sum += used;
        (, used) = _create("Runs.sol:Runs", abi.encode(tokenAt, registryAt, termsAt, courtAt, guardian));
        sum += used;
        (, used) = _create("SlashCourt.sol:SlashCourt", abi.encode(registryAt, runsAt, termsAt, refutationsAt));
        sum += used;
        (, used) = _create("Refutations.sol:Refutations", abi.encode(runsAt, termsAt, courtAt));
        sum += used;
        (, used) = _create("Wages.sol:Wages", abi.encode(tokenAt, registryAt, termsAt, runsAt));
        sum += used;
        vm.assertLe(sum, 16_600_000, "deploy");
        _samples["deploy"].push(sum);
        _tell("deploy");
    }

    /// @dev `lastCallGas` knows no creations; isolated ones are charged to the caller as the transactions they are.
    function _create(string memory artifact, bytes memory arguments) private returns (address made, uint256 used) {
        bytes memory code = bytes.concat(vm.getCode(artifact), arguments);
        uint256 before = gasleft();
        assembly ("memory-safe") {
            made := create(0, add(code, 32), mload(code))
        }
        used = before - gasleft();
        vm.assertTrue(made.code.length != 0, artifact);
    }
}
