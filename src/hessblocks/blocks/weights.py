"""Weight slot: a matrix of query, key, value, projection or MLP, or its replacement.

As in torch, a weight has the shape (outputs, inputs) and is applied as x @ weight.T.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks.gains import scalar
from hessblocks.blocks.parts import BlockPart, above_zero, finite, one_of
from hessblocks.errors import ArgumentError

TIED = "tied-orthogonal"
"""Initial value of a projection that inverts the values: W_P = W_Vᵀ with orthogonal W_V."""

FAN_IN, GAIN = "fan-in", 0.32
"""Name and default gain of the standard deviation gain / sqrt(inputs); 0.02 for 256 inputs."""

FIXED = 0.02
"""Standard deviation of GPT-2's matrices and embeddings, chosen for width 768."""

SQUARE = ("identity", TIED)
"""Initial values that require as many outputs as inputs."""


@dataclass(frozen=True, kw_only=True)
class Weight(BlockPart, abc.ABC):
    """Weight slot: a map from (..., inputs) to (..., outputs)."""

    @property
    @abc.abstractmethod
    def initial(self) -> str:
        """Name of the initial value, one of the choices of `Dense.init`."""

    @property
    def square(self) -> bool:
        """Whether there must be as many outputs as inputs."""
        return self.initial in SQUARE

    @abc.abstractmethod
    def build(self, inputs: int, outputs: int) -> nn.Module:
        """Build the module; raise `ArgumentError` if the initial value does not fit the sizes."""

    def _check_sizes(self, inputs: int, outputs: int) -> None:
        if self.square and inputs != outputs:
            raise ArgumentError(
                f"{self.kind}: initial value {self.initial!r} needs as many outputs as inputs, "
                f"got {inputs} inputs and {outputs} outputs"
            )


@dataclass(frozen=True, kw_only=True)
class Dense(Weight, kind="dense"):
    """Dense weight: a trainable matrix."""

    init: str = one_of("normal", "zeros", "identity", "orthogonal", TIED)
    """Initial value: normal, zeros, identity, orthogonal or (projections only) tied-orthogonal."""
    std: float | str = above_zero(FAN_IN)
    """Standard deviation of normal initial entries; fan-in means gain / sqrt(inputs)."""
    gain: float = above_zero(GAIN)
    """Gain of the standard deviation fan-in."""
    bias: bool = False
    """Whether a trainable bias, initially zero, is added."""

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.std != FAN_IN and self.gain != GAIN:
            raise ArgumentError(
                f"dense: gain={self.gain:g} and std={self.std:g} exclude each other: a gain scales "
                "std='fan-in'; leave one of them out"
            )

    @property
    def initial(self) -> str:
        """Name of the initial value."""
        return self.init

    def build(self, inputs: int, outputs: int) -> DenseLinear:
        """Build a `torch.nn.Linear` with this initial value."""
        self._check_sizes(inputs, outputs)
        return DenseLinear(self, inputs, outputs)


@dataclass(frozen=True, kw_only=True)
class Identity(Weight, kind="identity"):
    """Identity map instead of a weight matrix: the output is the input."""

    initial: ClassVar[str] = "identity"
    """Name of the initial value, the identity, which training does not change."""

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """Build a `torch.nn.Identity`."""
        self._check_sizes(inputs, outputs)
        return nn.Identity()


@dataclass(frozen=True, kw_only=True)
class Shared(Weight, kind="shared"):
    """Shared weight: a later layer uses the weight of the first layer."""

    initial: ClassVar[str] = "normal"
    """Always normal, since the initial value of the first layer is not known here."""

    def build(self, inputs: int, outputs: int) -> SharedLinear:
        """Build a `SharedLinear`; the model connects it to the first layer."""
        return SharedLinear(inputs, outputs)


@dataclass(frozen=True, kw_only=True)
class Reparametrised(Weight, kind="reparametrised"):
    """Reparametrised weight α W_init + β ΔW, at first ΔW = 0 (He & Hofmann, section 4.2, eq. 6)."""

    init: str = one_of("normal", "identity", "orthogonal", TIED, default="orthogonal")
    """W_init: normal, identity, orthogonal or (projections only) tied-orthogonal."""
    std: float | None = above_zero(None)
    """Standard deviation of the entries of a normal W_init; None means 1 / sqrt(inputs)."""
    initial_gain: float = finite(1.0)
    """α, the gain of W_init."""
    update_gain: float = finite(1.0)
    """β, the gain of ΔW."""
    trainable_gains: bool = False
    """Whether α and β are trained."""

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.update_gain == 0:
            raise ArgumentError(
                "reparametrised: update_gain: 0 would keep the update without effect; "
                "give it another value, or use identity() where nothing is to be trained"
            )

    @property
    def initial(self) -> str:
        """Name of the initial value α W_init: zeros if α = 0, otherwise `init`."""
        return self.init if self.initial_gain else "zeros"

    @property
    def square(self) -> bool:
        """Whether W_init must be square."""
        return self.init in SQUARE

    def build(self, inputs: int, outputs: int) -> ReparametrisedLinear:
        """Build a `ReparametrisedLinear`."""
        self._check_sizes(inputs, outputs)
        return ReparametrisedLinear(self, inputs, outputs)


