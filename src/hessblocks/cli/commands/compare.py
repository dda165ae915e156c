"""`hessblocks compare`: blocks side by side with the user's sizes, data and budget."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from hessblocks.blocks import PRESETS
from hessblocks.cli.terminal import names, options, sample_settings, shared_settings
from hessblocks.errors import ArgumentError, unknown_name


@options.taking(
    model=options.MODEL,
    training=options.TRAINING,
    observation=options.OBSERVATION,
    sample=options.SAMPLE,
)
def compare(
    *,
    presets: Annotated[
        str, typer.Option(help="Names of blocks, with commas; `hessblocks presets` lists them.")
    ] = "pre-ln,sas,sas-p",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from --seed.")] = 1,
    match: Annotated[
        str,
        typer.Option(
            help="What every block gets as much of as the first: steps, tokens, time or flops; "
            "--steps are those of the first."
        ),
    ] = "steps",
    data: options.Data = None,
    vocab_size: options.VocabSize = options.VOCABULARY,
    model: dict[str, Any],
    training: dict[str, Any],
    observation: dict[str, Any],
    sample: dict[str, Any],
    out: options.Out = Path("runs/compare"),
    seed: options.Seed = 0,
    device: options.Device = "auto",
    as_json: options.Json = False,
    traceback: options.Traceback = False,
) -> None:
    """Train several blocks on the same data and map their curvature before and after.

    The same --out with more presets or seeds trains the new ones only.
    """
    chosen = _known(names(presets))
    from hessblocks import training as runs
    from hessblocks.cli.terminal import carry_out

    settings = runs.ComparisonSettings(
        presets=chosen,
        seeds=tuple(range(seed, seed + seeds)),
        match=match,
        curvature=sample_settings(sample),
        **shared_settings(model, training, observation, sample, device),
    )
    for name in chosen:
        settings.model.check_sizes(name, vocab_size)
    carry_out(
        lambda corpus, progress, report: runs.compare(
            settings, corpus, out, progress, finish=report
        ),
        data=data,
        vocab_size=vocab_size,
        out=out,
        as_json=as_json,
        hint=" ".join(
            [
                f"hessblocks train {chosen[-1]}",
                *(["--data", shlex.quote(str(data))] if data else []),
                *([f"--vocab-size {vocab_size}"] if vocab_size != options.VOCABULARY else []),
                *options.said_again(options.MODEL, model),
                *options.said_again(
                    options.TRAINING, {**training, "steps": 4 * settings.training.steps}
                ),
                f"--out runs/{chosen[-1]}",
            ]
        ),
    )


def _known(presets: tuple[str, ...]) -> tuple[str, ...]:
    if not presets:
        raise ArgumentError(f"--presets: expected names with commas; known: {', '.join(PRESETS)}.")
    for name in presets:
        if name not in PRESETS:
            raise unknown_name("--presets", name, PRESETS)
    return presets
