// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title Identity and stake.
/// @notice An operator (cold key) registers nodes (hot session keys) with their consent. Each node locks its own stake;
/// nothing is pooled, so guilt and exits stay separate. The Registry is the only contract that holds operators' money:
/// locks, free balances, and what the court holds for open cases (fees and deposits).
/// @notice Warning: a node's session key spends its operator's free balance on case fees and jury deposits. Keep there
/// what you are ready to risk with a hot key, not more.
interface IRegistry {
    // ------------------------------------------------------------------------------------------------------- types

    /// @notice What a node does. A key serves in one role, once, ever.
    enum Role {
        None,
        Worker,
        Validator
    }

    /// @notice Where a node is in its life. Jailed is for good; Withdrawn means that its lock has been paid out.
    enum Status {
        None,
        Active,
        Retired,
        Jailed,
        Withdrawn
    }

    /// @notice What an operator asks for and the node's key consents to.
    /// @param node Session key; serves one operator, one role, one work class and one run, once.
    /// @param run Run id.
    /// @param runHash What the run is (IRunTerms.runHash): another run that has its number gets neither node nor stake.
    /// @param role Worker or Validator.
    /// @param workClass Index into the run's classes; zero for validators.
    /// @param drawTip Tip of a validator's hash chain (see muster.protocol.draws.chain_preimages): keccak256 of its first
    /// link, which is for the hour of registration. Each link is keccak256 of that for the next hour. Zero for workers.
    /// @param deadline Second after which the consent is void.
    struct Registration {
        address node;
        uint32 run;
        bytes32 runHash;
        Role role;
        uint8 workClass;
        bytes32 drawTip;
        uint256 deadline;
    }

    /// @notice An ERC-2612 permit of the caller for this contract over `amount`.
    struct Permit {
        uint256 amount;
        uint256 deadline;
        uint8 v;
        bytes32 r;
        bytes32 s;
    }

    /// @param lock Token wei still locked.
    /// @param registeredAt Second of registration.
    /// @param retiredAt Second of retirement or conviction, whichever came first; zero while active.
    struct Node {
        address operator;
        uint32 run;
        Role role;
        uint8 workClass;
        Status status;
        uint40 registeredAt;
        uint96 lock;
        uint40 retiredAt;
        bytes32 drawTip;
    }

    // ------------------------------------------------------------------------------------------------------ events

    event Deposited(address indexed operator, uint256 amount);
    event FreeWithdrawn(address indexed operator, uint256 amount);
    event Registered(
        address indexed node,
        address indexed operator,
        uint32 indexed run,
        Role role,
        uint8 workClass,
        uint256 lock,
        bytes32 drawTip
    );
    event Retired(address indexed node, uint32 indexed run, uint256 withdrawableAt);
    event Withdrawn(address indexed node, address indexed operator, uint256 amount);
    /// @notice A node was convicted: `slashed` left its lock, `bounty` of it went to `beneficiary`'s free balance and the
    /// rest was burned, but for what the court keeps for judges.
    event Convicted(
        address indexed node, uint32 indexed run, uint256 slashed, uint256 bounty, address indexed beneficiary
    );
    /// @notice A node was fined: `amount` left its lock for the court's keeping.
    event Fined(address indexed node, uint32 indexed run, uint256 amount);
    /// @notice The court took `amount` from an operator's free balance into its keeping.
    event Held(address indexed operator, uint256 amount);
    /// @notice The court gave `amount` from its keeping to an operator's free balance.
    event Released(address indexed operator, uint256 amount);

    // ------------------------------------------------------------------------------------------------------ errors

    error ZeroAddress();
    error NotCourt(address caller);
    error NotOperator(address caller, address operator);
    error NodeKeyUsed(address node);
    error NodeNotRegistered(address node);
    error RoleUnknown();
    error ConsentExpired(uint256 deadline, uint256 timestamp);
    error ConsentNotByNode(address signer, address node);
    error ValidatorExists(address operator, uint32 run, address node);
    error DrawTipMissing(address node);
    error FreeBalanceShort(address operator, uint256 balance, uint256 needed);
    error HeldShort(uint256 held, uint256 needed);
    error NotActive(address node, Status status);
    error NotLeaving(address node, Status status);
    error StillUnbonding(address node, uint256 withdrawableAt, uint256 timestamp);
    error NothingLocked(address node);
    error CaseOpen(address node, uint256 openCases);
    error NotSlashable(address node, Status status);

    // ---------------------------------------------------------------------------------------------- operators' calls

    /// @notice Moves `amount` from the caller's wallet (allowance needed) to its free balance.
    function deposit(uint256 amount) external;

