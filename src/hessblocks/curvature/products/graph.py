"""Products of H, H_o and H_f with blocks of vectors, one pass at a time.

Letters: f logits, r = ∂ℓ/∂f, J = ∂f/∂θ, z a vector in parameter space, u = J z, K vectors together.

The graph of the pullback g(θ, r) = J(θ)ᵀ r is built once, and each product replays it backwards.

- H: with r(θ) part of the graph, ∂⟨g, z⟩/∂θ = H z.
- H_f and H_o: with r held fixed, the same replay gives ∂⟨g, z⟩/∂θ = H_f z and ∂⟨g, z⟩/∂r = J z
  together; then H_o z = Jᵀ H_ℓ (J z). Neither is ever formed by subtraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hessblocks.conventions import Part
from hessblocks.curvature.products.batches import Batch
from hessblocks.curvature.products.losses import LossDerivatives
from hessblocks.curvature.products.problem import Problem

Tensors = dict[str, Float[Tensor, "K ..."] | None]
"""By parameter name, (K, *shape); None stands for zeros."""


class BatchGraph:
    """The differentiated loss of one pass, kept so that products only replay it."""

    def __init__(
        self, problem: Problem, batch: Batch, names: Sequence[str], *, split: bool = True
    ) -> None:
        """Run the model forwards and backwards once.

        Args:
            problem: the function.
            batch: one of the problem's passes.
            names: parameters that products may involve; the graph ends at them, so the layers
                below the lowest are never passed again.
            split: whether H_o and H_f will be asked for, which need r held fixed.
        """
        parameters = problem.parameters
        self._backward = problem.backward
        self._leaves = {name: parameters[name].requires_grad_() for name in names}
        with torch.enable_grad():
            logits, loss = problem.forward(batch, parameters | self._leaves)
            self._loss = loss.derivatives(logits.detach(), 1 / problem.valid)
            problem.check_finite(self._loss.total, batch)
            self._residual = self._residual_of(logits, split=split)
            self._pullback = self._pull_back_residual(logits)
        self._logits = get_gradient_edge(logits) if logits.requires_grad else None
        self.together = problem.plan.together

    def _residual_of(self, logits: Tensor, *, split: bool) -> Tensor:
        if split:
            return self._loss.gradient.requires_grad_()
        attached: Tensor = _Residual.apply(logits, self._loss)
        return attached

    def _pull_back_residual(self, logits: Tensor) -> dict[str, GradientEdge]:
        """Where the graph of each parameter's Jᵀ r ends; the values themselves are not kept."""
        if not logits.requires_grad:
            return {}
        leaves = list(self._leaves.values())
        with self._backward():
            pulled = torch.autograd.grad(
                logits, leaves, self._residual, create_graph=True, allow_unused=True
            )
        return {
            name: get_gradient_edge(value)
            for name, value in zip(self._leaves, pulled, strict=True)
            if value is not None and value.requires_grad
        }

    @property
    def parameters(self) -> Mapping[str, Float[Tensor, "..."]]:
        """The parameters at which the graph ends."""
        return self._leaves

    def full(self, vectors: Mapping[str, Float[Tensor, "K ..."]], rows: Sequence[str]) -> Tensors:
        """This pass's share of H z; for a graph made with `split=False`.

        Args:
            vectors: z by parameter name, (K, *shape) each; parameters left out are zero.
            rows: names of the parameters whose rows are wanted.

        Returns:
            By parameter name, (K, *shape).
        """
        return self._replay(vectors, [self._leaves[name] for name in rows], rows)

    def split(
        self,
        vectors: Mapping[str, Float[Tensor, "K ..."]],
        rows: Sequence[str],
        parts: Sequence[Part],
    ) -> dict[Part, Tensors]:
        """This pass's share of the parts' products; for a graph made with `split=True`.

        Args:
            vectors: as in `full`.
            rows: as in `full`.
            parts: which of H_o, H_f and H.

        Returns:
            By part and parameter name, (K, *shape).
        """
        wanted = rows if "functional" in parts or "full" in parts else ()
        leaves = [*(self._leaves[name] for name in wanted), self._residual]
        functional = self._replay(vectors, leaves, [*wanted, _PUSHED])
        pushed = functional.pop(_PUSHED)
        found: dict[Part, Tensors] = {"functional": functional}
        if "outer" in parts or "full" in parts:
            found["outer"] = self._pull_back_curvature(pushed, rows)
        if "full" in parts:
            found["full"] = {name: _add(found["outer"][name], functional[name]) for name in rows}
        return {part: found[part] for part in parts}

    def _replay(
        self, vectors: Mapping[str, Tensor], inputs: Sequence[Tensor], names: Sequence[str]
    ) -> Tensors:
        """∂⟨g, z⟩ / ∂ inputs, under the given names."""
        pulled = {name: self._pullback[name] for name in vectors if name in self._pullback}
        if not pulled:
            return dict.fromkeys(names)
        with self._backward():
            found = _gradients(list(pulled.values()), inputs, [vectors[name] for name in pulled])
        return dict(zip(names, found, strict=True))

    def _pull_back_curvature(self, pushed: Tensor | None, rows: Sequence[str]) -> Tensors:
        """Jᵀ H_ℓ u."""
        if pushed is None:
            return dict.fromkeys(rows)
        curvature = self._loss.curvature
        curved = curvature(pushed[0])[None] if len(pushed) == 1 else torch.vmap(curvature)(pushed)
        leaves = [self._leaves[name] for name in rows]
        with self._backward():
            pulled = _gradients([self._logits], leaves, [curved])
        return dict(zip(rows, pulled, strict=True))


_PUSHED = "J z"


class _Residual(torch.autograd.Function):
    """r = ∂ℓ/∂f as a node of the graph, whose own derivative is the loss's curvature."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: LossDerivatives) -> Tensor:
        ctx.loss = loss
        return loss.gradient.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor, None]:
        return ctx.loss.curvature(directions[0]), None


def _gradients(
    outputs: Sequence[Any], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    """Vector-Jacobian products for (K, ...) cotangents; one vector goes without vmap, which is faster."""
    used: list[bool] = []

    def one(*cotangents: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(
            outputs, inputs, cotangents, retain_graph=True, allow_unused=True
        )
        used[:] = [value is not None for value in found]
        return [value for value in found if value is not None]

    if cotangents[0].shape[0] == 1:
        kept = [value[None] for value in one(*(cotangent[0] for cotangent in cotangents))]
    else:
        kept = torch.vmap(one)(*cotangents)
    rest = iter(kept)
    return [next(rest) if present else None for present in used]


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right