def _orthogonal(weight: Tensor) -> None:
    """Fill a matrix with a random orthogonal matrix: Q of normal entries in float64, rounded.

    The random draws are those of `nn.init.orthogonal_`. In float32 the digits of a QR
    decomposition depend on the processor; rounded from float64 they do not.
    """
    # transformers sets `_is_hf_initialized` on loaded weights
    if weight.is_meta or getattr(weight, "_is_hf_initialized", False):
        return
    dtype = torch.promote_types(weight.dtype, torch.float32)
    drawn = torch.empty_like(weight, dtype=dtype).normal_()
    wide = drawn.double()
    wide = wide if len(wide) >= len(wide.T) else wide.T
    q, r = torch.linalg.qr(wide)
    q = q * r.diagonal().sign()
    with torch.no_grad():
        weight.copy_(q if q.shape == weight.shape else q.T)


class Tied:
    """Mixin for layers that may start as the transpose of a source layer's initial weight."""

    _source: tuple[Any, ...] = ()  # in a tuple, so that it does not become a submodule

    def tie_to(self, source: nn.Module) -> None:
        """Copy the initial weight of `source`, transposed, now and at each later reset."""
        self._source = (source,)
        self.reset_parameters()

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Set the initial value again."""

    def _initialise(self, weight: Tensor, init: str, std: float) -> None:
        """Fill a matrix in place by `torch.nn.init`, which does not change loaded values.

        A tied initial value is orthogonal until `tie_to` sets its source.
        """
        if init == "normal":
            nn.init.normal_(weight, std=std)
        elif init == "zeros":
            nn.init.zeros_(weight)
        elif init == "identity":
            nn.init.eye_(weight)
        else:
            _orthogonal(weight)
        if self._source:
            with torch.no_grad():
                weight.copy_(self._source[0].initial_weight.T)


class DenseLinear(nn.Linear, Tied):
    """`torch.nn.Linear` with a configured initial value."""

    def __init__(self, part: Dense, inputs: int, outputs: int) -> None:
        self._part = part
        super().__init__(inputs, outputs, bias=part.bias)

    def reset_parameters(self) -> None:
        """Set the initial value again."""
        part = self._part
        std = part.gain * self.in_features**-0.5 if part.std == FAN_IN else float(part.std)
        self._initialise(self.weight, part.init, std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def initial_weight(self) -> Float[Tensor, "outputs inputs"]:
        """Matrix that `reset_parameters` sets to the initial value."""
        return self.weight


class SharedLinear(nn.Module):
    """Linear layer without parameters that applies the weight of another layer."""

    _source: tuple[Any, ...] = ()  # in a tuple, so that it does not become a submodule

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shape = (outputs, inputs)

    @property
    def source(self) -> nn.Linear:
        """Layer that owns the weight."""
        layer: nn.Linear = self._source[0]
        return layer

    def share(self, source: nn.Module | None) -> None:
        """Use the weight of `source`.

        Raises:
            ArgumentError: `source` is not a `torch.nn.Linear` of the same sizes.
        """
        if not isinstance(source, nn.Linear) or source.weight.shape != self.shape:
            raise ArgumentError(
                f"shared: the first layer has no weight of shape {self.shape} to share; leave it "
                "dense there"
            )
        self._source = (source,)

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        """Apply to (..., inputs)."""
        return F.linear(x, self.source.weight, self.source.bias)


class ReparametrisedLinear(nn.Module, Tied):
    """Reparametrised linear layer x @ (α W_init + β ΔW).T.

    W_init is a buffer, so it is saved, loaded and moved with the model.

    An identity W_init is not stored: α x is added instead.
    """

    initial: Float[Tensor, "outputs inputs"] | None

    def __init__(self, part: Reparametrised, inputs: int, outputs: int) -> None:
        super().__init__()
        self._part = part
        self.update = nn.Parameter(torch.empty(outputs, inputs))
        stored = None if part.init == "identity" else torch.empty(outputs, inputs)
        self.register_buffer("initial", stored)
        self.initial_gain = scalar(part.initial_gain, part.trainable_gains)
        self.update_gain = scalar(part.update_gain, part.trainable_gains)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W_init, set ΔW to zero and the gains to their configured values."""
        nn.init.zeros_(self.update)
        if self.initial is not None:
            std = self._part.std or self.initial.shape[1] ** -0.5
            self._initialise(self.initial, self._part.init, std)
        if isinstance(self.initial_gain, Tensor) and isinstance(self.update_gain, Tensor):
            nn.init.constant_(self.initial_gain, self._part.initial_gain)
            nn.init.constant_(self.update_gain, self._part.update_gain)

    @property
    def initial_weight(self) -> Float[Tensor, "outputs inputs"] | None:
        """W_init; None for an identity."""
        return self.initial

    def effective_weight(self) -> Float[Tensor, "outputs inputs"]:
        """Compute α W_init + β ΔW, (outputs, inputs)."""
        initial = self.initial
        if initial is None:
            initial = torch.eye(len(self.update)).to(self.update)
        return self.initial_gain * initial + self.update_gain * self.update

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        """Apply to (..., inputs)."""
        if self.initial is None:
            return self.initial_gain * x + F.linear(x, self.update_gain * self.update)
        return F.linear(x, self.effective_weight())
