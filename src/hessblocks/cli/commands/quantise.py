"""`hessblocks quantise`: write a model in the storage formats that cost least for a file's size."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hessblocks.cli import checks, options
from hessblocks.settings import QuantisingSettings


@options.taking
def quantise(
    source: options.Model,
    file: Annotated[Path, Parameter(name="FILE", help="GGUF file or folder to write.")],
    /,
    *,
    data: options.Text,
    settings: QuantisingSettings,
    out: Annotated[Path | None, options.out_of("quantise-MODEL")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Quantise a model into a file of a given size, at the least KL divergence, and measure it."""
    settings.check_file(file)
    checks.check_length(data, settings.sequences, settings.tokens)
    from hessblocks.cli.commands.work import measure_in_folder
    from hessblocks.cli.terminal import plain_table
    from hessblocks.inspection import measure_quantise
    from hessblocks.report import QUANTISED, file_cells, quantise_headline, write_quantise_report

    measure_in_folder(
        partial(measure_quantise, source, data, file, out=out, device=device, **asdict(settings)),
        write_quantise_report,
        lambda found: [
            *quantise_headline(found),
            plain_table(QUANTISED, list(map(file_cells, found["files"]))),
        ],
        as_json=screen.json,
    )
