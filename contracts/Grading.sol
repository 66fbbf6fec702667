// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import { ECDSA } from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import { MessageHashUtils } from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";
import { IRegistry } from "./interfaces/IRegistry.sol";
import { IRunTerms } from "./interfaces/IRunTerms.sol";
import { IRuns } from "./interfaces/IRuns.sol";
import { ISlashCourt } from "./interfaces/ISlashCourt.sol";

/// @title What the court asks of whom it convicts, and what a validator said of private tests; see ISlashCourt.
abstract contract Grading is ISlashCourt {
    // --------------------------------------------------------------------------------------------------- constants

    bytes32 private constant GRADE_TYPEHASH = keccak256(
        "Grade(uint32 run,uint32 step,address node,uint32 index,bytes32 root,address validator,bytes32 grades,bytes32 salt)"
    );

    // -------------------------------------------------------------------------------------------------- immutables

    IRegistry public immutable REGISTRY;
    IRuns public immutable RUNS;
    IRunTerms public immutable TERMS;

    // ------------------------------------------------------------------------------------------------- constructor

    constructor(IRegistry registry, IRuns runs, IRunTerms terms) {
        require(address(registry) != address(0) && address(runs) != address(0), ZeroAddress());
        require(address(terms) != address(0), ZeroAddress());
        REGISTRY = registry;
        RUNS = runs;
        TERMS = terms;
    }

    // ----------------------------------------------------------------------------------------------------- internal

    /// @dev The validator's lock is still there, it serves the run that the commitment is in, and it signed the grades.
    function _checkStatement(
        Target calldata target,
        address validator,
        bytes32 grades,
        bytes32 salt,
        bytes calldata signature
    ) internal view returns (IRegistry.Node memory accused) {
        accused = _checkBound(validator);
        uint32 run = _node(target.node).run;
        bool serves = accused.role == IRegistry.Role.Validator && accused.run == run;
        require(serves, NotGrader(validator, run));
        bytes32 hash = keccak256(
            abi.encode(
                GRADE_TYPEHASH, run, target.step, target.node, target.index, target.root, validator, grades, salt
            )
        );
        address signer = ECDSA.recoverCalldata(_typedDigest(hash), signature);
        require(signer == validator, GradeNotByValidator(signer, validator));
    }

    /// @dev The commitment exists and its node's lock is still there.
    function _checkAccusable(Target memory target) internal view returns (IRegistry.Node memory accused) {
        _checkCommitted(target);
        return _checkBound(target.node);
    }

    function _checkCommitted(Target memory target) internal view {
        bool committed = RUNS.isCommitted(target.node, target.index, target.step, target.root);
        require(committed, NotCommitted(target.node, target.index, target.step, target.root));
    }

    function _node(address key) internal view returns (IRegistry.Node memory) {
        return REGISTRY.node(key);
    }

    function _checkBound(address key) internal view returns (IRegistry.Node memory bound) {
        bound = _node(key);
        require(_isBound(bound), NodeGone(key));
    }

    /// @dev Its lock is still there.
    function _isBound(IRegistry.Node memory node_) internal pure returns (bool) {
        return node_.status == IRegistry.Status.Active || node_.status == IRegistry.Status.Retired;
    }

    /// @dev The pay of a worker that is not settled is void; a validator has none.
    /// @return kept What judges get: `prize`, or the rest of the slash if that is less.
    function _convict(address node, uint32 run, address beneficiary, uint256 prize) internal returns (uint256 kept) {
        IRunTerms.CaseTerms memory terms = TERMS.caseTerms(run);
        kept = REGISTRY.convict(node, terms.slashBps, terms.bountyBps, prize, beneficiary);
        RUNS.voidWork(node);
    }

    /// @dev What is signed of a struct with this hash, under the Registry's EIP-712 domain.
    function _typedDigest(bytes32 hash) internal view returns (bytes32) {
        return MessageHashUtils.toTypedDataHash(REGISTRY.domainSeparator(), hash);
    }
}
