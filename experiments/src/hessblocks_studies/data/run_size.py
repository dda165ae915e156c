"""Size of a training run as plain values: what a study varies, stores and names."""

from dataclasses import dataclass, fields
from typing import Any

from hessblocks.settings import ModelSettings, RunSettings, TrainingSettings
from hessblocks.training import resolve_device


@dataclass(frozen=True, kw_only=True)
class RunSize:
    """Sizes of a model and of its training."""

    depth: int
    """Layers."""
    width: int
    """Entries of a token's vector."""
    heads: int
    """Attention heads."""
    mlp_width: int
    """Hidden width of the MLP; of each half where it is gated."""
    context: int
    """Tokens of a sequence."""
    vocab_size: int
    """Entries of the vocabulary."""
    steps: int
    """Optimiser updates."""
    batch_size: int
    """Sequences of each update."""
    learning_rate: float
    """Peak learning rate."""
    evaluations: int
    """Validation losses, evenly spread; one more before the first step."""
    evaluation_sequences: int
    """Held-out windows of each."""

    @property
    def evaluate_every(self) -> int:
        """Steps between validation losses."""
        return -(-self.steps // self.evaluations)


def run_of_size(size: RunSize, preset: str, seed: int, **training: Any) -> RunSettings:
    """A run of a given size, on the best device of this machine.

    Args:
        size: size of model and training; its further fields that are settings of either count too.
        preset: name of the block.
        seed: seed of the weights and of the order of the data.
        **training: further fields of `TrainingSettings`; an optimiser brings its own defaults.

    Returns:
        The run.

    Raises:
        ArgumentError: a value outside its range.
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
