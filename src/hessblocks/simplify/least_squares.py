"""Refit a weight by least squares: normal equations in float64.

Letters: N tokens, I inputs, K kept inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

RIDGES = (1e-6, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Weights of the squared change of a weight, relative to the square of its input: from a refit that
follows the text to one that keeps the old weights."""

OUTPUTS = 64
"""Fewest outputs that a ridge is chosen by; further ones would cost time."""


@dataclass(frozen=True, kw_only=True)
class NormalEquations:
    """Normal equations of tokens, in float64; those of all tokens are the sum of those of parts."""

    gram: Float[Tensor, "I I"]
    """XᵀX, for the inputs X."""
    cross: Float[Tensor, "I O"]
    """XᵀY, for the wanted outputs Y."""
    square: float
    """‖Y‖²."""

    @classmethod
    def of(cls, x: Float[Tensor, "N I"], y: Float[Tensor, "N O"]) -> NormalEquations:
        """Sum over tokens, for inputs x and wanted outputs y."""
        wide, wanted = x.double(), y.double()
        return cls(gram=wide.T @ wide, cross=wide.T @ wanted, square=float(wanted.square().sum()))

    def solve(
        self,
        old: Float[Tensor, "K O"],
        inputs: Int[Tensor, " K"] | None = None,
        ridge: float = RIDGES[0],
    ) -> Float[Tensor, "K O"]:
        """Minimise ‖X W − Y‖² + λ Σ_i ‖x_i‖² ‖w_i − w⁰_i‖², over inputs i.

        Args:
            old: W₀, on the kept inputs.
            inputs: indices of the kept inputs; None: all.
            ridge: λ; 0 is plain least squares, which needs as many tokens as inputs.

        Returns:
            W, in float64.

        Raises:
            RuntimeError: there is no ridge, and the inputs are linearly dependent.

        Cost: I³ / 3 multiplications.
        """
        gram, cross = self._on(inputs)
        size = gram.diagonal()
        # an input that is zero on the text keeps its old weight
        floor = RIDGES[0] * size.mean().clamp(min=torch.finfo(gram.dtype).tiny)
        damped = gram + ridge * torch.diag(size.clamp(min=floor))
        start = old.double()
        return start + torch.cholesky_solve(cross - gram @ start, torch.linalg.cholesky(damped))

    def error(self, weight: Float[Tensor, "K O"], inputs: Int[Tensor, " K"] | None = None) -> float:
        """Compute ‖X W − Y‖² / ‖Y‖², or ‖X W‖² if Y = 0."""
        gram, cross = self._on(inputs)
        wide = weight.double()
        missed = (wide * (gram @ wide)).sum() - 2 * (wide * cross).sum() + self.square
        return float(missed) / (self.square or 1.0)

    def __add__(self, other: NormalEquations) -> NormalEquations:
        """Combine the tokens of both."""
        return NormalEquations(
            gram=self.gram + other.gram,
            cross=self.cross + other.cross,
            square=self.square + other.square,
        )

    def _on(self, inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        if inputs is None:
            return self.gram, self.cross
        return self.gram[inputs][:, inputs], self.cross[inputs]


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
        self._first = NormalEquations.of(x[:half], y[:half])
        self._second = NormalEquations.of(x[half:], y[half:])
        self.whole = self._first + self._second
        """Normal equations of all tokens."""

    def solve(
        self, old: Float[Tensor, "K O"], inputs: Int[Tensor, " K"] | None = None
    ) -> Float[Tensor, "K O"]:
        """Solve as `NormalEquations.solve`, with the ridge that is best on unseen tokens."""
        outputs = slice(None, None, max(1, old.shape[1] // OUTPUTS))  # all have the same inputs
        halves = self._first, self._second  # whose ‖Y‖² stays that of all outputs
        first, second = (replace(half, cross=half.cross[:, outputs]) for half in halves)

        def missed(ridge: float) -> float:
            pairs = ((first, second), (second, first))
            return sum(b.error(a.solve(old[:, outputs], inputs, ridge), inputs) for a, b in pairs)

        return self.whole.solve(old, inputs, min(RIDGES, key=missed) / 2)
