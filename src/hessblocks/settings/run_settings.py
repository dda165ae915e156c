"""Settings of a run or comparison: sizes, training, curvature, what is measured on the way."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar

from hessblocks.errors import ArgumentError
from hessblocks.settings import field_marks
from hessblocks.settings.field_marks import NoOption, Range, at_least, check_ranges
from hessblocks.settings.optimisation import TrainingSettings

NEVER = Range(lambda value: value >= 0, "a number of steps, or 0 for never")
ROLES = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings:
    """Held-out batch and probes that curvature and signal are measured with."""

    option_prefix: ClassVar[str] = "curvature_"
    sequences: Annotated[int, at_least(1)] = 8
    """Held-out sequences of the curvature."""
    tokens: Annotated[int, at_least(2)] = 32
    """Tokens of each of them, 2 or more."""
    probes: Annotated[int, at_least(4)] = 8
    """Random vectors per parameter group, 4 or more."""
    seed: Annotated[int, NoOption()] = 0
    """Of the windows and of the probes: the same for every preset and seed of the comparison."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ObservationSettings:
    """What is measured along training.

    Besides losses: at step 0, every so many steps, and last.
    """

    gains_every: Annotated[int, NEVER] = 0
    """Steps between looks at the trained gains; 0 for never."""
    signal_every: Annotated[int, NEVER] = 0
    """Steps between looks at the signal through the layers; 0 for never."""
    curvature_every: Annotated[int, NEVER] = 0
    """Steps between norms of H, H_o and H_f; 0 for never."""
    curvature_groups: tuple[str, ...] = ROLES
    """Roles or names (with * and ?) of the groups that they are measured of."""
    sample: CurvatureSettings = field(default_factory=CurvatureSettings)
    """The fixed batch and the probes."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)
        if self.curvature_groups != ROLES and not self.curvature_every:
            raise ArgumentError(
                "--curvature-groups: nothing is measured of them without --curvature-every; give "
                "both or none."
            )
        if self.curvature_every and not self.curvature_groups:
            raise ArgumentError("--curvature-groups: expected roles or names of groups, got none.")

    @property
    def any(self) -> bool:
        """Tell whether anything is measured."""
        return bool(self.gains_every or self.needs_batch)

    @property
    def needs_batch(self) -> bool:
        """Tell whether the fixed batch is used."""
        return bool(self.signal_every or self.curvature_every)

    def chooses(self, name: str, role: str) -> bool:
        """Tell whether the norms of this group are measured."""
        return any(chooses(wanted, name, role) for wanted in self.curvature_groups)


def chooses(wanted: str, name: str, role: str) -> bool:
    """Tell whether a role, or a name with * and ?, matches this group."""
    return role == wanted or fnmatchcase(name, wanted)


def is_due(every: int, step: int, last: int) -> bool:
    """Tell whether a step is observed: the first, each `every`-th and the last."""
    return every > 0 and (step % every == 0 or step == last)


MATCHES = ("steps", "tokens", "time", "flops")
"""What blocks that are compared can be given as much of."""
STARTS = ("scaled", "fixed")
"""How weights can be drawn; as `blocks.STARTS`, which needs torch."""


BUILT_IN = ("python-code", "random")
"""Names of data that are no path."""


def check_place(data: Path | str | None) -> None:
    """Refuse a missing path, before torch or a model is loaded.

    Raises:
        ArgumentError: there is no file or folder of this name.
    """
    if data is None or data in BUILT_IN:
        return
    with suppress(OSError):  # a folder without permission: the reader names it better
        if data and Path(data).exists():
            return
        raise ArgumentError(
            f"--data: {data or 'an empty name'} is no file or folder; give one that exists."
        )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The text that is trained on."""

    data: Path | None = None
    """File or folder of text or code; Python's standard library by default."""
    vocab_size: int = 4096
    """Entries of the vocabulary learnt from the data."""


