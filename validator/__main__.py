"""python -m validator --config FILE: inspect the work of one run until SIGTERM or SIGINT.

python -m validator --config FILE verify NODE:INDEX   inspect one commitment and tell nobody
python -m validator --config FILE case ID             re-run the evidence of a case

Ends with 0 after a signal, or when what was looked at is good; 3 when it is not, and when this key will never judge
again (convicted, retired), so that nobody starts it again; 4 when the chain refuses; 78 when the settings cannot work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from muster.process import run_process
from validator.look import verify_case, verify_commitment
from validator.service import serve

WHAT = "inspect the work of one run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop, or until what was asked for is looked at; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m validator", description=WHAT)
    parser.add_argument("--config", required=True, help="settings file (TOML)")
    commands = parser.add_subparsers(dest="command")
    verify = commands.add_parser("verify", help="inspect one commitment and tell nobody")
    verify.add_argument("commitment", metavar="NODE:INDEX")
    case = commands.add_parser("case", help="re-run the evidence of a case")
    case.add_argument("id", type=int)
    for command in (verify, case):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    config = ["--config", options.config]
    if options.command == "verify":
        look = partial(verify_commitment, name=options.commitment, as_json=options.json)
        return run_process("validator", WHAT, look, config)
    if options.command == "case":
        look = partial(verify_case, case_id=options.id, as_json=options.json)
        return run_process("validator", WHAT, look, config)
    return run_process("validator", WHAT, serve, config)


if __name__ == "__main__":
    sys.exit(main())
