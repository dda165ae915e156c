"""Refit a weight by least squares: normal equations in float64, accumulated over tokens.

Letters: N tokens, I inputs, K of them that are kept, O outputs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 4096
"""Tokens that are widened to float64 together."""
RIDGE = 1e-6
"""Weight of ‖W − W₀‖² beside the mean square of the inputs: directions that the text does not show
keep their old weights."""


class NormalEquations:
    """XᵀX, XᵀY and ‖Y‖² of all tokens so far."""

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
        ridge: float = RIDGE,
    ) -> Float[Tensor, "K O"]:
        """Minimise ‖X W − Y‖² + λ ‖W − W₀‖², λ = `ridge` times the mean of the diagonal of XᵀX.

        Args:
            old: W₀, on the inputs that are kept.
            kept: inputs that may be used; None: all.
            ridge: 0 for plain least squares, which needs as many tokens as inputs.

        Returns:
            W, in float64.

        Raises:
            RuntimeError: without a ridge, inputs that depend on each other.

        Cost: I³ / 3 multiplications.
        """
        gram, cross = self._on(kept)
        scale = ridge * gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        damped = gram + scale * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        start = old.double()
        return start + torch.cholesky_solve(cross - gram @ start, torch.linalg.cholesky(damped))

    def error(self, weight: Float[Tensor, "K O"], kept: Int[Tensor, " K"] | None = None) -> float:
        """Compute ‖X W − Y‖² / ‖Y‖²."""
        gram, cross = self._on(kept)
        wide = weight.double()
        missed = (wide * (gram @ wide)).sum() - 2 * (wide * cross).sum() + self.square
        return float(missed) / self.square

    def _on(self, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.gram is not None
        assert self.cross is not None
        if kept is None:
            return self.gram, self.cross
        return self.gram[kept][:, kept], self.cross[kept]
