"""Run the command line by `python -m hessblocks`, also under torchrun."""

import sys

from hessblocks.cli import main

if __name__ == "__main__":
    sys.exit(main())
