// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Leaves } from "../libraries/Leaves.sol";
import { ISlashCourt } from "./ISlashCourt.sol";

/// @title Refutations: what needs no jury, since leaves alone prove it. The court convicts.
interface IRefutations {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice What the contract itself finds wrong with leaves.
    enum Flaw {
        None,
        WrongTask,
        WrongSeed,
        WrongBudget,
        OutOfBounds,
        PositionTwice,
        PositionBeyond
    }

    /// @notice A leaf and its OpenZeppelin Merkle proof under a commitment's root.
    struct Opening {
        Leaves.Leaf leaf;
        bytes32[] proof;
    }

    // ------------------------------------------------------------------------------------------------------ events

    /// @notice The contract itself found `node` guilty: `prover` showed a leaf of commitment `index` that cannot be.
    event Refuted(address indexed node, uint32 indexed index, address indexed prover, uint256 position, Flaw flaw);
    /// @notice `validator` had vouched, when it sealed `hour`, for commitment `index` of `node`, which has this flaw.
    event VouchRefuted(
        address indexed validator, uint24 indexed hour, address indexed prover, address node, uint32 index, Flaw flaw
    );

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NotCommitted(address node, uint32 index, uint32 step, bytes32 root);
    error LeafNotInRoot(bytes32 leaf, bytes32 root);
    error PositionsDiffer(uint256 first, uint256 second);
    error LeafShownTwice(bytes32 leaf);
    error OpeningsWrong(uint256 openings);
    error NotVouched(address validator, uint24 hour, bytes32 leaf);
    error NothingRefuted(address node, uint32 index, uint256 position);

    // ------------------------------------------------------------------------------------------------ anyone's calls

    // Each convicts at once, and its bounty goes to the caller's free balance in the Registry, half of it while a case
    // against the convicted is open (ISlashCourt.convictProven). Anyone may call, as long as the lock of the convicted is
    // there.

    /// @notice Convicts a node whose commitment has a flaw that the contract can see (`Flaw`).
    /// @param openings One leaf whose position is not one of the commitment's, whose completion is empty or longer than
    /// the run's limit, whose task reward is not within 0 to 1, or whose task, seed or budget is not the draw's; or two of
    /// one position: two different ones, or one at two places of the tree.
    function prove(ISlashCourt.Target calldata target, Opening[] calldata openings) external;

    /// @notice Convicts a validator that vouched, when it sealed `hour`, for a commitment with a flaw that the contract
    /// can see. The commitment's node need not be there any more: the flaw is proven again.
    /// @param vouchProof Merkle proof, under the validator's vouch root of that hour, of the leaf over (node, index,
    /// step, anchor of the step, root). The anchor is in it so that no reorg turns an honest seal into a wrong one.
    /// @param openings One leaf, or two of one position.
    function proveVouched(
        address validator,
        uint24 hour,
        bytes32[] calldata vouchProof,
        ISlashCourt.Target calldata target,
        Opening[] calldata openings
    ) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice The leaf by which a vouch root vouches for a commitment.
    function vouchLeaf(ISlashCourt.Target calldata target, bytes32 anchor) external pure returns (bytes32);
    /// @notice A task reward of 1, in the unit of leaves.
    function REWARD_ONE() external view returns (int256);
}
