"""`hessblocks train`: one run, and the trained model as Hugging Face reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hessblocks.cli.terminal import options


@options.taking(
    model=options.MODEL,
    training=options.TRAINING,
    observation=options.OBSERVATION,
    sample=options.SAMPLE,
)
def train(
    preset: Annotated[
        str, typer.Argument(help="Name of a block; `hessblocks presets` lists them.")
    ],
    *,
    data: options.Data = None,
    vocab_size: options.VocabSize = options.VOCABULARY,
    model: dict[str, Any],
    training: dict[str, Any],
    observation: dict[str, Any],
    sample: dict[str, Any],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder; the same one again goes on where it stopped. [default: runs/PRESET]",
            show_default=False,
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Train one block; --out then holds the model, ready for `from_pretrained`."""
    from hessblocks import training as runs
    from hessblocks.cli.terminal import carry_out, shared_settings

    folder = out or Path("runs", preset)
    settings = runs.RunSettings(
        preset=preset,
        seed=seed,
        **shared_settings(model, training, observation, sample, device),
    )
    settings.model.check_sizes(preset, vocab_size)
    carry_out(
        lambda corpus, progress, report: runs.train(
            settings, corpus, folder, progress, finish=report
        ),
        data=data,
        vocab_size=vocab_size,
        out=folder,
        as_json=as_json,
        hint=f'python -c "import hessblocks, transformers; print(transformers.AutoModelForCausalLM.'
        f"from_pretrained('{folder / 'model'}'))\"",
    )
