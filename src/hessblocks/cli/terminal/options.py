"""The options that commands share, and groups of them that several commands take as a whole.

A group is a table of name, option and default. `taking` puts its options into a command's signature
where the command has a parameter named for the group, and hands their values over as one dictionary.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Group = Mapping[str, tuple[Any, Any]]

Out = Annotated[
    Path, typer.Option("--out", help="Run folder; the same one again goes on where it stopped.")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of weights and data order.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")
]
Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show the Python traceback of an error.")
]

Data = Annotated[
    Path | None,
    typer.Option(
        help="File or folder of text or code; Python's standard library by default.",
        show_default=False,
    ),
]
VOCABULARY = 4096
VocabSize = Annotated[int, typer.Option(help="Entries of the vocabulary learnt from the data.")]
Depth = Annotated[int, typer.Option(min=1, help="Layers.")]
Width = Annotated[int, typer.Option(min=1, help="Entries of a token's vector.")]
Heads = Annotated[int, typer.Option(min=1, help="Attention heads; divides the width.")]
MlpWidth = Annotated[
    int | None,
    typer.Option(min=1, help="Hidden width of the MLP; 4 widths by default.", show_default=False),
]
Context = Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")]
Steps = Annotated[int, typer.Option(min=1, help="Optimiser updates.")]
BatchSize = Annotated[
    int,
    typer.Option(min=1, help="Sequences of each update, over all devices and accumulated passes."),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        help="Peak learning rate. [default: 1e-3 for adamw, 0.3 for sgd]", show_default=False
    ),
]
Optimiser = Annotated[str, typer.Option(help="adamw, or sgd with momentum.")]
Momentum = Annotated[
    float | None, typer.Option(help="Momentum of sgd. [default: 0.9]", show_default=False)
]
WeightDecay = Annotated[
    float | None,
    typer.Option(
        help="Weight decay of matrices and embeddings. [default: 0.1 for adamw, 0 for sgd]",
        show_default=False,
    ),
]
Schedule = Annotated[
    str, typer.Option(help="Decay of the learning rate to 0 after the warm-up: linear or cosine.")
]
Bf16 = Annotated[
    bool,
    typer.Option(
        "--bf16", help="Matrix products in bfloat16; weights and optimiser stay in float32."
    ),
]
Accumulate = Annotated[
    int, typer.Option(min=1, help="Passes in which a device works through its part of an update.")
]
GainsEvery = Annotated[
    int, typer.Option(min=0, help="Steps between looks at the trained gains; 0 for never.")
]
SignalEvery = Annotated[
    int,
    typer.Option(min=0, help="Steps between looks at the signal through the layers; 0 for never."),
]
CurvatureEvery = Annotated[
    int, typer.Option(min=0, help="Steps between norms of H, H_o and H_f; 0 for never.")
]
CurvatureGroups = Annotated[
    str,
    typer.Option(help="Roles or names (with * and ?) of the groups that they are measured of."),
]
CurvatureSequences = Annotated[
    int, typer.Option(min=1, help="Held-out sequences of the curvature.")
]
CurvatureTokens = Annotated[int, typer.Option(min=2, help="Tokens of each of them.")]
CurvatureProbes = Annotated[int, typer.Option(min=4, help="Random vectors a parameter group.")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
EvaluateEvery = Annotated[int, typer.Option(min=1, help="Steps between validation losses.")]

MODEL: Group = {
    "depth": (Depth, 4),
    "width": (Width, 128),
    "heads": (Heads, 4),
    "mlp_width": (MlpWidth, None),
    "context": (Context, 128),
}
TRAINING: Group = {
    "steps": (Steps, 400),
    "batch_size": (BatchSize, 8),
    "learning_rate": (LearningRate, None),
    "optimiser": (Optimiser, "adamw"),
    "momentum": (Momentum, None),
    "weight_decay": (WeightDecay, None),
    "schedule": (Schedule, "linear"),
    "bf16": (Bf16, False),
    "accumulate": (Accumulate, 1),
    "evaluate_every": (EvaluateEvery, 50),
    "checkpoint_every": (CheckpointEvery, 100),
}
OBSERVATION: Group = {
    "gains_every": (GainsEvery, 0),
    "signal_every": (SignalEvery, 0),
    "curvature_every": (CurvatureEvery, 0),
    "curvature_groups": (CurvatureGroups, "query,key,value"),
}
SAMPLE: Group = {
    "curvature_sequences": (CurvatureSequences, 8),
    "curvature_tokens": (CurvatureTokens, 32),
    "curvature_probes": (CurvatureProbes, 8),
}


def taking(**groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that spells out groups of options in a command's signature.

    Args:
        groups: by the name of the command's parameter that takes their values as a dictionary.
    """

    def spell_out(command: Callable[..., None]) -> Callable[..., None]:
        def spelt_out(**given: Any) -> None:
            bundles = {
                group: {name: given.pop(name) for name in options}
                for group, options in groups.items()
            }
            command(**given, **bundles)

        own = inspect.signature(command, eval_str=True).parameters
        parameters = [
            parameter
            for name, one in own.items()
            for parameter in (_spelt(groups[name]) if name in groups else [one])
        ]
        keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        spelt_out.__name__, spelt_out.__doc__ = command.__name__, command.__doc__
        spelt_out.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        spelt_out.__annotations__ = {p.name: p.annotation for p in keywords}
        return spelt_out

    return spell_out


def said_again(group: Group, values: Mapping[str, Any]) -> list[str]:
    """The words that give a group's options their values, where those are not the defaults.

    Args:
        group: of options.
        values: by the names of the group; a name that is left out is not said.
    """
    words = []
    for name, (_, default) in group.items():
        value = values.get(name, default)
        if value != default:
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, shlex.quote(str(value))]
    return words


def _spelt(group: Group) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
        )
        for name, (annotation, default) in group.items()
    ]