@dataclass(frozen=True, kw_only=True)
class BlockSizes:
    """Sizes of the layers."""

    depth: Annotated[int, field_marks.at_least(1)] = 4
    """Layers."""
    width: Annotated[int, field_marks.at_least(1)] = 128
    """Entries of a token's vector."""
    heads: Annotated[int, field_marks.at_least(1)] = 4
    """Attention heads; divides the width."""
    mlp_width: Annotated[int | None, field_marks.at_least(1)] = None
    """Hidden width of the MLP; 4 widths by default."""
    position: str | None = None
    """How a place enters: learned, sinusoidal, rotary or no; that of the block by default."""
    slots: Annotated[tuple[str, ...], field_marks.Repeated("set")] = ()
    """A field of the block, such as attention.query.init=zeros; once for each."""

    def __post_init__(self) -> None:
        """Check ranges."""
        field_marks.check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(BlockSizes):
    """Sizes of the model, the same for every preset of a comparison."""

    context: Annotated[int, field_marks.at_least(2)] = 128
    """Tokens of a sequence, 2 or more."""
    task: Annotated[str, field_marks.OneOf(("causal-lm", "masked-lm"))] = "causal-lm"
    """What is learnt: causal-lm, the next token, or masked-lm, 15 % of the tokens from the rest."""
    start: Annotated[str, field_marks.OneOf(STARTS)] = "scaled"
    """How weights are drawn: scaled by the widths, or fixed (0.02 each, as in GPT-2)."""
    blocks: Annotated[tuple[tuple[str, str], ...], field_marks.NoOption()] = ()
    """Blocks of the user's: name, and the block as JSON."""
    embedding_std: Annotated[float | None, field_marks.above_0("a number")] = None
    """Standard deviation of initial embeddings; that of the block by default."""


@dataclass(frozen=True, kw_only=True)
class PresetSizes(BlockSizes):
    """Sizes at which presets are counted."""

    context: Annotated[int, field_marks.at_least(2)] = 128
    """Tokens of a sequence, 2 or more."""
    vocab_size: Annotated[int, field_marks.at_least(1)] = 4096
    """Entries of the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """What every run of a comparison has in common."""

    model: ModelSettings = field(default_factory=ModelSettings)
    """Sizes."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """How a model is trained."""
    curvature: CurvatureSettings | None = None
    """Curvature before and after training; None for none."""
    observation: ObservationSettings = field(default_factory=ObservationSettings)
    """What is measured on the way."""
    device: str = "cpu"
    """cpu or cuda."""
    report_to: str = "none"
    """Tracker that losses go to as well: tensorboard, wandb, trackio or none."""

    def __post_init__(self) -> None:
        """Check ranges; refuse a fixed batch whose sequences are longer than the context."""
        field_marks.check_ranges(self)
        if self.model.task == "masked-lm" and self.samples:
            raise ArgumentError(
                "--task: masked-lm is for train, without --signal-every and --curvature-every, "
                "which measure the loss of the next token."
            )
        for sample in self.samples:
            if sample.tokens > self.model.context:
                raise ArgumentError(
                    f"--curvature-tokens: {sample.tokens} are longer than the context of "
                    f"{self.model.context}; ask for fewer."
                )

    @property
    def samples(self) -> list[CurvatureSettings]:
        """List the fixed batches that something is measured on."""
        observed = self.observation.sample if self.observation.needs_batch else None
        return [sample for sample in (self.curvature, observed) if sample]


@dataclass(frozen=True, kw_only=True)
class RunSettings(SharedSettings):
    """One training run."""

    preset: str
    """Name of the block."""
    seed: field_marks.Seed = 0
    """Random seed of weights and data order."""


@dataclass(frozen=True, kw_only=True)
class ComparisonSettings(SharedSettings):
    """What is compared, and how."""

    presets: Sequence[str]
    """Names of the blocks, each once."""
    seeds: Sequence[int] = (0,)
    """Each block is trained once with each."""
    match: Annotated[str, field_marks.OneOf(MATCHES)] = "steps"
    """What every block gets as much of as the first; --steps are those of the first."""
    curvature: CurvatureSettings = field(default_factory=CurvatureSettings)
    """Curvature of every model before and after training."""
    tune: bool = False
    """Whether each block's best rate is searched first."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        super().__post_init__()
        for name, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                got = ", ".join(map(str, values)) or "none"
                raise ArgumentError(f"--{name}: expected one or more, each once, got {got}.")

    def runs(
        self, steps: Mapping[str, int] | None = None, rates: Mapping[str, float] | None = None
    ) -> list[RunSettings]:
        """List every run, seed by seed.

        Args:
            steps: steps of each preset; those of the settings by default.
            rates: learning rate of each preset; that of the settings by default.

        Returns:
            The settings of each run, in the order in which they are carried out.
        """
        shared = {one.name: getattr(self, one.name) for one in fields(SharedSettings)}
        usual = self.training
        own = {
            preset: replace(
                usual,
                steps=(steps or {}).get(preset, usual.steps),
                learning_rate=(rates or {}).get(preset, usual.learning_rate),
            )
            for preset in self.presets
        }
        return [
            RunSettings(preset=preset, seed=seed, **shared | {"training": training})
            for seed in self.seeds
            for preset, training in own.items()
        ]
