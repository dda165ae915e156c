"""`hessblocks presets`: every block, what it removes, and how large it is at given sizes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli.terminal import options


def presets(
    depth: options.Depth = 4,
    width: options.Width = 128,
    heads: options.Heads = 4,
    mlp_width: options.MlpWidth = None,
    vocab_size: Annotated[int, typer.Option(min=1, help="Entries of the vocabulary.")] = 4096,
    context: options.Context = 128,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write the table to, as presets.json.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Without effect: nothing is drawn.")] = 0,
    device: Annotated[str, typer.Option(help="Without effect: nothing is computed.")] = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """List the blocks, what each removes, and their size, without allocating any weights."""
    from hessblocks.cli.terminal import block_sizes, console, sizes_table
    from hessblocks.storage import write_json

    sizes = block_sizes(
        depth=depth,
        width=width,
        heads=heads,
        mlp_width=mlp_width,
        vocab_size=vocab_size,
        context=context,
    )
    described = {"command": "presets", "presets": {s.preset: asdict(s) for s in sizes}}
    if out is not None:
        write_json(out / "presets.json", described)
    if as_json:
        print(json.dumps(described))
        return
    screen = console()
    screen.print(sizes_table(sizes))
    screen.print(
        f"{depth} layers, width {width}, {heads} heads, vocabulary {vocab_size:,}, context {context}; "
        "matmuls and multiply-adds: of one token, in the whole model with its head"
    )
