// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ISlashCourt } from "./ISlashCourt.sol";

/// @title Traps: work with planted false rows, which pays the validators that find them.
/// @notice A lottery by the master of a step's epoch picks one commitment in `trapEvery`; neither its node nor anyone but
/// the owner knows which before the master is shown (IMasters). A node that the owner tells takes a ticket, signed by
/// the run's storage key and by the node itself, and plants. The ticket protects it from sampling cases about the rows of
/// its map, and from no other case.
/// @notice A validator seals a hidden list of what it rejected (IRuns.seal), each leaf with the row that it found false.
/// It is fined `trapPrize` by `trapEvery` for every leaf, and paid `trapPrize` for one that names a row of a map. A fine
/// is given back where there was a ticket, a case, or a conviction: only the rejection of true work costs anything, and
/// who looked and found nothing pays nothing.
/// @notice Paid is who was called: who drew a low hash of its link of the hour (Draws.callHash). If no such validator
/// found the trap, the lowest hash among those that did and stand by is: a hash below twice the share of the called.
/// @notice The prize is in proportion to the node's pay and to how many of the last 24 hours the validator sealed before
/// their seals closed. It asks for one more leaf: about the next commitment of that node and hour for which the validator
/// was called, if there is one.
/// @notice The bounty of a juried conviction does not go to the fastest: it is shared by validators that had rejected the
/// commitment (`shareBounty`).
/// @notice Prizes come out of a pot that is reserved with every commitment (IRuns.Work.premiumBps), and never out of
/// voided pay. Where it is empty they wait, in the order in which they were asked for, and are paid before the owner gets
/// back what is left.
/// @notice Warning: the owner knows all traps. It can tell friends, and a node can sell a ticket: docs/understand/trust.md.
interface ITraps {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice That a node may plant. Signed by the run's storage key and by the node, under the Registry's EIP-712 domain,
    /// as Ticket(uint32 run,address node,uint32 index,bytes32 root,bytes32 mapRoot,uint64 storedAt).
    /// @param mapRoot Merkle root over a leaf for each planted row: the standard leaf of (position, token, salt). A map
    /// has an eighth of a commitment's rows at most, rounded up to a power of two.
    /// @param storedAt Second, before the commitment, at which it was given.
    struct Ticket {
        bytes32 mapRoot;
        uint64 storedAt;
    }

    /// @notice A row of a map.
    struct Row {
        uint32 position;
        uint32 token;
        bytes32 salt;
        bytes32[] proof;
    }

    /// @notice A commitment that a validator rejected.
    /// @param position The row that it found false.
    /// @param rejected The hour's whole list of leaves: keccak256(abi.encode(node, index, root, position, salt)).
    /// @param place Of this one's leaf in it.
    struct Finding {
        ISlashCourt.Target target;
        uint32 position;
        bytes32 salt;
        bytes32[] rejected;
        uint256 place;
    }

    /// @notice One more leaf of the hour.
    /// @param vouched Whether it is under the vouch root: IRefutations.vouchLeaf, with `salt` as its sibling, so that in
    /// IRefutations.proveVouched its proof begins with the salt; else it is in the same list, at `place`.
    struct Other {
        ISlashCourt.Target target;
        bool vouched;
        uint32 position;
        bytes32 salt;
        uint256 place;
        bytes32[] proof;
    }

    /// @notice What a validator has earned and was paid, and how many of its rejections cost it nothing.
    struct Account {
        uint112 credit;
        uint112 paid;
        uint32 excused;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event TicketShown(address indexed node, uint32 indexed index, bytes32 mapRoot);
    /// @notice `validator` found the trap and is credited with `prize`.
    event TrapFound(address indexed validator, address indexed node, uint32 indexed index, uint256 prize);
    /// @notice `validator` is credited for commitments `from` to `through`: picked and without a ticket, or of an epoch whose
    /// master was withheld.
    event LookPaid(address indexed validator, address indexed node, uint32 from, uint32 through, uint256 amount);
    /// @notice `validator` has a share of the bounty of case `caseId`.
    event BountyShared(uint256 indexed caseId, address indexed validator);
    event Excused(address indexed validator, address indexed node, uint32 indexed index);
    event Withdrawn(address indexed validator, uint256 amount);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NoTraps(uint32 run);
    error NotCommitted(address node, uint32 index, uint32 step, bytes32 root);
    error TicketTooLate(uint64 storedAt, uint256 committedAt);
    error TicketNotBy(address signer, address expected);
    error TicketKnown(address node, uint32 index);
    error NotInMap(address node, uint32 index, uint32 position);
    error NotSampling(uint256 caseId, uint8 kind);
    error NotInspector(address validator, address node);
    error NotSealed(address validator, uint24 hour);
    error NotRejected(address validator, address node, uint32 index);
    error NotPicked(address node, uint32 index);
    error NotCalled(address validator, address node, uint32 index);
    error NextLeafMissing(address validator, address node, uint32 index);
    error ClaimsOver(uint256 ended, uint256 timestamp);
    error TooEarly(uint256 readyAt, uint256 timestamp);
    error AlreadyPaid(address validator, address node, uint32 index);
    error NothingToExcuse(address validator, address node, uint32 index);
    error MasterNotWithheld(uint32 run, uint32 step);
    error NotOneHour(uint32 from, uint32 through);
    error NothingOwed(address account);
    error OtherCommitment(uint256 caseId, address node, uint32 index);
    error SharesClosed(uint256 caseId, uint256 closesAt);
    error FinesOwed(address validator, uint256 due, uint256 earned);

