"""The options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path, typer.Option("--out", help="Run folder; the same one again goes on where it stopped.")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of weights and data order.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
]
Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show the Python traceback of an error.")
]

Data = Annotated[
    Path | None,
    typer.Option(
        help="File or folder of text or code; Python's standard library by default.",
        show_default=False,
    ),
]
VocabSize = Annotated[int, typer.Option(help="Entries of the vocabulary learnt from the data.")]
Depth = Annotated[int, typer.Option(min=1, help="Layers.")]
Width = Annotated[int, typer.Option(min=1, help="Entries of a token's vector.")]
Heads = Annotated[int, typer.Option(min=1, help="Attention heads; divides the width.")]
MlpWidth = Annotated[
    int | None,
    typer.Option(min=1, help="Hidden width of the MLP; 4 widths by default.", show_default=False),
]
Context = Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")]
Steps = Annotated[int, typer.Option(min=1, help="Optimiser updates.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Sequences of each update.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
EvaluateEvery = Annotated[int, typer.Option(min=1, help="Steps between validation losses.")]
