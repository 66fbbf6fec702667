// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../contracts/interfaces/IRegistry.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../contracts/libraries/Leaves.sol";
import { House } from "./House.sol";
import { Kind } from "./Kind.sol";

/// @title Nobody pays for others, for time, or for the past: 2,000 nodes and a month of idle hours change no cost.
/// @dev One thing is logarithmic: opening a case looks up how many validators there were at a second, by bisecting the
/// history of a run's validators. What a whole life of it adds is measured, and bounded, here.
/// forge-config: default.isolate = true
contract FlatTest is House {
    uint256 private constant NODES = 2_000;
    uint256 private constant FIRST = 5_000;
    /// @dev Gas by which a call may differ: zero bytes in what is hashed, bits of a counter.
    uint256 private constant SLACK = 300;

    uint256 private commitGas;
    uint256 private claimGas;
    uint256 private slashGas;
    uint256 private retireGas;
    uint256 private openGas;
    uint256 private resolveGas;
    uint256 private sealGas;
    uint256 private vouchedGas;

    function setUp() public override {
        super.setUp();
        _open();
        _fund(run, 10_000 ether);
    }

    function test_Flat_TwoThousandNodesAndAMonthOfIdleHours() public {
        _joinMany(FIRST, 6);
        _publishFor(FIRST);
        _warmUp(FIRST);
        _measure(FIRST + 1);
        (uint256 commit, uint256 claim, uint256 slash, uint256 retire) = (commitGas, claimGas, slashGas, retireGas);

        _joinMany(FIRST + 6, NODES - 6);
        _publishFor(FIRST + 6);
        for (uint256 i = FIRST + 6; i < FIRST + NODES; i++) {
            _commit(i);
        }
        vm.assertEq(runs.runState(run).reserved / 1 ether, NODES - 6);
        vm.warp(block.timestamp + 31 days);

        _measure(FIRST + 10);
        vm.assertLe(commitGas, commit + SLACK, "commit");
        vm.assertLe(claimGas, claim + SLACK, "claim");
        vm.assertLe(slashGas, slash + SLACK, "slash");
        vm.assertLe(retireGas, retire + SLACK, "retire");

        // And after a month of silence each is paid in one call, whatever the others do.
        uint256 before = token.balanceOf(operator(FIRST));
        runs.claim(node(FIRST + 20), 0);
        vm.assertEq(token.balanceOf(operator(FIRST)), before + 1 ether);
        _assertSolvent();
    }

    /// @dev 250 validators join and leave, a second apart: 500 entries in the history of the run's validators.
    function test_Flat_TwoHundredAndFiftyValidatorsCameAndWent() public {
        _joinMany(FIRST, 8);
        _publishFor(FIRST);
        vm.warp(block.timestamp + 60);
        _publish(); // so that no node works at the step that it draws by
        _warmUp(FIRST);
        _commit(FIRST + 7);
        uint256 caseId = _accuse(FIRST + 7, 0);
        vm.warp(block.timestamp + 13 hours);
        court.resolve(caseId);
        _measureCourt(FIRST + 1, 2);
        (uint256 open, uint256 resolve, uint256 seal, uint256 vouched) = (openGas, resolveGas, sealGas, vouchedGas);
        for (uint256 i = 0; i < 250; i++) {
            vm.warp(block.timestamp + 1);
            _join(10_000 + i, IRegistry.Role.Validator, 0);
            vm.warp(block.timestamp + 1);
            vm.prank(operator(10_000 + i));
            registry.retire(node(10_000 + i));
        }
        vm.assertEq(runs.runState(run).validators, 3);
        _join(9_999, IRegistry.Role.Validator, 100 ether);
        vm.warp(block.timestamp + 24 hours);
        _publish();
        _measureCourt(FIRST + 4, 1);
        vm.assertLe(resolveGas, resolve + SLACK, "resolve");
        vm.assertLe(sealGas, seal + SLACK, "seal");
        vm.assertLe(vouchedGas, vouched + SLACK, "vouched");
        // At most nine bisections of a cold word each more than in a history of one or two.
        vm.assertLe(openGas, open + 9 * 2_500, "open case");
        vm.assertGe(openGas, open + 3 * 2_100, "logarithmic, not flat");
        _assertSolvent();
    }

    /// @dev Two friends bring case after case about missing data against a worker, each while the one before is open,
    /// and end each with the storage's receipt: what the next case and its verdict cost stays the same.
    function test_Flat_EightyCasesEnded() public {
        _joinMany(FIRST, 2);
        _publishFor(FIRST);
        _convictAfter(FIRST, 3);
        (uint256 open, uint256 resolve) = (openGas, resolveGas);
        _convictAfter(FIRST + 1, 80);
        vm.assertLe(openGas, open + SLACK, "open case");
        vm.assertLe(resolveGas, resolve + SLACK, "resolve");
        _assertSolvent();
    }

    /// @dev So many cases against node i begin and end, each while another is open; then a jury convicts it.
    function _convictAfter(uint256 i, uint256 ended) private {
        _commit(i);
        _commit(i);
        uint256 last = _accuseBy(2, i, 0, Kind.DATA_MISSING);
        for (uint256 k = 1; k < ended; k++) {
            uint256 next = _accuseBy(2 - k % 2, i, 0, Kind.DATA_MISSING);
            _dismiss(last, i, 2 - k % 2);
            last = next;
        }
        _dismiss(last, i, 2 - ended % 2);
        uint256 caseId = _accuse(i, 1);
        openGas = _used();
        _decide(caseId, [true, true, true]);
        court.resolve(caseId);
        resolveGas = _used();
    }

    /// @dev Judge `friend` ends a case, which pays it the fee of the other's case.
    function _dismiss(uint256 caseId, uint256 i, uint256 friend) private {
        (ISlashCourt.Receipt memory receipt, bytes memory signature) = _receipt(STORAGE, i, 0);
        vm.prank(node(friend));
        court.dismiss(caseId, receipt, signature);
    }

    /// @dev Node i works and is accused in vain; node i + 1 errs, validator `sealer` vouches for it and is convicted.
    function _measureCourt(uint256 i, uint256 sealer) private {
        _commit(i);
        uint24 hour = uint24(block.timestamp / 1 hours);
        IRefutations.Opening[] memory openings = new IRefutations.Opening[](1);
        (ISlashCourt.Target memory target, Leaves.Leaf memory leaf, bytes32[] memory proof) = _wrongWork(i + 1);
        openings[0] = _opening(leaf, proof);
        bytes32 vouched = refutations.vouchLeaf(target, runs.checkpoint(run, target.step).anchor);
        vm.warp((uint256(hour) + 1) * 1 hours);
        // The hour before is sealed first: a seal also costs the hashing of a word for each hour since the last.
        _sealAs(sealer, hour - 1, bytes32(0));
        _sealAs(sealer, hour, vouched);
        sealGas = _used();

        uint256 caseId = _accuse(i, 0);
        openGas = _used();
        vm.warp(block.timestamp + 13 hours);
        court.resolve(caseId);
        resolveGas = _used();

        vm.prank(address(uint160(0xf1a7000 + i)));
        refutations.proveVouched(node(sealer), hour, new bytes32[](0), target, openings);
        vouchedGas = _used();
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

    /// @dev Words that are written once for a run, whoever comes first, are there.
    function _warmUp(uint256 i) private {
        _slash(i, 0);
    }

    /// @dev Node i commits, waits, claims; node i + 1 leaves; node i + 2 is convicted.
    function _measure(uint256 i) private {
        _commit(i);
        uint32 index = runs.work(node(i)).next;
        uint32 step = _latest();
        bytes32 anchor = runs.checkpoint(run, step).anchor;
        vm.prank(node(i));
        runs.commitWork(run, step, anchor, index, keccak256("root"));
        commitGas = _used();

        vm.warp(block.timestamp + 80 hours);
        (uint32 through,) = runs.claimable(node(i));
        runs.claim(node(i), through);
        claimGas = _used();

        vm.prank(operator(FIRST));
        registry.retire(node(i + 1));
        retireGas = _used();

        slashGas = _slash(i + 2, runs.work(node(i + 2)).next);
    }

    function _slash(uint256 i, uint32 index) private returns (uint256) {
        uint32 step = _latest();
        Leaves.Leaf memory leaf = _honestLeaf(i, index, step, 3);
        leaf.task += 1;
        (bytes32 root, bytes32[] memory proof) = _tree(leaf, _honestLeaf(i, index, step, 4));
        _commitRoot(i, root);
        address prover = address(uint160(0xf1a7000 + i));
        vm.prank(prover);
        _prove(i, index, step, root, leaf, proof);
        return _used();
    }

    /// @dev What the latest call cost, as a transaction.
    function _used() private view returns (uint256) {
        return vm.lastCallGas().gasTotalUsed;
    }
}
