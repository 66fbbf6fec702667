// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IERC20 } from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import { IERC20Permit } from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";

/// @title The test money of a swarm: an ERC-20 with permit and a faucet.
/// @notice Warning: anyone can mint this token. It measures work in a test network and is worth nothing.
interface IMusterToken is IERC20, IERC20Permit {
    /// @notice `account` drew `amount` from the faucet.
    event FaucetUsed(address indexed account, uint256 amount);

    /// @notice The faucet gives to `account` again only at `readyAt` (seconds since the epoch).
    error FaucetNotReady(address account, uint256 readyAt);

    /// @notice Mints `FAUCET_AMOUNT` to the caller, at most once per `FAUCET_INTERVAL`.
    function faucet() external;

    /// @notice Destroys `amount` of the caller's tokens.
    function burn(uint256 amount) external;

    /// @notice When the faucet gives to `account` again; the past, or zero, means now.
    function faucetReadyAt(address account) external view returns (uint256);

    /// @notice Token wei per visit.
    function FAUCET_AMOUNT() external view returns (uint256);

    /// @notice Seconds between two visits of one account.
    function FAUCET_INTERVAL() external view returns (uint256);
}
