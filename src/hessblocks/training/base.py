"""What all our Trainers have in common."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments


class QuietTrainer(Trainer):
    """A Trainer that prints nothing and decays matrices and embeddings alone."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.remove_callback(PrinterCallback)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Matrices and embeddings; gains, norms and biases have fewer than two dimensions."""
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]


def one_device(arguments: TrainingArguments) -> TrainingArguments:
    """The arguments for one GPU a process at most; several would multiply the batch."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
