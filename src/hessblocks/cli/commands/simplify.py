"""`hessblocks simplify`: price, remove and heal parts of a pretrained model."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import checks, options
from hessblocks.settings import SimplifySettings


@options.taking
def simplify(
    source: Annotated[
        options.Model,
        Parameter(
            help=f"{options.SAVED}: Llama, Mistral, Qwen2, Qwen3, GPT-2, GPT-NeoX, or a model of "
            "blocks."
        ),
    ],
    /,
    *,
    data: options.Text,
    settings: SimplifySettings,
    out: Annotated[Path | None, options.out_of("simplify-MODEL")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure the cost of removing each part of a model, remove the cheapest, refit the rest."""
    checks.check_length(data, settings.sequences, settings.tokens)
    from hessblocks.cli.commands.work import measure_in_folder
    from hessblocks.cli.terminal import plain_table
    from hessblocks.report import (
        NUMBERS,
        number_rows,
        simplify_headline,
        write_simplify_report,
    )
    from hessblocks.simplify import simplify_model

    measure_in_folder(
        partial(simplify_model, source, data, out=out, device=device, **asdict(settings)),
        write_simplify_report,
        lambda found: [
            *simplify_headline(found),
            *([plain_table(NUMBERS, rows)] if (rows := number_rows(found)) else []),
        ],
        as_json=screen.json,
    )
