"""`python -m hessblocks`: the command line, also under torchrun."""

import sys

from hessblocks.cli import main

if __name__ == "__main__":
    sys.exit(main())
