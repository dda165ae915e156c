"""From the values of grouped options to settings of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hessblocks.cli.terminal.options import OBSERVATION
from hessblocks.errors import ArgumentError

Values = Mapping[str, Any]


def shared_settings(
    model: Values, training: Values, observation: Values, sample: Values, device: str
) -> dict[str, Any]:
    """The settings that runs and comparisons share, by the names of their fields.

    Args:
        model: of `options.MODEL`.
        training: of `options.TRAINING`.
        observation: of `options.OBSERVATION`.
        sample: of `options.SAMPLE`.
        device: auto, cpu or cuda.

    Raises:
        ArgumentError: a value outside its range.
    """
    from hessblocks import training as runs

    default = OBSERVATION["curvature_groups"][1]
    if observation["curvature_groups"] != default and not observation["curvature_every"]:
        raise ArgumentError(
            "--curvature-groups: nothing is measured of them without --curvature-every; give both or none."
        )
    return {
        "model": runs.ModelSettings(**model),
        "training": runs.TrainingSettings.chosen(**training),
        "observation": runs.ObservationSettings(
            **{**observation, "curvature_groups": names(observation["curvature_groups"])},
            sample=sample_settings(sample),
        ),
        "device": runs.resolve_device(device),
    }


def sample_settings(sample: Values) -> Any:
    """The fixed batch and the probes, a `CurvatureSettings`, from values of `options.SAMPLE`."""
    from hessblocks.training import CurvatureSettings

    return CurvatureSettings(
        **{name.removeprefix("curvature_"): value for name, value in sample.items()}
    )


def names(text: str) -> tuple[str, ...]:
    """Names that were given with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
