// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title Wages: what validators are paid for looks, out of money that is kept apart from a run's escrow.
/// @notice The trainer counts looks and posts a root: for each validator, what it has earned in all so far. A claim shows
/// one leaf under any root that was ever posted, and is paid the difference to what was paid before. What is posted never
/// falls and never exceeds what is there, so what is posted is money.
/// @notice Warning: who counts is the owner's trainer. A validator trusts it for the looks that are not posted yet, and
/// sees in the run's lists which were counted. A stolen trainer's key costs this balance, and nothing else.
interface IWages {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice The money of a run, in token wei.
    /// @param posted What the latest root's totals come to, by the trainer's word: never more is claimed.
    /// @param claimed What of that was paid.
    /// @param funded What came in, less what was taken back.
    /// @param announced What the owner may take back.
    /// @param takeFrom Second from which it may; zero if nothing is announced.
    struct Pot {
        uint112 posted;
        uint112 claimed;
        uint112 funded;
        uint112 announced;
        uint40 takeFrom;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event Funded(uint32 indexed run, address indexed from, uint256 amount);
    event Posted(uint32 indexed run, bytes32 indexed root, uint256 sum);
    event Claimed(uint32 indexed run, address indexed validator, uint256 amount);
    event TakeBackAnnounced(uint32 indexed run, uint256 amount, uint256 from);
    event TakenBack(uint32 indexed run, uint256 amount);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error UnknownRun(uint32 run);
    error AmountZero();
    error NotOwner(uint32 run, address caller);
    error NotTrainer(uint32 run, address caller);
    error NotTakeable(uint32 run, uint256 from, uint256 timestamp);
    error SumFalls(uint32 run, uint256 sum, uint256 posted);
    error SumUnfunded(uint32 run, uint256 sum, uint256 funded);
    error RootNotPosted(uint32 run, bytes32 root);
    error WageNotInRoot(bytes32 leaf, bytes32 root);
    error NothingOwed(uint32 run, address validator);

    // ------------------------------------------------------------------------------------------------ owners' calls

    /// @notice Adds `amount` of the caller's tokens (allowance needed) to a run's wages. Anyone may.
    function fund(uint32 run, uint256 amount) external;

    /// @notice Announces that the owner will take `amount` back, from `TAKE_BACK_NOTICE` seconds later on and for as long
    /// again. It replaces what was announced before. Only the owner.
    function announceTakeBack(uint32 run, uint256 amount) external;

    /// @notice Pays the owner what it announced, or what is not posted if that is less. Once per announcement.
    function takeBack(uint32 run) external returns (uint256 amount);

    // ----------------------------------------------------------------------------------------------- the trainer's call

    /// @notice Makes a root good for claims, for ever. Only the run's trainer.
    /// @param root Merkle root over a leaf for each validator: the standard leaf of (run, validator, total).
    /// @param sum All totals under it: not below what was posted, nor above what is funded.
    function post(uint32 run, bytes32 root, uint256 sum) external;

    // ------------------------------------------------------------------------------------------------ anyone's call

    /// @notice Pays the validator's operator what `total` exceeds what it was paid before, or what is left of what is
    /// posted if that is less. Anyone may call it.
    /// @param proof OpenZeppelin Merkle proof of the leaf under a posted root.
    function claim(uint32 run, bytes32 root, address validator, uint256 total, bytes32[] calldata proof)
        external
        returns (uint256 paid);

    // ------------------------------------------------------------------------------------------------------- views

    function pot(uint32 run) external view returns (Pot memory);
    /// @notice What a validator was paid in all.
    function paidTo(uint32 run, address validator) external view returns (uint256);
    function isPosted(uint32 run, bytes32 root) external view returns (bool);
    /// @notice Seconds from an announcement until the owner may take back, and from then until it may no more.
    function TAKE_BACK_NOTICE() external view returns (uint256);
}
