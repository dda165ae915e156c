"""`hessblocks finetune`: a saved model learns to classify the user's own labelled texts."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli import options
from hessblocks.cli.interruption import interruptible
from hessblocks.settings import FinetuneSettings
from hessblocks.shown import shell_line

_LOAD = (
    "import sys, hessblocks, transformers; "
    'print(transformers.pipeline("text-classification", sys.argv[1])(sys.argv[2]))'
)


@options.taking
def finetune(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder that save_pretrained or `hessblocks train` wrote, or a name in the local Hugging "
            "Face cache: a classifier, or a model on which transformers puts the head of one.",
        ),
    ],
    *,
    data: Annotated[
        Path,
        typer.Option(
            help="Labelled texts: a .csv or .tsv file whose first line names its columns, or .jsonl."
        ),
    ],
    settings: FinetuneSettings,
    out: Annotated[
        Path | None, typer.Option(help=f"{options.GOES_ON} [default: runs/finetune-MODEL]")
    ] = None,
    device: options.Device = "auto",
    report_to: options.Tracker = "none",
    screen: options.Screen,
) -> None:
    """Fine-tune a saved model on labelled text; --out then holds the classifier, ready for `from_pretrained`."""
    from hessblocks import training as runs
    from hessblocks.cli.terminal import judged_table, make_progress, show

    start, progress = time.perf_counter(), make_progress()
    with interruptible():
        found = runs.finetune_saved(
            source,
            data,
            settings,
            out or Path("runs", f"finetune-{Path(source).resolve().name}"),
            progress,
            device=runs.resolve_device(device),
            report_to=runs.check_tracker(report_to),
        )
    seconds = time.perf_counter() - start
    kept = "" if found.new else "; the head of the saved model was kept"
    show(
        {
            "command": "finetune",
            "seconds": round(seconds, 3),
            **asdict(found),
            "folder": str(found.folder),
        },
        [
            judged_table(found),
            f"of {found.held_out:,} held-out texts, ± 1 standard error of such a draw (Agresti and Coull, 1998); loss: "
            f"nats a text; learnt from {found.train:,} texts, {found.cut:,} of all were cut{kept}",
        ],
        [
            f"{seconds:.0f} s",
            "",
            f"model   {found.folder}",
            f"next    {shell_line(['python', '-c', _LOAD, str(found.folder), 'a text'])}",
        ],
        as_json=screen.json,
    )
