"""`hessblocks curvature`: norms, map and spectra of any causal language model, group by group."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.settings import CurvatureInspection

if TYPE_CHECKING:
    from hessblocks.storage import CurvatureResults

SHOWN = 40
"""Groups in the terminal's table; the page has them all."""


@options.taking
def curvature(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder that save_pretrained wrote, a name in the local Hugging Face cache, or "
            "preset:NAME for a block of `hessblocks presets` at initialisation.",
        ),
    ],
    *,
    settings: CurvatureInspection,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder; the same one again goes on where it stopped. "
            "[default: runs/curvature-MODEL]",
            show_default=False,
        ),
    ] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure the curvature of a causal language model; --depth to --vocab-size are for presets."""
    from hessblocks.cli.terminal import make_progress
    from hessblocks.inspection import measure_curvature
    from hessblocks.report import write_curvature_report

    start, progress = time.perf_counter(), make_progress()

    def report(folder: Path) -> None:
        with progress.stage("report"):
            write_curvature_report(folder)

    with contextlib.redirect_stdout(sys.stderr), interruptible():
        results = measure_curvature(
            source, out=out, device=device, progress=progress, finish=report, **asdict(settings)
        )
    _show(results, time.perf_counter() - start, as_json=screen.json)


def _show(results: CurvatureResults, seconds: float, *, as_json: bool) -> None:
    from hessblocks.cli.terminal import console, curvature_table, summary_lines

    if as_json:
        print(json.dumps(results.summary(seconds=seconds), allow_nan=False))
        return
    screen = console()
    screen.print(curvature_table(results, SHOWN))
    for line in summary_lines(results, SHOWN):
        screen.print(line)
    screen.print(f"{seconds:.0f} s\n\nreport  {results.folder / 'report.html'}", soft_wrap=True)
