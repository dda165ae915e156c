"""Settings of a run or comparison: sizes, training, curvature, measurements during training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from hessblocks.conventions import selects
from hessblocks.errors import ArgumentError, check_name
from hessblocks.settings import field_marks as marks

OPTIMISERS = ("adamw", "sgd", "muon")
RATES = {"adamw": 1e-3, "sgd": 0.3, "muon": 3e-3}
"""Default peak learning rate of each optimiser."""
DECAYS = {"adamw": 0.1, "sgd": 0.0, "muon": 0.1}
"""Default weight decay of each optimiser; gains and norms have none. It is decoupled for AdamW and
Muon. For SGD it is added to the gradient, where 0.1 would outweigh a clipped gradient."""
MOMENTA = {"sgd": 0.9}
"""Default momentum of each optimiser that has momentum."""
SHARE = marks.Range(lambda value: 0 <= value <= 1, "a share from 0 to 1")
BELOW_1 = marks.Range(lambda value: 0 <= value < 1, "0 or more, below 1")
ABOVE_0 = marks.above_0("a number")
NOT_NEGATIVE = marks.Range(lambda value: 0 <= value < math.inf, "0 or more")


class Checked:
    """Base of settings whose values are checked alone, each against its own range."""

    def __post_init__(self) -> None:
        """Check ranges."""
        marks.check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training.

    The learning rate has a warm-up and decays to 0; gradients are clipped.

    Source: He & Hofmann (2024), appendix, CodeParrot settings, for AdamW with linear decay.
    """

    steps: Annotated[int, marks.at_least(1)] = 400
    """Optimiser updates."""
    batch_size: Annotated[int, marks.at_least(1)] = 8
    """Sequences per update, over all devices and accumulated passes."""
    learning_rate: Annotated[float, marks.ByOptimiser(RATES), ABOVE_0] = RATES["adamw"]
    """Peak learning rate."""
    optimiser: Annotated[str, marks.OneOf(OPTIMISERS)] = "adamw"
    """adamw, sgd (with momentum), or muon (for the layers' matrices; adamw for the rest)."""
    momentum: Annotated[float, marks.ByOptimiser(MOMENTA), BELOW_1] = MOMENTA["sgd"]
    """Momentum of sgd."""
    rates: Annotated[str, marks.OneOf(("same", "width"))] = "same"
    """Learning rate of the layers' matrices: same, or width (times base width / width)."""
    base_width: Annotated[int, marks.at_least(1)] = 64
    """Width at which the factor of --rates width is 1."""
    schedule: Annotated[str, marks.OneOf(("linear", "cosine"))] = "linear"
    """Decay of the learning rate to 0 after the warm-up: linear or cosine."""
    warmup: Annotated[float, SHARE] = 0.05
    """Share of the steps in which the learning rate rises from 0 to its peak."""
    weight_decay: Annotated[float, marks.ByOptimiser(DECAYS), NOT_NEGATIVE] = DECAYS["adamw"]
    """Weight decay of matrices and embeddings."""
    betas: Annotated[tuple[float, float], marks.NoOption()] = (0.9, 0.999)
    """AdamW's decay rates for the averages of the gradient and its square."""
    clip: Annotated[float, marks.NoOption(), ABOVE_0] = 1.0
    """Norm at which gradients are clipped."""
    bf16: bool = False
    """Matrix products in bfloat16; weights and optimiser stay in float32."""
    compile: bool = False
    """Compile each layer with torch.compile; meant for CUDA, on a CPU steps take longer."""
    accumulate: Annotated[int, marks.at_least(1)] = 1
    """Passes into which a device splits its part of an update (gradient accumulation)."""
    log_every: Annotated[int, marks.at_least(1), marks.NoOption()] = 10
    """Steps over which each recorded training loss is averaged."""
    evaluate_every: Annotated[int, marks.at_least(1)] = 50
    """Steps between validation losses."""
    evaluation_sequences: Annotated[int, marks.at_least(1), marks.NoOption()] = 64
    """Held-out windows of each validation loss, spread evenly over the split."""
    checkpoint_every: Annotated[int, marks.at_least(1)] = 100
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        """Check ranges."""
        marks.check_ranges(self)
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
        names = (field.name for field in fields(TrainingSettings))
        return TrainingSettings(**{name: getattr(self, name) for name in names})


