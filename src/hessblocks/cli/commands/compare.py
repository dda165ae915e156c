"""`hessblocks compare`: train several blocks with the user's sizes and data."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from hessblocks import settings
from hessblocks.cli import checks, options
from hessblocks.escape import shell_line


@options.taking
def compare(
    *,
    presets: Annotated[
        tuple[str, ...],
        options.checked(checks.blocks, help=options.PRESETS_HELP),
        options.several("presets"),
    ] = ("pre-ln", "sas", "sas-p"),
    seeds: Annotated[
        int, options.within("Number of seeds, from --seed on.", settings.at_least(1))
    ] = 1,
    text: settings.DataSettings,
    model: settings.ModelSettings,
    training: settings.TunedSettings,
    observation: settings.ObservationSettings,
    out: options.Out = Path("runs/compare"),
    seed: options.SeedOption = 0,
    device: options.Device = "auto",
    report_to: options.Tracker = "none",
    screen: options.Screen,
) -> None:
    """Train several blocks on the same data and map their curvature before and after.

    The same --out with more presets or seeds trains the new ones only.
    """
    model.check_heads(presets)
    checks.check_length(text.data, 1, model.context)
    settings.SharedSettings(model=model, training=training, observation=observation)
    from hessblocks import training as runs
    from hessblocks.cli.commands.work import carry_out
    from hessblocks.models import read_blocks

    names, blocks = read_blocks(presets)
    model = replace(model, blocks=blocks)
    comparison = settings.ComparisonSettings(
        presets=names,
        seeds=tuple(range(seed, seed + seeds)),
        model=model,
        training=training.of_each,
        tune=training.tune,
        curvature=observation.sample,
        observation=observation,
        device=runs.resolve_device(device),
        report_to=report_to,
    )
    for name in comparison.presets:  # before the data is read
        runs.model_without_weights(model, name, text.vocab_size)
    carry_out(
        runs.compare,
        comparison,
        out,
        text=text,
        as_json=screen.json,
        hint=lambda _: shell_line(["hessblocks", *options.WORDS.get(), "--seeds", str(seeds + 2)]),
    )
