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
RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 100.0)
"""Weights of ‖W − W₀‖², relative to the mean square of the inputs: from a refit that follows the
text to one that keeps the old weights."""


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
        """Minimise ‖X W − Y‖² + λ ‖W − W₀‖², with λ = `ridge` · mean of the diagonal of XᵀX.

        Args:
            old: W₀, on the kept inputs.
            kept: indices of the kept inputs; None: all.
            ridge: relative weight; 0 is plain least squares, which needs as many tokens as inputs.

        Returns:
            W, in float64.

        Raises:
            RuntimeError: there is no ridge, and the inputs are linearly dependent.

        Cost: I³ / 3 multiplications.
        """
        gram, cross = self._on(kept)
        scale = ridge * gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        damped = gram + scale * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        start = old.double()
        return start + torch.cholesky_solve(cross - gram @ start, torch.linalg.cholesky(damped))

    def error(self, weight: Float[Tensor, "K O"], kept: Int[Tensor, " K"] | None = None) -> float:
        """Compute ‖X W − Y‖² / ‖Y‖², or ‖X W‖² if Y = 0."""
        gram, cross = self._on(kept)
        wide = weight.double()
        missed = (wide * (gram @ wide)).sum() - 2 * (wide * cross).sum() + self.square
        return float(missed) / (self.square or 1.0)

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
    uses all tokens.
    """

    def __init__(self, x: Float[Tensor, "N I"], y: Float[Tensor, "N O"]) -> None:
        half = len(x) // 2
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

        def missed(ridge: float) -> float:
            one, other = self._halves
            pairs = ((one, other), (other, one))
            return sum(b.error(a.solve(old, kept, ridge), kept) for a, b in pairs)

        return self.whole.solve(old, kept, min(RIDGES, key=missed))
