// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRefutations } from "../../../contracts/interfaces/IRefutations.sol";
import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRuns } from "../../../contracts/interfaces/IRuns.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { Leaves } from "../../../contracts/libraries/Leaves.sol";
import { Duties } from "./Duties.sol";

/// @title Those who seal hours, those who prove that a commitment or a seal is wrong, and those who try it in vain.
/// @dev A proof that holds must convict, and one that does not must be refused, for the reason the court gives.
abstract contract Provers is Duties {
    /// @dev What a validator's seal says of one commitment. `beside` is the other half of its tree.
    struct Vouch {
        uint256 validator;
        uint24 hour;
        uint256 worker;
        uint32 index;
        bytes32 beside;
    }

    /// @dev What somebody shows the court of a commitment; proofs of one leaf use the first.
    struct Attempt {
        ISlashCourt.Target target;
        IRefutations.Opening first;
        IRefutations.Opening second;
    }

    Vouch[] internal _vouches;

    // ------------------------------------------------------------------------------------------------------- sealers

    /// @dev Vouches for a commitment beside something else. One sealer in four does not look at what it vouches for.
    function seal(uint256 pick, uint256 which) external {
        uint256 i = _pick(validators, pick);
        IRegistry.Node memory n = registry.node(node(i));
        if (n.status != IRegistry.Status.Active || block.timestamp < n.registeredAt + 1 hours) return;
        uint256 back = pick % 8 == 0 ? which % 70 : pick % 3;
        uint24 hour = uint24(block.timestamp / 1 hours - 1 - back);
        if (hour <= runs.sealerOf(node(i)).lastSealed || (uint256(hour) + 1) * 1 hours <= n.registeredAt) return;
        bytes32 root = _vouchRoot(i, hour, which);
        if (n.registeredAt < (_firstUnsealed() + 1) * 1 hours && ++sealsSeen[hour] >= 2 && hour > watermark) {
            watermark = hour;
        }
        _sealAs(i, hour, root);
        vm.assertEq(runs.sealedThrough(run), watermark, "the watermark is the latest hour with a quorum");
        if (back > 8) _did("seal further back");
        _did("seal");
    }

    /// @dev The first hour in which there may be work that a later watermark makes mature earlier.
    function _firstUnsealed() private view returns (uint256) {
        uint256 first = watermark + 1;
        uint256 last = block.timestamp / 1 hours - 72;
        return first > last ? first : last;
    }

    // ------------------------------------------------------------------------------------------------------- provers

    /// @dev One leaf shows every flaw but a position that is there twice. Seldom, so that wrong work stands for a while.
    function prove(uint256 pick, uint256 which) external {
        if (which % 2 != 0) return;
        (bool found, uint256 i, uint32 index) = _spoiled(pick, which);
        if (!found) return;
        uint256 owed = _unsettled(i);
        (ISlashCourt.Target memory t, IRefutations.Opening memory first, IRefutations.Opening memory second) =
            _opened(i, index);
        IRefutations.Flaw flaw = _made[i][index].flaw;
        bool twice = flaw == IRefutations.Flaw.PositionTwice;
        _convicts(t, twice ? _two(first, second) : _one(first));
        _voided(i, owed);
        if (twice) _did("prove position twice");
        else if (flaw == IRefutations.Flaw.PositionBeyond) _did("prove position beyond");
        else _did(flaw == IRefutations.Flaw.OutOfBounds ? "prove out of bounds" : "prove wrong draw");
    }

    /// @dev A stranger's proof convicts, and its bounty is the stranger's, or half of it is of who accused the node first.
    function _convicts(ISlashCourt.Target memory t, IRefutations.Opening[] memory openings) private {
        (address accuser, uint256 bounty) = (_firstAccuser(t.node), registry.node(t.node).lock / 2 / 5);
        (uint256 had, uint256 free) = (registry.freeBalance(stranger), registry.freeBalance(accuser));
        vm.prank(stranger);
        refutations.prove(t, openings);
        vm.assertTrue(registry.node(t.node).status == IRegistry.Status.Jailed, "what is proven convicts");
        uint256 half = accuser == address(0) ? 0 : bounty / 2;
        vm.assertEq(registry.freeBalance(stranger), had + bounty - half, "what the prover has");
        vm.assertEq(registry.freeBalance(accuser), free + half, "what who accused first has");
        if (half != 0) _did("prove of the accused");
    }

    /// @dev The operator that brought the earliest case against a node that is open; zero without any.
    function _firstAccuser(address accused) private view returns (address) {
        for (uint256 caseId = 1; caseId <= court.caseCount(); caseId++) {
            ISlashCourt.Case memory c = court.caseOf(caseId);
            if (c.node == accused && c.outcome == ISlashCourt.Outcome.Open) return registry.operatorOf(c.challenger);
        }
        return address(0);
    }

    /// @dev Holds whether or not the worker has been convicted. Seldom where it would leave too few to go on.
    function proveVouched(uint256 pick, uint256 which) external {
        if (_vouches.length == 0) return;
        for (uint256 k = 0; k < _vouches.length; k++) {
            Vouch memory v = _vouches[(which % _vouches.length + k) % _vouches.length];
            IRefutations.Flaw flaw = _made[v.worker][v.index].flaw;
            if (flaw == IRefutations.Flaw.None || !_isBound(v.validator)) continue;
            if (pick % (runs.runState(run).validators > 5 ? 4 : 32) != 0) return;
            (ISlashCourt.Target memory t, IRefutations.Opening memory first, IRefutations.Opening memory second) =
                _opened(v.worker, v.index);
            bool twice = flaw == IRefutations.Flaw.PositionTwice;
            vm.prank(stranger);
            refutations.proveVouched(
                node(v.validator), v.hour, _vouchProof(v), t, twice ? _two(first, second) : _one(first)
            );
            vm.assertTrue(registry.node(node(v.validator)).status == IRegistry.Status.Jailed);
            _did("prove vouched");
            return;
        }
    }

    // ----------------------------------------------------------------------------------------------------- slanderers

    /// @notice Whatever is tried against an honest commitment is refused: its own leaves, forged ones, other places.
    function slander(uint256 pick, uint256 which) external {
        (bool found, uint256 i, uint32 index) = _honest(pick, which);
        if (!found) return;
        Attempt memory a;
        (a.target, a.first, a.second) = _opened(i, index);
        if (!_isBound(i)) _did("slander the gone");
        _slanderWithItsLeaves(a);
        _slanderWithForgedLeaves(a, IRefutations.Flaw(1 + which % 6));
        _slanderElsewhere(a);
        _did("slander");
    }

    /// @notice A wrong commitment survives its right leaf, and the showing of leaves that show something else.
    function misname(uint256 pick, uint256 which) external {
        (bool found, uint256 i, uint32 index) = _spoiled(pick, which);
        if (!found) return;
        IRefutations.Flaw flaw = _made[i][index].flaw;
        Attempt memory a;
        (a.target, a.first, a.second) = _opened(i, index);
        (uint256 position, uint256 other) = (a.first.leaf.position, a.second.leaf.position);
        if (flaw == IRefutations.Flaw.PositionTwice) {
            _refusedOne(a, abi.encodeWithSelector(IRefutations.NothingRefuted.selector, a.target.node, index, position));
        } else {
            _refusedTwo(a, abi.encodeWithSelector(IRefutations.PositionsDiffer.selector, position, other));
        }
        a.first = a.second;
        _refusedOne(a, abi.encodeWithSelector(IRefutations.NothingRefuted.selector, a.target.node, index, other));
        _did("misname");
    }

    /// @notice Who vouched for honest work stands by it unharmed, and nobody stands by what they did not vouch for.
    function slanderSealer(uint256 which) external {
        if (_vouches.length == 0) return;
        Vouch memory v = _vouches[which % _vouches.length];
        if (!_isBound(v.validator)) return;
        (ISlashCourt.Target memory t, IRefutations.Opening memory first, IRefutations.Opening memory second) =
            _opened(v.worker, v.index);
        bytes32[] memory proof = _vouchProof(v);
        bytes32 leaf = refutations.vouchLeaf(t, runs.checkpoint(run, t.step).anchor);
        uint256 other = _pick(validators, which);
        if (other != v.validator && _isBound(other) && runs.vouchRoot(node(other), v.hour) == bytes32(0)) {
            vm.expectRevert(abi.encodeWithSelector(IRefutations.NotVouched.selector, node(other), v.hour, leaf));
            refutations.proveVouched(node(other), v.hour, proof, t, _one(first));
            _did("slander who did not vouch");
        }
        if (_made[v.worker][v.index].flaw != IRefutations.Flaw.None) return;
        address validator = node(v.validator);
        vm.expectRevert(
            abi.encodeWithSelector(IRefutations.NothingRefuted.selector, t.node, t.index, first.leaf.position)
        );
        refutations.proveVouched(validator, v.hour, proof, t, _one(first));
        vm.expectRevert(abi.encodeWithSelector(IRefutations.LeafShownTwice.selector, Leaves.hash(first.leaf)));
        refutations.proveVouched(validator, v.hour, proof, t, _two(first, first));
        vm.expectRevert(
            abi.encodeWithSelector(IRefutations.PositionsDiffer.selector, first.leaf.position, second.leaf.position)
        );
        refutations.proveVouched(validator, v.hour, proof, t, _two(first, second));
        _spoil(first.leaf, IRefutations.Flaw(1 + which % 6));
        if (which % 6 == uint256(IRefutations.Flaw.PositionTwice) - 1) first.leaf.rowHash = bytes32(which);
        vm.expectRevert(abi.encodeWithSelector(IRefutations.LeafNotInRoot.selector, Leaves.hash(first.leaf), t.root));
        refutations.proveVouched(validator, v.hour, proof, t, _one(first));
        _did("slander a sealer");
    }

    // ------------------------------------------------------------------------------------------------- internal: what

    /// @dev A seal's root over what a sealer vouches for, written down for the provers; of nothing if there is nothing.
    function _vouchRoot(uint256 validator, uint24 hour, uint256 which) private returns (bytes32) {
        bytes32 beside = keccak256(abi.encode("beside", which));
        uint256 worker = _pick(workers, which);
        uint32 next = runs.work(node(worker)).next;
        if (next == 0) return beside;
        uint32 index = next - 1;
        if (which / 256 % 4 != 0 && _made[worker][index].flaw != IRefutations.Flaw.None) return beside;
        (ISlashCourt.Target memory t,,) = _opened(worker, index);
        bytes32 leaf = refutations.vouchLeaf(t, runs.checkpoint(run, t.step).anchor);
        _vouches.push(Vouch(validator, hour, worker, index, beside));
        return leaf < beside ? keccak256(abi.encode(leaf, beside)) : keccak256(abi.encode(beside, leaf));
    }

    function _vouchProof(Vouch memory v) private pure returns (bytes32[] memory proof) {
        proof = new bytes32[](1);
        proof[0] = v.beside;
    }

    function _opened(uint256 i, uint32 index)
        private
        view
        returns (
            ISlashCourt.Target memory target,
            IRefutations.Opening memory first,
            IRefutations.Opening memory second
        )
    {
        Made memory made = _made[i][index];
        (, first, second) = _rows(i, index, made.step, made.position, made.flaw);
        target = ISlashCourt.Target(node(i), index, made.step, made.root);
    }

    /// @dev A wrong commitment by a worker still bound, the search starting anywhere.
    function _spoiled(uint256 pick, uint256 which) private view returns (bool found, uint256 i, uint32 index) {
        for (uint256 w = 0; w < workers.length; w++) {
            i = _pick(workers, pick % workers.length + w);
            uint32 next = runs.work(node(i)).next;
            for (uint32 k = 0; k < next && _isBound(i); k++) {
                index = uint32((which % next + k) % next);
                if (_made[i][index].flaw != IRefutations.Flaw.None) return (true, i, index);
            }
        }
    }

    function _honest(uint256 pick, uint256 which) private view returns (bool found, uint256 i, uint32 index) {
        i = _pick(workers, pick);
        uint32 next = runs.work(node(i)).next;
        if (next == 0) return (false, i, 0);
        index = uint32(which % next);
        found = _made[i][index].flaw == IRefutations.Flaw.None;
    }

    // ---------------------------------------------------------------------------------------------- internal: refusals

    function _slanderWithItsLeaves(Attempt memory a) private {
        (uint256 position, uint256 other) = (a.first.leaf.position, a.second.leaf.position);
        _refusedAll(
            a,
            abi.encodeWithSelector(IRefutations.NothingRefuted.selector, a.target.node, a.target.index, position),
            abi.encodeWithSelector(IRefutations.PositionsDiffer.selector, position, other)
        );
        IRefutations.Opening memory second = a.second;
        a.second = a.first;
        _refusedTwo(a, abi.encodeWithSelector(IRefutations.LeafShownTwice.selector, Leaves.hash(a.first.leaf)));
        a.second = second;
    }

    /// @dev A leaf with a flaw, under the proof of the honest one.
    function _slanderWithForgedLeaves(Attempt memory a, IRefutations.Flaw flaw) private {
        Attempt memory forged = abi.decode(abi.encode(a), (Attempt));
        if (flaw == IRefutations.Flaw.PositionTwice) forged.first.leaf.rowHash = bytes32(0);
        _spoil(forged.first.leaf, flaw);
        forged.second.leaf.position = forged.first.leaf.position;
        bytes memory reason =
            abi.encodeWithSelector(IRefutations.LeafNotInRoot.selector, Leaves.hash(forged.first.leaf), a.target.root);
        _refusedAll(forged, reason, reason);
    }

    /// @dev The same leaves said to be of another index, step or root.
    function _slanderElsewhere(Attempt memory a) private {
        Attempt memory moved = abi.decode(abi.encode(a), (Attempt));
        moved.target.index += 1;
        _refusedAsNotCommitted(moved);
        moved.target = ISlashCourt.Target(a.target.node, a.target.index, a.target.step + 1, a.target.root);
        _refusedAsNotCommitted(moved);
        moved.target = ISlashCourt.Target(a.target.node, a.target.index, a.target.step, keccak256("another root"));
        _refusedAsNotCommitted(moved);
    }

    function _refusedAsNotCommitted(Attempt memory a) private {
        ISlashCourt.Target memory t = a.target;
        bytes memory reason = abi.encodeWithSelector(ISlashCourt.NotCommitted.selector, t.node, t.index, t.step, t.root);
        _refusedAll(a, reason, reason);
    }

    function _refusedAll(Attempt memory a, bytes memory one, bytes memory two) private {
        _refusedOne(a, one);
        _refusedTwo(a, two);
    }

    function _refusedOne(Attempt memory a, bytes memory reason) private {
        vm.expectRevert(reason);
        refutations.prove(a.target, _one(a.first));
    }

    function _refusedTwo(Attempt memory a, bytes memory reason) private {
        vm.expectRevert(reason);
        refutations.prove(a.target, _two(a.first, a.second));
    }
}
