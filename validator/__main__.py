"""python -m validator --config FILE: inspect the work of one run until SIGTERM or SIGINT.

python -m validator --config FILE verify NODE:INDEX  inspect one commitment without reporting a verdict
python -m validator --config FILE case ID            verify the evidence of a case again

Exit codes: 0 after a signal, when the verified work is good, and when nothing is left to do (retired); 3 when it is
bad, and when this key was convicted, so that no supervisor restarts it; 4 when the chain refuses; 78 when the settings
cannot work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from muster.models.init import import_transformers
from muster.runtime.process import STOP_SECONDS, add_settings_options, run_process
from validator.service import serve
from validator.verify import verify_case, verify_commitment

WHAT = "inspect the work of one run"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until stopped, or until what was asked for is verified; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m validator", description=WHAT)
    add_settings_options(parser)
    commands = parser.add_subparsers(dest="command")
    verify = commands.add_parser("verify", help="inspect one commitment without reporting a verdict")
    verify.add_argument("commitment", metavar="NODE:INDEX")
    case = commands.add_parser("case", help="verify the evidence of a case again")
    case.add_argument("id", type=int)
    for command in (verify, case):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    job, tool = serve, options.command is not None
    if options.command == "verify":
        job = partial(verify_commitment, name=options.commitment, as_json=options.json)
    elif options.command == "case":
        job = partial(verify_case, case_id=options.id, as_json=options.json)
    shared = ["--config", str(options.config), "--wait", str(options.wait)]
    stop_seconds = None if tool else STOP_SECONDS
    return run_process(
        "validator", WHAT, job, shared, tool=tool, stop_seconds=stop_seconds, prepare=import_transformers
    )


if __name__ == "__main__":
    sys.exit(main())
