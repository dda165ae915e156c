"""How a model is trained: optimiser, schedule, batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hessblocks.errors import ArgumentError
from hessblocks.training.settings.checks import check_choice, check_count

OPTIMISERS = ("adamw", "sgd")
SCHEDULES = ("linear", "cosine")
RATES = {"adamw": 1e-3, "sgd": 0.3}
"""Peak learning rate of each optimiser where none is given."""
DECAYS = {"adamw": 0.1, "sgd": 0.0}
"""Weight decay of each; that of SGD is added to the gradient, where 0.1 would outweigh a clipped one."""
MOMENTUM = 0.9
"""Of SGD."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained: warm-up, decay to 0, clipped gradients.

    Source: He & Hofmann (2024), appendix, CodeParrot settings, for AdamW with linear decay.
    """

    steps: int = 400
    """Optimiser updates."""
    batch_size: int = 8
    """Sequences of each update, over all devices and accumulated passes."""
    learning_rate: float = RATES["adamw"]
    """Peak learning rate."""
    optimiser: str = "adamw"
    """adamw, or sgd with momentum."""
    momentum: float = MOMENTUM
    """Momentum of sgd; adamw does not use it."""
    schedule: str = "linear"
    """Decay of the learning rate to 0 after the warm-up: linear or cosine."""
    warmup: float = 0.05
    """Share of the steps in which the learning rate grows from 0."""
    weight_decay: float = DECAYS["adamw"]
    """Weight decay of matrices and embeddings, decoupled in adamw; gains and norms have none."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's averages of the gradient and of its square."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    bf16: bool = False
    """Whether matrix products run in bfloat16; weights, gradients and optimiser stay in float32."""
    accumulate: int = 1
    """Passes in which each device works through its part of an update."""
    log_every: int = 10
    """Steps over which each recorded training loss is averaged."""
    evaluate_every: int = 50
    """Steps between validation losses; one before the first and after the last step too."""
    evaluation_sequences: int = 64
    """Held-out windows of each validation loss, spread evenly over the split."""
    checkpoint_every: int = 100
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in (
            "steps",
            "batch_size",
            "accumulate",
            "log_every",
            "evaluate_every",
            "evaluation_sequences",
            "checkpoint_every",
        ):
            check_count(name, getattr(self, name))
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ArgumentError(f"{name}: expected a number above 0, got {value!r}.")
        if not 0 <= self.warmup <= 1:
            raise ArgumentError(f"warmup: expected a share from 0 to 1, got {self.warmup!r}.")
        if not 0 <= self.momentum < 1:
            raise ArgumentError(f"momentum: expected 0 or more, below 1, got {self.momentum!r}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ArgumentError(f"weight_decay: expected 0 or more, got {self.weight_decay!r}.")

    @classmethod
    def chosen(
        cls,
        *,
        optimiser: str = "adamw",
        learning_rate: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        **others: Any,
    ) -> TrainingSettings:
        """The settings with the optimiser's own defaults where None is given.

        Raises:
            ArgumentError: a value outside its range, or momentum for an optimiser without.
        """
        check_choice("optimiser", optimiser, OPTIMISERS)
        if momentum is not None and optimiser != "sgd":
            raise ArgumentError(f"--momentum: {optimiser} has none; leave it out or use sgd.")
        return cls(
            optimiser=optimiser,
            learning_rate=RATES[optimiser] if learning_rate is None else learning_rate,
            momentum=MOMENTUM if momentum is None else momentum,
            weight_decay=DECAYS[optimiser] if weight_decay is None else weight_decay,
            **others,
        )

    def sequences_each(self, processes: int) -> int:
        """Sequences of one pass on one device.

        Args:
            processes: how many devices share an update.

        Raises:
            ArgumentError: the update cannot be shared out evenly.
        """
        parts = processes * self.accumulate
        if self.batch_size % parts:
            raise ArgumentError(
                f"--batch-size: {self.batch_size} sequences cannot be shared out evenly over {processes} "
                f"{'process' if processes == 1 else 'processes'} with {self.accumulate} "
                f"{'pass' if self.accumulate == 1 else 'passes'} each; give a multiple of {parts}."
            )
        return self.batch_size // parts

    def trainer_arguments(self) -> dict[str, Any]:
        """Optimiser and schedule in the words of `transformers.TrainingArguments`."""
        chosen: dict[str, Any] = {
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": self.schedule,
            "warmup_steps": round(self.warmup * self.steps),
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.clip,
            "bf16": self.bf16,
            "gradient_accumulation_steps": self.accumulate,
        }
        if self.optimiser == "sgd":
            return chosen | {"optim": "sgd", "optim_args": f"momentum={self.momentum}"}
        return chosen | {"adam_beta1": self.betas[0], "adam_beta2": self.betas[1]}