NEVER = marks.Range(lambda value: value >= 0, "a number of steps, or 0 for never")
ROLES = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings(Checked):
    """Held-out batch and probes for curvature and signal."""

    option_prefix: ClassVar[str] = "curvature_"
    sequences: Annotated[int, marks.at_least(1)] = 8
    """Number of held-out sequences for curvature."""
    tokens: Annotated[int, marks.at_least(2)] = 32
    """Tokens per sequence, 2 or more."""
    probes: Annotated[int, marks.at_least(4)] = 8
    """Random vectors per parameter group, 4 or more."""
    seed: Annotated[int, marks.NoOption()] = 0
    """Seed of the windows and probes, the same for every preset and seed of a comparison."""


@dataclass(frozen=True, kw_only=True)
class ObservationSettings:
    """Measurements during training.

    Besides losses; they are made at step 0, at regular steps, and at the last step.
    """

    gains_every: Annotated[int, NEVER] = 0
    """Steps between records of the trained gains; 0: never."""
    signal_every: Annotated[int, NEVER] = 0
    """Steps between measurements of signal propagation; 0: never."""
    curvature_every: Annotated[int, NEVER] = 0
    """Steps between measurements of the norms of H, H_o and H_f; 0: never."""
    curvature_groups: tuple[str, ...] = ROLES
    """Groups to measure curvature of: roles, or names as tables print them, with * and ?."""
    sample: CurvatureSettings = field(default_factory=CurvatureSettings)
    """Fixed held-out batch and probes."""

    def __post_init__(self) -> None:
        """Check ranges."""
        marks.check_ranges(self)
        if self.curvature_groups != ROLES and not self.curvature_every:
            raise ArgumentError(
                "--curvature-groups: has no effect without --curvature-every; give both or neither."
            )
        if self.curvature_every and not self.curvature_groups:
            raise ArgumentError("--curvature-groups: expected roles or names of groups, got none.")

    @property
    def any(self) -> bool:
        """True if anything is measured."""
        return bool(self.gains_every or self.needs_batch)

    @property
    def needs_batch(self) -> bool:
        """True if the fixed batch is used."""
        return bool(self.signal_every or self.curvature_every)

    def chooses(self, name: str, role: str) -> bool:
        """Tell whether the curvature of a group is measured."""
        return any(selects(wanted, name, role) for wanted in self.curvature_groups)


def is_due(every: int, step: int, last: int) -> bool:
    """Tell whether a step is due: step 0, each `every`-th step, and the last."""
    return every > 0 and (step % every == 0 or step == last)


TRACKERS = ("none", "tensorboard", "wandb", "trackio")
"""Experiment trackers."""
STARTS = ("scaled", "fixed")
"""Initialisations of weights; the same as `blocks.presets.STARTS`, whose import loads torch."""


VOCABULARY = marks.Range(lambda value: value >= 257, "at least 257 (256 bytes and the end of text)")
"""Sizes of a vocabulary that is learnt."""

BUILT_IN = ("python-code", "random")
"""Names of built-in data, which are not paths."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(Checked):
    """Training text."""

    data: Path | None = None
    """File or folder of text or code; Python's standard library by default."""
    vocab_size: Annotated[int, VOCABULARY] = 4096
    """Size of the vocabulary learnt from the data."""


def heads_refusal(width: int, heads: int) -> str:
    """Describe heads that do not divide the width, and those nearby that do; empty if they do."""
    if width % heads == 0:
        return ""
    divisors = [count for count in range(1, width + 1) if width % count == 0]
    nearest = sorted(sorted(divisors, key=lambda count: abs(count - heads))[:2])
    expected = " or ".join(map(str, nearest))
    return f"heads: {heads} heads do not divide the width {width}; use {expected} heads"


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """Sizes of the layers."""

    depth: Annotated[int, marks.at_least(1)] = 4
    """Number of layers."""
    width: Annotated[int, marks.at_least(1)] = 128
    """Model width: entries of a token's hidden state."""
    heads: Annotated[int, marks.at_least(1)] = 4
    """Number of attention heads; must divide the width."""
    mlp_width: Annotated[int | None, marks.at_least(1)] = None
    """Hidden width of the MLP; by default 4 times the width."""
    position: str | None = None
    """Position encoding: learned, sinusoidal, rotary or no; by default the block's own."""
    slots: Annotated[tuple[str, ...], marks.Repeated("set")] = ()
    """Field of the block to set, such as attention.query.init=zeros; can be repeated."""

    def __post_init__(self) -> None:
        """Check ranges; make the slots a tuple, so that the settings can be a key."""
        marks.check_ranges(self)
        object.__setattr__(self, "slots", tuple(self.slots))

    def check_heads(self, blocks: Sequence[str]) -> None:
        """Refuse heads that do not divide the width, if a block is a preset without slots.

        Raises:
            ArgumentError: the heads do not divide the width.
        """
        plain = any("[" not in name and ".json" not in name for name in blocks)
        if plain and not self.slots and (refusal := heads_refusal(self.width, self.heads)):
            raise ArgumentError(f"--{refusal}.")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(BlockSizes):
    """Sizes of the model, the same for every preset of a comparison."""

    context: Annotated[int, marks.at_least(2)] = 128
    """Tokens per sequence, 2 or more."""
    start: Annotated[str, marks.OneOf(STARTS)] = "scaled"
    """Initialisation: scaled by the widths, or fixed (standard deviation 0.02, as in GPT-2)."""
    blocks: Annotated[tuple[tuple[str, str], ...], marks.NoOption()] = ()
    """Blocks of the user: pairs of name and block as JSON."""
    embedding_std: Annotated[float | None, ABOVE_0] = None
    """Standard deviation of initial embeddings; by default the block's own."""


