"""python -m muster: the same as the `muster` command."""

from muster.console import main

if __name__ == "__main__":
    main()
