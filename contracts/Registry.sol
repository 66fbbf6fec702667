// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { SafeERC20 } from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { SafeCast } from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import { Checkpoints } from "@openzeppelin/contracts/utils/structs/Checkpoints.sol";
import { IMusterToken } from "./interfaces/IMusterToken.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRuns } from "./interfaces/IRuns.sol";

/// @title Identity and stake; see IRegistry.
contract Registry is IRegistry {
    using SafeCast for uint256;
    using SafeERC20 for IMusterToken;
    using Checkpoints for Checkpoints.Trace208;

    // ------------------------------------------------------------------------------------------------------- types

    /// @dev The sums of the books that change together.
    struct Books {
        uint128 locked;
        uint128 free;
    }

    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IRegistry
    /// @dev 73 hours in which a case may be opened after a commitment, two phases of at most 36 hours, and a margin.
    uint256 public constant UNBONDING = 7 days;

    uint256 private constant BASIS_POINTS = 10_000;

    /// @dev Of an EIP-712 domain that has a name, a version, a chain id and a contract, and no salt; see EIP-5267.
    bytes1 private constant DOMAIN_FIELDS = 0x0f;
    bytes32 private constant CONSENT_TYPEHASH = keccak256(
        "Consent(address operator,address node,uint32 run,bytes32 runHash,"
        "uint8 role,uint8 workClass,bytes32 drawTip,uint256 deadline)"
    );

    // -------------------------------------------------------------------------------------------------- immutables

    IMusterToken public immutable TOKEN;
    IRuns public immutable RUNS;
    address public immutable COURT;

    // ----------------------------------------------------------------------------------------------------- storage

    Books private _books;

    /// @inheritdoc IRegistry
    uint256 public totalHeld;

    /// @inheritdoc IRegistry
    mapping(address operator => uint256) public freeBalance;

    mapping(address key => Node) private _nodes;

    /// @inheritdoc IRegistry
    mapping(address operator => mapping(uint32 run => address)) public validatorOf;

    mapping(uint32 run => Checkpoints.Trace208) private _validators;

    // ------------------------------------------------------------------------------------------------- constructor

    /// @param token The money.
    /// @param runs Where Runs is going to be: the contracts name each other, so their addresses are computed first.
    /// @param court Where SlashCourt is going to be.
    constructor(IMusterToken token, IRuns runs, address court) {
        require(address(token) != address(0) && address(runs) != address(0) && court != address(0), ZeroAddress());
        TOKEN = token;
        RUNS = runs;
        COURT = court;
    }

    modifier onlyCourt() {
        _onlyCourt();
        _;
    }

    // ---------------------------------------------------------------------------------------------- operators' calls

    /// @inheritdoc IRegistry
    function deposit(uint256 amount) external {
        _pull(amount);
        _credit(msg.sender, amount);
        emit Deposited(msg.sender, amount);
    }

    /// @inheritdoc IRegistry
    function depositWithPermit(Permit calldata permit) external {
        _usePermit(permit);
        _pull(permit.amount);
        _credit(msg.sender, permit.amount);
        emit Deposited(msg.sender, permit.amount);
    }

    /// @inheritdoc IRegistry
    function withdrawFree(uint256 amount) external {
        _debit(msg.sender, amount);
        emit FreeWithdrawn(msg.sender, amount);

        TOKEN.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IRegistry
    function register(Registration calldata registration, bytes calldata consent) external {
        _register(registration, consent, 0);
    }

    /// @inheritdoc IRegistry
    function registerWithPermit(Registration calldata registration, bytes calldata consent, Permit calldata permit)
        external
    {
        _usePermit(permit);
        _pull(permit.amount);
        emit Deposited(msg.sender, permit.amount);
        _register(registration, consent, permit.amount);
    }

    /// @inheritdoc IRegistry
    function retire(address key) external {
        Node storage node_ = _nodes[key];

        // Check.
        require(node_.operator == msg.sender, NotOperator(msg.sender, node_.operator));
        require(node_.status == Status.Active, NotActive(key, node_.status));

        // Effect and interaction.
        _leave(key, node_);
    }

    /// @inheritdoc IRegistry
    function withdraw(address key) external {
        Node storage node_ = _nodes[key];

        // Check: it has left, long enough ago, and no case is open against it.
        Status status = node_.status;
        require(status == Status.Retired || status == Status.Jailed, NotLeaving(key, status));
        uint256 readyAt = node_.retiredAt + UNBONDING;
        require(block.timestamp >= readyAt, StillUnbonding(key, readyAt, block.timestamp));
        uint256 openCases = RUNS.openCases(key);
        require(openCases == 0, CaseOpen(key, openCases));
        uint256 amount = node_.lock;
        require(amount != 0, NothingLocked(key));

        // Effect. A jailed key stays jailed, with nothing left.
        address operator = node_.operator;
        node_.lock = 0;
        if (status == Status.Retired) node_.status = Status.Withdrawn;
        _books.locked -= uint128(amount);
        emit Withdrawn(key, operator, amount);

        // Interaction.
        TOKEN.safeTransfer(operator, amount);
    }

    // ----------------------------------------------------------------------------------------------- the court's calls

    /// @inheritdoc IRegistry
    function hold(address operator, uint256 amount) external onlyCourt {
        _debit(operator, amount);
        totalHeld += amount;
        emit Held(operator, amount);
    }

    /// @inheritdoc IRegistry
    function release(address operator, uint256 amount) external onlyCourt {
        _unhold(amount);
        _credit(operator, amount);
        emit Released(operator, amount);
    }

    /// @inheritdoc IRegistry
    function fine(address key, uint256 amount) external onlyCourt returns (uint256 taken) {
        Node storage node_ = _nodes[key];

        // Check.
        _requireBound(key, node_.status);

        // Effect.
        taken = Math.min(amount, node_.lock);
        node_.lock -= uint96(taken);
        _books.locked -= uint128(taken);
        totalHeld += taken;
        emit Fined(key, node_.run, taken);
    }

    /// @inheritdoc IRegistry
    function burn(uint256 amount) external onlyCourt {
        _unhold(amount);
        TOKEN.burn(amount);
    }

    /// @inheritdoc IRegistry
    function expel(address key) external onlyCourt {
        Node storage node_ = _nodes[key];
        if (node_.status == Status.Active) _leave(key, node_);
    }

    /// @inheritdoc IRegistry
    function convict(address key, uint256 slashBps, uint256 bountyBps, uint256 prize, address beneficiary)
        external
        onlyCourt
        returns (uint256 bounty, uint256 kept)
    {
        Node storage node_ = _nodes[key];

        // Check.
        Status status = node_.status;
        _requireBound(key, status);

        // Effect: the lock falls once, by at most the fraction.
        uint256 lock = node_.lock;
        uint256 slashed = lock * slashBps / BASIS_POINTS;
        bounty = slashed * bountyBps / BASIS_POINTS;
        kept = Math.min(prize, slashed - bounty);
        node_.lock = uint96(lock - slashed);
        node_.status = Status.Jailed;
        if (status == Status.Active) node_.retiredAt = uint40(block.timestamp);
        freeBalance[beneficiary] += bounty;
        Books memory books = _books;
        _books = Books({ locked: books.locked - uint128(slashed), free: books.free + uint128(bounty) });
        if (kept != 0) totalHeld += kept;
        emit Convicted(key, node_.run, slashed, bounty, beneficiary);

        // Interaction.
        if (status == Status.Active && node_.role == Role.Validator) _removeValidator(node_.run);
        TOKEN.burn(slashed - bounty - kept);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IRegistry
    function node(address key) external view returns (Node memory) {
        return _nodes[key];
    }

    /// @inheritdoc IRegistry
    function operatorOf(address key) external view returns (address operator) {
        operator = _nodes[key].operator;
        require(operator != address(0), NodeNotRegistered(key));
    }

    /// @inheritdoc IRegistry
    function validatorsAt(uint32 run, uint256 timestamp) external view returns (uint256) {
        return _validators[run].upperLookup(timestamp.toUint48());
    }

    /// @inheritdoc IRegistry
    function validatesSince(address key, uint32 run) external view returns (uint256) {
        Node storage node_ = _nodes[key];
        bool validates = node_.role == Role.Validator && node_.status == Status.Active && node_.run == run;
        return validates ? node_.registeredAt : 0;
    }

    /// @inheritdoc IRegistry
    function wasValidator(address key, uint32 run, uint256 timestamp) external view returns (bool) {
        Node storage node_ = _nodes[key];
        if (node_.role != Role.Validator || node_.run != run || node_.registeredAt > timestamp) return false;
        return node_.retiredAt == 0 || node_.retiredAt > timestamp;
    }

    /// @inheritdoc IRegistry
    function withdrawableAt(address key) external view returns (uint256) {
        uint256 retiredAt = _nodes[key].retiredAt;
        return retiredAt == 0 ? 0 : retiredAt + UNBONDING;
    }

    /// @inheritdoc IRegistry
    function totalLocked() external view returns (uint256) {
        return _books.locked;
    }

    /// @inheritdoc IRegistry
    function totalFree() external view returns (uint256) {
        return _books.free;
    }

    /// @inheritdoc IRegistry
    function consentDigest(address operator, Registration calldata registration) public view returns (bytes32) {
        // A Consent has the fields of a Registration, in their order, after the operator.
        bytes32 hash = keccak256(abi.encode(CONSENT_TYPEHASH, operator, registration));
        return MessageHashUtils.toTypedDataHash(domainSeparator(), hash);
    }

    /// @inheritdoc IRegistry
    /// @dev Not kept: on a fork that has another chain id, what was signed for this chain is void.
    function domainSeparator() public view returns (bytes32) {
        return MessageHashUtils.toDomainSeparator(
            DOMAIN_FIELDS, keccak256("Muster"), keccak256("1"), block.chainid, address(this), 0
        );
    }

    // ---------------------------------------------------------------------------------------------------- internal

    /// @dev Registers a node; `incoming` tokens have just arrived and are in no book yet.
    function _register(Registration calldata registration, bytes calldata consent, uint256 incoming) private {
        address key = registration.node;

        // Check.
        require(registration.role != Role.None, RoleUnknown());
        require(_nodes[key].status == Status.None, NodeKeyUsed(key));
        _checkConsent(registration, consent);

        // Interaction: Runs, which is one of us, judges the registration and names the stake.
        uint256 stake = registration.role == Role.Worker
            ? RUNS.enrolWorker(registration.run, registration.runHash, key, msg.sender, registration.workClass)
            : RUNS.enrolValidator(registration.run, registration.runHash, key, msg.sender);

        // Effect.
        _lock(stake, incoming);
        Node storage node_ = _nodes[key];
        node_.operator = msg.sender;
        node_.run = registration.run;
        node_.role = registration.role;
        node_.workClass = registration.workClass;
        node_.status = Status.Active;
        node_.registeredAt = uint40(block.timestamp);
        node_.lock = stake.toUint96();
        if (registration.role == Role.Validator) _addValidator(registration);
        emit Registered(
            key, msg.sender, registration.run, registration.role, registration.workClass, stake, registration.drawTip
        );
    }

    function _addValidator(Registration calldata registration) private {
        address existing = validatorOf[msg.sender][registration.run];
        require(existing == address(0), ValidatorExists(msg.sender, registration.run, existing));
        require(registration.drawTip != bytes32(0), DrawTipMissing(registration.node));
        validatorOf[msg.sender][registration.run] = registration.node;
        _nodes[registration.node].drawTip = registration.drawTip;
        Checkpoints.Trace208 storage trace = _validators[registration.run];
        trace.push(uint48(block.timestamp), trace.latest() + 1);
    }

    /// @dev Takes an active node out of service.
    function _leave(address key, Node storage node_) private {
        // Effect.
        uint32 run = node_.run;
        node_.status = Status.Retired;
        node_.retiredAt = uint40(block.timestamp);
        emit Retired(key, run, block.timestamp + UNBONDING);

        // Interaction.
        if (node_.role == Role.Worker) RUNS.leaveWorker(key);
        else _removeValidator(run);
    }

    function _removeValidator(uint32 run) private {
        Checkpoints.Trace208 storage trace = _validators[run];
        trace.push(uint48(block.timestamp), trace.latest() - 1);
        RUNS.leaveValidator(run);
    }

    /// @dev Moves `stake` of the caller's free balance and of `incoming` into the locks; the rest becomes free.
    function _lock(uint256 stake, uint256 incoming) private {
        uint256 free = freeBalance[msg.sender];
        require(free + incoming >= stake, FreeBalanceShort(msg.sender, free + incoming, stake));
        if (incoming != stake) freeBalance[msg.sender] = free + incoming - stake;
        Books memory books = _books;
        _books = Books({ locked: books.locked + stake.toUint128(), free: (books.free + incoming - stake).toUint128() });
    }

    function _credit(address operator, uint256 amount) private {
        freeBalance[operator] += amount;
        _books.free += amount.toUint128();
    }

    function _unhold(uint256 amount) private {
        require(amount <= totalHeld, HeldShort(totalHeld, amount));
        totalHeld -= amount;
    }

    function _debit(address operator, uint256 amount) private {
        uint256 balance = freeBalance[operator];
        require(balance >= amount, FreeBalanceShort(operator, balance, amount));
        freeBalance[operator] = balance - amount;
        _books.free -= amount.toUint128();
    }

    function _pull(uint256 amount) private {
        TOKEN.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @dev A permit that was submitted before has left its allowance, so its failure here is ignored.
    function _usePermit(Permit calldata permit) private {
        try TOKEN.permit(msg.sender, address(this), permit.amount, permit.deadline, permit.v, permit.r, permit.s) { }
            catch { }
    }

    function _checkConsent(Registration calldata registration, bytes calldata consent) private view {
        require(block.timestamp <= registration.deadline, ConsentExpired(registration.deadline, block.timestamp));
        address signer = ECDSA.recoverCalldata(consentDigest(msg.sender, registration), consent);
        require(signer == registration.node, ConsentNotByNode(signer, registration.node));
    }

    /// @dev Its lock is still there.
    function _requireBound(address key, Status status) private pure {
        require(status == Status.Active || status == Status.Retired, NotSlashable(key, status));
    }

    function _onlyCourt() private view {
        require(msg.sender == COURT, NotCourt(msg.sender));
    }
}
