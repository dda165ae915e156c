"""Commands that train blocks: compare, train, demo."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hessblocks import settings
from hessblocks.cli import checks, options
from hessblocks.escape import shell_line

DEMO = ("pre-ln-zero", "sas", "sas-p")
"""Blocks of the demo. Simplified blocks start with zero queries; to be fair, pre-ln does so too."""
RATE = 1e-2
"""Learning rate of the demo, the best of each block in the study `trial`."""
_TRY = (
    "import sys, hessblocks, transformers; print(transformers.pipeline("
    '"text-generation", sys.argv[1])("def", max_new_tokens=8)[0]["generated_text"])'
)


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
    curvature: Annotated[
        bool,
        Parameter(
            negative="--no-curvature",
            help="Measure curvature before and after training, most of the cost of a short run.",
        ),
    ] = True,
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
    checks.check_run("compare", out)
    sample = observation.sample if curvature else None
    measured: dict[str, Any] = {"curvature": sample, "observation": observation}
    settings.SharedSettings(model=model, training=training, **measured)
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
        **measured,
        device=runs.resolve_device(device),
        report_to=report_to,
    )
    for name in comparison.presets:  # before the data is read
        runs.model_without_weights(model, name, text.vocab_size)
    words = ["hessblocks", *options.WORDS.get()]
    pairs = zip(words, ["", *words], strict=False)
    typed = [w for w, before in pairs if w.partition("=")[0] != "--seeds" != before]
    more_seeds = shell_line([*typed, "--seeds", str(seeds + 2)])
    carry_out(runs.compare, comparison, out, text, more_seeds, as_json=screen.json)


def train(
    preset: Annotated[
        str,
        options.checked(
            checks.blocks,
            help="Name of a block, in any form of `hessblocks compare --presets`.",
            completer=options.completer("preset"),
        ),
    ],
    /,
    *,
    text: settings.DataSettings,
    model: settings.ModelSettings,
    training: settings.TrainingSettings,
    observation: settings.ObservationSettings,
    out: Annotated[Path | None, options.out_of("PRESET")] = None,
    seed: options.SeedOption = 0,
    device: options.Device = "auto",
    report_to: options.Tracker = "none",
    screen: options.Screen,
) -> None:
    """Train one block and save the model in --out, ready for `from_pretrained`."""
    model.check_heads([preset])
    checks.check_length(text.data, 1, model.context)
    checks.check_run("train", out)
    settings.SharedSettings(model=model, training=training, observation=observation)
    from hessblocks import training as runs
    from hessblocks.cli.commands.work import carry_out
    from hessblocks.models import read_blocks

    (preset,), blocks = read_blocks([preset], option="preset")
    model = replace(model, blocks=blocks)
    folder = out or Path("runs", preset)
    run = settings.RunSettings(
        preset=preset,
        seed=seed,
        model=model,
        training=training,
        observation=observation,
        device=runs.resolve_device(device),
        report_to=report_to,
    )
    runs.model_without_weights(model, preset, text.vocab_size)  # before the data is read
    generate = shell_line(["python", "-c", _TRY, str(folder / "model")])
    carry_out(runs.train, run, folder, text, generate, as_json=screen.json)


def demo(
    *,
    out: options.Out = Path("runs/demo"),
    seed: options.SeedOption = 0,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Train three blocks on Python code, map their curvature before and after, write the report."""
    checks.check_run("demo", out)
    from hessblocks import training as runs
    from hessblocks.cli.commands.work import carry_out

    comparison = settings.ComparisonSettings(
        presets=DEMO,
        seeds=(seed,),
        model=settings.ModelSettings(depth=4, width=64, heads=4, context=64),
        training=settings.TrainingSettings(steps=1500, batch_size=16, learning_rate=RATE),
        curvature=settings.CurvatureSettings(sequences=8, tokens=32, probes=8),
        device=runs.resolve_device(device),
    )
    text = settings.DataSettings(vocab_size=1024)
    train_own = "hessblocks train sas-p --steps 2000 --data FILE_OR_FOLDER --out runs/mine"
    work = partial(runs.compare, command="demo")
    carry_out(work, comparison, out, text, train_own, as_json=screen.json)