    // ---------------------------------------------------------------------------------------------- a node's ticket

    /// @notice Keeps a commitment's ticket. Anyone may call it; the first one stays.
    /// @notice Warning: owner and node together can sign one later than they say. They save no more than the node's stake
    /// from sampling cases about an eighth of its rows, and the owner has paid for those.
    function showTicket(
        ISlashCourt.Target calldata target,
        Ticket calldata ticket,
        bytes calldata byStorage,
        bytes calldata byNode
    ) external;

    /// @notice Ends an open sampling case about a row of the map of a ticket that was shown; the challenger has its fee
    /// back. Anyone may call it.
    function dismiss(uint256 caseId, Row calldata row) external;

    // --------------------------------------------------------------------------------------------- a validator's account

    /// @notice Credits a validator with the prize for a trap that it found: at once if it was called; else, if its hash is
    /// below twice the share, it stands by until claims are over (`settle`). The trap's master was shown within 24 hours of
    /// the hour's end; claims are over 24 hours after that. Anyone may call it, as all that follow.
    function claim(address validator, Finding calldata finding, Row calldata row, Other calldata next) external;

    /// @notice Credits the lowest hash among those that found a trap, when claims are over and none of them was called.
    function settle(address node, uint32 index) external;

    /// @notice Gives back the fine for a rejection where there is a ticket, a case about the commitment, or its node was
    /// convicted.
    function excuse(address validator, Finding calldata finding, uint256 caseId) external;

    /// @notice Credits a validator that was called for a commitment which the lottery picked and nobody showed a ticket
    /// for until claims were over: three quarters of the prize, a little less than a look earns on average where there
    /// is a trap.
    function claimUnticketed(address validator, ISlashCourt.Target calldata target) external;

    /// @notice Credits a validator with its equal part of what commitments `first` to `last` reserved, all of one hour and
    /// epoch, whose master was not shown within 24 hours of the hour's end. In order of index.
    function claimWithheld(address validator, ISlashCourt.Target calldata first, ISlashCourt.Target calldata last)
        external;

    /// @notice Gives a validator a share of the bounty of a case that ended guilty, until a day after the verdict. It rejected
    /// the commitment when it sealed that hour, in time, and was called for it, or its hash is below twice the share, or it
    /// opened the case. Not for a look at its operator's own node.
    function shareBounty(address validator, Finding calldata finding, uint256 caseId) external;

    /// @notice Pays a validator's operator its share of a bounty, from a day after the verdict on. All shares are alike; if
    /// there is none, the challenger has it all. A validator that owes more fines than it has earned waits until that has
    /// changed, so that rejecting all unseen earns nothing; its share waits for ever if that does not change.
    function takeBounty(address validator, uint256 caseId) external returns (uint256 amount);

    /// @notice Asks for what a validator has earned beyond its fines, unless it still waits for what it asked for before,
    /// and pays its operator as much as has come in beyond what was asked for earlier. Anyone may call it.
    function withdraw(address validator) external returns (uint256 amount);

    // ------------------------------------------------------------------------------------------------------- the pot

    /// @notice Adds to the pot what the commitments of a node have reserved since the last time.
    function collect(address node) external;

    /// @notice Gives the owner what nobody has asked for, a week after the run was closed.
    function release(uint32 run) external;

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice What was collected for prizes and has not left, for whoever it is asked for.
    function pot(uint32 run) external view returns (uint256);
    /// @notice Of the ticket that was shown; zero if none was.
    function mapRoot(address node, uint32 index) external view returns (bytes32);
    function account(address validator) external view returns (Account memory);
    /// @notice What a validator has earned beyond its fines, and was not paid.
    function owed(address validator) external view returns (uint256);
    function ticketDigest(ISlashCourt.Target calldata target, Ticket calldata ticket) external view returns (bytes32);
}