    /// @notice `deposit` with a permit instead of an allowance. A permit that was already submitted is no obstacle: the
    /// allowance that it left counts.
    function depositWithPermit(Permit calldata permit) external;

    /// @notice Moves `amount` from the caller's free balance to its wallet.
    function withdrawFree(uint256 amount) external;

    /// @notice Registers a node and locks the run's stake for its role out of the caller's free balance.
    /// @param consent EIP-712 signature by the node's key over Consent(operator, node, run, runHash, role, workClass,
    /// drawTip, deadline), where operator is the caller.
    function register(Registration calldata registration, bytes calldata consent) external;

    /// @notice `depositWithPermit` and `register` in one transaction; what exceeds the stake stays free.
    function registerWithPermit(Registration calldata registration, bytes calldata consent, Permit calldata permit)
        external;

    /// @notice Takes a node out of service for good and starts its unbonding.
    /// @notice Warning: a retired node stays slashable until its lock has been withdrawn.
    function retire(address key) external;

    /// @notice Pays what is left of a node's lock to its operator's wallet after unbonding, unless a case is open.
    /// Anyone may call it.
    function withdraw(address key) external;

    // ----------------------------------------------------------------------------------------------- the court's calls

    /// @notice Moves `amount` from an operator's free balance into the court's keeping. Only SlashCourt.
    function hold(address operator, uint256 amount) external;

    /// @notice Moves `amount` from the court's keeping to an operator's free balance. Only SlashCourt, which can never
    /// release more than it holds.
    function release(address operator, uint256 amount) external;

    /// @notice Moves `amount` of a node's lock, or what is left of it, into the court's keeping. Only SlashCourt.
    function fine(address key, uint256 amount) external returns (uint256 taken);

    /// @notice Burns `amount` of what the court keeps. Only SlashCourt.
    function burn(uint256 amount) external;

    /// @notice Takes an active node out of service as `retire` does; nothing happens to any other. Only SlashCourt.
    function expel(address key) external;

    /// @notice Jails a node and slashes its lock: a share to `beneficiary`'s free balance, `prize` into the court's
    /// keeping, or what is left if that is less, the rest burned. Once per node. Only SlashCourt.
    /// @param slashBps Share of the lock, in basis points.
    /// @param bountyBps Share of the slash, in basis points.
    /// @return bounty What went to the beneficiary.
    /// @return kept What went into the court's keeping.
    function convict(address key, uint256 slashBps, uint256 bountyBps, uint256 prize, address beneficiary)
        external
        returns (uint256 bounty, uint256 kept);

    // ------------------------------------------------------------------------------------------------------- views

    /// @notice Everything known about a node; `status` None for a key that never registered.
    function node(address key) external view returns (Node memory);

    /// @notice The operator of a node; reverts for a key that never registered.
    function operatorOf(address key) external view returns (address);

    /// @notice The validator node of an operator in a run, or zero. One per operator and run, ever.
    function validatorOf(address operator, uint32 run) external view returns (address);

    /// @notice How many validators of a run were active at `timestamp`.
    function validatorsAt(uint32 run, uint256 timestamp) external view returns (uint256);

    /// @notice Second in which an active validator of `run` registered; zero for any other key.
    function validatesSince(address key, uint32 run) external view returns (uint256);

    /// @notice Whether `key` was an active validator of `run` at `timestamp`.
    function wasValidator(address key, uint32 run, uint256 timestamp) external view returns (bool);

    /// @notice Second from which a node's lock can be withdrawn; zero while it is active.
    function withdrawableAt(address key) external view returns (uint256);

    function freeBalance(address operator) external view returns (uint256);

    /// @notice Sum of all locks, unbonding ones included.
    function totalLocked() external view returns (uint256);

    /// @notice Sum of all free balances.
    function totalFree() external view returns (uint256);

    /// @notice Sum of all case fees and jury deposits in the court's keeping. This contract's token balance is at least
    /// totalLocked + totalFree + totalHeld, and exactly that unless tokens were sent to it by mistake.
    function totalHeld() external view returns (uint256);

    /// @notice Hash the node's key signs for a registration by `operator`.
    function consentDigest(address operator, Registration calldata registration) external view returns (bytes32);

    /// @notice EIP-712 domain separator: name "Muster", version "1", this chain, this contract. The same domain signs
    /// the swarm's HTTP requests, receipts and verdicts.
    function domainSeparator() external view returns (bytes32);

    /// @notice Seconds between leaving and withdrawal: more than the 73 hours in which a case may be opened after a
    /// commitment, plus the longest case.
    function UNBONDING() external view returns (uint256);
}
