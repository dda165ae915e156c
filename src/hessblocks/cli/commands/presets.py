"""`hessblocks presets`: every block, what it removes, and how large it is at given sizes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.settings import PresetSizes


@options.taking
def presets(
    *,
    sizes: PresetSizes,
    out: Annotated[
        Path | None, Parameter(help="Folder to write the table to, as presets.json.")
    ] = None,
    screen: options.Screen,
) -> None:
    """List the blocks, what each removes, and their size, without allocating any weights."""
    from hessblocks.blocks import PRESETS
    from hessblocks.cli.terminal import block_sizes, show, sizes_table
    from hessblocks.storage import write_json

    found = block_sizes(sizes)
    described = {"command": "presets", "presets": {s.preset: asdict(s) for s in found}}
    if out is not None:
        write_json(out / "presets.json", described)
    left_out = described["left_out"] = [
        name for name in PRESETS if name not in described["presets"]
    ]
    note = (
        f"{sizes.depth} layers, width {sizes.width}, {sizes.heads} heads, vocabulary "
        f"{sizes.vocab_size:,}, context {sizes.context}; matmuls and multiply-adds: of one token, in the "
        "whole model with its head"
        + (
            f"; left out, since what was set excludes their parts: {', '.join(left_out)}"
            if left_out
            else ""
        )
    )
    show(described, [sizes_table(found), note], as_json=screen.json)
