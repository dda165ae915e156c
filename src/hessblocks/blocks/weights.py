"""The weight slot: what stands in the place of a query, key, value, projection or MLP matrix.

Letters follow torch: a weight is stored (outputs, inputs) and applied as x @ weight.T.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks.parts import Part, check_choice, check_finite
from hessblocks.errors import ArgumentError

INITIALISATIONS = ("normal", "zeros", "identity", "orthogonal")


@dataclass(frozen=True, kw_only=True)
class Weight(Part, abc.ABC):
    """What maps (..., inputs) to (..., outputs)."""

    @abc.abstractmethod
    def build(self, inputs: int, outputs: int) -> nn.Module:
        """The module; raises `ArgumentError` where the sizes do not allow it."""


@dataclass(frozen=True, kw_only=True)
class Dense(Weight, kind="dense"):
    """A trainable matrix."""

    init: str = "normal"
    """Initial value: normal, zeros, identity or orthogonal."""
    std: float = 0.02
    """Standard deviation of the entries of a normal initial value."""
    bias: bool = False
    """Whether a trainable shift, initially zero, is added."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice(self, "init", INITIALISATIONS)
        check_finite(self, "std")

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """A `torch.nn.Linear` with this initial value."""
        _check_square(self.kind, self.init, inputs, outputs)
        return DenseLinear(self, inputs, outputs)


@dataclass(frozen=True, kw_only=True)
class Identity(Weight, kind="identity"):
    """No matrix: the input itself."""

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """A `torch.nn.Identity`."""
        _check_square(self.kind, "identity", inputs, outputs)
        return nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Reparametrised(Weight, kind="reparametrised"):
    """α W_init + β ΔW: W_init fixed, ΔW trainable from zero (He & Hofmann, section 4.2, eq. 6)."""

    init: str = "orthogonal"
    """W_init: normal, identity or orthogonal."""
    std: float = 0.02
    """Standard deviation of the entries of a normal W_init."""
    initial_gain: float = 1.0
    """α, the gain of W_init."""
    update_gain: float = 1.0
    """β, the gain of ΔW."""
    trainable_gains: bool = False
    """Whether α and β are trained."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice(self, "init", ("normal", "identity", "orthogonal"))
        check_finite(self, "std", "initial_gain", "update_gain")

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """A `ReparametrisedLinear`."""
        _check_square(self.kind, self.init, inputs, outputs)
        return ReparametrisedLinear(self, inputs, outputs)


class DenseLinear(nn.Linear):
    """A `torch.nn.Linear` that knows its initial value."""

    def __init__(self, part: Dense, inputs: int, outputs: int) -> None:
        self._part = part
        super().__init__(inputs, outputs, bias=part.bias)

    def reset_parameters(self) -> None:
        """Set the initial value again."""
        initialise(self.weight, self._part.init, self._part.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ReparametrisedLinear(nn.Module):
    """x @ (α W_init + β ΔW).T; W_init is a buffer, so it is saved, loaded and moved with the model.

    An identity W_init is not stored: α x is added instead.
    """

    initial: Tensor | None

    def __init__(self, part: Reparametrised, inputs: int, outputs: int) -> None:
        super().__init__()
        self._part = part
        self.update = nn.Parameter(torch.empty(outputs, inputs))
        stored = None if part.init == "identity" else torch.empty(outputs, inputs)
        self.register_buffer("initial", stored)
        self.initial_gain: Tensor | float = part.initial_gain
        self.update_gain: Tensor | float = part.update_gain
        if part.trainable_gains:
            self.initial_gain = nn.Parameter(torch.empty(()))
            self.update_gain = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W_init, set ΔW to zero and the gains to their configured values."""
        nn.init.zeros_(self.update)
        if self.initial is not None:
            initialise(self.initial, self._part.init, self._part.std)
        if isinstance(self.initial_gain, Tensor) and isinstance(self.update_gain, Tensor):
            nn.init.constant_(self.initial_gain, self._part.initial_gain)
            nn.init.constant_(self.update_gain, self._part.update_gain)

    def effective_weight(self) -> Tensor:
        """α W_init + β ΔW, (outputs, inputs)."""
        initial = (
            torch.eye(self.update.shape[0], dtype=self.update.dtype, device=self.update.device)
            if self.initial is None
            else self.initial
        )
        return self.initial_gain * initial + self.update_gain * self.update

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (..., inputs)."""
        if self.initial is None:
            return self.initial_gain * x + F.linear(x, self.update_gain * self.update)
        return F.linear(x, self.effective_weight())


def initialise(weight: Tensor, init: str, std: float) -> None:
    """Fill a matrix in place; through `torch.nn.init`, which leaves loaded values alone."""
    if init == "normal":
        nn.init.normal_(weight, std=std)
    elif init == "zeros":
        nn.init.zeros_(weight)
    elif init == "identity":
        nn.init.eye_(weight)
    else:
        nn.init.orthogonal_(weight)


def _check_square(kind: str, init: str, inputs: int, outputs: int) -> None:
    if init == "identity" and inputs != outputs:
        raise ArgumentError(
            f"{kind}: an identity needs as many outputs as inputs, got {inputs} inputs and {outputs} outputs"
            " (grouped queries cannot have identity values)"
        )
