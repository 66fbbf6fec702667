"""The `muster` command: noun, then verb. One file per noun; `session` is what they all share.

stdout carries the result and nothing else: a short table for people, or one JSON document with --json. Everything
else goes to stderr. Money in JSON is an integer in token wei, hashes and addresses are 0x-hex. Exit codes: 0 done,
1 unexpected, 2 usage, 3 a check failed, 4 the chain rejected it, 5 unreachable, 78 bad configuration, 130 interrupted.
"""

from __future__ import annotations


def main() -> None:
    """Run the console script."""
    from muster.cli.app import run

    run()
