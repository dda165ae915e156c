"""`hessblocks signal`: whether signal passes through the layers of a model, or of several."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessblocks.cli.terminal import options

if TYPE_CHECKING:
    from hessblocks.inspection import Sample

COLUMNS = ("model", "seed", "layer", "quantity", "role", "value", "method")


def signal(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL...]",
            help="A folder that save_pretrained wrote, a name in the local Hugging Face cache, or "
            "preset:NAME for a block of `hessblocks presets` at initialisation; preset:NAME-plain is "
            "the same block with plain softmax attention.",
            show_default=False,
        ),
    ] = None,
    presets: Annotated[
        str, typer.Option(help="Names of blocks with commas, such as skipless-plain,skipless.")
    ] = "",
    data: Annotated[
        str,
        typer.Option(
            help="Held-out text: python-code (Python's standard library), a file or folder, or random "
            "(tokens drawn uniformly)."
        ),
    ] = "python-code",
    sequences: Annotated[int, typer.Option(min=1, help="Held-out sequences.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each sequence.")] = 32,
    jacobian_steps: Annotated[
        int,
        typer.Option(
            min=0, help="Products with each layer's Jacobian for its condition number; 0: none."
        ),
    ] = 8,
    depth: options.Depth = 16,
    width: options.Width = 128,
    heads: options.Heads = 4,
    mlp_width: options.MlpWidth = None,
    vocab_size: options.VocabSize = options.VOCABULARY,
    out: options.Out = Path("runs/signal"),
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of a preset's weights and the windows.")
    ] = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Measure how signal passes, layer by layer; --depth to --vocab-size are for presets.

    The folder of an earlier `signal` is written anew.
    """
    from hessblocks.inspection import sources
    from hessblocks.training import resolve_device

    named = sources(models or [], presets)
    from hessblocks.inspection import Sample

    sample = Sample(data=data, sequences=sequences, tokens=tokens, seed=seed)
    sizes = {
        "depth": depth,
        "width": width,
        "heads": heads,
        "mlp_width": mlp_width,
        "vocab_size": vocab_size,
    }
    start = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        rows = _carry_out(named, sample, sizes, jacobian_steps, resolve_device(device), out)
    _show(rows, out, time.perf_counter() - start, as_json=as_json)


def _carry_out(
    named: Sequence[str],
    sample: Sample,
    sizes: Mapping[str, Any],
    jacobian_steps: int,
    device: str,
    out: Path,
) -> list[dict[str, Any]]:
    """Measure, record and draw; returns one measured value a row."""
    from hessblocks.cli.terminal import make_progress
    from hessblocks.inspection import check_folder, distinct, looked_at, recorded
    from hessblocks.signal import propagate

    check_folder(out)
    progress = make_progress()
    with progress.stage("models and data"):
        models = distinct([looked_at(source, sample, sizes, sample.seed) for source in named])
    rows = []
    for looked in models:
        with progress.stage("signal", looked.name):
            model = looked.subject.model.to(device)
            batch = {name: value.to(device) for name, value in looked.batch.items()}
            found = propagate(model, batch, jacobian_steps=jacobian_steps)
        rows += [{"model": looked.name, "seed": sample.seed, **row} for row in found.to_rows()]
    config = {
        "command": "signal",
        "models": {looked.name: looked.source for looked in models},
        "sizes": dict(sizes),
        "data": {"name": sample.data, "sequences": sample.sequences, "tokens": sample.tokens},
        "jacobian_steps": jacobian_steps,
        "seed": sample.seed,
        "device": device,
    }
    with progress.stage("figures"):
        recorded(out, config, COLUMNS, rows)
    return rows


def _show(rows: Sequence[Mapping[str, Any]], out: Path, seconds: float, *, as_json: bool) -> None:
    from hessblocks.cli.terminal import console, described, lines

    if as_json:
        found = {"command": "signal", "out": str(out), "seconds": round(seconds, 3)}
        print(json.dumps({**found, "models": described(rows)}, allow_nan=False))
        return
    screen = console()
    for line in lines(rows):
        screen.print(line)
    screen.print(f"{seconds:.0f} s\n\nfigure  {out / 'figures' / 'signal.png'}", soft_wrap=True)
