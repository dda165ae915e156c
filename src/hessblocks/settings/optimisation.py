"""Choose how a model is trained: optimiser, schedule, batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from hessblocks.errors import ArgumentError, check_name
from hessblocks.settings import field_marks

OPTIMISERS = ("adamw", "sgd", "muon")
RATES = {"adamw": 1e-3, "sgd": 0.3, "muon": 3e-3}
"""Peak learning rate of each optimiser where none is given."""
DECAYS = {"adamw": 0.1, "sgd": 0.0, "muon": 0.1}
"""Weight decay of each, which gains and norms have none of. That of AdamW and Muon is decoupled;
that of SGD is added to the gradient, where 0.1 would outweigh a clipped one."""
MOMENTA = {"sgd": 0.9}
"""Momentum of each that has one."""
SHARE = field_marks.Range(lambda value: 0 <= value <= 1, "a share from 0 to 1")
BELOW_1 = field_marks.Range(lambda value: 0 <= value < 1, "0 or more, below 1")
NOT_NEGATIVE = field_marks.Range(lambda value: 0 <= value < math.inf, "0 or more")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a model is trained.

    With warm-up, decay to 0 and clipped gradients.

    Source: He & Hofmann (2024), appendix, CodeParrot settings, for AdamW with linear decay.
    """

    steps: Annotated[int, field_marks.at_least(1)] = 400
    """Optimiser updates."""
    batch_size: Annotated[int, field_marks.at_least(1)] = 8
    """Sequences of each update, over all devices and accumulated passes."""
    learning_rate: Annotated[
        float, field_marks.ByOptimiser(RATES), field_marks.above_0("a number")
    ] = RATES["adamw"]
    """Peak learning rate."""
    optimiser: Annotated[str, field_marks.OneOf(OPTIMISERS)] = "adamw"
    """adamw, sgd with momentum, or muon for the layers' matrices beside adamw for the rest."""
    momentum: Annotated[float, field_marks.ByOptimiser(MOMENTA), BELOW_1] = MOMENTA["sgd"]
    """Momentum of sgd."""
    rates: Annotated[str, field_marks.OneOf(("same", "width"))] = "same"
    """Rate of the layers' matrices: the same as all, or base width / width times that."""
    base_width: Annotated[int, field_marks.at_least(1)] = 64
    """Width at which --rates width changes nothing."""
    schedule: Annotated[str, field_marks.OneOf(("linear", "cosine"))] = "linear"
    """Decay of the learning rate to 0 after the warm-up: linear or cosine."""
    warmup: Annotated[float, SHARE] = 0.05
    """Share of the steps in which the learning rate grows from 0."""
    weight_decay: Annotated[float, field_marks.ByOptimiser(DECAYS), NOT_NEGATIVE] = DECAYS["adamw"]
    """Weight decay of matrices and embeddings."""
    betas: Annotated[tuple[float, float], field_marks.NoOption()] = (0.9, 0.999)
    """AdamW's averages of the gradient and of its square."""
    clip: Annotated[float, field_marks.NoOption(), field_marks.above_0("a number")] = 1.0
    """Largest norm of the gradient."""
    bf16: bool = False
    """Matrix products in bfloat16; weights and optimiser stay in float32."""
    accumulate: Annotated[int, field_marks.at_least(1)] = 1
    """Passes in which a device works through its part of an update."""
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
        if self.rates == "width" and self.optimiser == "sgd":
            raise ArgumentError(
                "--rates: those by the width are for steps whose size is the rate's, not for sgd; "
                "leave the option out, or use adamw or muon."
            )

    @classmethod
    def chosen(cls, *, optimiser: str = "adamw", **others: Any) -> Self:
        """Make settings with the optimiser's own defaults where None is given.

        Args:
            optimiser: adamw, sgd or muon.
            **others: further fields; learning_rate, momentum and weight_decay may be None or
                missing.

        Returns:
            The settings, all of them numbers.

        Raises:
            ArgumentError: a value outside its range, or momentum for an optimiser without.
        """
        check_name("--optimiser", optimiser, OPTIMISERS)
        if others.get("momentum") is not None and optimiser not in MOMENTA:
            raise ArgumentError(f"--momentum: {optimiser} has none; leave it out or use sgd.")
        own = {"learning_rate": RATES[optimiser], "weight_decay": DECAYS[optimiser]}
        given = {name: value for name, value in others.items() if value is not None}
        return cls(optimiser=optimiser, **own | given)

    def sequences_each(self, processes: int) -> int:
        """Divide the sequences of an update among the devices and their passes.

        Args:
            processes: how many devices share an update.

        Returns:
            The batch size over devices and passes.

        Raises:
            ArgumentError: the update cannot be shared out evenly.
        """
        parts = processes * self.accumulate
        if self.batch_size % parts:
            raise ArgumentError(
                f"--batch-size: {self.batch_size} sequences cannot be shared out evenly over "
                f"{processes} {'process' if processes == 1 else 'processes'} with "
                f"{self.accumulate} {'pass' if self.accumulate == 1 else 'passes'} each; give a "
                f"multiple of {parts}."
            )
        return self.batch_size // parts

    def trainer_arguments(self) -> dict[str, Any]:
        """Name optimiser and schedule in the words of `transformers.TrainingArguments`."""
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
    """Rates of a comparison."""

    tune: bool = False
    """Search each block's best rate first, in half decades with one seed, then run at these."""

    @classmethod
    def chosen(cls, *, tune: bool = False, **others: Any) -> Self:
        """Make settings; see `TrainingSettings.chosen`.

        Args:
            tune: whether rates are searched.
            **others: further fields.

        Returns:
            The settings.

        Raises:
            ArgumentError: a value outside its range, or a rate where rates are searched.
        """
        if tune and others.get("learning_rate") is not None:
            raise ArgumentError("--tune: it searches the rates; leave --learning-rate out.")
        return super().chosen(tune=tune, **others)

    @property
    def of_each(self) -> TrainingSettings:
        """The settings of a run, which searches nothing."""
        return TrainingSettings(
            **{one.name: getattr(self, one.name) for one in fields(TrainingSettings)}
        )
