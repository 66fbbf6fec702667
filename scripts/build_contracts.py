"""Compile the contracts and write what the Python side needs: `muster/contracts/abi/` and `muster/contracts/`.

    python scripts/build_contracts.py [--force]

Runs forge only when a source, the configuration or a pinned package changed since the last build. Each contract
becomes one JSON document: abi, bytecode, deployed_bytecode and immutable_references (where constructor arguments sit
in the deployed code), so that a deployment can be checked against the build; and one typed Python module
(scripts/bindings.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from bindings import CONTRACTS, write_bindings

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("scripts/solc", "scripts/build_contracts.py", "scripts/bindings.py", "muster/contracts/abi.py")
OTHER_INPUTS = ("foundry.toml", "package-lock.json", *SCRIPTS)
TARGET = ROOT / "muster" / "contracts" / "abi"
MODULES = ROOT / "muster" / "contracts"
STAMP = TARGET / ".inputs"
BUILD_SECONDS = 1_800


def inputs_digest() -> str:
    """Return a hash over the names and contents of everything that the build depends on."""
    files = [*(ROOT / "contracts").rglob("*.sol")]
    files += [ROOT / name for name in OTHER_INPUTS]
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def is_fresh(digest: str) -> bool:
    """Return whether the last build had these inputs and all its documents are still there."""
    built = [TARGET / f"{name}.json" for name in CONTRACTS.values()]
    built += [MODULES / f"{module}.py" for module in CONTRACTS]
    if not all(path.is_file() for path in built):
        return False
    return STAMP.is_file() and STAMP.read_text() == digest


def run_forge() -> None:
    """Compile, or exit with forge's output and the next command to run."""
    forge = ROOT / "node_modules" / ".bin" / "forge"
    if not forge.exists():
        sys.exit(f"{forge} is missing; run: npm ci")
    command = [str(forge), "build", "--root", str(ROOT), "--skip", "tests/**"]
    configuration = ROOT / "foundry.toml"
    if STAMP.is_file() and configuration.stat().st_mtime > STAMP.stat().st_mtime:
        command.append("--force")  # forge keeps an artifact whose compiler settings changed
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"forge did not finish in {BUILD_SECONDS} s; when this machine has less to do, run: make setup")
    if result.returncode != 0:
        sys.exit(f"forge build failed:\n{result.stdout}{result.stderr}")


def document(name: str) -> dict[str, object]:
    """Return the fields of forge's artifact of one contract that Python needs."""
    artifact = json.loads((ROOT / "out" / f"{name}.sol" / f"{name}.json").read_text())
    deployed = artifact["deployedBytecode"]
    return {
        "abi": artifact["abi"],
        "bytecode": artifact["bytecode"]["object"],
        "deployed_bytecode": deployed["object"],
        "immutable_references": deployed.get("immutableReferences", {}),
    }


def write(path: Path, text: str) -> None:
    """Write so that a reader sees the old content or the new, never half."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--force", action="store_true", help="build even if nothing changed")
    force = parser.parse_args().force

    digest = inputs_digest()
    if not force and is_fresh(digest):
        print("contracts are up to date", file=sys.stderr)
        return
    run_forge()
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in CONTRACTS.values():
        write(TARGET / f"{name}.json", json.dumps(document(name), indent=1) + "\n")
    write_bindings(ROOT / "out", MODULES)
    write(STAMP, digest)
    places = " and ".join(str(path.relative_to(ROOT)) for path in (TARGET, MODULES))
    print(f"built {', '.join(CONTRACTS.values())} into {places}", file=sys.stderr)


if __name__ == "__main__":
    main()
