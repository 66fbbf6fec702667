"""Compile the kernels, which are optional: without a compiler `python -m muster.proofs.native` says so and succeeds."""

from __future__ import annotations

import subprocess
import sys

from muster.proofs.native import BUILT, build, compiler, sources


def main() -> int:
    BUILT.mkdir(exist_ok=True)
    if compiler() is None:
        print("no C compiler: Muster works without its compiled kernels, more slowly", file=sys.stderr)
        return 0
    for name in sources():
        try:
            build(name)
        except subprocess.CalledProcessError as error:
            print(
                f"{name}.c does not compile here; Muster works without it, more slowly:\n{error.stderr}",
                file=sys.stderr,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