@dataclass(frozen=True, kw_only=True)
class PresetSizes(BlockSizes):
    """Sizes for counting parameters and operations."""

    context: Annotated[int, marks.at_least(2)] = 128
    """Tokens per sequence, 2 or more."""
    vocab_size: Annotated[int, marks.at_least(1)] = 4096
    """Size of the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """Settings that all runs of a comparison share."""

    model: ModelSettings = field(default_factory=ModelSettings)
    """Sizes of the model."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Optimiser, schedule and batch."""
    curvature: CurvatureSettings | None = None
    """Batch and probes for curvature before and after training; None: do not measure it."""
    observation: ObservationSettings = field(default_factory=ObservationSettings)
    """Measurements during training."""
    device: str = "cpu"
    """cpu or cuda."""
    report_to: Annotated[str, marks.OneOf(TRACKERS)] = "none"
    """Experiment tracker for the losses: tensorboard, wandb, trackio or none."""

    def __post_init__(self) -> None:
        """Check ranges; refuse a fixed batch whose sequences are longer than the context."""
        marks.check_ranges(self)
        for sample in self.samples:
            if sample.tokens > self.model.context:
                raise ArgumentError(
                    f"--curvature-tokens: {sample.tokens} are longer than the context of "
                    f"{self.model.context}; add --curvature-tokens {self.model.context}."
                )

    @property
    def samples(self) -> list[CurvatureSettings]:
        """Fixed batches that curvature or signal is measured on."""
        observed = self.observation.sample if self.observation.needs_batch else None
        return [sample for sample in (self.curvature, observed) if sample]


@dataclass(frozen=True, kw_only=True)
class RunSettings(SharedSettings):
    """One training run."""

    preset: str
    """Name of the block."""
    seed: marks.Seed = 0
    """Random seed of weights and data order."""

    @property
    def presets(self) -> tuple[str]:
        """Names of the blocks."""
        return (self.preset,)


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(SharedSettings):
    """Settings of a comparison."""

    presets: Sequence[str]
    """Names of the blocks, each once."""
    seeds: Sequence[int] = (0,)
    """Random seeds; each block is trained once with each seed."""
    curvature: CurvatureSettings | None = field(default_factory=CurvatureSettings)
    """Batch and probes for curvature before and after training; None: do not measure it."""
    tune: bool = False
    """Whether to search the best learning rate of each block first."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        super().__post_init__()
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                got = ", ".join(map(str, values)) or "none"
                raise ArgumentError(f"--{name}: expected one or more, each once, got {got}.")

    def runs(self, rates: Mapping[str, float] | None = None) -> list[RunSettings]:
        """List the settings of every run, seed by seed.

        Args:
            rates: preset → learning rate; missing presets have the rate of these settings.

        Returns:
            Settings of each run, in the order of execution.
        """
        shared = {field.name: getattr(self, field.name) for field in fields(SharedSettings)}
        usual = self.training
        trainings = {
            preset: replace(usual, learning_rate=(rates or {}).get(preset, usual.learning_rate))
            for preset in self.presets
        }
        return [
            RunSettings(preset=preset, seed=seed, **shared | {"training": training})
            for seed in self.seeds
            for preset, training in trainings.items()
        ]
