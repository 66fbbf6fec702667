// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { MerkleProof } from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import { IRefutations } from "./interfaces/IRefutations.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { ISlashCourt } from "./interfaces/ISlashCourt.sol";
import { Draws } from "./libraries/Draws.sol";
import { Leaves } from "./libraries/Leaves.sol";

/// @title What leaves alone prove; see IRefutations.
contract Refutations is IRefutations {
    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IRefutations
    int256 public constant REWARD_ONE = 1_000_000;

    // -------------------------------------------------------------------------------------------------- immutables

    IRuns public immutable RUNS;
    IRunTerms public immutable TERMS;
    ISlashCourt public immutable COURT;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRuns runs, IRunTerms terms, ISlashCourt court) {
        require(address(runs) != address(0) && address(terms) != address(0), ZeroAddress());
        require(address(court) != address(0), ZeroAddress());
        RUNS = runs;
        TERMS = terms;
        COURT = court;
    }

    // --------------------------------------------------------------------------------------------------- a node's work

    /// @inheritdoc IRefutations
    function prove(ISlashCourt.Target calldata target, Opening[] calldata openings) external {
        // Check: what it committed to is wrong.
        _checkCommitted(target);
        Flaw flaw = _flawOf(target, openings);

        // Effect and interaction: the court checks that the node can be convicted.
        emit Refuted(target.node, target.index, msg.sender, openings[0].leaf.position, flaw);
        COURT.convictProven(target.node, msg.sender);
    }

    // --------------------------------------------------------------------------------------------- a validator's vouching

    /// @inheritdoc IRefutations
    function proveVouched(
        address validator,
        uint24 hour,
        bytes32[] calldata vouchProof,
        ISlashCourt.Target calldata target,
        Opening[] calldata openings
    ) external {
        // Check: what it vouched for is committed and wrong, and it vouched.
        _checkCommitted(target);
        _checkVouched(validator, hour, vouchProof, target);
        Flaw flaw = _flawOf(target, openings);

        // Effect and interaction: the court checks that it can be convicted.
        emit VouchRefuted(validator, hour, msg.sender, target.node, target.index, flaw);
        COURT.convictProven(validator, msg.sender);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRefutations
    function vouchLeaf(ISlashCourt.Target calldata target, bytes32 anchor) public pure returns (bytes32) {
        return
            keccak256(bytes.concat(keccak256(abi.encode(target.node, target.index, target.step, anchor, target.root))));
    }

    // ----------------------------------------------------------------------------------------------------- internal

    function _checkCommitted(ISlashCourt.Target calldata target) internal view {
        bool committed = RUNS.isCommitted(target.node, target.index, target.step, target.root);
        require(committed, NotCommitted(target.node, target.index, target.step, target.root));
    }

    function _checkUnder(bytes32 root, Leaves.Leaf calldata leaf, bytes32[] calldata merkleProof)
        private
        pure
        returns (bytes32 hash)
    {
        hash = Leaves.hash(leaf);
        require(MerkleProof.verifyCalldata(merkleProof, root, hash), LeafNotInRoot(hash, root));
    }

    function _checkVouched(
        address validator,
        uint24 hour,
        bytes32[] calldata vouchProof,
        ISlashCourt.Target calldata target
    ) private view {
        bytes32 anchor = RUNS.checkpoint(TERMS.drawTerms(target.node).run, target.step).anchor;
        bytes32 leaf = vouchLeaf(target, anchor);
        bool vouched = MerkleProof.verifyCalldata(vouchProof, RUNS.vouchRoot(validator, hour), leaf);
        require(vouched, NotVouched(validator, hour, leaf));
    }

    /// @dev What one leaf, or two of one position, prove about a commitment.
    function _flawOf(ISlashCourt.Target calldata target, Opening[] calldata openings) private view returns (Flaw flaw) {
        if (openings.length == 2) {
            _checkTwice(target.root, openings[0], openings[1]);
            return Flaw.PositionTwice;
        }
        require(openings.length == 1, OpeningsWrong(openings.length));
        Leaves.Leaf calldata leaf = openings[0].leaf;
        _checkUnder(target.root, leaf, openings[0].proof);
        IRunTerms.DrawTerms memory terms = TERMS.drawTerms(target.node);
        if (leaf.position >= _positions(terms)) return Flaw.PositionBeyond;
        if (_isOutOfBounds(terms, leaf)) return Flaw.OutOfBounds;
        flaw = _drawFlaw(target, terms, leaf);
        require(flaw != Flaw.None, NothingRefuted(target.node, target.index, leaf.position));
    }

    function _positions(IRunTerms.DrawTerms memory terms) private pure returns (uint256) {
        return uint256(terms.groupSize) * terms.groupsPerCommitment;
    }

    function _isOutOfBounds(IRunTerms.DrawTerms memory terms, Leaves.Leaf calldata leaf) private pure returns (bool) {
        if (leaf.length == 0 || leaf.length > terms.maxCompletionTokens) return true;
        return leaf.taskReward < 0 || leaf.taskReward > REWARD_ONE;
    }

    /// @dev The first of task, seed and budget that is not what the draw says. The leaf's position must be within.
    function _drawFlaw(ISlashCourt.Target memory target, IRunTerms.DrawTerms memory terms, Leaves.Leaf calldata leaf)
        private
        view
        returns (Flaw)
    {
        uint32 position = uint32(leaf.position);
        bytes32 base = Draws.base(address(RUNS), terms.run, terms.entropy, target.node, target.index);
        (uint256 task, uint256 budget) = Draws.group(base, position / terms.groupSize, terms.taskCount, terms.workClass);
        if (leaf.task != task) return Flaw.WrongTask;
        if (leaf.seed != Draws.seed(base, position)) return Flaw.WrongSeed;
        return leaf.budget == budget ? Flaw.None : Flaw.WrongBudget;
    }

    /// @dev Two leaves of one position are under the root. One leaf is at two places of a tree when two different proofs
    /// lead from it to the root, or when a proof's sibling is the very node it is combined with: an honest tree, whose
    /// leaves all differ, has neither.
    function _checkTwice(bytes32 root, Opening calldata first, Opening calldata second) private pure {
        (uint256 position, uint256 other) = (first.leaf.position, second.leaf.position);
        require(position == other, PositionsDiffer(position, other));
        bytes32 hash = _checkUnder(root, first.leaf, first.proof);
        bytes32 otherHash = _checkUnder(root, second.leaf, second.proof);
        bool twice = hash != otherHash || Leaves.atTwoPlaces(hash, first.proof, second.proof);
        require(twice, LeafShownTwice(hash));
    }
}
