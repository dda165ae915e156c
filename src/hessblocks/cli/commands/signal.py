"""`hessblocks signal`: measure signal propagation through the layers of one or several models."""

import contextlib
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from hessblocks.cli import checks, options
from hessblocks.settings import SignalInspection


def signal(
    models: Annotated[
        list[str],
        options.checked(
            checks.models,
            name="MODEL",
            help="A folder that save_pretrained wrote, a name in the local Hugging Face cache, or "
            "preset:NAME for a block of `hessblocks presets` at initialisation; preset:NAME-plain "
            "is the same block with plain softmax attention.",
            completer=options.Names(tuple(map("preset:{}".format, checks.PRESETS))),
        ),
    ],
    /,
    *,
    settings: SignalInspection,
    out: Annotated[
        Path,
        options.checked(
            checks.out, help="Run folder; results of an earlier `signal` are replaced."
        ),
    ] = Path("runs/signal"),
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure signal propagation, layer by layer.

    --depth to --vocab-size are for presets. Results of an earlier `signal` in the folder are
    replaced.
    """
    settings.check_heads([name for name in models if checks.PREFIX in name])
    checks.check_length(settings.data, settings.sequences, settings.tokens)
    checks.check_run("signal", out)
    from hessblocks.cli.signal_screen import described, lines
    from hessblocks.cli.terminal import ScreenProgress, show
    from hessblocks.inspection import measure_signal
    from hessblocks.report import write_signal_figures

    start, progress = time.perf_counter(), ScreenProgress()
    with contextlib.redirect_stdout(sys.stderr):
        rows = measure_signal(
            models,
            out=out,
            device=device,
            progress=progress,
            finish=progress.stage("figures")(write_signal_figures),
            **asdict(settings),
        )
    seconds = time.perf_counter() - start
    summary = {"command": "signal", "out": str(out), "seconds": round(seconds, 3)}
    show(
        summary | {"models": described(rows)},
        lines(rows),
        [f"{seconds:.0f} s", "", f"figure  {out / 'figures' / 'signal.png'}"],
        as_json=screen.json,
    )
