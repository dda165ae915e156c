"""Pictures without content, for tests that look at everything else; drawing takes most of a small
command's time."""

import sys

import pytest
from matplotlib.figure import Figure


def empty_pictures(patch: pytest.MonkeyPatch) -> None:
    """Let every picture be an empty one of one inch."""
    patch.setattr("hessblocks.drawing.draw", lambda figure, narrowest=0: Figure(figsize=(1, 1)))


if __name__ == "__main__":  # `hessblocks` with empty pictures, for tests of processes
    from hessblocks.cli import main

    with pytest.MonkeyPatch.context() as patch:
        empty_pictures(patch)
        sys.exit(main())
