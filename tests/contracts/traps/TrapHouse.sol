// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRegistry } from "../../../contracts/interfaces/IRegistry.sol";
import { IRunTerms } from "../../../contracts/interfaces/IRunTerms.sol";
import { ISlashCourt } from "../../../contracts/interfaces/ISlashCourt.sol";
import { ITraps } from "../../../contracts/interfaces/ITraps.sol";
import { Draws } from "../../../contracts/libraries/Draws.sol";
import { House } from "../House.sol";

/// @title A run with traps: four validators that have sealed a day, a worker that planted, and their seals of that hour.
abstract contract TrapHouse is House {
    uint16 internal constant EVERY = 20;
    uint96 internal constant PRIZE = 12 ether;
    /// @dev What a rejection costs: PRIZE by EVERY; and what a commitment reserves: half more.
    uint96 internal constant FINE = 0.6 ether;
    uint96 internal constant PREMIUM = 0.9 ether;
    uint32 internal constant PLANTED = 7;
    uint32 internal constant TRUE_ROW = 8;
    bytes32 internal constant ROW_SALT = keccak256("row salt");
    bytes32 internal constant SIBLING = keccak256("the other rows");
    bytes32 internal constant FIRST_MASTER = keccak256(abi.encode(keccak256("trap master 138")));
    IRunTerms.Series internal constant TRAPS_SERIES = IRunTerms.Series.Traps;

    /// @dev The hour of the commitments, the index that the lottery picked, and how many there are.
    uint24 internal hour;
    uint32 internal trap;
    uint32 internal count;
    bytes32 internal entropy;

    function setUp() public virtual override {
        super.setUp();
        IRunTerms.Terms memory terms = _terms();
        terms.groupsPerCommitment = _groups();
        terms.commitmentsPerHour = 40; // entropy and links are known: one is called, two stand by
        (terms.trapEvery, terms.trapPrize, terms.trapEpochs, terms.trapEpochSteps) = (EVERY, PRIZE, 2, 1_000);
        terms.trapTip = keccak256(abi.encode(FIRST_MASTER));
        run = _createRun(terms);
        _fund(run, FUNDS);
        _open();
        for (uint24 h = _firstHour(); h < _firstHour() + 23; h++) {
            vm.warp((uint256(h) + 1) * 1 hours);
            for (uint256 i = 0; i < 4; i++) {
                if (_sealsHour(i, h)) _sealWith(i, h, 0, 0);
            }
        }
        hour = _firstHour() + 23;
        entropy = runs.checkpoint(run, 0).entropy;
        while (!_isPicked(trap)) trap++;
        for (count = 0; count < trap + 6; count++) {
            _commit(WORKER);
        }
        vm.warp((uint256(hour) + 1) * 1 hours);
    }

    /// @dev Of eight rows each, in a commitment.
    function _groups() internal pure virtual returns (uint16) {
        return 16;
    }

    /// @dev Whether validator i seals an hour of the day before.
    function _sealsHour(uint256, uint24) internal pure virtual returns (bool) {
        return true;
    }

    // ----------------------------------------------------------------------------------------------- lottery and calls

    function _isPicked(uint32 index) internal view returns (bool) {
        return Draws.isPicked(FIRST_MASTER, entropy, node(WORKER), index, EVERY);
    }

    function _call(uint256 i, uint32 index) internal view returns (uint256) {
        return Draws.callHash(_link(i, hour), entropy, node(WORKER), index);
    }

    function _isCalled(uint256 i, uint32 index) internal view returns (bool) {
        return _call(i, index) < type(uint256).max / 4 + 1;
    }

    /// @dev Whether it has a prize to wait for: its hash is below two of the four shares.
    function _standsBy(uint256 i) internal view returns (bool) {
        return !_isCalled(i, trap) && _call(i, trap) < type(uint256).max / 2 + 1;
    }

    /// @dev The first validator that stands by for the trap.
    function _standby() internal view returns (uint256 i) {
        while (!_standsBy(i)) i++;
    }

    /// @dev The first validator that is, or is not, called for the trap.
    function _first(bool called) internal view returns (uint256 i) {
        while (_isCalled(i, trap) != called) i++;
    }

    function _nextOf(uint256 i) internal view returns (uint32 next) {
        next = trap + 1;
        while (next < count && !_isCalled(i, next)) next++;
    }

    // --------------------------------------------------------------------------------------------------- statements

    function _target(uint32 index) internal pure returns (ISlashCourt.Target memory) {
        return ISlashCourt.Target(node(WORKER), index, 0, _root(WORKER, index));
    }

    function _leaf(uint32 index, uint32 position) internal pure returns (bytes32) {
        return keccak256(abi.encode(node(WORKER), index, _root(WORKER, index), position, keccak256("salt of a leaf")));
    }

    function _rejection(bytes32[] memory list) internal pure returns (bytes32) {
        return bytes32(bytes28(keccak256(abi.encodePacked(list)))) | bytes32(list.length);
    }

    function _listOf(uint32 index, uint32 position) internal pure returns (bytes32[] memory list) {
        list = new bytes32[](1);
        list[0] = _leaf(index, position);
    }

    function _finding(bytes32[] memory list, uint32 index, uint32 position)
        internal
        pure
        returns (ITraps.Finding memory)
    {
        return ITraps.Finding(_target(index), position, keccak256("salt of a leaf"), list, 0);
    }

    function _row() internal pure returns (ITraps.Row memory row) {
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = SIBLING;
        return ITraps.Row(PLANTED, 3, ROW_SALT, proof);
    }

    function _ticket() internal view returns (ITraps.Ticket memory) {
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(PLANTED, uint32(3), ROW_SALT))));
        return ITraps.Ticket(_pair(leaf, SIBLING), uint64(runs.commitment(node(WORKER), trap).committedAt - 1));
    }

    function _signed(uint256 key, uint32 index, ITraps.Ticket memory ticket) internal view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, traps.ticketDigest(_target(index), ticket));
        return abi.encodePacked(r, s, v);
    }

    // -------------------------------------------------------------------------------------------------------- steps

    function _sealWith(uint256 i, uint24 hour_, bytes32 vouched, bytes32 rejected) internal {
        vm.prank(node(i));
        runs.seal(run, hour_, vouched, rejected, _link(i, hour_));
    }

    function _vouchedLeaf(uint32 index) internal view returns (bytes32) {
        bytes32 plain = refutations.vouchLeaf(_target(index), runs.checkpoint(run, 0).anchor);
        return _pair(plain, keccak256("salt of a vouch"));
    }

    function _pair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    /// @dev Validator i vouches for the next commitment that it is called for, and rejects the trap for a row.
    function _sealTrap(uint256 i, uint32 position) internal {
        uint32 next = _nextOf(i);
        bytes32 vouched = next < count ? _vouchedLeaf(next) : bytes32(0);
        _sealWith(i, hour, vouched, _rejection(_listOf(trap, position)));
    }

    function _showTicket() internal {
        ITraps.Ticket memory ticket = _ticket();
        bytes memory byStorage = _signed(STORAGE, trap, ticket);
        bytes memory byNode = _signed(NODE + WORKER, trap, ticket);
        vm.prank(stranger);
        traps.showTicket(_target(trap), ticket, byStorage, byNode);
    }

    function _showMaster() internal {
        masters.revealMaster(run, TRAPS_SERIES, FIRST_MASTER);
    }

    function _other(uint256 i) internal view returns (ITraps.Other memory other) {
        uint32 next = _nextOf(i);
        if (next == count) return other;
        (other.target, other.vouched, other.salt) = (_target(next), true, keccak256("salt of a vouch"));
    }

    function _claim(uint256 i) internal {
        ITraps.Finding memory finding = _finding(_listOf(trap, PLANTED), trap, PLANTED);
        traps.claim(node(i), finding, _row(), _other(i));
    }

    function _expectNoClaim(uint256 i, bytes memory reason) internal {
        ITraps.Finding memory finding = _finding(_listOf(trap, PLANTED), trap, PLANTED);
        ITraps.Other memory other = _other(i);
        vm.expectRevert(reason);
        traps.claim(node(i), finding, _row(), other);
    }

    /// @dev As if a validator had earned it: slot 3 of Traps is what accounts are in.
    function _earn(uint256 i, uint256 amount) internal {
        _setAccount(i, amount, 0);
        vm.assertEq(traps.owed(node(i)), amount);
    }

    function _setAccount(uint256 i, uint256 credit, uint256 paid) internal {
        vm.store(address(traps), keccak256(abi.encode(node(i), uint256(3))), bytes32(credit | (paid << 112)));
    }

    function _close() internal {
        vm.startPrank(owner);
        runs.announceWithdrawal(run);
        vm.warp(block.timestamp + NOTICE);
        runs.close(run);
        vm.stopPrank();
    }

    function _endOfHour() internal view returns (uint256) {
        return (uint256(hour) + 1) * 1 hours;
    }

    /// @dev The run's reserve is what is not settled, and the pot: its part here and what commitments add.
    function _assertPotCovered() internal {
        traps.collect(node(WORKER));
        uint256 unsettled = uint256(count - runs.work(node(WORKER)).settled) * 1 ether;
        vm.assertEq(runs.runState(run).reserved, unsettled + traps.pot(run));
        _assertSolvent();
    }
}
