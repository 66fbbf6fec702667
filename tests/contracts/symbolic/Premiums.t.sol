// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Draws } from "../../../contracts/libraries/Draws.sol";

/// @title What commitments reserve for prizes, and what the pot collects of it. Run by halmos, and by forge as fuzz tests
/// under the names that begin with testFuzz.
contract PremiumsSymbolic {
    /// @dev Whatever stretches the pot collects, it comes to what was reserved one by one: Traps never pays what Runs has not.
    function check_StretchesAddUp(uint32 first, uint32 middle, uint32 end) public pure {
        if (first > middle || middle > end) return;
        assert(Draws.weight(first, middle) + Draws.weight(middle, end) == Draws.weight(first, end));
    }

    /// @dev A node's first four commitments count twice, all others once.
    function check_OnlyTheFirstCountTwice(uint32 index) public pure {
        assert(Draws.weight(index, uint256(index) + 1) == (index < 4 ? 2 : 1));
    }

    function testFuzz_StretchesAddUp(uint32 first, uint32 middle, uint32 end, uint8 small) public pure {
        check_StretchesAddUp(first, middle, end);
        check_StretchesAddUp(small % 9, middle % 16, end);
        check_OnlyTheFirstCountTwice(first);
        check_OnlyTheFirstCountTwice(small % 9);
    }
}
