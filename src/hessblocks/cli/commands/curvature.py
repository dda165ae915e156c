"""`hessblocks curvature`: norms, map and eigenvalues of a language model, group by group."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from hessblocks.cli import checks, options
from hessblocks.settings import CurvatureInspection

SHOWN = 40
"""Number of groups in the terminal's table; the page lists all."""


@options.taking
def curvature(
    source: Annotated[
        str,
        options.checked(
            checks.models,
            name="MODEL",
            help="A folder that save_pretrained wrote, a GGUF file, a name in the local Hugging "
            "Face cache, or preset:NAME for a block of `hessblocks presets` at initialisation.",
        ),
    ],
    /,
    *,
    settings: CurvatureInspection,
    out: Annotated[Path, options.out_of("curvature-MODEL")] = Path("runs", "curvature-{model}"),
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure norms, map and eigenvalues of the Hessian, by layer and role.

    --depth to --vocab-size are for presets.
    """
    settings.check_heads([source] if source.startswith(checks.PREFIX) else [])
    checks.check_length(settings.data, settings.sequences, settings.tokens)
    from hessblocks.cli.commands.work import measure_in_folder
    from hessblocks.cli.terminal import curvature_table, summary_lines
    from hessblocks.inspection import measure_curvature
    from hessblocks.report import write_curvature_report

    measure_in_folder(
        partial(measure_curvature, source, out=out, device=device, **asdict(settings)),
        write_curvature_report,
        lambda results: [curvature_table(results, SHOWN), *summary_lines(results, SHOWN)],
        as_json=screen.json,
        summarise=lambda results: results.summary(),
    )
