"""`hessblocks curvature`: norms, map and eigenvalues of a language model, group by group."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.settings import CurvatureInspection, check_place

SHOWN = 40
"""Number of groups in the terminal's table; the page lists all."""


@options.taking
def curvature(
    source: Annotated[
        str,
        Parameter(
            name="MODEL",
            help="A folder that save_pretrained wrote, a GGUF file, a name in the local Hugging "
            "Face cache, or preset:NAME for a block of `hessblocks presets` at initialisation.",
        ),
    ],
    /,
    *,
    settings: CurvatureInspection,
    out: Annotated[
        Path,
        Parameter(help=f"{options.RESUMES} [default: runs/curvature-MODEL]", show_default=False),
    ] = Path("runs", "curvature-{model}"),
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure the curvature of a language model; --depth to --vocab-size are for presets."""
    check_place(settings.data)
    from hessblocks.cli.terminal import curvature_table, make_progress, show, summary_lines
    from hessblocks.inspection import measure_curvature
    from hessblocks.report import write_curvature_report

    start, progress = time.perf_counter(), make_progress()
    report = progress.stage("report")(write_curvature_report)
    with interruptible():
        results = measure_curvature(
            source, out=out, device=device, progress=progress, finish=report, **asdict(settings)
        )
    seconds = time.perf_counter() - start
    show(
        results.summary(seconds=seconds),
        [curvature_table(results, SHOWN), *summary_lines(results, SHOWN)],
        [f"{seconds:.0f} s", "", f"report  {results.folder / 'report.html'}"],
        as_json=screen.json,
    )
