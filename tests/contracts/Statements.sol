// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { IRunTerms } from "../../contracts/interfaces/IRunTerms.sol";
import { ISlashCourt } from "../../contracts/interfaces/ISlashCourt.sol";
import { House } from "./House.sol";

/// @title What is said about private tests: their terms, three epochs of four steps, their masters, and what validators
/// sign.
abstract contract Statements is House {
    IRunTerms.Series internal constant GRADES_SERIES = IRunTerms.Series.Grades;
    uint16 internal constant EPOCHS = 3;
    uint32 internal constant EPOCH_STEPS = 4;
    /// @dev The master of the last epoch, where the hash chain begins.
    bytes32 internal constant LAST_MASTER = keccak256("last master");
    bytes32 internal constant GRADES = keccak256("grades");

    bytes32 private constant GRADE_TYPEHASH = keccak256(
        "Grade(uint32 run,uint32 step,address node,uint32 index,bytes32 root,address validator,bytes32 grades,bytes32 salt)"
    );

    function _sealedTerms() internal pure returns (IRunTerms.Terms memory terms) {
        terms = _terms();
        terms.gradeTip = _master(0);
        terms.gradeEpochs = EPOCHS;
        terms.gradeEpochSteps = EPOCH_STEPS;
    }

    /// @dev Of an epoch from 1; that of epoch 0 is the tip.
    function _master(uint256 epoch) internal pure returns (bytes32 master) {
        master = LAST_MASTER;
        for (uint256 e = EPOCHS; e > epoch; e--) {
            master = keccak256(abi.encodePacked(master));
        }
    }

    // --------------------------------------------------------------------------------------------------- statements

    function _gradeSalt(uint256 validator) internal pure returns (bytes32) {
        return keccak256(abi.encode("grade salt", validator));
    }

    /// @dev What validator v signs, computed apart from the court, under the domain of `domain`.
    function _digest(bytes32 domain, uint32 run_, ISlashCourt.Target memory target, uint256 v, bytes32 grades)
        internal
        pure
        returns (bytes32)
    {
        bytes32 hash = keccak256(
            abi.encode(
                GRADE_TYPEHASH,
                run_,
                target.step,
                target.node,
                target.index,
                target.root,
                node(v),
                grades,
                _gradeSalt(v)
            )
        );
        return keccak256(abi.encodePacked("\x19\x01", domain, hash));
    }

    function _signed(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    /// @dev Validator v's own statement about a commitment in the run.
    function _statement(ISlashCourt.Target memory target, uint256 v, bytes32 grades)
        internal
        view
        returns (bytes memory)
    {
        return _signed(NODE + v, _digest(registry.domainSeparator(), run, target, v, grades));
    }
}
