// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { Windows } from "../../../contracts/libraries/Windows.sol";

/// @title The arithmetic of the window, for every hour and every watermark there can be. Run by halmos, and by forge as
/// fuzz tests under the names that begin with testFuzz.
contract WindowsSymbolic {
    /// @dev Nothing pays before 24 full hours, whatever second of its hour it was committed in, nor later than after 73.
    function check_NeverBeforeADay(uint24 hour, uint16 second, uint24 sealedThrough) public pure {
        if (second >= 1 hours) return;
        uint256 committedAt = Windows.endOf(hour) - 1 hours + second;
        uint256 matures = Windows.maturesAt(hour, sealedThrough);
        assert(matures > committedAt + 24 hours);
        assert(matures <= committedAt + 73 hours);
    }

    /// @dev If number j has matured, all before it have: what lets a claim look at two commitments only. From each hour to
    /// the next, and so from any to any later.
    function check_RisesWithTheHour(uint24 hour, uint24 sealedThrough) public pure {
        if (hour == type(uint24).max) return;
        assert(Windows.endOf(hour + 1) == Windows.endOf(hour) + 1 hours);
        assert(Windows.maturesAt(hour + 1, sealedThrough) > Windows.maturesAt(hour, sealedThrough));
    }

    /// @dev Sealing more makes nothing mature later.
    function check_SealingNeverDelays(uint24 hour, uint24 before, uint24 after_) public pure {
        if (before > after_) return;
        assert(Windows.maturesAt(hour, after_) <= Windows.maturesAt(hour, before));
    }

    /// @dev Whatever matures unsealed could be challenged until that very second, and sealed work for longer.
    function check_ChallengeableUntilItMatures(uint24 hour, uint24 sealedThrough) public pure {
        uint256 until = Windows.challengeableUntil(hour);
        assert(until >= Windows.maturesAt(hour, sealedThrough));
        assert(until - Windows.endOf(hour) == 72 hours);
    }

    /// @dev While a case is open, what is paid is what no case can be about: not before every case about it that there can
    /// be has had its phases, and a day besides. It rises with the hour, as maturity does.
    function check_FrozenWhileACaseCanBeAboutIt(uint24 hour, uint24 sealedThrough, uint32 phases) public pure {
        uint256 payable_ = Windows.payableAt(hour, sealedThrough, phases);
        if (phases == 0) {
            assert(payable_ == Windows.maturesAt(hour, sealedThrough));
            return;
        }
        assert(payable_ == Windows.challengeableUntil(hour) + phases + 24 hours);
        assert(payable_ > Windows.maturesAt(hour, sealedThrough));
        if (hour == type(uint24).max) return;
        assert(Windows.payableAt(hour + 1, sealedThrough, phases) == payable_ + 1 hours);
    }

    /// @dev Unbonding outlives the last case there can be about a node's last commitment: 73 hours and two phases of at
    /// most 36.
    function check_UnbondingOutlivesEveryCase(uint24 hour, uint16 second, uint32 commitPhase, uint32 revealPhase)
        public
        pure
    {
        if (second >= 1 hours || commitPhase > 36 hours || revealPhase > 36 hours) return;
        uint256 leftAt = Windows.endOf(hour) - 1 hours + second;
        uint256 lastCase = Windows.challengeableUntil(hour);
        assert(lastCase + commitPhase + revealPhase < leftAt + 7 days);
    }

    function testFuzz_NeverBeforeADay(uint256 timestamp, uint24 sealedThrough) public pure {
        timestamp %= uint256(type(uint24).max) * 1 hours;
        uint24 hour = Windows.hourOf(timestamp);
        assert(Windows.endOf(hour) > timestamp && Windows.endOf(hour) - 1 hours <= timestamp);
        check_NeverBeforeADay(hour, uint16(timestamp % 1 hours), sealedThrough);
        check_UnbondingOutlivesEveryCase(hour, uint16(timestamp % 1 hours), 36 hours, 36 hours);
    }

    function testFuzz_RisesWithTheHour(uint24 earlier, uint24 later, uint24 sealedThrough) public pure {
        (earlier, later) = earlier < later ? (earlier, later) : (later, earlier);
        assert(Windows.maturesAt(earlier, sealedThrough) <= Windows.maturesAt(later, sealedThrough));
        check_RisesWithTheHour(earlier, sealedThrough);
        check_SealingNeverDelays(sealedThrough, earlier, later);
        check_ChallengeableUntilItMatures(earlier, sealedThrough);
        check_FrozenWhileACaseCanBeAboutIt(earlier, sealedThrough, uint32(later) % 72 hours);
    }
}
