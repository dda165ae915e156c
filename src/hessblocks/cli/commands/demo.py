"""`hessblocks demo`: the whole story at laptop size, in a few minutes."""

from __future__ import annotations

from pathlib import Path

from hessblocks.cli.terminal import Device, Json, Out, Seed, Traceback

PRESETS = ("pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")


def demo(
    out: Out = Path("runs/demo"),
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Train five blocks on Python code, map their curvature before and after, write the report."""
    from hessblocks.cli.terminal import carry_out
    from hessblocks.training import (
        ComparisonSettings,
        CurvatureSettings,
        ModelSettings,
        TrainingSettings,
        compare,
        resolve_device,
    )

    settings = ComparisonSettings(
        presets=PRESETS,
        seeds=(seed,),
        model=ModelSettings(depth=4, width=128, heads=4, context=128),
        training=TrainingSettings(steps=400, batch_size=8, learning_rate=1e-3),
        curvature=CurvatureSettings(sequences=8, tokens=32, probes=8),
        device=resolve_device(device),
    )
    carry_out(
        lambda corpus, progress, report: compare(
            settings, corpus, out, progress, "demo", finish=report
        ),
        data=None,
        vocab_size=4096,
        out=out,
        as_json=as_json,
        hint="hessblocks train sas-p --steps 2000 --data FILE_OR_FOLDER --out runs/mine",
    )
