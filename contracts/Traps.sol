// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { Hashes } from "@openzeppelin/contracts/utils/cryptography/Hashes.sol";
import { MerkleProof } from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { SafeCast } from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import { IMasters } from "./interfaces/IMasters.sol";
import { IRefutations } from "./interfaces/IRefutations.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { ISlashCourt, SAMPLING_MISMATCH } from "./interfaces/ISlashCourt.sol";
import { ITraps } from "./interfaces/ITraps.sol";
import { Draws } from "./libraries/Draws.sol";
import { Epochs } from "./libraries/Epochs.sol";
import { TermBounds } from "./libraries/TermBounds.sol";
import { Windows } from "./libraries/Windows.sol";

/// @title What looking pays; see ITraps.
contract Traps is ITraps {
    using SafeCast for uint256;

    // ------------------------------------------------------------------------------------------------------- types

    /// @dev A commitment, and what a validator that sealed its hour in time has to do with it.
    struct Look {
        uint32 run;
        uint24 hour;
        uint256 epoch;
        bytes32 entropy;
        bytes32 link;
        uint256 validators;
        uint256 prize;
        IRunTerms.TrapTerms terms;
    }

    /// @dev What prizes of a run are paid out of: what came in, and what of it was asked for and has left.
    struct Pot {
        uint128 income;
        uint128 asked;
        uint128 left;
    }

    /// @dev What a validator asked for and waits for: it is paid when all that was asked for up to then has come in.
    struct Wait {
        uint128 amount;
        uint128 until;
    }

    /// @dev Who found a trap: whether one that was called did; and who of the others has the lowest hash, and its prize.
    /// `rank` is that hash from above, so that nobody's is zero.
    struct Found {
        bool called;
        address lowest;
        uint88 prize;
        uint256 rank;
    }

    // --------------------------------------------------------------------------------------------------- constants

    bytes32 private constant TICKET_TYPEHASH =
        keccak256("Ticket(uint32 run,address node,uint32 index,bytes32 root,bytes32 mapRoot,uint64 storedAt)");
    uint256 private constant PRIZE_HOURS = 24;
    /// @dev Whoever looks is paid only below this many shares: else looking before one's turn would pay, at others' cost.
    uint256 private constant STANDBY_SHARES = 2;
    uint256 private constant RELEASE_REST = 7 days;
    /// @dev Bits of `_marks`.
    uint256 private constant PAID = 1;
    uint256 private constant EXCUSED = 2;
    /// @dev In `_sharers`, of who had its share.
    uint256 private constant SHARED = type(uint256).max;

    // -------------------------------------------------------------------------------------------------- immutables

    IRuns public immutable RUNS;
    IMasters public immutable MASTERS;
    ISlashCourt public immutable COURT;
    IRefutations public immutable REFUTATIONS;
    IRegistry public immutable REGISTRY;
    IRunTerms public immutable TERMS;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc ITraps
    mapping(address node => mapping(uint32 index => bytes32)) public mapRoot;
    mapping(uint32 run => Pot) private _pots;
    /// @dev Commitments of a node whose premium is in the pot.
    mapping(address node => uint32) private _collected;
    mapping(address validator => Account) private _accounts;
    mapping(address validator => Wait) private _waits;
    mapping(address validator => mapping(address node => mapping(uint32 index => uint256))) private _marks;
    mapping(address node => mapping(uint32 index => Found)) private _found;
    /// @dev How many share a case's bounty, and each one's number among them, from 1.
    mapping(uint256 caseId => uint256) private _shares;
    mapping(uint256 caseId => mapping(address validator => uint256)) private _sharers;
    /// @dev Commitments of a node below this index are paid for to the validator as withheld.
    mapping(address validator => mapping(address node => uint32)) private _withheld;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(
        IRegistry registry,
        IRuns runs,
        IRunTerms terms,
        IMasters masters,
        ISlashCourt court,
        IRefutations refutations
    ) {
        require(address(registry) != address(0) && address(runs) != address(0), ZeroAddress());
        require(address(terms) != address(0) && address(masters) != address(0), ZeroAddress());
        require(address(court) != address(0) && address(refutations) != address(0), ZeroAddress());
        RUNS = runs;
        MASTERS = masters;
        COURT = court;
        REFUTATIONS = refutations;
        REGISTRY = registry;
        TERMS = terms;
    }

    // ---------------------------------------------------------------------------------------------- a node's ticket

    /// @inheritdoc ITraps
    function showTicket(
        ISlashCourt.Target calldata target,
        Ticket calldata ticket,
        bytes calldata byStorage,
        bytes calldata byNode
    ) external {
        // Check.
        uint32 run = RUNS.work(target.node).run;
        _trapsOf(run);
        uint256 committedAt = _committedAt(target);
        require(ticket.storedAt < committedAt, TicketTooLate(ticket.storedAt, committedAt));
        require(mapRoot[target.node][target.index] == 0, TicketKnown(target.node, target.index));
        bytes32 digest = ticketDigest(target, ticket);
        address storageKey = TERMS.storageKeyAt(run, ticket.storedAt);
        address signer = ECDSA.recoverCalldata(digest, byStorage);
        require(signer == storageKey, TicketNotBy(signer, storageKey));
        signer = ECDSA.recoverCalldata(digest, byNode);
        require(signer == target.node, TicketNotBy(signer, target.node));

        // Effect.
        mapRoot[target.node][target.index] = ticket.mapRoot;
        emit TicketShown(target.node, target.index, ticket.mapRoot);
    }

    /// @inheritdoc ITraps
    function dismiss(uint256 caseId, Row calldata row) external {
        ISlashCourt.Case memory case_ = COURT.caseOf(caseId);
        require(case_.kind == SAMPLING_MISMATCH, NotSampling(caseId, case_.kind));
        _checkInMap(case_.node, case_.index, case_.position, row);

        COURT.dismissTrap(caseId);
    }

    // --------------------------------------------------------------------------------------------- a validator's account

    /// @inheritdoc ITraps
    function claim(address validator, Finding calldata finding, Row calldata row, Other calldata next) external {
        (address node, uint32 index) = (finding.target.node, finding.target.index);

        // Check.
        Look memory look = _look(validator, finding.target);
        uint256 ended = Windows.claimsEndAt(look.hour);
        require(block.timestamp < ended, ClaimsOver(ended, block.timestamp));
        _checkPicked(look, node, index);
        require(_isCalled(look, node, index, STANDBY_SHARES), NotCalled(validator, node, index));
        _checkRejected(validator, look.hour, finding);
        _checkInMap(node, index, finding.position, row);
        _checkNext(validator, look, finding, next);

        // Effect.
        _mark(validator, node, index, PAID);
        if (_marks[validator][node][index] & EXCUSED == 0) _excuse(validator, node, index);
        Found storage found = _found[node][index];
        if (_isCalled(look, node, index, 1)) {
            found.called = true;
            _reward(validator, node, index, look.prize);
        } else if (~_call(look, node, index) > found.rank) {
            found.rank = ~_call(look, node, index);
            (found.lowest, found.prize) = (validator, look.prize.toUint88());
        }
        collect(node);
    }

    /// @inheritdoc ITraps
    function settle(address node, uint32 index) external {
        _requireClaimsOver(Windows.hourOf(RUNS.commitment(node, index).committedAt));
        Found storage found = _found[node][index];
        require(!found.called && found.lowest != address(0), NothingOwed(node));

        found.called = true;
        _reward(found.lowest, node, index, found.prize);
    }

    /// @inheritdoc ITraps
    function excuse(address validator, Finding calldata finding, uint256 caseId) external {
        (address node, uint32 index) = (finding.target.node, finding.target.index);
        _checkRejected(validator, Windows.hourOf(_committedAt(finding.target)), finding);
        ISlashCourt.Case memory case_ = COURT.caseOf(caseId);
        bool founded = mapRoot[node][index] != 0 || (case_.node == node && case_.index == index)
            || REGISTRY.node(node).status == IRegistry.Status.Jailed;
        require(founded, NothingToExcuse(validator, node, index));

        _excuse(validator, node, index);
    }

    /// @inheritdoc ITraps
    function claimUnticketed(address validator, ISlashCourt.Target calldata target) external {
        // Check.
        Look memory look = _look(validator, target);
        _requireClaimsOver(look.hour);
        _checkPicked(look, target.node, target.index);
        require(_isCalled(look, target.node, target.index, 1), NotCalled(validator, target.node, target.index));
        require(mapRoot[target.node][target.index] == 0, TicketKnown(target.node, target.index));

        // Effect.
        _mark(validator, target.node, target.index, PAID);
        _pay(validator, target.node, target.index, target.index, look.prize * 3 / 4);
    }

    /// @inheritdoc ITraps
    function claimWithheld(address validator, ISlashCourt.Target calldata first, ISlashCourt.Target calldata last)
        external
    {
        (address node, uint32 from, uint32 through) = (first.node, first.index, last.index);

        // Check: hours and steps rise with the index, so that all between are of the same.
        Look memory look = _look(validator, first);
        Look memory end = _look(validator, last);
        bool one = node == last.node && from <= through && look.hour == end.hour && look.epoch == end.epoch;
        require(one, NotOneHour(from, through));
        uint256 dueAt = Windows.mastersDueAt(look.hour);
        require(block.timestamp >= dueAt, TooEarly(dueAt, block.timestamp));
        require(_masterOf(look) == 0, MasterNotWithheld(look.run, first.step));
        require(from >= _withheld[validator][node], AlreadyPaid(validator, node, from));

        // Effect.
        _withheld[validator][node] = through + 1;
        uint256 premiums = _premiums(RUNS.work(node), from, uint256(through) + 1);
        _pay(validator, node, from, through, premiums / look.validators);
    }

    /// @inheritdoc ITraps
    function shareBounty(address validator, Finding calldata finding, uint256 caseId) external {
        (address node, uint32 index) = (finding.target.node, finding.target.index);

        // Check. Only a case that ended guilty has a second at which its bounty is paid.
        Look memory look = _look(validator, finding.target);
        ISlashCourt.Case memory case_ = COURT.caseOf(caseId);
        uint256 closesAt = COURT.bountyOf(caseId).closesAt;
        require(case_.node == node && case_.index == index, OtherCommitment(caseId, node, index));
        require(block.timestamp < closesAt, SharesClosed(caseId, closesAt));
        bool entitled = validator == case_.challenger || _isCalled(look, node, index, STANDBY_SHARES);
        require(entitled, NotCalled(validator, node, index));
        _checkRejected(validator, look.hour, finding);
        require(_sharers[caseId][validator] == 0, AlreadyPaid(validator, node, index));

        // Effect.
        _sharers[caseId][validator] = ++_shares[caseId];
        emit BountyShared(caseId, validator);
    }

    /// @inheritdoc ITraps
    function takeBounty(address validator, uint256 caseId) external returns (uint256 amount) {
        ISlashCourt.Bounty memory bounty = COURT.bountyOf(caseId);
        (uint256 shares, uint256 number) = (_shares[caseId], _sharers[caseId][validator]);
        if (shares == 0 && number == 0 && validator == COURT.caseOf(caseId).challenger) (shares, number) = (1, 1);

        // Check.
        require(block.timestamp >= bounty.closesAt, TooEarly(bounty.closesAt, block.timestamp));
        require(number != 0 && number <= shares && bounty.left != 0, NothingOwed(validator));
        (uint256 earned, uint256 due) = _accountOf(validator);
        require(earned >= due, FinesOwed(validator, due, earned));

        // Effect: numbers share what does not divide as well.
        _sharers[caseId][validator] = SHARED;
        amount = bounty.amount * number / shares - bounty.amount * (number - 1) / shares;

        COURT.payBounty(caseId, validator, amount);
    }

    /// @inheritdoc ITraps
    function withdraw(address validator) external returns (uint256 amount) {
        IRegistry.Node memory node = REGISTRY.node(validator);
        Pot storage pot_ = _potOf(node.run);
        Wait storage wait = _waits[validator];
        uint256 due = owed(validator);
        require(due != 0, NothingOwed(validator));

        // Effect: it takes its place behind all that was asked for before, and is paid as far as what came in reaches it.
        if (wait.amount == 0) {
            pot_.asked += uint128(due);
            (wait.amount, wait.until) = (uint128(due), pot_.asked);
        }
        uint256 reached = Math.saturatingSub(uint256(pot_.income) + wait.amount, wait.until);
        amount = Math.min(Math.min(due, wait.amount), reached);
        wait.amount -= uint128(amount);
        _accounts[validator].paid += uint112(amount);
        pot_.left += uint128(amount);
        emit Withdrawn(validator, amount);

        RUNS.payPrize(node.run, node.operator, amount);
    }

    // ------------------------------------------------------------------------------------------------------- the pot

    /// @inheritdoc ITraps
    function collect(address node) public {
        IRuns.Work memory work = RUNS.work(node);
        _potOf(work.run).income += uint128(_premiums(work, _collected[node], work.next));
        _collected[node] = work.next;
    }

    /// @inheritdoc ITraps
    function release(uint32 run) external {
        uint256 closedAt = RUNS.runInfo(run).closedAt;
        uint256 readyAt = closedAt == 0 ? type(uint256).max : closedAt + RELEASE_REST;
        require(block.timestamp >= readyAt, TooEarly(readyAt, block.timestamp));

        Pot storage pot_ = _potOf(run);
        uint256 amount = Math.saturatingSub(pot_.income, pot_.asked);
        pot_.asked += uint128(amount);
        pot_.left += uint128(amount);

        RUNS.releasePot(run, amount);
    }

    // ------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc ITraps
    function pot(uint32 run) external view returns (uint256) {
        return _pots[run].income - _pots[run].left;
    }

    /// @inheritdoc ITraps
    function account(address validator) external view returns (Account memory) {
        return _accounts[validator];
    }

    /// @inheritdoc ITraps
    function owed(address validator) public view returns (uint256) {
        (uint256 earned, uint256 due) = _accountOf(validator);
        return Math.saturatingSub(earned, due);
    }

    /// @inheritdoc ITraps
    function ticketDigest(ISlashCourt.Target calldata target, Ticket calldata ticket) public view returns (bytes32) {
        bytes32 hash = keccak256(
            abi.encode(
                TICKET_TYPEHASH,
                RUNS.work(target.node).run,
                target.node,
                target.index,
                target.root,
                ticket.mapRoot,
                ticket.storedAt
            )
        );
        return MessageHashUtils.toTypedDataHash(REGISTRY.domainSeparator(), hash);
    }

    // ----------------------------------------------------------------------------------------------------- internal

    /// @dev The validator served when the work was committed, sealed its hour in time, and has not made it itself.
    function _look(address validator, ISlashCourt.Target calldata target) private view returns (Look memory look) {
        uint256 committedAt = _committedAt(target);
        address node = target.node;
        (look.run,, look.entropy) = RUNS.drawSource(node);
        look.terms = _trapsOf(look.run);
        look.hour = Windows.hourOf(committedAt);
        bool own = REGISTRY.operatorOf(validator) == REGISTRY.operatorOf(node);
        require(!own && REGISTRY.wasValidator(validator, look.run, committedAt), NotInspector(validator, node));

        IRuns.Sealer memory sealer = RUNS.sealerOf(validator);
        require(sealer.lastSealed >= look.hour, NotSealed(validator, look.hour));
        uint256 sealed_ = uint256(sealer.inTime) >> (sealer.lastSealed - look.hour);
        require(sealed_ & 1 != 0, NotSealed(validator, look.hour));
        look.link = RUNS.linkOf(validator, look.hour);

        look.epoch = Epochs.begun(uint256(target.step) + 1, look.terms.epochSteps, look.terms.epochs);
        look.validators = REGISTRY.validatorsAt(look.run, committedAt);
        uint256 prize = uint256(look.terms.prize) * RUNS.work(node).pay / look.terms.pay;
        look.prize = prize * _count(sealed_) / PRIZE_HOURS;
    }

    /// @return earned What a validator was credited with.
    /// @return due What of it was paid, and what it is fined.
    function _accountOf(address validator) private view returns (uint256 earned, uint256 due) {
        Account memory account_ = _accounts[validator];
        IRunTerms.TrapTerms memory terms = TERMS.trapTerms(REGISTRY.node(validator).run);
        if (terms.every == 0) return (0, 0);
        uint256 costly = RUNS.sealerOf(validator).rejected - account_.excused;
        return (account_.credit, account_.paid + costly * terms.prize / terms.every);
    }

    function _trapsOf(uint32 run) private view returns (IRunTerms.TrapTerms memory terms) {
        terms = TERMS.trapTerms(run);
        require(terms.every != 0, NoTraps(run));
    }

    function _committedAt(ISlashCourt.Target calldata t) private view returns (uint256) {
        require(RUNS.isCommitted(t.node, t.index, t.step, t.root), NotCommitted(t.node, t.index, t.step, t.root));
        return RUNS.commitment(t.node, t.index).committedAt;
    }

    /// @dev How many of the last hours were sealed in time.
    function _count(uint256 sealed_) private pure returns (uint256 count) {
        for (uint256 i = 0; i < PRIZE_HOURS; i++) {
            count += (sealed_ >> i) & 1;
        }
    }

    /// @dev The master of its epoch, if it was shown in time; else zero.
    function _masterOf(Look memory look) private view returns (bytes32) {
        IMasters.Master memory master = MASTERS.masterOf(look.run, IRunTerms.Series.Traps, look.epoch);
        return master.shownAt < Windows.mastersDueAt(look.hour) ? master.master : bytes32(0);
    }

    function _checkPicked(Look memory look, address node, uint32 index) private view {
        bytes32 master = _masterOf(look);
        bool picked = master != 0 && Draws.isPicked(master, look.entropy, node, index, look.terms.every);
        require(picked, NotPicked(node, index));
    }

    /// @dev The list is what was sealed, as long as was said then, and the finding is in it.
    function _checkRejected(address validator, uint24 hour, Finding calldata finding) private view {
        (ISlashCourt.Target calldata target, bytes32[] calldata list) = (finding.target, finding.rejected);
        bytes32 sealed_ = RUNS.rejections(validator, hour);
        bool whole =
            list.length == uint32(uint256(sealed_)) && bytes28(keccak256(abi.encodePacked(list))) == bytes28(sealed_);
        bool in_ = whole && _isListed(list, finding.place, target, finding.position, finding.salt);
        require(in_, NotRejected(validator, target.node, target.index));
    }

    function _isListed(
        bytes32[] calldata list,
        uint256 place,
        ISlashCourt.Target calldata target,
        uint32 position,
        bytes32 salt
    ) private pure returns (bool) {
        bytes32 leaf = keccak256(abi.encode(target.node, target.index, target.root, position, salt));
        return place < list.length && list[place] == leaf;
    }

    /// @dev The row is one that the node planted: under the map's root, which no more rows fit under than a map has. A case
    /// that names no row of the commitment cannot be answered.
    function _checkInMap(address node, uint32 index, uint32 position, Row calldata row) private view {
        IRunTerms.DrawTerms memory terms = TERMS.drawTerms(node);
        uint256 rows = uint256(terms.groupSize) * terms.groupsPerCommitment;
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(row.position, row.token, row.salt))));
        bytes32 root = mapRoot[node][index];
        uint256 depth = Math.log2(rows / 8, Math.Rounding.Ceil);
        bool planted = root != 0 && row.position == position && position < rows && row.proof.length <= depth
            && MerkleProof.verifyCalldata(row.proof, root, leaf);
        require(planted, NotInMap(node, index, position));
    }

    /// @dev Who seals only what it finds is paid nothing: it shows what it made of the next commitment that it was called for.
    function _checkNext(address validator, Look memory look, Finding calldata finding, Other calldata other)
        private
        view
    {
        address node = finding.target.node;
        uint32 next = finding.target.index + 1;
        uint32 end = RUNS.work(node).next;
        while (next < end && !_isCalled(look, node, next, 1)) next++;
        if (next == end || Windows.hourOf(RUNS.commitment(node, next).committedAt) != look.hour) return;

        ISlashCourt.Target calldata target = other.target;
        bool shown =
            target.node == node && target.index == next && RUNS.isCommitted(node, next, target.step, target.root);
        if (shown && other.vouched) {
            bytes32 anchor = RUNS.checkpoint(look.run, target.step).anchor;
            bytes32 leaf = Hashes.commutativeKeccak256(REFUTATIONS.vouchLeaf(target, anchor), other.salt);
            shown = MerkleProof.verifyCalldata(other.proof, RUNS.vouchRoot(validator, look.hour), leaf);
        } else if (shown) {
            shown = _isListed(finding.rejected, other.place, target, other.position, other.salt);
        }
        require(shown, NextLeafMissing(validator, node, next));
    }

    function _isCalled(Look memory look, address node, uint32 index, uint256 shares) private pure returns (bool) {
        return Draws.isCalled(_call(look, node, index), look.validators, shares * look.terms.accepts);
    }

    function _call(Look memory look, address node, uint32 index) private pure returns (uint256) {
        return Draws.callHash(look.link, look.entropy, node, index);
    }

    function _requireClaimsOver(uint24 hour) private view {
        uint256 ended = Windows.claimsEndAt(hour);
        require(block.timestamp >= ended, TooEarly(ended, block.timestamp));
    }

    function _mark(address validator, address node, uint32 index, uint256 bit) private {
        require(_marks[validator][node][index] & bit == 0, AlreadyPaid(validator, node, index));
        _marks[validator][node][index] |= bit;
    }

    function _excuse(address validator, address node, uint32 index) private {
        _mark(validator, node, index, EXCUSED);
        _accounts[validator].excused++;
        emit Excused(validator, node, index);
    }

    function _reward(address validator, address node, uint32 index, uint256 prize) private {
        _accounts[validator].credit += prize.toUint112();
        emit TrapFound(validator, node, index, prize);
    }

    function _pay(address validator, address node, uint32 from, uint32 through, uint256 amount) private {
        _accounts[validator].credit += amount.toUint112();
        emit LookPaid(validator, node, from, through, amount);
    }

    /// @dev The pot of a run, which begins with what the first checkpoint reserved.
    function _potOf(uint32 run) private returns (Pot storage pot_) {
        pot_ = _pots[run];
        if (pot_.income == 0 && RUNS.runState(run).steps != 0) {
            pot_.income = uint128(TERMS.firstPrizes(run));
        }
    }

    /// @dev What commitments `first` to `end`, less the last, reserved.
    function _premiums(IRuns.Work memory work, uint256 first, uint256 end) private pure returns (uint256) {
        return uint256(work.pay) * work.premiumBps / TermBounds.BASIS_POINTS * Draws.weight(first, end);
    }
}
