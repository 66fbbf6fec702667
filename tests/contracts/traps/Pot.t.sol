// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Math } from "@openzeppelin/contracts/utils/math/Math.sol";
import { ITraps } from "../../../contracts/interfaces/ITraps.sol";
import { Draws } from "../../../contracts/libraries/Draws.sol";
import { TrapHouse } from "./TrapHouse.sol";

/// @title Random walks of commitments, prizes and withdrawals: the pot covers what it pays, in the order of asking.
contract PotTest is TrapHouse {
    uint256 private constant ACTS = 48;
    /// @dev Commitments that its lock covers.
    uint256 private constant COVER = 40;

    /// @dev Commitments whose premium was collected; what came in by them, and what was paid.
    uint32 private collected;
    uint256 private income;
    uint256 private paid;
    /// @dev Validators that wait, in the order in which they asked, and what is left of what each asked for.
    uint256[] private queue;
    uint256[4] private waits;

    function testFuzz_Pot_PaysWhatCameInAndInTurn(uint256 seed) public {
        income = 71 * uint256(PRIZE);
        _collect();
        for (uint256 n = 0; n < ACTS; n++) {
            seed = uint256(keccak256(abi.encode(seed)));
            _act(seed % 8, (seed >> 8) % 4, (seed >> 16) % (16 * uint256(PRIZE)));
            _assertBooks();
        }
        // The owner is given what nobody waits for, and then all who wait are paid as far as the pot goes.
        _showMaster();
        _close();
        vm.warp(block.timestamp + 7 days);
        _collect();
        uint256 left = Math.min(income - paid, _ahead(queue.length));
        traps.release(run);
        vm.assertEq(traps.pot(run), left);
        for (uint256 i = 0; i < queue.length; i++) {
            if (traps.owed(node(queue[i])) != 0) left -= traps.withdraw(node(queue[i]));
        }
        vm.assertEq(traps.pot(run), 0);
        vm.assertEq(left, 0);
        _assertSolvent();
    }

    function _act(uint256 act, uint256 i, uint256 amount) private {
        if (act < 2 && count < COVER) {
            _commit(WORKER);
            count++;
        } else if (act < 3) {
            _collect();
        } else if (act < 5) {
            ITraps.Account memory account = traps.account(node(i));
            _setAccount(i, account.credit + amount, account.paid);
        } else if (traps.owed(node(i)) != 0) {
            _withdraw(i);
        }
    }

    function _collect() private {
        traps.collect(node(WORKER));
        income += PREMIUM * Draws.weight(collected, count);
        collected = count;
    }

    function _withdraw(uint256 i) private {
        if (waits[i] == 0) {
            waits[i] = traps.owed(node(i));
            queue.push(i);
        }
        uint256 place = queue.length - 1;
        while (queue[place] != i) place--;
        uint256 expected = Math.min(waits[i], Math.saturatingSub(income - paid, _ahead(place)));
        uint256 before = token.balanceOf(operator(i));
        vm.assertEq(traps.withdraw(node(i)), expected);
        vm.assertEq(token.balanceOf(operator(i)), before + expected);
        waits[i] -= expected;
        paid += expected;
    }

    /// @dev What those wait for whose last place in the queue is before this one.
    function _ahead(uint256 place) private view returns (uint256 sum) {
        bool[4] memory seen;
        for (uint256 k = queue.length; k > 0; k--) {
            uint256 i = queue[k - 1];
            if (k <= place && !seen[i]) sum += waits[i];
            seen[i] = true;
        }
    }

    function _assertBooks() private view {
        vm.assertEq(traps.pot(run) + paid, income);
        uint256 coming = PREMIUM * Draws.weight(collected, count);
        vm.assertEq(runs.runState(run).reserved, uint256(count) * 1 ether + traps.pot(run) + coming);
        _assertSolvent();
    }
}
