"""The `muster` command: noun, then verb. One file per noun, in folders by who types it.

`node` is what operators of nodes type, `money` has keys and chain, `owner` what a run's owner types, `tasks` what
authors of tasks type, `evaluate` what measures and serves checkpoints. `up` and `run_init` are the long commands,
`session` is what all share, `sampling` what several measure by, `config` the settings, `app` the root.

stdout carries the result and nothing else: a short table for people, or one JSON document with --json. Everything
else goes to stderr. Money in JSON is an integer in token wei, hashes and addresses are 0x-hex. Exit codes: 0 done,
1 unexpected, 2 usage, 3 a check failed, 4 the chain rejected it, 5 unreachable, 78 bad configuration, 130 interrupted.
"""

from __future__ import annotations


def main() -> None:
    """Run the console script."""
    from muster.console.app import run

    run()
