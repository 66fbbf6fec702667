"""Make a synthetic run and serve it until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from testbed.big_run import __doc__ as about
from testbed.big_run.process import big_run
from testbed.big_run.shape import Shape


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an empty folder; the databases take 10 GB at full size")
    for name in ("steps", "nodes", "commitments", "step_seconds", "seed"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Shape, name))
    options = vars(parser.parse_args())
    folder: Path = options.pop("folder")
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr)

    with big_run(folder, Shape(**options), say) as made:
        made.start()
        print(made.explorer.url, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
