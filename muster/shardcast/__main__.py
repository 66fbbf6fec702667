"""python -m muster.shardcast --config FILE: see `muster.shardcast.serve`."""

import sys

from muster.shardcast.serve import main

if __name__ == "__main__":
    sys.exit(main())
