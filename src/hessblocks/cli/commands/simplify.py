"""`hessblocks simplify`: which parts of a pretrained model can go: priced, taken, healed."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.settings import SimplifySettings


@options.taking
def simplify(
    source: Annotated[
        str,
        Parameter(
            name="MODEL",
            help="A folder that save_pretrained wrote, a GGUF file, or a name in the local Hugging "
            "Face cache: Llama, Mistral, Qwen2, Qwen3, GPT-2, GPT-NeoX, or a model of blocks.",
        ),
    ],
    /,
    *,
    data: Annotated[Path, Parameter(help="File or folder of text that the model is meant for.")],
    settings: SimplifySettings,
    out: Annotated[
        Path | None, Parameter(help=f"{options.GOES_ON} [default: runs/simplify-MODEL]")
    ] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure what each part of a model costs to remove, take the cheapest, and heal the rest."""
    options.check_place(data)
    from hessblocks.cli.terminal import make_progress, plain_table, show
    from hessblocks.report import STEPS, simplify_headline, step_cells, write_simplify_report
    from hessblocks.simplify import simplify_model

    start, progress = time.perf_counter(), make_progress()
    report = progress.stage("report")(write_simplify_report)
    with interruptible():
        found = simplify_model(
            source,
            data,
            out=out,
            device=device,
            progress=progress,
            finish=report,
            **asdict(settings),
        )
    seconds = time.perf_counter() - start
    steps = [plain_table(STEPS, list(map(step_cells, found["steps"])))] if "steps" in found else []
    show(
        {**found, "seconds": round(seconds, 3)},
        [*simplify_headline(found), *steps],
        [f"{seconds:.0f} s", "", f"report  {Path(found['out'], 'report.html')}"],
        as_json=screen.json,
    )
