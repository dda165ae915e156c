"""`hessblocks demo`: a whole comparison at laptop size, in a few minutes."""

from functools import partial
from pathlib import Path

from hessblocks import settings
from hessblocks.cli import options

PRESETS = ("pre-ln-zero", "sas", "sas-p")
"""Blocks of the demo. Simplified blocks start with zero queries; to be fair, pre-ln does so too."""
RATE = 1e-2
"""Learning rate, the best of each block in the study `trial`."""


@options.taking
def demo(
    *,
    out: options.Out = Path("runs/demo"),
    seed: options.SeedOption = 0,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Train three blocks on Python code, map their curvature before and after, write the report."""
    from hessblocks import training as runs
    from hessblocks.cli.commands.work import carry_out

    comparison = settings.ComparisonSettings(
        presets=PRESETS,
        seeds=(seed,),
        model=settings.ModelSettings(depth=4, width=64, heads=4, context=64),
        training=settings.TrainingSettings(steps=1500, batch_size=16, learning_rate=RATE),
        curvature=settings.CurvatureSettings(sequences=8, tokens=32, probes=8),
        device=runs.resolve_device(device),
    )
    carry_out(
        partial(runs.compare, command="demo"),
        comparison,
        out,
        text=settings.DataSettings(vocab_size=1024),
        as_json=screen.json,
        hint=lambda _: "hessblocks train sas-p --steps 2000 --data FILE_OR_FOLDER --out runs/mine",
    )
