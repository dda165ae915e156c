"""`hessblocks compare`: blocks side by side with the user's sizes, data and budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hessblocks.blocks import PRESETS
from hessblocks.cli import options
from hessblocks.errors import ArgumentError, unknown_name


def compare(
    presets: Annotated[
        str, typer.Option(help="Names of blocks, with commas; `hessblocks presets` lists them.")
    ] = "pre-ln,sas,sas-p",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from --seed.")] = 1,
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
    curvature_sequences: Annotated[
        int, typer.Option(min=1, help="Held-out sequences of the curvature.")
    ] = 8,
    curvature_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each of them.")] = 32,
    curvature_probes: Annotated[
        int, typer.Option(min=4, help="Random vectors a parameter group.")
    ] = 8,
    out: options.Out = Path("runs/compare"),
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Train several blocks on the same data and map their curvature before and after."""
    names = _names(presets)
    from hessblocks import training
    from hessblocks.cli.work import carry_out

    settings = training.ComparisonSettings(
        presets=names,
        seeds=tuple(range(seed, seed + seeds)),
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
        curvature=training.CurvatureSettings(
            sequences=curvature_sequences, tokens=curvature_tokens, probes=curvature_probes
        ),
        device=training.resolve_device(device),
    )
    for name in names:
        settings.model.check_sizes(name, vocab_size)
    carry_out(
        lambda corpus, progress, report: training.compare(
            settings, corpus, out, progress, finish=report
        ),
        data=data,
        vocab_size=vocab_size,
        out=out,
        as_json=as_json,
        hint=f"hessblocks train {names[-1]} --steps {4 * steps} --out runs/{names[-1]}",
    )


def _names(presets: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in presets.split(",") if name.strip())
    if not names:
        raise ArgumentError(f"--presets: expected names with commas; known: {', '.join(PRESETS)}.")
    for name in names:
        if name not in PRESETS:
            raise unknown_name("--presets", name, PRESETS)
    return names
