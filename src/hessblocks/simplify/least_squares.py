"""Refit a weight by least squares: normal equations in float64, accumulated over tokens.

Letters: N tokens, I inputs, K kept inputs, O outputs.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 4096
"""Tokens that are converted to float64 at a time."""
RIDGES = (1e-6, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Weights of the squared change of a weight, relative to the square of its input: from a refit that
follows the text to one that keeps the old weights."""

OUTPUTS = 64
"""Fewest outputs that a ridge is chosen by; further ones would cost time."""


class NormalEquations:
    """Normal equations: XᵀX, XᵀY and ‖Y‖² of all tokens so far."""

    def __init__(self) -> None:
        self.gram: Float[Tensor, "I I"] | None = None
        self.cross: Float[Tensor, "I O"] | None = None
        self.square = 0.0

    def add(self, x: Float[Tensor, "N I"], y: Float[Tensor, "N O"]) -> NormalEquations:
        """Add tokens.

        Args:
            x: inputs of the weight.
            y: wanted outputs.

        Returns:
            Itself.
        """
        for some, wanted in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            wide, target = some.double(), wanted.double()
            if self.gram is None or self.cross is None:
                self.gram = wide.new_zeros(wide.shape[1], wide.shape[1])
                self.cross = wide.new_zeros(wide.shape[1], target.shape[1])
            self.gram += wide.T @ wide
            self.cross += wide.T @ target
            self.square += float(target.square().sum())
        return self

    def solve(
        self,
        old: Float[Tensor, "K O"],
        kept: Int[Tensor, " K"] | None = None,
        ridge: float = RIDGES[0],
    ) -> Float[Tensor, "K O"]:
        """Minimise ‖X W − Y‖² + λ Σ_i ‖x_i‖² ‖w_i − w⁰_i‖², over inputs i.

        Args:
            old: W₀, on the kept inputs.
            kept: indices of the kept inputs; None: all.
            ridge: λ; 0 is plain least squares, which needs as many tokens as inputs.

        Returns:
            W, in float64.

        Raises:
            RuntimeError: there is no ridge, and the inputs are linearly dependent.

        Cost: I³ / 3 multiplications.
        """
        gram, cross = self._on(kept)
        size = gram.diagonal()
        # an input that is zero on the text keeps its old weight
        floor = RIDGES[0] * size.mean().clamp(min=torch.finfo(gram.dtype).tiny)
        damped = gram + ridge * torch.diag(size.clamp(min=floor))
        start = old.double()
        return start + torch.cholesky_solve(cross - gram @ start, torch.linalg.cholesky(damped))

    def error(self, weight: Float[Tensor, "K O"], kept: Int[Tensor, " K"] | None = None) -> float:
        """Compute ‖X W − Y‖² / ‖Y‖², or ‖X W‖² if Y = 0."""
        gram, cross = self._on(kept)
        wide = weight.double()
        missed = (wide * (gram @ wide)).sum() - 2 * (wide * cross).sum() + self.square
        return float(missed) / (self.square or 1.0)

    def of_outputs(self, some: slice) -> NormalEquations:
        """Return the equations of some outputs; ‖Y‖² stays that of all."""
        part = copy.copy(self)
        assert self.cross is not None
        part.cross = self.cross[:, some]
        return part

    def __add__(self, other: NormalEquations) -> NormalEquations:
        """Combine the tokens of both."""
        both = copy.copy(self)
        (gram, cross), (more, also) = self._on(None), other._on(None)
        both.gram, both.cross = gram + more, cross + also
        both.square = self.square + other.square
        return both

    def _on(self, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.gram is not None
        assert self.cross is not None
        if kept is None:
            return self.gram, self.cross
        return self.gram[kept][:, kept], self.cross[kept]


class Refit:
    """Least squares with the ridge of `RIDGES` that predicts unseen tokens best.

    Each ridge is fitted on one half of the tokens and tested on the other, both ways. The final fit
    uses all tokens, with half the ridge, since it is relative to twice the tokens.
    """

    def __init__(
        self,
        x: Float[Tensor, "N I"],
        y: Float[Tensor, "N O"],
        weight: Float[Tensor, " N"] | None = None,
    ) -> None:
        half = len(x) // 2
        if weight is not None:
            root = weight.sqrt()[:, None]
            x, y = root * x, root * y
        self._halves = [
            NormalEquations().add(some, wanted)
            for some, wanted in ((x[:half], y[:half]), (x[half:], y[half:]))
        ]
        self.whole = self._halves[0] + self._halves[1]
        """Normal equations of all tokens."""

    def solve(
        self, old: Float[Tensor, "K O"], kept: Int[Tensor, " K"] | None = None
    ) -> Float[Tensor, "K O"]:
        """Solve as `NormalEquations.solve`, with the ridge that is best on unseen tokens."""
        some = slice(None, None, max(1, old.shape[1] // OUTPUTS))  # all have the same inputs
        one, other = (half.of_outputs(some) for half in self._halves)

        def missed(ridge: float) -> float:
            pairs = ((one, other), (other, one))
            return sum(b.error(a.solve(old[:, some], kept, ridge), kept) for a, b in pairs)

        return self.whole.solve(old, kept, min(RIDGES, key=missed) / 2)
