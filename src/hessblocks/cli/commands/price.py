"""`hessblocks price`: forecast the cost of rounding, pruning or merging in nats; allocate bits."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from hessblocks.cli import checks, options
from hessblocks.settings import PricingSettings


@options.taking
def price(
    source: options.Model,
    /,
    *,
    data: options.Text,
    settings: PricingSettings,
    out: Annotated[Path | None, options.out_of("price-MODEL")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Forecast the cost of weight changes in nats per token, check it, and allocate bits."""
    settings.check_chosen()
    checks.check_length(data, settings.sequences, settings.tokens)
    from hessblocks.cli.commands.work import measure_in_folder
    from hessblocks.cli.terminal import plain_table
    from hessblocks.inspection import measure_price
    from hessblocks.report import COSTS, cost_cells, price_headline, write_price_report

    measure_in_folder(
        partial(measure_price, source, data, out=out, device=device, **asdict(settings)),
        write_price_report,
        lambda found: [
            *price_headline(found),
            plain_table(COSTS, list(map(cost_cells, found["together"]))),
        ],
        as_json=screen.json,
    )
