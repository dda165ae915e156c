"""`hessblocks train`: train one block and save the model as Hugging Face reads it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from hessblocks import settings
from hessblocks.cli import checks, options
from hessblocks.escape import shell_line

_TRY = (
    "import sys, hessblocks, transformers; print(transformers.pipeline("
    '"text-generation", sys.argv[1])("def", max_new_tokens=8)[0]["generated_text"])'
)


@options.taking
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
    carry_out(
        runs.train,
        run,
        folder,
        text=text,
        as_json=screen.json,
        hint=lambda _: shell_line(["python", "-c", _TRY, str(folder / "model")]),
    )
