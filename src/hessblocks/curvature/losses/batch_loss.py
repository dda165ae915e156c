"""Loss of a batch as a function of its logits: value, gradient, curvature and its root.

Letters: f logits, H_ℓ = ∂²φ/∂f² the loss's curvature, N rows that count, V classes.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from jaxtyping import Float, Int, Shaped
from torch import Tensor

from hessblocks.errors import ArgumentError

Root = Callable[[Shaped[Tensor, "..."]], Float[Tensor, "..."]]
"""From signs shaped as the logits to L ε, where L Lᵀ is the loss's curvature."""


@dataclass(frozen=True, kw_only=True)
class LossDerivatives:
    """Value, gradient and curvature of a batch's share of the loss at one point."""

    total: float
    """Sum over the valid rows, times the share of one."""
    gradient: Float[Tensor, "..."]
    """∂ total / ∂ logits, shaped as the logits."""
    curvature: Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
    """u ↦ H_ℓ u for one direction shaped as the logits; may be vmapped."""


class BatchLoss(abc.ABC):
    """Loss of one batch as a function of its logits, summed over its valid rows."""

    @property
    @abc.abstractmethod
    def valid(self) -> float:
        """Count of the mean: valid tokens, labelled rows or target entries."""

    @abc.abstractmethod
    def total(self, logits: Float[Tensor, "..."]) -> float:
        """Sum the losses."""

    @abc.abstractmethod
    def derivatives(self, logits: Float[Tensor, "..."], share: float) -> LossDerivatives:
        """Compute sum, gradient and curvature at detached logits, all times `share`."""

    def root(self, logits: Float[Tensor, "..."], share: float) -> Root:
        """Return ε ↦ L ε with L Lᵀ = H_ℓ at detached logits, times the root of `share`.

        Raises:
            ArgumentError: it is not known.
        """
        raise ArgumentError(
            "loss: method='sampled' needs a root of the loss's curvature, which a callable does "
            "not tell; use a loss by name, a loss module of torch, or method='probes'"
        )


class RowLoss(BatchLoss):
    """Loss that is a sum over rows of logits, and can be cut into them."""

    @abc.abstractmethod
    def counted(self, rows: tuple[int, ...], classes: int) -> Int[Tensor, " N"]:
        """List the rows that count, of all of them in one line.

        Args:
            rows: shape of the logits without their last axis.
            classes: V.
        """

    @abc.abstractmethod
    def some(self, rows: slice | Int[Tensor, " N"]) -> Self:
        """Select the loss of some of the rows."""

    def derivatives(self, logits: Float[Tensor, "... V"], share: float) -> LossDerivatives:
        """See `BatchLoss`."""
        total = self.total(logits) * share
        gradient, curvature = self.at(logits.clone(), share)
        return LossDerivatives(
            total=total, gradient=gradient, curvature=lambda u: curvature(u.clone())
        )

    @abc.abstractmethod
    def at(
        self, logits: Float[Tensor, "... V"], share: float
    ) -> tuple[Float[Tensor, "... V"], Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]]:
        """Compute gradient and curvature alone, written over `logits` and over the directions.

        The curvature takes directions with further axes in front.
        """
