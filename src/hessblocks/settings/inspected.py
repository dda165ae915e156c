"""Choose how a model is looked at: on which tokens, at which sizes, and what is measured."""

from dataclasses import dataclass
from typing import Annotated

from hessblocks.conventions import PARTS, Part
from hessblocks.errors import ArgumentError, check_name
from hessblocks.settings.field_marks import OneOf, Seed, above_0, at_least
from hessblocks.settings.run_settings import STARTS, BlockSizes


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(BlockSizes):
    """Held-out tokens that a model is looked at with.

    Sizes and vocabulary are for presets.
    """

    start: Annotated[str, OneOf(STARTS)] = "scaled"
    """How a preset's weights are drawn: scaled by the widths, or fixed (0.02 each)."""
    vocab_size: int = 4096
    """Entries of the vocabulary learnt from the data."""
    data: str = "python-code"
    """Held-out text: python-code (Python's own library), a file or folder, or random tokens."""
    sequences: Annotated[int, at_least(1)] = 8
    """Held-out sequences."""
    tokens: Annotated[int, at_least(2)] = 32
    """Tokens of each sequence, 2 or more."""
    seed: Seed = 0
    """Random seed of a preset's weights and the windows."""


@dataclass(frozen=True, kw_only=True)
class CurvatureInspection(InspectionSettings):
    """What is measured of the curvature of a model."""

    seed: Seed = 0
    """Random seed of a preset's weights, the windows and the probes."""
    groups: tuple[str, ...] = ("*",)
    """Patterns of group names with commas, such as '*.attention.query'."""
    level: Annotated[str, OneOf(("role", "head", "expert", "tensor"))] = "role"
    """How finely parameters are grouped: role, head, expert or tensor."""
    parts: tuple[Part, ...] = PARTS
    """Parts of the Hessian with commas: outer, functional, full."""
    probes: Annotated[int, at_least(4)] = 16
    """Random vectors per group, 4 or more; four times as many sampled gradients stand for them."""
    method: Annotated[str, OneOf(("auto", "probes", "sampled"))] = "auto"
    """Norms and map by probes, by sampled gradients (--parts outer), or by what is cheaper."""
    budget: Annotated[float | None, above_0("minutes")] = None
    """Minutes for all that is asked, in the place of --probes; 5 where nothing is asked."""
    eigenvalues: Annotated[int | None, at_least(0)] = None
    """Largest eigenvalues of H of all groups as one; by default 3 where the budget allows them."""
    spectrum: bool = False
    """Density of the eigenvalues of all groups as one."""
    each_group: bool = False
    """Eigenvalues and spectrum of each group's own block instead."""
    map: bool = False
    """Norms of all blocks between two groups."""
    loss: Annotated[str, OneOf(("causal-lm", "masked-lm", "classification"))] = "causal-lm"
    """Loss: causal-lm, masked-lm (of 15 % of the tokens), or, from Python, classification."""
    memory_limit: Annotated[float | None, above_0("gigabytes (GB)")] = None
    """Gigabytes besides model and data, by default 45 % of what is free; less is slower."""

    def __post_init__(self) -> None:
        """Check ranges and parts, and put the parts into their order."""
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
        """Tell whether no quantity is asked for, so that the budget chooses."""
        names = ("parts", "map", "probes", "method")
        return all(getattr(self, name) == getattr(CurvatureInspection, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class SignalInspection(InspectionSettings):
    """What is measured of the signal through the layers of a model."""

    depth: Annotated[int, at_least(1)] = 16
    sequences: Annotated[int, at_least(1)] = 4
    jacobian_steps: Annotated[int, at_least(0)] = 8
    """Products with each layer's Jacobian for its condition number; 0: none."""
