"""python -m validator --config FILE: inspect the work of one run until SIGTERM or SIGINT.

python -m validator --config FILE verify NODE:INDEX   inspect one commitment without reporting a verdict
python -m validator --config FILE case ID             verify the evidence of a case again
python -m validator --config FILE grades [--epoch E]  grade revealed private tests again
python -m validator --config FILE traps [--epoch E]   replay the rows that the maps of opened traps name

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
from validator.grade_check import check_grades
from validator.service import serve
from validator.trap_check import check_traps
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
    grades = commands.add_parser("grades", help="grade private tests again whose masters are revealed")
    grades.add_argument("--run", type=int)
    grades.add_argument("--epoch", type=int)
    traps = commands.add_parser("traps", help="replay the rows that the maps of opened traps name")
    traps.add_argument("--epoch", type=int)
    for command in (verify, case, grades, traps):
        command.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    job, tool = serve, options.command is not None
    if options.command == "verify":
        job = partial(verify_commitment, name=options.commitment, as_json=options.json)
    elif options.command == "case":
        job = partial(verify_case, case_id=options.id, as_json=options.json)
    elif options.command == "grades":
        job = partial(check_grades, run=options.run, epoch=options.epoch, as_json=options.json)
    elif options.command == "traps":
        job = partial(check_traps, epoch=options.epoch, as_json=options.json)
    shared = ["--config", str(options.config), "--wait", str(options.wait)]
    stop_seconds = None if tool else STOP_SECONDS
    return run_process(
        "validator", WHAT, job, shared, tool=tool, stop_seconds=stop_seconds, prepare=import_transformers
    )


if __name__ == "__main__":
    sys.exit(main())
