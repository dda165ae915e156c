"""Settings of training: optimiser, schedule, batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from hessblocks.errors import ArgumentError, check_name
from hessblocks.settings import field_marks

OPTIMISERS = ("adamw", "sgd", "muon")
RATES = {"adamw": 1e-3, "sgd": 0.3, "muon": 3e-3}
"""Default peak learning rate of each optimiser."""
DECAYS = {"adamw": 0.1, "sgd": 0.0, "muon": 0.1}
"""Default weight decay of each optimiser; gains and norms have none. It is decoupled for AdamW and
Muon. For SGD it is added to the gradient, where 0.1 would outweigh a clipped gradient."""
MOMENTA = {"sgd": 0.9}
"""Default momentum of each optimiser that has momentum."""
SHARE = field_marks.Range(lambda value: 0 <= value <= 1, "a share from 0 to 1")
BELOW_1 = field_marks.Range(lambda value: 0 <= value < 1, "0 or more, below 1")
NOT_NEGATIVE = field_marks.Range(lambda value: 0 <= value < math.inf, "0 or more")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training.

    The learning rate has a warm-up and decays to 0; gradients are clipped.

    Source: He & Hofmann (2024), appendix, CodeParrot settings, for AdamW with linear decay.
    """

    steps: Annotated[int, field_marks.at_least(1)] = 400
    """Optimiser updates."""
    batch_size: Annotated[int, field_marks.at_least(1)] = 8
    """Sequences per update, over all devices and accumulated passes."""
    learning_rate: Annotated[
        float, field_marks.ByOptimiser(RATES), field_marks.above_0("a number")
    ] = RATES["adamw"]
    """Peak learning rate."""
    optimiser: Annotated[str, field_marks.OneOf(OPTIMISERS)] = "adamw"
    """adamw, sgd (with momentum), or muon (for the layers' matrices; adamw for the rest)."""
    momentum: Annotated[float, field_marks.ByOptimiser(MOMENTA), BELOW_1] = MOMENTA["sgd"]
    """Momentum of sgd."""
    rates: Annotated[str, field_marks.OneOf(("same", "width"))] = "same"
    """Learning rate of the layers' matrices: same, or width (times base width / width)."""
    base_width: Annotated[int, field_marks.at_least(1)] = 64
    """Width at which the factor of --rates width is 1."""
    schedule: Annotated[str, field_marks.OneOf(("linear", "cosine"))] = "linear"
    """Decay of the learning rate to 0 after the warm-up: linear or cosine."""
    warmup: Annotated[float, SHARE] = 0.05
    """Share of the steps in which the learning rate rises from 0 to its peak."""
    weight_decay: Annotated[float, field_marks.ByOptimiser(DECAYS), NOT_NEGATIVE] = DECAYS["adamw"]
    """Weight decay of matrices and embeddings."""
    betas: Annotated[tuple[float, float], field_marks.NoOption()] = (0.9, 0.999)
    """AdamW's decay rates for the averages of the gradient and its square."""
    clip: Annotated[float, field_marks.NoOption(), field_marks.above_0("a number")] = 1.0
    """Norm at which gradients are clipped."""
    bf16: bool = False
    """Matrix products in bfloat16; weights and optimiser stay in float32."""
    compile: bool = False
    """Compile each layer with torch.compile; meant for CUDA, on a CPU steps take longer."""
    accumulate: Annotated[int, field_marks.at_least(1)] = 1
    """Passes into which a device splits its part of an update (gradient accumulation)."""
    log_every: Annotated[int, field_marks.at_least(1), field_marks.NoOption()] = 10
    """Steps over which each recorded training loss is averaged."""
    evaluate_every: Annotated[int, field_marks.at_least(1)] = 50
    """Steps between validation losses."""
    evaluation_sequences: Annotated[int, field_marks.at_least(1), field_marks.NoOption()] = 64
    """Held-out windows of each validation loss, spread evenly over the split."""
    checkpoint_every: Annotated[int, field_marks.at_least(1)] = 100
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        """Check ranges."""
        field_marks.check_ranges(self)
        self.sequences_each()
        if self.rates == "width" and self.optimiser == "sgd":
            raise ArgumentError(
                "--rates: rates by width are known for adamw and muon, not for sgd; use one of "
                "these, or leave the option out."
            )

    @classmethod
    def chosen(cls, *, optimiser: str = "adamw", **others: Any) -> Self:
        """Make settings; values that are None get the default of the optimiser.

        Args:
            optimiser: adamw, sgd or muon.
            **others: further fields; learning_rate, momentum and weight_decay may be None or
                missing.

        Returns:
            The settings, without None.

        Raises:
            ArgumentError: a value is outside its range, or the optimiser has no momentum.
        """
        check_name("--optimiser", optimiser, OPTIMISERS)
        if others.get("momentum") is not None and optimiser not in MOMENTA:
            raise ArgumentError(f"--momentum: {optimiser} has none; leave it out or use sgd.")
        defaults = {"learning_rate": RATES[optimiser], "weight_decay": DECAYS[optimiser]}
        set_values = {name: value for name, value in others.items() if value is not None}
        return cls(optimiser=optimiser, **defaults | set_values)

    def sequences_each(self) -> int:
        """Divide the sequences of an update among its passes.

        Returns:
            Sequences per pass.

        Raises:
            ArgumentError: the batch size is not a multiple of the passes.
        """
        if self.batch_size % self.accumulate:
            raise ArgumentError(
                f"--batch-size: {self.batch_size} sequences cannot be divided evenly among "
                f"--accumulate {self.accumulate} passes; give a multiple of {self.accumulate}."
            )
        return self.batch_size // self.accumulate

    def trainer_arguments(self) -> dict[str, Any]:
        """Return optimiser and schedule as arguments of `transformers.TrainingArguments`."""
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


@dataclass(frozen=True, kw_only=True)
class TunedSettings(TrainingSettings):
    """Learning rates of a comparison."""

    tune: bool = False
    """First search each block's best learning rate (half decades, one seed), then train with it."""

    @classmethod
    def chosen(cls, *, tune: bool = False, **others: Any) -> Self:
        """Make settings; see `TrainingSettings.chosen`.

        Args:
            tune: whether rates are searched.
            **others: further fields.

        Returns:
            The settings.

        Raises:
            ArgumentError: a value is outside its range, or a rate is given though it is searched.
        """
        if tune and others.get("learning_rate") is not None:
            raise ArgumentError("--tune: it searches the rates; leave --learning-rate out.")
        return super().chosen(tune=tune, **others)

    @property
    def of_each(self) -> TrainingSettings:
        """Settings of a single run, without the search."""
        return TrainingSettings(
            **{field.name: getattr(self, field.name) for field in fields(TrainingSettings)}
        )
