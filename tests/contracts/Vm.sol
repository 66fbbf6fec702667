// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title The cheatcodes of forge that these tests use.
interface Vm {
    // Chain and callers.
    function warp(uint256 timestamp) external;
    function roll(uint256 number) external;
    function chainId(uint256 id) external;
    function prevrandao(bytes32 value) external;
    function snapshotState() external returns (uint256 id);
    function revertToState(uint256 id) external returns (bool);
    function prank(address caller) external;
    function startPrank(address caller) external;
    function stopPrank() external;

    function load(address account, bytes32 slot) external view returns (bytes32);
    function store(address account, bytes32 slot, bytes32 value) external;

    // Keys.
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);

    // Deployment.
    function deployCode(string calldata artifact) external returns (address);
    function deployCode(string calldata artifact, bytes calldata arguments) external returns (address);
    function getCode(string calldata artifact) external view returns (bytes memory creationCode);
    function computeCreateAddress(address deployer, uint256 nonce) external pure returns (address);
    function getNonce(address account) external view returns (uint64);

    // Expectations.
    function expectRevert(bytes calldata data) external;
    function expectEmit(address emitter) external;
    function assume(bool condition) external pure;
    function assertTrue(bool condition) external pure;
    function assertTrue(bool condition, string calldata message) external pure;
    function assertFalse(bool condition) external pure;
    function assertEq(uint256 left, uint256 right) external pure;
    function assertEq(uint256 left, uint256 right, string calldata message) external pure;
    function assertEq(address left, address right) external pure;
    function assertEq(bytes32 left, bytes32 right) external pure;
    function assertEq(bytes calldata left, bytes calldata right) external pure;
    function assertLe(uint256 left, uint256 right, string calldata message) external pure;
    function assertGe(uint256 left, uint256 right, string calldata message) external pure;

    // Gas of the latest call from the test, as a transaction where the test is isolated.
    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function lastCallGas() external view returns (Gas memory);

    // The environment.
    function envOr(string calldata name, uint256 fallback_) external view returns (uint256);

    // Files.
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonInt(string calldata json, string calldata key) external pure returns (int256);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes32Array(string calldata json, string calldata key) external pure returns (bytes32[] memory);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function toString(uint256 value) external pure returns (string memory);
}
