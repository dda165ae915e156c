"""`hessblocks price`: what rounding, pruning or merging costs in nats, and bits by it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.settings import PricingSettings


@options.taking
def price(
    source: Annotated[
        str,
        Parameter(
            name="MODEL",
            help="A folder that save_pretrained wrote, a GGUF file, or a name in the local Hugging "
            "Face cache.",
        ),
    ],
    /,
    *,
    data: Annotated[Path, Parameter(help="File or folder of text that the model is meant for.")],
    settings: PricingSettings,
    out: Annotated[
        Path | None, Parameter(help=f"{options.GOES_ON} [default: runs/price-MODEL]")
    ] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Forecast what changes of weights cost in nats per token, check it, and share out bits."""
    options.check_place(data)
    from hessblocks.cli.terminal import make_progress, plain_table, show
    from hessblocks.inspection import measure_price
    from hessblocks.report import COSTS, cost_cells, price_headline, write_price_report

    start, progress = time.perf_counter(), make_progress()
    report = progress.stage("report")(write_price_report)
    with interruptible():
        found = measure_price(
            source,
            data,
            out=out,
            device=device,
            progress=progress,
            finish=report,
            **asdict(settings),
        )
    seconds = time.perf_counter() - start
    show(
        {**found, "seconds": round(seconds, 3)},
        [*price_headline(found), plain_table(COSTS, list(map(cost_cells, found["together"])))],
        [f"{seconds:.0f} s", "", f"report  {Path(found['out'], 'report.html')}"],
        as_json=screen.json,
    )
