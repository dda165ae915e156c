"""`hessblocks train`: one run, and the trained model as Hugging Face reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hessblocks.cli import options


def train(
    preset: Annotated[
        str, typer.Argument(help="Name of a block; `hessblocks presets` lists them.")
    ],
    data: options.Data = None,
    vocab_size: options.VocabSize = 4096,
    depth: options.Depth = 4,
    width: options.Width = 128,
    heads: options.Heads = 4,
    mlp_width: options.MlpWidth = None,
    context: options.Context = 128,
    steps: options.Steps = 400,
    batch_size: options.BatchSize = 8,
    learning_rate: options.LearningRate = 1e-3,
    evaluate_every: options.EvaluateEvery = 50,
    checkpoint_every: options.CheckpointEvery = 100,
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
    from hessblocks import training
    from hessblocks.cli.work import carry_out

    folder = out or Path("runs", preset)
    settings = training.RunSettings(
        preset=preset,
        seed=seed,
        model=training.ModelSettings(
            depth=depth, width=width, heads=heads, mlp_width=mlp_width, context=context
        ),
        training=training.TrainingSettings(
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
        ),
        device=training.resolve_device(device),
    )
    settings.model.check_sizes(preset, vocab_size)
    carry_out(
        lambda corpus, progress, report: training.train(
            settings, corpus, folder, progress, finish=report
        ),
        data=data,
        vocab_size=vocab_size,
        out=folder,
        as_json=as_json,
        hint=f'python -c "import hessblocks, transformers; print(transformers.AutoModelForCausalLM.'
        f"from_pretrained('{folder / 'model'}'))\"",
    )
