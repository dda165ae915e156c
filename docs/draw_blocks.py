"""Draw every preset from its own configuration.

`python docs/draw_blocks.py` writes docs/blocks.svg.
"""

from __future__ import annotations

from pathlib import Path

import hessblocks as hb
from hessblocks.models import draw_blocks
from hessblocks.storage import write_text

FILE = Path(__file__).with_name("blocks.svg")


def drawing() -> str:
    """The whole picture as SVG."""
    return draw_blocks({name: hb.preset(name) for name in hb.PRESETS})


if __name__ == "__main__":
    write_text(FILE, drawing())
