// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ERC20 } from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import { ERC20Permit } from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";
import { Nonces } from "@openzeppelin/contracts/utils/Nonces.sol";
import { IERC20Permit } from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import { IMusterToken } from "./interfaces/IMusterToken.sol";

/// @title Test money with a faucet; see IMusterToken.
contract MusterToken is ERC20, ERC20Permit, IMusterToken {
    // --------------------------------------------------------------------------------------------------- constants

    /// @inheritdoc IMusterToken
    uint256 public constant FAUCET_AMOUNT = 10_000 ether;

    /// @inheritdoc IMusterToken
    uint256 public constant FAUCET_INTERVAL = 24 hours;

    // ----------------------------------------------------------------------------------------------------- storage

    /// @inheritdoc IMusterToken
    mapping(address account => uint256) public faucetReadyAt;

    constructor() ERC20("Muster test money", "MUST") ERC20Permit("Muster test money") { }

    // ---------------------------------------------------------------------------------------------------- external

    /// @inheritdoc IMusterToken
    function faucet() external {
        uint256 readyAt = faucetReadyAt[msg.sender];
        require(block.timestamp >= readyAt, FaucetNotReady(msg.sender, readyAt));

        faucetReadyAt[msg.sender] = block.timestamp + FAUCET_INTERVAL;
        emit FaucetUsed(msg.sender, FAUCET_AMOUNT);

        _mint(msg.sender, FAUCET_AMOUNT);
    }

    /// @inheritdoc IMusterToken
    function burn(uint256 amount) external {
        _burn(msg.sender, amount);
    }

    /// @inheritdoc ERC20Permit
    function nonces(address owner) public view override(ERC20Permit, IERC20Permit) returns (uint256) {
        return super.nonces(owner);
    }
}
