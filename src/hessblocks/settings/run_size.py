"""The size of one training run as plain values: what a study varies, stores and names."""

from __future__ import annotations

from dataclasses import dataclass


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
