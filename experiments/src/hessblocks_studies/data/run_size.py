"""Sizes of a training run as plain values, which studies vary and store."""

from dataclasses import dataclass, fields
from typing import Any

from hessblocks.settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks.training import resolve_device


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """Sizes of a model and of its training."""

    depth: int
    """Number of layers."""
    width: int
    """Width of the model."""
    heads: int
    """Number of attention heads."""
    mlp_width: int
    """Hidden width of the MLP; if gated, of each half."""
    context: int
    """Tokens per sequence."""
    vocab_size: int
    """Number of entries of the vocabulary."""
    steps: int
    """Number of optimiser updates."""
    batch_size: int
    """Sequences per update."""
    learning_rate: float
    """Peak learning rate."""
    evaluations: int
    """Number of validation losses, evenly spaced; one more before the first step."""
    evaluation_sequences: int
    """Number of held-out windows per validation loss."""

    @property
    def evaluate_every(self) -> int:
        """Steps between validation losses."""
        return -(-self.steps // self.evaluations)


def run_of_size(size: RunSize, preset: str, seed: int, **training: Any) -> RunSettings:
    """Make the settings of a run of a given size, on the best device of this machine.

    Args:
        size: sizes of model and training, and further fields that are settings of either.
        preset: name of the block.
        seed: seed of the weights and of the data order.
        **training: further fields of `TrainingSettings`; an optimiser sets its own defaults.

    Returns:
        The settings of the run.

    Raises:
        ArgumentError: a value is outside its range.
    """

    def common(kind: type) -> dict[str, Any]:
        return {
            field.name: getattr(size, field.name)
            for field in fields(kind)
            if hasattr(size, field.name)
        }

    return RunSettings(
        preset=preset,
        seed=seed,
        model=ModelSettings(**common(ModelSettings)),
        training=TrainingSettings.chosen(**common(TrainingSettings) | training),
        device=resolve_device("auto"),
    )
