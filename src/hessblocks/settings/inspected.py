"""Settings of `hessblocks curvature` and `signal`: tokens, sizes, and quantities to measure."""

from dataclasses import dataclass
from typing import Annotated

from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, check_name
from hessblocks.settings.field_marks import OneOf, Seed, above_0, at_least
from hessblocks.settings.run_settings import STARTS, BlockSizes


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(BlockSizes):
    """Held-out tokens to measure a model on.

    Sizes and vocabulary are only for presets.
    """

    start: Annotated[str, OneOf(STARTS)] = "scaled"
    """Initialisation of a preset: scaled by the widths, or fixed (standard deviation 0.02)."""
    vocab_size: int = 4096
    """Size of the vocabulary learnt from the data."""
    data: str = "python-code"
    """Held-out text: python-code (the standard library), a file or folder, or random (tokens)."""
    sequences: Annotated[int, at_least(1)] = 8
    """Number of held-out sequences."""
    tokens: Annotated[int, at_least(2)] = 32
    """Tokens per sequence, 2 or more."""
    bare: bool = False
    """Leave out what the tokenizer puts first in each window, such as <bos>."""
    seed: Seed = 0
    """Random seed of a preset's weights and of the windows."""


@dataclass(frozen=True, kw_only=True)
class CurvatureInspection(InspectionSettings):
    """Curvature to measure."""

    seed: Seed = 0
    """Random seed of a preset's weights, of the windows and of the probes."""
    groups: tuple[str, ...] = ("*",)
    """Patterns of group names, with commas, such as '*.attention.query'."""
    level: Annotated[str, OneOf(("role", "head", "expert", "tensor"))] = "role"
    """Granularity of the parameter groups: role, head, expert or tensor."""
    parts: tuple[Part, ...] = PARTS
    """Parts of the Hessian, with commas: outer (Gauss-Newton), functional, full."""
    probes: Annotated[int, at_least(4)] = 16
    """Random vectors per group, 4 or more; --method sampled takes four times as many gradients."""
    method: Annotated[str, OneOf(("auto", "probes", "sampled"))] = "auto"
    """Estimate norms and map by probes, sampled gradients (--parts outer), or the cheaper."""
    eigenvalues: Annotated[int | None, at_least(0)] = None
    """Number of largest eigenvalues of H, all groups together; by default 3."""
    spectrum: bool = False
    """Measure the spectral density, all groups together."""
    each_group: bool = False
    """Measure eigenvalues and spectrum of each group's diagonal block instead."""
    map: bool = False
    """Measure the norms of the blocks of all pairs of groups."""
    loss: Annotated[str, OneOf(("causal-lm", "masked-lm", "classification"))] = "causal-lm"
    """Loss: causal-lm, masked-lm (of 15 % of the tokens), or classification (only in Python)."""
    memory_limit: Annotated[float | None, above_0("gigabytes (GB)")] = None
    """Gigabytes besides model and data; by default 45 % of the free memory; less is slower."""

    def __post_init__(self) -> None:
        """Check ranges and parts, and sort the parts."""
        super().__post_init__()
        for part in self.parts:
            check_name("--parts", part, PARTS)
        if not self.parts:
            raise ArgumentError(f"--parts: expected one or more of {', '.join(PARTS)}, got none.")
        if self.method == "sampled" and self.parts != ("outer",):
            raise ArgumentError(
                "--method: sampled measures the outer part alone; add --parts outer."
            )
        if not self.groups:
            raise ArgumentError("--groups: expected patterns with commas, got none.")
        ordered = tuple(part for part in PARTS if part in self.parts)
        object.__setattr__(self, "parts", ordered)

    @property
    def chooses(self) -> bool:
        """True if no quantity is set, so that the size of the model decides."""
        names = ("parts", "map", "probes", "method")
        return all(getattr(self, name) == getattr(CurvatureInspection, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class SignalInspection(InspectionSettings):
    """Signal propagation to measure."""

    depth: Annotated[int, at_least(1)] = 16
    sequences: Annotated[int, at_least(1)] = 4
    jacobian_steps: Annotated[int, at_least(0)] = 8
    """Products with each layer's Jacobian, for its condition number; 0: none."""
